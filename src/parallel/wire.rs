//! The format in which gradients travel from a device to the host: as they are, or as halves with error feedback.

use std::sync::{Arc, Mutex};

use anygpu_host::tasks::share;
use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

use super::DataParallel;
use crate::device::{Device, Storage};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops;
use crate::tensor::Tensor;
use crate::util::sync::lock;

/// What the largest element of a bucket is scaled to: half of the largest power of two of an `f16`.
const LARGEST: f32 = 16_384.0;
/// The smallest maximum by which a bucket is scaled, so that the factor is finite.
const SMALLEST: f32 = 7.888_609e-31; // 2^-100
/// The elements that one task widens.
const PART: usize = 1 << 12;

/// What narrowing has lost of each bucket of one device, on the device, after the last step that succeeded. It is added
/// to the gradients of the next step.
#[derive(Clone, Debug, Default)]
pub(super) struct Feedback(Arc<Mutex<Arc<Residuals>>>);

/// What one step has lost. These tensors are not written to, so a repeated step begins with the same ones.
#[derive(Clone, Debug, Default)]
pub(super) struct Residuals {
    /// What the device's gradients were multiplied by in that step: its share of the samples, or 1 if losses are sums.
    pub share: f64,
    /// None if nothing was lost yet.
    pub buckets: Vec<Option<Tensor>>,
}

impl Feedback {
    /// Returns how gradients travel in a step in which the device has this share of the samples.
    pub fn wire(&self, dtype: DType, share: f64) -> Wire {
        Wire { dtype, share, before: self.kept() }
    }

    /// Keeps what a step has lost, after it has happened.
    pub fn keep(&self, residuals: Residuals) {
        self.restore(Arc::new(residuals));
    }

    /// Returns what is kept, for [`restore`](Feedback::restore).
    pub fn kept(&self) -> Arc<Residuals> {
        lock(&self.0).clone()
    }

    /// Keeps what was kept before.
    pub fn restore(&self, residuals: Arc<Residuals>) {
        *lock(&self.0) = residuals;
    }

    /// Forgets what was lost, for other parameters.
    pub fn clear(&self) {
        self.keep(Residuals::default());
    }
}

/// How the gradients of one device travel in one step.
#[derive(Clone, Debug)]
pub(super) struct Wire {
    pub dtype: DType,
    pub share: f64,
    before: Arc<Residuals>,
}

/// A bucket on its way.
#[derive(Debug)]
pub(super) struct Narrowed {
    /// Two halves in each word, and the divisor that they are scaled by.
    pub words: Tensor,
    /// What the halves do not have.
    pub residual: Tensor,
}

impl Wire {
    /// Adds to a bucket what it lost in the step before, scales it so that no element overflows, and rounds it to halves.
    /// A bucket with an element that is not finite is not scaled, and arrives with such elements. The residual stays as
    /// it was, because optimisers skip such a step.
    /// optimisers skip such a step.
    pub fn narrowed(&self, bucket: usize, flat: &Tensor) -> Result<Narrowed> {
        let before = self.before.buckets.get(bucket).and_then(Option::as_ref);
        // The shares of the two steps may differ: what is missing in the mean is the residual times the share of its step.
        let before = before.map(|lost| lost.mul_scalar((self.before.share / self.share) as f32)).transpose()?;
        let carried = before.as_ref().map_or_else(|| Ok(flat.clone()), |lost| flat.add(lost))?;
        let largest = carried.abs()?.max(0, true)?;
        let finite = largest.isfinite()?;
        let divisor = finite.where_cond(&largest.clamp(Some(SMALLEST), None)?, LARGEST)?;
        let scale = divisor.mul_scalar(1.0 / LARGEST)?;
        let halves = carried.mul(&scale.recip()?)?.to_dtype(DType::F16)?;
        let arrives = halves.to_dtype(DType::F32)?.mul(&scale)?;
        let lost = carried.sub(&arrives)?;
        let residual = match &before {
            Some(before) => finite.where_cond(&lost, before)?,
            None => finite.where_cond(&lost, 0.0)?,
        };
        let words = ops::cat(&[&halves.as_words()?, &divisor.as_words()?], 0)?;
        Ok(Narrowed { words, residual })
    }
}

