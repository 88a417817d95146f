//! Moves a module's tensors to another device, or copies them: the parameters into one bucket, each buffer into its own storage.

use std::collections::HashMap;

use super::Module;
use crate::device::{Device, labelled_by_default};
use crate::error::Result;
use crate::ops::duplicate;
use crate::tensor::{Tensor, copied_together};

/// Moves a module in place; see [`Module::to_`].
pub(super) fn to_<M: Module + ?Sized>(module: &mut M, device: &Device) -> Result<()> {
    let moved = moves(module.parameters(), module.named_buffers(), device)?;
    moved.into_module(module);
    Ok(())
}

/// The parameters and buffers of a module, and what replaces them.
struct Moves {
    parameters: [Vec<Tensor>; 2],
    buffers: [Vec<Tensor>; 2],
}

impl Moves {
    fn into_module<M: Module + ?Sized>(self, module: &mut M) {
        let Moves { parameters: [from, to], buffers: [old, new] } = &self;
        module.visit_mut(&mut replacing(from, to));
        module.visit_buffers_mut(&mut replacing(old, new));
    }
}

/// Moves what is not on the device. Like the functions below, it knows no type of a module, and so is compiled once.
fn moves(parameters: Vec<Tensor>, buffers: Vec<(String, Tensor)>, device: &Device) -> Result<Moves> {
    let elsewhere = |tensors: Vec<Tensor>| {
        let stay = tensors.iter().all(|tensor| tensor.device() == device);
        if stay { Vec::new() } else { tensors }
    };
    let parameters = elsewhere(parameters);
    let buffers = elsewhere(buffers.into_iter().map(|(_, buffer)| buffer).collect());
    let (moved, moved_buffers) = (parameters_onto(&parameters, device)?, buffers_onto(&buffers, device)?);
    Ok(Moves { parameters: [parameters, moved], buffers: [buffers, moved_buffers] })
}

/// Gives a module parameters and buffers of its own, where they are; see [`Module::deep_copy`].
pub(super) fn own<M: Module + ?Sized>(module: &mut M) -> Result<()> {
    copies(module.parameters(), module.named_buffers())?.into_module(module);
    Ok(())
}

fn copies(parameters: Vec<Tensor>, buffers: Vec<(String, Tensor)>) -> Result<Moves> {
    let mut copies: Vec<Tensor> = parameters.clone();
    for device in distinct_devices(&parameters) {
        let here: Vec<usize> = (0..parameters.len()).filter(|&i| parameters[i].device() == &device).collect();
        let own: Vec<Tensor> = here.iter().map(|&i| parameters[i].clone()).collect();
        here.into_iter().zip(parameters_onto(&own, &device)?).for_each(|(i, copy)| copies[i] = copy);
    }
    let buffers: Vec<Tensor> = buffers.into_iter().map(|(_, buffer)| buffer).collect();
    let own = buffers.iter().map(|buffer| duplicate(&buffer.detach())).collect::<Result<Vec<_>>>()?;
    Ok(Moves { parameters: [parameters, copies], buffers: [buffers, own] })
}

fn distinct_devices(tensors: &[Tensor]) -> Vec<Device> {
    let mut devices: Vec<Device> = Vec::new();
    for tensor in tensors {
        if !devices.contains(tensor.device()) {
            devices.push(tensor.device().clone());
        }
    }
    devices
}

/// Freezes or unfreezes all parameters; see [`Module::requires_grad_`].
pub(super) fn requires_grad_<M: Module + ?Sized>(module: &mut M, requires_grad: bool) {
    let old = module.parameters();
    let new = switched(&old, requires_grad);
    module.visit_mut(&mut replacing(&old, &new));
}

fn switched(old: &[Tensor], requires_grad: bool) -> Vec<Tensor> {
    let switched = |parameter: &Tensor| match (parameter.is_tracked(), requires_grad) {
        (true, false) => parameter.freeze(),
        (false, true) => parameter.unfreeze(),
        _ => parameter.clone(),
    };
    old.iter().map(switched).collect()
}

