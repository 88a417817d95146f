//! The copy of a net on one device, and its part of a step.

use std::sync::Arc;
use std::time::Instant;

use super::gradient_buckets::{BucketPlan, GradientBuckets, Gradients};
use super::members::Part;
use super::timeline::PartTimes;
use super::wire::{Feedback, Residuals, Wire};
use crate::autograd::no_grad;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::nn::{Module, buffers_onto, parameters_onto, replacing};
use crate::ops::inplace::copy_;
use crate::process_group::{self, LossRecord, Rank};
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

/// Computes the loss of a part of a batch, by a replica's net from its inputs.
pub(super) type StepFn = dyn Fn(&dyn Module, &[Tensor]) -> Result<Tensor> + Send + Sync;

/// What a replica knows of its part of a step when all of its gradients are on the host.
pub(super) struct LocalStep {
    /// Whether the loss depends on each parameter that is not frozen.
    pub(super) present: Vec<bool>,
    pub(super) times: PartTimes,
    /// What the format of gradients has lost, to be kept if the step happens.
    pub(super) residuals: Residuals,
    pub(super) losses: LossRecord,
    /// The numbers of elements of its random draws.
    pub(super) draws: Vec<usize>,
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

    /// Moves the samples to this device in one copy, and computes the loss in training mode. Returns it in the graph.
    fn loss(&self, inputs: &[Tensor], step: &StepFn) -> Result<Tensor> {
        self.zero_grad();
        self.net.train();
        step(&*self.net, &to_together(&inputs.iter().collect::<Vec<_>>(), &self.device)?)
    }

    /// Computes the gradients of the parameters. Returns the loss on this device without reading it back.
    pub(super) fn backward(&self, inputs: &[Tensor], step: &StepFn) -> Result<Tensor> {
        let loss = self.loss(inputs, step)?;
        loss.backward()?;
        self.device.alive()?;
        Ok(loss.detach())
    }

    /// Computes the losses of a part of a batch without gradients. Returns the totals of their weights over all parts.
    pub(super) fn loss_record(&self, inputs: &[Tensor], step: &StepFn) -> Result<LossRecord> {
        no_grad(|| self.loss(inputs, step))?;
        self.device.synchronize()?;
        Ok(process_group::rank().map(|rank| rank.loss_record()).unwrap_or_default())
    }

    /// Computes the gradients of the parameters for a part of a batch, and gives each bucket of them to [`Part::deliver`] as soon as
    /// it is on the host. The parameters have no gradients afterwards.
    pub(super) fn local_gradients(
        &self,
        part: Part,
        step: &StepFn,
        plan: &Arc<BucketPlan>,
        wire: Wire,
    ) -> Result<LocalStep> {
        let loss = self.loss(&part.inputs, step)?;
        let forward = Instant::now();
        let gradients = GradientBuckets::new(plan, self.trained(), &loss, wire, part.deliver);
        gradients.during(|| loss.backward())?;
        let backward = Instant::now();
        drop(loss);
        let Gradients { present, times: buckets, residuals } = gradients.finish()?;
        self.device.alive()?;
        let of_rank = |rank: Rank| (rank.waited(), rank.loss_record(), rank.draws());
        let (waited, losses, draws) = process_group::rank().map(of_rank).unwrap_or_default();
        let (begin, copied) = (part.begin, part.copied);
        let times = PartTimes { begin, copied, forward, backward, buckets, waited };
        Ok(LocalStep { present, times, residuals, losses, draws })
    }

    /// Overwrites the parameters with those of a replica on the host.
    pub(super) fn copy_parameters_from(&self, host: &Replica) -> Result<()> {
        match self.block().zip(host.block()) {
            Some((to, from)) => to.copy_from(&from)?,
            None => copy_each(&self.parameters, &host.parameters)?,
        }
        self.device.alive()
    }

    /// Returns an error unless the parameters are those of a replica on the host, to the bit.
    pub(super) fn same_parameters(&self, host: &Replica) -> Result<()> {
        let (here, there) = (copies(&self.parameters)?, copies(&host.parameters)?);
        match here.iter().zip(&there).position(|(here, there)| here != there) {
            Some(index) => {
                let message = format!(
                    "parameter {index} on the device differs from what was written to it: its memory or its driver is faulty"
                );
                Err(Error::Gpu { device: self.device.to_string(), message })
            }
            None => Ok(()),
        }
    }

    /// Returns the words of all parameters as a bucket, unless there are none.
    fn block(&self) -> Option<Bucket> {
        let words: Vec<Tensor> = self.parameters.iter().map(Tensor::as_words).collect::<Result<_>>().ok()?;
        Bucket::recognise(&words)
    }

    /// Overwrites each buffer with that of `source`.
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

    /// Returns the net's output in evaluation mode and outside the graph, without waiting for it.
    pub(super) fn predict(&self, images: &Tensor) -> Result<Tensor> {
        self.net.eval();
        no_grad(|| self.forward(&images.detach()))
    }

    /// Returns what `work` computes with the net in evaluation mode and outside the graph, without waiting for it.
    pub(super) fn predict_with(
        &self,
        inputs: &[Tensor],
        work: &(impl Fn(&dyn Module, &[Tensor]) -> Result<Vec<Tensor>> + ?Sized),
    ) -> Result<Vec<Tensor>> {
        self.net.eval();
        let inputs: Vec<Tensor> = inputs.iter().map(Tensor::detach).collect();
        let moved = to_together(&inputs.iter().collect::<Vec<_>>(), &self.device)?;
        let outputs = no_grad(|| work(&*self.net, &moved))?;
        self.device.alive()?;
        Ok(outputs)
    }

    /// Returns the net's output in its present mode, without waiting for it.
    pub(super) fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let output = self.net.forward(&input.to(&self.device)?)?;
        self.device.alive()?;
        Ok(output)
    }
}

fn copy_each(to: &[Tensor], from: &[Tensor]) -> Result<()> {
    to.iter().zip(from).try_for_each(|(to, from)| copy_(to, &from.detach().to(to.device())?))
}

/// Returns the words of each tensor.
fn copies(tensors: &[Tensor]) -> Result<Vec<Vec<u32>>> {
    tensors.iter().map(Tensor::to_words).collect()
}

pub(super) fn buffers(net: &dyn Module) -> Vec<Tensor> {
    net.named_buffers().into_iter().map(|(_, buffer)| buffer).collect()
}
