//! Clipping of gradients, one bucket at a time.

use std::collections::HashSet;

use super::Parameters;
use crate::autograd::no_grad;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::{Bucket, Tensor};

/// The parameters of one device and type that have a gradient, with their gradients in a bucket.
pub(super) struct GradientBucket {
    parameters: Vec<Tensor>,
    bucket: Bucket,
}

impl GradientBucket {
    /// Returns all gradients of a replica. If they are not a bucket, they are gathered into one, as in the optimiser's
    /// step.
    pub fn all(replica: &[Tensor]) -> Result<Vec<GradientBucket>> {
        let mut groups: Vec<(Vec<Tensor>, Vec<Tensor>)> = Vec::new();
        let mut seen = HashSet::new();
        for parameter in replica.iter().filter(|parameter| seen.insert(parameter.id())) {
            let Some(grad) = parameter.grad() else { continue };
            let kind = |p: &Tensor, g: &Tensor| (p.device().clone(), g.dtype());
            let of_kind = kind(parameter, &grad);
            match groups.iter_mut().find(|(parameters, grads)| kind(&parameters[0], &grads[0]) == of_kind) {
                Some((parameters, grads)) => {
                    parameters.push(parameter.clone());
                    grads.push(grad);
                }
                None => groups.push((vec![parameter.clone()], vec![grad])),
            }
        }
        let bucket = |(parameters, grads): (Vec<Tensor>, Vec<Tensor>)| {
            Ok(GradientBucket { parameters, bucket: Bucket::of(&grads)? })
        };
        groups.into_iter().map(bucket).collect()
    }

    /// Returns all gradients as a 1-D tensor.
    pub fn flat(&self) -> &Tensor {
        self.bucket.flat()
    }

    /// Replaces the gradients by those in `flat`.
    pub fn set(&self, flat: Tensor) -> Result<()> {
        self.bucket.with_flat(flat).set_as_gradients_of(&self.parameters)
    }
}

/// Returns the square root of the sum of squares of a replica's gradients, as f32 on the device of the first one.
fn joint_norm(grads: &[GradientBucket]) -> Result<Tensor> {
    let home = grads.first().map(|group| group.flat().device().clone()).unwrap_or_default();
    let mut parts = Vec::new();
    for group in grads {
        parts.push(group.flat().to_dtype(DType::F32)?.norm_all(2.0)?.to(&home)?);
    }
    match parts.as_slice() {
        [] => Tensor::zeros([], &home),
        [only] => Ok(only.clone()),
        several => Tensor::stack(&several.iter().collect::<Vec<_>>(), 0)?.norm_all(2.0),
    }
}

/// Scales the gradients of one replica. Returns their norm before scaling.
fn clip_replica(replica: &[Tensor], max_norm: f32) -> Result<Tensor> {
    let groups = GradientBucket::all(replica)?;
    let norm = joint_norm(&groups)?;
    for group in &groups {
        let factor = norm.add(1e-6)?.recip()?.mul(max_norm)?.clamp(None, Some(1.0))?.to(group.flat().device())?;
        group.set(group.flat().mul(&factor)?)?;
    }
    Ok(norm)
}

/// Scales all gradients by one factor so that their joint norm is at most `max_norm`.
///
/// The factor is min(1, `max_norm` / (norm + 1e-6)), as in PyTorch's `clip_grad_norm_`. Returns the norm before
/// scaling, as a scalar.
///
/// Each replica of [`Parameters`] is scaled by its own norm; the norm of the first replica is returned. If the
/// parameters of a replica are on one device, nothing is read back or waited for. If they are on several, one number
/// per device is transferred through the host. If the norm is not finite, the gradients become non-finite.
///
/// # Errors
/// [`Error::InvalidArgument`] if `max_norm` is negative or NaN; errors of the device.
///
/// ```
/// use anygpu::{Tensor, optim};
///
/// let p = Tensor::zeros([2], None)?.requires_grad();
/// p.set_grad(Some(Tensor::new([3.0, 4.0], None)?));
/// let norm = optim::clip_grad_norm(&[p.clone()], 1.0)?;
/// assert_eq!(norm.item::<f32>()?, 5.0);
/// let clipped = p.grad().unwrap().to_vec::<f32>()?;
/// assert!((clipped[0] - 0.6).abs() < 1e-6 && (clipped[1] - 0.8).abs() < 1e-6);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn clip_grad_norm(parameters: impl Into<Parameters>, max_norm: f32) -> Result<Tensor> {
    if max_norm.is_nan() || max_norm < 0.0 {
        return Err(Error::argument("clip_grad_norm", format!("{max_norm} is not a valid maximum norm")));
    }
    let parameters = parameters.into();
    no_grad(|| {
        let norm = clip_replica(parameters.first_replica(), max_norm)?;
        parameters.replicas().skip(1).try_for_each(|replica| clip_replica(replica, max_norm).map(drop))?;
        Ok(norm)
    })
}

/// Clamps every element of all gradients to ±`clip_value`, like PyTorch's `clip_grad_value_`.
///
/// Nothing is read back.
///
/// # Errors
/// [`Error::InvalidArgument`] if `clip_value` is negative or NaN; errors of the device.
///
/// ```
/// use anygpu::{Tensor, optim};
///
/// let p = Tensor::zeros([3], None)?.requires_grad();
/// p.set_grad(Some(Tensor::new([3.0, -4.0, 0.5], None)?));
/// optim::clip_grad_value(&[p.clone()], 1.0)?;
/// assert_eq!(p.grad().unwrap().to_vec::<f32>()?, [1.0, -1.0, 0.5]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn clip_grad_value(parameters: impl Into<Parameters>, clip_value: f32) -> Result<()> {
    if clip_value.is_nan() || clip_value < 0.0 {
        return Err(Error::argument("clip_grad_value", format!("{clip_value} is not a valid bound")));
    }
    let parameters = parameters.into();
    no_grad(|| {
        for group in parameters.replicas().map(GradientBucket::all).collect::<Result<Vec<_>>>()?.iter().flatten() {
            group.set(group.flat().clamp(Some(-clip_value), Some(clip_value))?)?;
        }
        Ok(())
    })
}