impl DataParallel {
    /// Sets the format in which gradients are copied from several devices to the host: [`DType::F32`], the default, or
    /// [`DType::F16`], which halves the bytes (`fp16_compress_hook` in PyTorch).
    ///
    /// Has no effect with one device.
    ///
    /// With F16, each bucket is scaled by its largest element, so that no element overflows. What rounding loses stays
    /// on the device and is added to its gradients in the next step. Updates are thus late by a step, but not lost:
    /// this is *error feedback*. It takes as much memory on each device as the gradients. `cpu` rounds too, so the
    /// results do not depend on where a part of the batch is computed. Losses are exact. A gradient that is not finite
    /// arrives as such. Checkpoints do not contain what was lost: a resumed run begins without it, and so does a device
    /// that rejoins.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] for another type.
    ///
    /// ```
    /// # use anygpu::{DType, DataParallel, Device, nn::Linear};
    /// let devices = [Device::new("cpu/0")?, Device::new("cpu/1")?];
    /// let net = DataParallel::new(Linear::new(4, 3)?, &devices)?.with_wire(DType::F16)?;
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn with_wire(mut self, dtype: DType) -> Result<DataParallel> {
        if !matches!(dtype, DType::F32 | DType::F16) {
            return Err(Error::DTypeMismatch {
                op: "with_wire",
                expected: "f32 or f16".into(),
                got: dtype.to_string(),
            });
        }
        self.wire = dtype;
        Ok(self)
    }
}

