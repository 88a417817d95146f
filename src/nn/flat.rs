//! Parameters of a module as views into one flat buffer: one copy moves them, one dispatch updates them, one download
//! reads their gradients. Each starts at a multiple of [`SLOT`] elements (256 bytes, which every adapter can bind).

use std::collections::HashMap;

use crate::device::Device;
use crate::error::Result;
use crate::ops::duplicate;
use crate::shape::Layout;
use crate::tensor::{SLOT, Tensor, flatten_together};

/// Copies of the parameters, as fresh leaves in one flat buffer of their own on `device`. Crosses the host once.
pub(crate) fn flatten_onto(parameters: &[Tensor], device: &Device) -> Result<Vec<Tensor>> {
    let Some(first) = parameters.first() else { return Ok(Vec::new()) };
    let mut gathered: Vec<Tensor> = parameters.iter().map(Tensor::detach).collect();
    if gathered.iter().any(|parameter| parameter.device() != first.device()) {
        // A module whose layers were on several devices: rare, so a copy each is good enough.
        gathered = gathered.iter().map(|parameter| parameter.to(device)).collect::<Result<_>>()?;
    }
    // As words: parameters may be of several types, and each keeps its own.
    let words: Vec<Tensor> = gathered.iter().map(Tensor::as_words).collect::<Result<_>>()?;
    let flat = flatten_together(&words)?.to(device)?;
    let mut start = flat.layout().offset;
    let mut leaf = |(parameter, words): (&Tensor, &Tensor)| {
        let view = flat.tensor_at_word(start, parameter.shape(), parameter.dtype());
        start += words.elem_count().next_multiple_of(SLOT);
        if parameter.is_tracked() { view.requires_grad() } else { view } // what was frozen stays frozen
    };
    Ok(parameters.iter().zip(&words).map(&mut leaf).collect())
}

/// Copies of the buffers on `device`, each in a storage of its own: an in-place update of one is none of the others.
pub(crate) fn buffers_onto(buffers: &[Tensor], device: &Device) -> Result<Vec<Tensor>> {
    let copy = |b: &Tensor| if b.device() == device { duplicate(&b.detach()) } else { b.detach().to(device) };
    buffers.iter().map(copy).collect()
}

/// A visitor that puts each of `new` where the parameter `old` of the same position is: in several places, if it is tied.
pub(crate) fn replacing<'a>(old: &'a [Tensor], new: &'a [Tensor]) -> impl FnMut(&str, &mut Tensor) + 'a {
    let by_id: HashMap<u64, &Tensor> = old.iter().map(Tensor::id).zip(new).collect();
    move |_, parameter| {
        if let Some(&new) = by_id.get(&parameter.id()) {
            *parameter = new.clone();
        }
    }
}

/// The views into `flat` (made by `flatten_together`) that have the shapes of `like`, in order.
pub(crate) fn split_flat(flat: &Tensor, like: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut start = 0;
    let mut next = |tensor: &Tensor| {
        let len = tensor.elem_count();
        let view = flat.narrow(0, start, len)?.reshape(tensor.shape());
        start += len.next_multiple_of(SLOT);
        view
    };
    like.iter().map(&mut next).collect()
}

/// Whether `next` lies in the slot right after `previous`, in the same buffer.
pub(crate) fn follows(previous: &Tensor, next: &Tensor) -> bool {
    let slot = previous.layout().offset + previous.elem_count().next_multiple_of(SLOT);
    previous.device() == next.device()
        && previous.dtype() == next.dtype()
        && previous.storage().id() == next.storage().id()
        && previous.layout().is_contiguous()
        && next.layout().is_contiguous()
        && next.layout().offset == slot
}

/// The 1-D tensor from the first element of the first to the last of the last, if the tensors fill slots of one buffer
/// in order (or if there is only one, without gaps). Outside the graph.
pub(crate) fn flat_view(tensors: &[Tensor]) -> Option<Tensor> {
    let (first, last) = (tensors.first()?, tensors.last()?);
    let in_order = tensors.windows(2).all(|pair| follows(&pair[0], &pair[1]));
    if !in_order || !first.layout().is_contiguous() {
        return None;
    }
    let offset = first.layout().offset;
    let len = last.layout().offset + last.elem_count() - offset;
    Some(first.with_layout(Layout { offset, ..Layout::contiguous(&[len]) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::Module;
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
            net.to(&device)?;
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
        let moved = flatten_onto(&[half.clone(), count.clone(), half.clone()], &Device::cpu())?;
        assert_eq!((moved[0].dtype(), moved[0].is_tracked(), moved[1].is_tracked()), (DType::F16, true, false));
        assert_eq!(moved[1].to_vec::<u32>()?, [u32::MAX, 7]);
        assert_eq!(moved[2].to_vec::<half::f16>()?, half.to_vec::<half::f16>()?);
        Ok(())
    }

    #[test]
    fn flat_parameters_are_found_again() {
        let parameters =
            [[7].as_slice(), &[64], &[3, 50], &[]].map(|shape| Tensor::rand(shape, None).unwrap().requires_grad());
        assert!(flat_view(&parameters).is_none());
        let flat = flatten_onto(&parameters, &Device::cpu()).unwrap();
        for (new, old) in flat.iter().zip(&parameters) {
            assert_eq!((new.shape(), new.is_tracked()), (old.shape(), true));
            assert_eq!(new.to_vec::<f32>().unwrap(), old.to_vec::<f32>().unwrap());
        }
        let view = flat_view(&flat).unwrap();
        assert_eq!(view.shape(), [64 + 64 + 192 + 1]);
        assert_eq!(view.narrow(0, 128, 150).unwrap().to_vec::<f32>().unwrap(), flat[2].to_vec::<f32>().unwrap());
        assert!(flat_view(&[flat[1].clone(), flat[0].clone()]).is_none());
        assert!(flat_view(&[flat[0].clone(), flat[2].clone()]).is_none());
    }
}
