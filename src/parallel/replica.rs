//! The copy of a net on one device.

use std::sync::Arc;

use super::wire::Feedback;
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
    /// What the format of gradients has lost in the last step.
    pub(super) feedback: Feedback,
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
        let (net, feedback) = (Arc::from(net), Feedback::default());
        Ok(Replica { device: device.clone(), net, parameters: parameters.into(), feedback })
    }

    /// Returns the number of in-place writes to the parameters.
    pub(super) fn version(&self) -> u64 {
        self.parameters.first().map_or(0, |first| first.storage().version())
    }

    /// Returns the number of in-place writes to the buffers.
    pub(super) fn buffers_version(&self) -> u64 {
        let versions = buffers(&*self.net).into_iter().map(|buffer| buffer.storage().version());
        versions.fold(0, u64::wrapping_add)
    }

    pub(super) fn zero_grad(&self) {
        self.parameters.iter().for_each(|parameter| parameter.set_grad(None));
    }

    /// Returns the parameters that are not frozen. Only their gradients are exchanged.
    pub(super) fn trained(&self) -> Vec<Tensor> {
        self.parameters.iter().filter(|parameter| parameter.is_tracked()).cloned().collect()
    }

    /// Overwrites the parameters with the parameters of a replica on the host.
    pub(super) fn copy_parameters_from(&self, host: &Replica) -> Result<()> {
        match self.block().zip(host.block()) {
            Some((to, from)) => to.copy_from(&from)?,
            None => copy_each(&self.parameters, &host.parameters)?,
        }
        self.device.alive()
    }

    /// Returns the words of all parameters as a bucket, unless there are none.
    fn block(&self) -> Option<Bucket> {
        let words: Vec<Tensor> = self.parameters.iter().map(Tensor::as_words).collect::<Result<_>>().ok()?;
        Bucket::recognise(&words)
    }

    /// Overwrites each buffer with the buffer of `source`.
    pub(super) fn copy_buffers_from(&self, source: &Replica) -> Result<()> {
        self.set_buffers(&buffers(&*source.net))
    }

    /// Overwrites each buffer with the tensor at its place in the list, on any device.
    pub(super) fn set_buffers(&self, values: &[Tensor]) -> Result<()> {
        copy_each(&buffers(&*self.net), values)
    }

    /// Returns the values of the buffers on the host, in one copy.
    pub(super) fn buffers_on_host(&self) -> Result<Vec<Tensor>> {
        let buffers = buffers(&*self.net);
        if buffers.is_empty() {
            return Ok(buffers);
        }
        to_together(&buffers.iter().collect::<Vec<_>>(), &Device::cpu())
    }
}

fn copy_each(to: &[Tensor], from: &[Tensor]) -> Result<()> {
    to.iter().zip(from).try_for_each(|(to, from)| copy_(to, &from.detach().to(to.device())?))
}

pub(super) fn buffers(net: &dyn Module) -> Vec<Tensor> {
    net.named_buffers().into_iter().map(|(_, buffer)| buffer).collect()
}