/// Returns copies of the parameters as new leaves in one bucket on `device`. Frozen parameters stay frozen. There is
/// one transfer through host memory.
pub(crate) fn parameters_onto(parameters: &[Tensor], device: &Device) -> Result<Vec<Tensor>> {
    let Some(first) = parameters.first() else { return Ok(Vec::new()) };
    let mut from: Vec<Tensor> = parameters.iter().map(Tensor::detach).collect();
    if from.iter().any(|parameter| parameter.device() != first.device()) {
        // The module's layers are on several devices. This is rare, so each is copied separately.
        from = from.iter().map(|parameter| parameter.to(device)).collect::<Result<_>>()?;
    }
    let copies = labelled_by_default("parameters", || copied_together(&from.iter().collect::<Vec<_>>(), device))?;
    let leaf = |(parameter, copy): (&Tensor, Tensor)| if parameter.is_tracked() { copy.requires_grad() } else { copy };
    Ok(parameters.iter().zip(copies).map(leaf).collect())
}

/// Returns copies of the buffers on `device`, each in its own storage, so that an in-place update changes only one.
pub(crate) fn buffers_onto(buffers: &[Tensor], device: &Device) -> Result<Vec<Tensor>> {
    let copy = |b: &Tensor| if b.device() == device { duplicate(&b.detach()) } else { b.detach().to(device) };
    buffers.iter().map(copy).collect()
}

/// Returns a visitor that replaces each parameter of `old` by the one at the same position in `new`. A tied parameter
/// is replaced in all its places.
pub(crate) fn replacing<'a>(old: &'a [Tensor], new: &'a [Tensor]) -> impl FnMut(&str, &mut Tensor) + 'a {
    let by_id: HashMap<u64, &Tensor> = old.iter().map(Tensor::id).zip(new).collect();
    move |_, parameter| {
        if let Some(&new) = by_id.get(&parameter.id()) {
            parameter.replace_by(new);
            *parameter = new.clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Bucket;
    use crate::{DType, DataParallel};

    /// y = x W Wᵀ
    #[derive(Clone)]
    struct Tied {
        there: Tensor,
        back: Tensor,
    }

    impl Module for Tied {
        crate::children!(there, back);

        fn forward(&self, x: &Tensor) -> Result<Tensor> {
            x.matmul(&self.there)?.matmul(&self.back.t()?)
        }
    }

    #[test]
    fn tied_parameters_stay_tied() -> Result<()> {
        let weight = Tensor::rand([2, 2], None)?.requires_grad();
        let mut net = Tied { there: weight.clone(), back: weight };
        assert_eq!((net.parameters().len(), net.num_parameters()), (1, 4));
        for device in Device::all() {
            net.to_(&device)?;
            assert!(net.there.is_same(&net.back), "{device}");
            let twice = DataParallel::new(net.clone(), std::slice::from_ref(&device))?;
            assert_eq!(twice.parameters().len(), 1);
        }
        Ok(())
    }

    #[test]
    fn every_parameter_keeps_its_type() -> Result<()> {
        let half = Tensor::rand([5], None)?.to_dtype(DType::F16)?.requires_grad();
        let count = Tensor::from_slice(&[u32::MAX, 7], 2, None)?;
        let moved = parameters_onto(&[half.clone(), count.clone(), half.clone()], &Device::cpu())?;
        assert_eq!((moved[0].dtype(), moved[0].is_tracked(), moved[1].is_tracked()), (DType::F16, true, false));
        assert_eq!(moved[1].to_vec::<u32>()?, [u32::MAX, 7]);
        assert_eq!(moved[2].to_vec::<half::f16>()?, half.to_vec::<half::f16>()?);
        Ok(())
    }

    #[test]
    fn moved_parameters_are_one_bucket() -> Result<()> {
        let old =
            [[7].as_slice(), &[64], &[3, 50], &[]].map(|shape| Tensor::rand(shape, None).unwrap().requires_grad());
        for device in Device::all() {
            let new = parameters_onto(&old, &device)?;
            assert!(Bucket::recognise(&new).is_some(), "{device}");
            for (new, old) in new.iter().zip(&old) {
                assert_eq!((new.shape(), new.is_tracked(), new.is_same(old)), (old.shape(), true, false), "{device}");
                assert_eq!(new.to_vec::<f32>()?, old.to_vec::<f32>()?, "{device}");
            }
        }
        Ok(())
    }
}
