//! Gradients kept within bounds, and looked at, as a few flat tensors.

use std::collections::HashSet;

use crate::autograd::no_grad;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::nn::{flat_view, split_flat};
use crate::tensor::{Tensor, flatten_together};

/// The parameters of one device and type that have a gradient, with their gradients as one 1-D tensor of slots.
pub(super) struct FlatGrads {
    parameters: Vec<Tensor>,
    pub flat: Tensor,
    /// Whether the parameters are a replica's that is not the first: copies of others.
    pub copies: bool,
}

impl FlatGrads {
    /// All gradients. Where they do not lie in one block, they are gathered in one, as the optimiser would do otherwise.
    pub fn of(parameters: &[Tensor]) -> Result<Vec<FlatGrads>> {
        let mut groups: Vec<(Vec<Tensor>, Vec<Tensor>)> = Vec::new();
        let mut seen = HashSet::new();
        for parameter in parameters.iter().filter(|parameter| seen.insert(parameter.id())) {
            let Some(grad) = parameter.grad() else { continue };
            let kind = |p: &Tensor, g: &Tensor| (p.device().clone(), g.dtype(), p.is_replica());
            let of_kind = kind(parameter, &grad);
            match groups.iter_mut().find(|(parameters, grads)| kind(&parameters[0], &grads[0]) == of_kind) {
                Some((parameters, grads)) => {
                    parameters.push(parameter.clone());
                    grads.push(grad);
                }
                None => groups.push((vec![parameter.clone()], vec![grad])),
            }
        }
        let flat = |(parameters, grads): (Vec<Tensor>, Vec<Tensor>)| {
            let flat = flat_view(&grads).map_or_else(|| flatten_together(&grads), Ok)?;
            Ok(FlatGrads { copies: parameters[0].is_replica(), parameters, flat })
        };
        groups.into_iter().map(flat).collect()
    }

    /// Replaces the gradients by those in `flat`.
    pub fn set(&self, flat: &Tensor) -> Result<()> {
        let views = split_flat(flat, &self.parameters)?;
        self.parameters.iter().zip(views).for_each(|(parameter, view)| parameter.set_grad(Some(view)));
        Ok(())
    }
}

/// The root of the sum of squares of these gradients, as f32 on `device`.
fn joint_norm<'a>(grads: impl Iterator<Item = &'a FlatGrads>, device: &Device) -> Result<Tensor> {
    let mut parts = Vec::new();
    for group in grads {
        parts.push(group.flat.to_dtype(DType::F32)?.norm_all(2.0)?.to(device)?);
    }
    match parts.as_slice() {
        [] => Tensor::zeros([], device),
        [only] => Ok(only.clone()),
        several => Tensor::stack(&several.iter().collect::<Vec<_>>(), 0)?.norm_all(2.0),
    }
}

/// Scales all gradients by one factor so that their norm, as of one long vector, is `max_norm` at most: each is multiplied
/// by min(1, `max_norm` / (norm + 1e-6)), as PyTorch's `clip_grad_norm_` does. Gives the norm that they had, a scalar.
///
/// Nothing is read back and nothing waited for where the parameters are on one device, or are the replicas of a
/// [`DataParallel`](crate::DataParallel): then the norm is that of one replica, and each device scales its own. Where the
/// parts of one net are on several devices, one number of each crosses the host. Norms that are not finite give
/// gradients that are not.
///
/// # Errors
/// [`Error::InvalidArgument`] if `max_norm` is negative or no number; those of the devices.
///
/// ```
/// use anygpu::{Tensor, optim};
///
/// let p = Tensor::zeros([2], None)?.requires_grad();
/// p.set_grad(Some(Tensor::try_from([3.0, 4.0])?));
/// let norm = optim::clip_grad_norm(&[p.clone()], 1.0)?;
/// assert_eq!(norm.item::<f32>()?, 5.0);
/// let clipped = p.grad().unwrap().to_vec::<f32>()?;
/// assert!((clipped[0] - 0.6).abs() < 1e-6 && (clipped[1] - 0.8).abs() < 1e-6);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn clip_grad_norm(parameters: &[Tensor], max_norm: f32) -> Result<Tensor> {
    if max_norm.is_nan() || max_norm < 0.0 {
        return Err(Error::argument("clip_grad_norm", format!("{max_norm} is no norm")));
    }
    no_grad(|| {
        let groups = FlatGrads::of(parameters)?;
        // Where a net's parts are on several devices, its norm is made on the first; a copy is scaled by its own.
        let nets = |copies: bool| groups.iter().filter(move |group| group.copies == copies);
        let home = nets(false).chain(nets(true)).map(|group| group.flat.device()).next();
        let home = home.cloned().unwrap_or_default();
        let norm = joint_norm(nets(false), &home)?;
        let mut first_copy = None;
        for group in &groups {
            let device = group.flat.device();
            let norm = match group.copies {
                true => joint_norm(nets(true).filter(|other| other.flat.device() == device), device)?,
                false => norm.clone(),
            };
            let factor = norm.add(1e-6)?.recip()?.mul(max_norm)?.clamp(None, Some(1.0))?.to(device)?;
            group.set(&group.flat.mul(&factor)?)?;
            first_copy.get_or_insert(norm);
        }
        if nets(false).next().is_some() { Ok(norm) } else { Ok(first_copy.unwrap_or(norm)) }
    })
}

/// Brings every element of all gradients within ±`clip_value`, as PyTorch's `clip_grad_value_` does. Nothing is read back.
///
/// # Errors
/// [`Error::InvalidArgument`] if `clip_value` is negative or no number; those of the devices.
///
/// ```
/// use anygpu::{Tensor, optim};
///
/// let p = Tensor::zeros([3], None)?.requires_grad();
/// p.set_grad(Some(Tensor::try_from([3.0, -4.0, 0.5])?));
/// optim::clip_grad_value(&[p.clone()], 1.0)?;
/// assert_eq!(p.grad().unwrap().to_vec::<f32>()?, [1.0, -1.0, 0.5]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn clip_grad_value(parameters: &[Tensor], clip_value: f32) -> Result<()> {
    if clip_value.is_nan() || clip_value < 0.0 {
        return Err(Error::argument("clip_grad_value", format!("{clip_value} is no bound")));
    }
    no_grad(|| {
        let groups = FlatGrads::of(parameters)?;
        groups.iter().try_for_each(|group| group.set(&group.flat.clamp(Some(-clip_value), Some(clip_value))?))
    })
}
