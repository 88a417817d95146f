//! The copy of a net on one device, and its part of a step.

use std::sync::Arc;
use std::time::Instant;

use crate::autograd::no_grad;
use crate::context;
use crate::device::Device;
use crate::error::Result;
use crate::nn::{Module, buffers_onto, parameters_onto, replacing};
use crate::ops::inplace::copy_;
use crate::tensor::{Bucket, Tensor, to_together};

/// A net whose parameters are one bucket on one device. It is cheap to clone; jobs take a clone to their thread.
#[derive(Clone)]
pub(super) struct Replica {
    pub(super) device: Device,
    pub(super) net: Arc<dyn Module>,
    pub(super) parameters: Arc<[Tensor]>,
}

/// The gradients and the loss of a replica's part of a batch, on the host.
pub(super) struct LocalGradients {
    /// The gradients of the parameters that are not frozen, followed by the loss `[1]`.
    pub(super) bucket: Bucket,
    /// Whether the loss depends on each parameter. The gradients of the others are 0 in the bucket.
    pub(super) present: Vec<bool>,
    /// The time from the samples on the host to the gradients on the host.
    pub(super) seconds: f64,
}

impl LocalGradients {
    /// Returns the loss as a scalar.
    pub(super) fn loss(&self) -> Result<Tensor> {
        let tensors = self.bucket.tensors()?;
        let loss = tensors.last().map_or(Ok(f32::NAN), Tensor::item)?;
        Tensor::scalar(loss, None)
    }
}

impl Replica {
    /// Creates a copy of `template`, parameters included, on `device`.
    pub(super) fn new(template: &dyn Module, device: &Device) -> Result<Replica> {
        let old = template.parameters();
        let parameters = parameters_onto(&old, device)?;
        let mut net = template.clone_box();
        net.visit_mut(&mut replacing(&old, &parameters));
        let old = buffers(template);
        net.visit_buffers_mut(&mut replacing(&old, &buffers_onto(&old, device)?));
        Ok(Replica { device: device.clone(), net: Arc::from(net), parameters: parameters.into() })
    }

    pub(super) fn zero_grad(&self) {
        self.parameters.iter().for_each(|parameter| parameter.set_grad(None));
    }

    /// Returns the parameters that are not frozen. Only their gradients are exchanged.
    fn trained(&self) -> impl Iterator<Item = &Tensor> {
        self.parameters.iter().filter(|parameter| parameter.is_tracked())
    }

    /// Moves the samples to this device in one copy, and computes the gradients of the parameters. Returns the loss on
    /// this device without reading it back.
    pub(super) fn backward(
        &self,
        images: &Tensor,
        labels: &Tensor,
        loss_fn: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        self.zero_grad();
        self.net.train();
        let moved = to_together(&[images, labels], &self.device)?;
        let loss = loss_fn(&self.net.forward(&moved[0])?, &moved[1])?;
        loss.backward()?;
        self.device.alive()?;
        Ok(loss.detach())
    }

    /// Like [`backward`](Replica::backward), and reads loss and gradients back in one download.
    pub(super) fn local_gradients(
        &self,
        images: &Tensor,
        labels: &Tensor,
        loss_fn: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
    ) -> Result<LocalGradients> {
        let start = Instant::now();
        let loss = self.backward(images, labels, loss_fn)?;
        let grads: Vec<Option<Tensor>> = self.trained().map(Tensor::grad).collect();
        let present = grads.iter().map(Option::is_some).collect();
        let mut parts = Vec::with_capacity(grads.len() + 1);
        for (grad, parameter) in grads.into_iter().zip(self.trained()) {
            parts.push(grad.map_or_else(|| Tensor::zeros(parameter.shape(), &self.device), Ok)?);
        }
        parts.push(loss.reshape([1])?);
        let bucket = Bucket::gather(&parts)?.to(&Device::cpu())?;
        let waited = context::rank().map(|rank| rank.waited()).unwrap_or_default();
        Ok(LocalGradients { bucket, present, seconds: start.elapsed().saturating_sub(waited).as_secs_f64() })
    }

    /// Uploads the gradients in one copy and sets views of it as gradients, which the optimiser recognises as a bucket.
    pub(super) fn set_gradients(&self, mean: &LocalGradients) -> Result<()> {
        let views = mean.bucket.to(&self.device)?.tensors()?;
        for ((parameter, view), present) in self.trained().zip(views).zip(&mean.present) {
            parameter.set_grad(present.then_some(view));
        }
        self.device.alive()
    }

    /// Overwrites the parameters and the buffers with those of `source`. Parameters that are a bucket are copied at
    /// once.
    pub(super) fn copy_from(&self, source: &Replica) -> Result<()> {
        self.copy(&self.parameters, &source.parameters)?;
        self.copy_buffers_from(source)
    }

    /// Overwrites each buffer with that of `source`.
    pub(super) fn copy_buffers_from(&self, source: &Replica) -> Result<()> {
        self.copy(&buffers(&*self.net), &buffers(&*source.net))
    }

    fn copy(&self, to: &[Tensor], from: &[Tensor]) -> Result<()> {
        match (Bucket::recognise(to), Bucket::recognise(from)) {
            (Some(to), Some(from)) => to.copy_from(&from),
            _ => to.iter().zip(from).try_for_each(|(to, from)| copy_(to, &from.detach().to(&self.device)?)),
        }
    }

    /// Returns the net's output in evaluation mode and outside the graph, without waiting for it.
    pub(super) fn predict(&self, images: &Tensor) -> Result<Tensor> {
        self.net.eval();
        no_grad(|| self.forward(&images.detach()))
    }

    /// Returns the net's output in its present mode, without waiting for it.
    pub(super) fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let output = self.net.forward(&input.to(&self.device)?)?;
        self.device.alive()?;
        Ok(output)
    }
}

fn buffers(net: &dyn Module) -> Vec<Tensor> {
    net.named_buffers().into_iter().map(|(_, buffer)| buffer).collect()
}
