//! Gradients of several batches together, for a batch that no device has room for at once.

use super::DataParallel;
use crate::autograd::no_grad;
use crate::error::Result;
use crate::nn::{flat_view, split_flat};
use crate::tensor::Tensor;

impl DataParallel {
    /// As [`train_batch`](DataParallel::train_batch), but adds to the gradients from before instead of forgetting them.
    ///
    /// For k equal parts of a batch, divide the loss by k in `loss_fn`: the sum is then the gradient of the whole batch's
    /// mean. Begin with `zero_grad()` of the optimiser, or with `train_batch`.
    ///
    /// # Errors
    /// As [`train_batch`](DataParallel::train_batch); then all gradients are forgotten, those from before too.
    ///
    /// ```
    /// use anygpu::nn::{self, Linear};
    /// use anygpu::{DataParallel, Device, Tensor, optim::Sgd};
    ///
    /// let net = DataParallel::new(Linear::new(4, 2)?, &[Device::cpu()])?;
    /// let mut sgd = Sgd::new(net.parameters(), 0.1);
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
        let before: Vec<Vec<Option<Tensor>>> = self.per_replica(|parameter| parameter.grad());
        let loss = self.train_batch(images, labels, loss_fn)?;
        no_grad(|| before.iter().zip(self.per_replica(Tensor::clone)).try_for_each(|(before, of)| add(before, &of)))?;
        Ok(loss)
    }
}

/// Adds gradients to those of the parameters: where both lie in one block each, as one.
fn add(before: &[Option<Tensor>], parameters: &[Tensor]) -> Result<()> {
    let now: Vec<Option<Tensor>> = parameters.iter().map(Tensor::grad).collect();
    let block = |grads: &[Option<Tensor>]| flat_view(&grads.iter().cloned().collect::<Option<Vec<_>>>()?);
    if let (Some(before), Some(now)) = (block(before), block(&now)) {
        let views = split_flat(&before.add(&now)?, parameters)?;
        parameters.iter().zip(views).for_each(|(parameter, view)| parameter.set_grad(Some(view)));
        return Ok(());
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
