//! Accumulation of gradients over several batches, for batches that do not fit into memory at once.

use super::DataParallel;
use crate::autograd::no_grad;
use crate::error::Result;
use crate::tensor::{Bucket, Tensor};

impl DataParallel {
    /// Like [`train_batch`](DataParallel::train_batch), but adds to the existing gradients instead of clearing them.
    ///
    /// For k equal parts of a batch, divide the loss by k in `loss_fn`. The sum is then the gradient of the whole
    /// batch's mean loss. Clear the gradients first with the optimiser's `zero_grad()`, or use `train_batch` for the
    /// first part.
    ///
    /// # Errors
    /// Same as [`train_batch`](DataParallel::train_batch). On error, all gradients are cleared, including earlier ones.
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
        let parameters = self.parameters();
        let grads = |replica: &[Tensor]| replica.iter().map(Tensor::grad).collect::<Vec<_>>();
        let before: Vec<Vec<Option<Tensor>>> = parameters.replicas().map(grads).collect();
        let loss = self.train_batch(images, labels, loss_fn)?;
        no_grad(|| before.iter().zip(parameters.replicas()).try_for_each(|(before, replica)| add(before, replica)))?;
        Ok(loss)
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