/// Returns the `len` elements of a bucket that has arrived as `words`. With a loss, which is one more word, the
/// elements are padded to `slots`, and the loss follows them.
pub(super) fn widened(words: &[u32], len: usize, slots: Option<usize>) -> Result<Tensor> {
    let halves = DType::F16.words(len);
    let (Some(&divisor), loss) = (words.get(halves), words.get(halves + 1)) else {
        return Err(Error::internal(format!("a bucket of {len} halves came in {} words", words.len())));
    };
    let scale = f32::from_bits(divisor) * (1.0 / LARGEST);
    let total = slots.map_or(len, |slots| slots.max(len) + 1);
    let out = Tensor::zeros(total, Device::cpu())?;
    let Storage::Cpu(buffer) = out.storage() else { return Err(out.misplaced()) };
    let mut guard = buffer.write();
    let floats: &mut [f32] = bytemuck::cast_slice_mut(&mut guard[..total]);
    let bits: &[u16] = bytemuck::cast_slice(&words[..halves]);
    let halves: &[f16] = bits[..len].reinterpret_cast();
    share(floats[..len].chunks_mut(PART).zip(halves.chunks(PART)), 1, |(floats, halves)| {
        halves.convert_to_f32_slice(floats);
        floats.iter_mut().for_each(|v| *v *= scale);
    });
    if slots.is_some() {
        let loss = loss.ok_or_else(|| Error::internal("a bucket came without the loss"))?;
        floats[total - 1] = f32::from_bits(*loss);
    }
    drop(guard);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(wire: &Wire, values: &[f32], device: &Device) -> Result<(Vec<f32>, Tensor)> {
        let Narrowed { words, residual } = wire.narrowed(0, &Tensor::from_slice(values, values.len(), device)?)?;
        let words = words.to_vec::<u32>()?;
        assert_eq!(words.len(), values.len().div_ceil(2) + 1, "half of the words, and the divisor");
        Ok((widened(&words, values.len(), None)?.to_vec()?, residual))
    }

    /// Elements of any magnitude arrive within the precision of halves, and nothing is lost with the residual.
    #[test]
    fn what_arrives_and_what_is_lost_are_the_whole() -> Result<()> {
        for device in &Device::all() {
            for (magnitude, len) in [(1.0f32, 7), (1e30, 100), (1e-20, 3), (1e-45, 1), (0.0, 5), (70_000.0, 9001)] {
                let values: Vec<f32> = (0..len).map(|i| magnitude * ((i * 37 % 101) as f32 / 50.0 - 1.0)).collect();
                let (arrived, residual) = sent(&Feedback::default().wire(DType::F16, 1.0), &values, device)?;
                let residual = residual.to_vec::<f32>()?;
                for ((v, a), r) in values.iter().zip(&arrived).zip(&residual) {
                    let error = (v - a).abs();
                    assert!(error <= v.abs() / 2048.0 + magnitude * 1e-8 + 1e-37, "{v} arrives as {a} on {device}");
                    assert!((v - a - r).abs() <= v.abs() * 1e-6 + 1e-37, "{v} = {a} + {r} on {device}");
                }
            }
        }
        Ok(())
    }

    /// Over many steps, the sum of what arrives equals the sum of what was sent, also with changing shares. Without
    /// feedback, it does not.
    #[test]
    fn feedback_makes_up_for_what_was_lost() -> Result<()> {
        for device in &Device::all() {
            // The second is in the middle of two halves, the third is a subnormal half: some drivers make 0 of it.
            let (feedback, values) = (Feedback::default(), [1.0f32, 4098.1 / 16_384.0, 3.6543e-10]);
            let (mut with, mut without, mut expected) = ([0.0f64; 3], [0.0f64; 3], [0.0f64; 3]);
            for step in 0..40 {
                let share = if step % 2 == 0 { 0.25 } else { 0.5 };
                let wire = feedback.wire(DType::F16, share);
                let (arrived, residual) = sent(&wire, &values, device)?;
                let (alone, _) = sent(&Feedback::default().wire(DType::F16, share), &values, device)?;
                for i in 0..3 {
                    with[i] += share * f64::from(arrived[i]);
                    without[i] += share * f64::from(alone[i]);
                    expected[i] += share * f64::from(values[i]);
                }
                feedback.keep(Residuals { share, buckets: vec![Some(residual)] });
            }
            for i in 1..3 {
                let errors = [with[i], without[i]].map(|sum| (sum - expected[i]).abs() / expected[i]);
                assert!(errors[0] < 3e-5 || i == 2 && errors[0] < 0.3, "{device}: {errors:?}");
                assert!(errors[0] < errors[1] / 3.0, "{device}: {errors:?}");
            }
        }
        Ok(())
    }

    #[test]
    fn what_is_not_finite_arrives_and_is_not_kept() -> Result<()> {
        for device in &Device::all() {
            let feedback = Feedback::default();
            let lost = Tensor::from_slice(&[0.25f32, 0.5], 2, device)?;
            feedback.keep(Residuals { share: 1.0, buckets: vec![Some(lost)] });
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let (arrived, residual) = sent(&feedback.wire(DType::F16, 1.0), &[1.0, bad], device)?;
                assert_eq!((arrived[0], arrived[1].is_finite()), (1.25, false), "{device}");
                assert_eq!(residual.to_vec::<f32>()?, [0.25, 0.5], "{device}");
            }
            feedback.clear();
            assert_eq!(sent(&feedback.wire(DType::F16, 1.0), &[1.0, 2.0], device)?.0, [1.0, 2.0]);
        }
        Ok(())
    }

    #[test]
    fn the_loss_comes_after_the_slots() -> Result<()> {
        let one = u32::from(f16::ONE.to_bits());
        let words = [one | one << 16, one, LARGEST.to_bits(), 2.5f32.to_bits()];
        let elements = widened(&words, 3, Some(64))?.to_vec::<f32>()?;
        assert_eq!((&elements[..4], elements.len(), elements[64]), (&[1.0, 1.0, 1.0, 0.0][..], 65, 2.5));
        assert!(widened(&words[..2], 3, None).is_err() && widened(&words[..3], 3, Some(64)).is_err());
        Ok(())
    }
}
