//! One device's copy of a net, and what it does in a step.

use std::sync::Arc;
use std::time::Instant;

use crate::autograd::no_grad;
use crate::device::Device;
use crate::error::Result;
use crate::nn::{Module, buffers_onto, flat_view, flatten_onto, replacing, split_flat};
use crate::ops::inplace::copy_;
use crate::team;
use crate::tensor::{SLOT, Tensor, flatten_together, to_together};

/// A net whose parameters lie in one flat buffer on one device. A cheap handle: jobs take a clone to their thread.
#[derive(Clone)]
pub(super) struct Replica {
    pub(super) device: Device,
    pub(super) net: Arc<dyn Module>,
    pub(super) parameters: Arc<[Tensor]>,
}

/// What a replica learned from its part of a batch, on the host.
pub(super) struct Learned {
    /// The gradients in slots, as [`flatten_together`] lays them out; in one slot more, the loss.
    pub(super) values: Vec<f32>,
    /// Which parameters the loss depends on; the others have zeros in their slots.
    pub(super) present: Vec<bool>,
    /// From the samples on the host to `values` on the host.
    pub(super) seconds: f64,
}

impl Learned {
    /// The loss, from its slot.
    pub(super) fn loss(&self) -> f32 {
        self.values[self.values.len() - SLOT]
    }
}

impl Replica {
    /// A copy of `template`, parameters included, on `device`.
    pub(super) fn new(template: &dyn Module, device: &Device, first: bool) -> Result<Replica> {
        let old = template.parameters();
        let mut parameters = flatten_onto(&old, device)?;
        if !first {
            parameters = parameters.iter().map(Tensor::as_replica).collect();
        }
        let mut net = template.clone_box();
        net.visit_mut(&mut replacing(&old, &parameters));
        let old = buffers(template);
        net.visit_buffers_mut(&mut replacing(&old, &buffers_onto(&old, device)?));
        Ok(Replica { device: device.clone(), net: Arc::from(net), parameters: parameters.into() })
    }

    pub(super) fn zero_grad(&self) {
        self.parameters.iter().for_each(|parameter| parameter.set_grad(None));
    }

    /// The parameters that are not frozen: only their gradients travel.
    fn trained(&self) -> impl Iterator<Item = &Tensor> {
        self.parameters.iter().filter(|parameter| parameter.is_tracked())
    }

    /// Moves the samples here in one copy, and leaves the gradient of their loss in the parameters. Gives the loss,
    /// still on the device: nothing is read back.
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
        Ok(loss.detach())
    }

    /// As [`backward`](Replica::backward), and reads loss and gradients in one download.
    pub(super) fn learn(
        &self,
        images: &Tensor,
        labels: &Tensor,
        loss_fn: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
    ) -> Result<Learned> {
        let start = Instant::now();
        let loss = self.backward(images, labels, loss_fn)?;
        let grads: Vec<Option<Tensor>> = self.trained().map(Tensor::grad).collect();
        let present = grads.iter().map(Option::is_some).collect();
        let mut parts = Vec::with_capacity(grads.len() + 1);
        for (grad, parameter) in grads.into_iter().zip(self.trained()) {
            parts.push(grad.map_or_else(|| Tensor::zeros(parameter.shape(), &self.device), Ok)?);
        }
        parts.push(loss.reshape([1])?);
        let values = flatten_together(&parts)?.to_vec()?;
        let seconds = start.elapsed().saturating_sub(team::waited()).as_secs_f64();
        Ok(Learned { values, present, seconds })
    }

    /// Replaces the gradients by views of one upload, which `Sgd` recognises; `values` as in [`Learned`].
    pub(super) fn set_gradient(&self, values: &[f32], present: &[bool]) -> Result<()> {
        let gradient = &values[..values.len() - SLOT]; // without the loss
        let flat = Tensor::from_slice(gradient, gradient.len(), &self.device)?;
        let trained: Vec<Tensor> = self.trained().cloned().collect();
        let views = split_flat(&flat, &trained)?;
        for ((parameter, view), present) in trained.iter().zip(views).zip(present) {
            parameter.set_grad(present.then_some(view));
        }
        Ok(())
    }

    /// Overwrites the parameters with those of `source`, in one copy where they lie in one block, and each buffer.
    pub(super) fn copy_from(&self, source: &Replica) -> Result<()> {
        self.copy(&self.parameters, &source.parameters)?;
        self.copy_buffers_from(source)
    }

    /// Overwrites each buffer with that of `source`.
    pub(super) fn copy_buffers_from(&self, source: &Replica) -> Result<()> {
        self.copy(&buffers(&*self.net), &buffers(&*source.net))
    }

    fn copy(&self, to: &[Tensor], from: &[Tensor]) -> Result<()> {
        match (flat_view(to), flat_view(from)) {
            (Some(to), Some(from)) => copy_(&to, &from.to(&self.device)?),
            _ => to.iter().zip(from).try_for_each(|(to, from)| copy_(to, &from.detach().to(&self.device)?)),
        }
    }

    /// The net's output in evaluation. Nothing is waited for.
    pub(super) fn predict(&self, images: &Tensor) -> Result<Tensor> {
        self.net.eval();
        no_grad(|| self.net.forward(&images.detach().to(&self.device)?))
    }
}

fn buffers(net: &dyn Module) -> Vec<Tensor> {
    net.named_buffers().into_iter().map(|(_, buffer)| buffer).collect()
}
