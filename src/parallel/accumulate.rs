//! Accumulation of gradients over several batches, for batches that do not fit into memory at once.

use super::DataParallel;
use crate::autograd::no_grad;
use crate::error::Result;
use crate::nn::Module;
use crate::tensor::{Bucket, Tensor};

impl DataParallel {
    /// Like [`train_batch`](DataParallel::train_batch), but adds to the existing gradients instead of clearing them.
    ///
    /// For k equal parts of a batch, divide the loss by k in `loss_fn`. The sum is then the gradient of the whole
    /// batch's mean loss. The losses of two calls know nothing of each other, as on one device. Clear the gradients first with the optimiser's `zero_grad()`, or use `train_batch` for the
    /// first part.
    ///
    /// # Errors
    /// Same as [`train_batch`](DataParallel::train_batch), but on error, all gradients are as they were.
    ///
    /// ```
    /// use anygpu::nn::{self, Linear};
    /// use anygpu::{DataParallel, Device, Tensor, optim::SGD};
    ///
    /// let net = DataParallel::new(Linear::new(4, 2)?, &[Device::cpu()])?;
    /// let mut sgd = SGD::new(net.parameters(), 0.1);
    /// let (x, labels) = (Tensor::rand([8, 4], None)?, Tensor::from_slice(&[0u32, 1].repeat(4), 8, None)?);
    /// sgd.zero_grad();
    /// for part in 0..4 {
    ///     let (x, labels) = (x.narrow(0, 2 * part, 2)?, labels.narrow(0, 2 * part, 2)?);
    ///     net.accumulate_batch(&x, &labels, |logits, labels| nn::cross_entropy(logits, labels)?.mul(0.25))?;
    /// }
    /// sgd.step()?;
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn accumulate_batch<F>(&self, images: &Tensor, labels: &Tensor, loss_fn: F) -> Result<Tensor>
    where
        F: Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
    {
        self.accumulate(|| self.train_batch(images, labels, loss_fn))
    }

    /// Like [`step`](DataParallel::step), but adds to the existing gradients instead of clearing them.
    ///
    /// # Errors
    /// Same as [`step`](DataParallel::step), but on error, all gradients are as they were.
    ///
    /// ```
    /// use anygpu::nn::{self, Linear, Reduction};
    /// use anygpu::{DataParallel, Device, Tensor};
    ///
    /// let net = DataParallel::new(Linear::new(4, 2)?, &[Device::new("cpu/0")?, Device::new("cpu/1")?])?;
    /// let (x, y) = (Tensor::rand([8, 4], None)?, Tensor::rand([8, 2], None)?);
    /// for _ in 0..2 {
    ///     net.accumulate_step(&[&x, &y], |net, part| nn::mse_loss(&net.forward(&part[0])?, &part[1], Reduction::Mean))?;
    /// }
    /// assert!(net.parameters()[0].grad().is_some());
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn accumulate_step<F>(&self, inputs: &[&Tensor], step: F) -> Result<Tensor>
    where
        F: Fn(&dyn Module, &[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
    {
        self.accumulate(|| self.step(inputs, step))
    }

    /// Adds the gradients of a step to those that are there.
    fn accumulate(&self, step: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
        let parameters = self.parameters();
        let grads = |replica: &[Tensor]| replica.iter().map(Tensor::grad).collect::<Vec<_>>();
        let before: Vec<Vec<Option<Tensor>>> = parameters.replicas().map(grads).collect();
        let restore = || {
            for (before, replica) in before.iter().zip(parameters.replicas()) {
                before.iter().zip(replica).for_each(|(before, parameter)| parameter.set_grad(before.clone()));
            }
        };
        let added = step().and_then(|loss| {
            no_grad(|| {
                before.iter().zip(parameters.replicas()).try_for_each(|(before, replica)| add(before, replica))
            })?;
            Ok(loss)
        });
        if added.is_err() {
            restore();
        }
        added
    }
}

/// Adds gradients to those of the parameters. If both are buckets, this is one operation.
fn add(before: &[Option<Tensor>], parameters: &[Tensor]) -> Result<()> {
    let now: Vec<Option<Tensor>> = parameters.iter().map(Tensor::grad).collect();
    let bucket = |grads: &[Option<Tensor>]| Bucket::recognise(&grads.iter().cloned().collect::<Option<Vec<_>>>()?);
    if let (Some(before), Some(now)) = (bucket(before), bucket(&now)) {
        return now.with_flat(before.flat().add(now.flat())?).set_as_gradients_of(parameters);
    }
    for ((parameter, before), now) in parameters.iter().zip(before).zip(now) {
        match (before, now) {
            (Some(before), Some(now)) => parameter.set_grad(Some(before.add(&now)?)),
            (Some(before), None) => parameter.set_grad(Some(before.clone())),
            (None, _) => {}
        }
    }
    Ok(())
}
