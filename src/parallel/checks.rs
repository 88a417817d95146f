//! What is compared between the devices of a step: parameters, buffers, numbers of elements in means, and random draws.

use super::DataParallel;
use super::members::State;
use super::replica::Replica;
use super::step::LocalStep;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::process_group::{Draws, counts_are_alike};
use crate::tensor::Tensor;
use crate::util::sync::lock;

/// The number of steps between two comparisons of the parameters and the buffers of all devices.
pub(super) const STEPS_BETWEEN_CHECKS: u64 = 256;
/// The first steps, after which the buffers of all devices are compared.
const FIRST_STEPS: u64 = 3;
/// How far the buffers of two devices may be apart, relative to the largest value.
const LARGEST_DIFFERENCE: f32 = 1e-2;

impl State {
    /// Returns whether the parameters of the devices are compared with the host's parameters before the next step.
    pub(super) fn compares_parameters(&self) -> bool {
        self.steps > 0 && self.steps.is_multiple_of(STEPS_BETWEEN_CHECKS)
    }

    /// Returns whether the buffers of the devices are compared after the next step.
    pub(super) fn compares_buffers(&self) -> bool {
        self.steps < FIRST_STEPS || self.steps.is_multiple_of(STEPS_BETWEEN_CHECKS)
    }
}

impl Replica {
    /// Returns an error unless the parameters equal those of a replica on the host, bit for bit.
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
}

impl DataParallel {
    /// Returns an error if the buffers of the devices differ by more than rounding. Also notes that the devices'
    /// buffers are not the host's. Devices that did not return their buffers are not compared.
    pub(super) fn check_buffers(&self, state: &mut State, parts: &[(usize, LocalStep)]) -> Result<()> {
        self.same_buffers(parts).inspect_err(|_| state.forget_buffers())
    }

    fn same_buffers(&self, parts: &[(usize, LocalStep)]) -> Result<()> {
        let Some(((first, expected), others)) = parts.split_first() else { return Ok(()) };
        for (other, here) in others {
            for (i, (a, b)) in expected.buffers.iter().zip(&here.buffers).enumerate() {
                let values = |x: &Tensor| x.to_dtype(DType::F32)?.to_vec::<f32>();
                let (a, b) = (values(a)?, values(b)?);
                let size = a.iter().chain(&b).fold(0f32, |size, v| size.max(v.abs()));
                let apart = |(a, b): (&f32, &f32)| (a - b).abs() > LARGEST_DIFFERENCE * size;
                let Some(at) = a.iter().zip(&b).position(apart) else { continue };
                let name = self.host.net.named_buffers().swap_remove(i).0;
                let names = lock(&self.roster).names();
                let detail = format!(
                    "the buffer {name:?} is {} on {} and {} on {} after the step: a layer computes it from one device's \
                     samples, but it must be the same on all devices. Use parallel::batch_mean of its values",
                    a[at], names[*first], b[at], names[*other]
                );
                return Err(Error::argument("train_batch", detail));
            }
        }
        Ok(())
    }

    /// Returns whether the devices have taken means and drawn random numbers as one device would. If not, `state` gets
    /// what the devices need to know to do so.
    pub(super) fn is_as_on_one_device(&self, state: &mut State, parts: &[(usize, LocalStep)]) -> bool {
        let counts = counts_are_alike(parts.iter().map(|(_, local)| (local.samples, &local.losses)));
        if !counts {
            log::debug!("numbers of losses are not proportional to samples: the devices exchange them from now on");
            state.counts = true;
        }
        self.draws_are_right(state, parts) && counts
    }

    /// Returns whether the devices have drawn the random numbers that one device would draw. If not, `state` gets what
    /// the devices need to know, where that is possible.
    fn draws_are_right(&self, state: &mut State, parts: &[(usize, LocalStep)]) -> bool {
        let draws: Vec<_> = parts.iter().map(|(_, local)| (local.samples, &local.draws[..])).collect();
        match Draws::of(&draws, &state.shared_draws) {
            Draws::Alike => true,
            Draws::Shared(found) if self.machines.is_none() => {
                log::debug!("some random numbers are for all samples together: all devices draw the same from now on");
                state.shared_draws = found.into();
                false
            }
            Draws::Shared(_) | Draws::Unlike => {
                if !std::mem::replace(&mut state.warned_of_draws, true) {
                    log::warn!(
                        "the number of random values that each device drew in a step is neither equal on all devices nor \
                         proportional to their samples: the values differ from those that one device would draw"
                    );
                }
                true
            }
        }
    }
}

/// Returns the words of each tensor.
fn copies(tensors: &[Tensor]) -> Result<Vec<Vec<u32>>> {
    tensors.iter().map(Tensor::to_words).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::nn::{BatchNorm1d, Linear, Sequential, cross_entropy};
    use crate::optim::Adam;
    use crate::parallel::Shares;

    /// Whatever the devices round, the parameters of all replicas have the same bits.
    #[test]
    fn replicas_have_equal_bits_and_a_wrong_one_is_found() -> Result<()> {
        let net = Sequential::new().push(Linear::new(4, 30)?).push(BatchNorm1d::new(30)?).push(Linear::new(30, 3)?);
        // Each has samples in every step, so that none keeps parameters of an earlier one.
        let net = DataParallel::new(net, &Device::all())?.with_shares(Shares::Even)?;
        let mut adam = Adam::new(net.parameters(), 0.01);
        let (x, y) = (Tensor::rand([20, 4], None)?, Tensor::from_slice(&[0u32, 1, 2, 1].repeat(5), 20, None)?);
        for _ in 0..3 {
            net.train_batch(&x, &y, cross_entropy)?;
            adam.step()?;
        }
        net.predict(&x)?;
        let (state, _in_call) = net.alone("test")?;
        for member in &state.members {
            member.replica.same_parameters(&net.host)?;
        }
        if let Some(member) = state.members.first() {
            crate::no_grad(|| member.replica.parameters[1].zero_())?;
            let error = member.replica.same_parameters(&net.host).unwrap_err().to_string();
            assert!(error.contains("parameter 1") && error.contains(member.replica.device.name()), "{error}");
        }
        Ok(())
    }
}
