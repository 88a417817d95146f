//! Buckets: several tensors in one block of memory, which is moved with one copy, updated with one dispatch and read
//! with one download.

use std::ops::Range;

use super::Tensor;
use super::transfer::overwrite;
use crate::device::Device;
use crate::device::gpu::BINDING_ALIGNMENT;
use crate::error::Result;
use crate::ops;
use crate::ops::inplace::{copy_, filled_words};
use crate::shape::Layout;

/// Each tensor of a bucket begins at a multiple of this many elements, where every adapter can bind a part of a buffer of four-byte
/// elements.
const SLOT: usize = BINDING_ALIGNMENT;

/// Returns the number of elements from the start of a tensor with `elements` elements to the start of the next one.
pub(crate) fn slots(elements: usize) -> usize {
    elements.next_multiple_of(SLOT)
}

/// Tensors of one type in consecutive slots of one block on one device.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    /// All elements from the first of the first tensor to the last of the last tensor, 1-D and outside the graph.
    flat: Tensor,
    places: Vec<Place>,
}

#[derive(Clone, Debug)]
struct Place {
    /// The position of the first element in `flat`.
    start: usize,
    shape: Vec<usize>,
}

impl Place {
    fn range(&self) -> Range<usize> {
        self.start..self.start + self.shape.iter().product::<usize>()
    }
}

impl Bucket {
    /// Copies tensors of one device into a new block. The gaps between them are filled with 0. The tensors are promoted
    /// to one type.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if there are no tensors; errors of the device.
    pub fn gather(tensors: &[Tensor]) -> Result<Bucket> {
        let mut parts = Vec::with_capacity(2 * tensors.len());
        let mut zeros: Option<Tensor> = None;
        for tensor in tensors {
            let tensor = tensor.detach();
            let gap = slots(tensor.elem_count()) - tensor.elem_count();
            parts.push(tensor.reshape(tensor.elem_count())?);
            if gap > 0 {
                let zeros = match &mut zeros {
                    Some(zeros) if zeros.dtype() == tensor.dtype() => zeros,
                    other => other.insert(filled_words(&[SLOT], 0, tensor.dtype(), tensor.device())?),
                };
                parts.push(zeros.narrow(0, 0, gap)?);
            }
        }
        let block = ops::cat(&parts.iter().collect::<Vec<_>>(), 0)?;
        let places = places(tensors);
        let end = places.last().map_or(0, |last| last.range().end);
        Ok(Bucket { flat: block.narrow(0, 0, end)?, places })
    }

    /// Returns the tensors as a bucket if they already are one: they fill consecutive slots of one block, or there is
    /// only one tensor, without gaps. Copies nothing.
    pub fn recognise(tensors: &[Tensor]) -> Option<Bucket> {
        let first = tensors.first()?;
        let in_order = tensors.windows(2).all(|pair| follows(&pair[0], &pair[1]));
        if !in_order || !first.layout().is_contiguous() {
            return None;
        }
        let places = places(tensors);
        let len = places.last()?.range().end;
        let layout = Layout { offset: first.layout().offset, ..Layout::contiguous(&[len]) };
        Some(Bucket { flat: first.with_layout(layout), places })
    }

    /// Returns the tensors as a bucket if they already are one, or a new bucket with copies of them.
    ///
    /// # Errors
    /// Same as [`gather`](Bucket::gather).
    pub fn of(tensors: &[Tensor]) -> Result<Bucket> {
        Bucket::recognise(tensors).map_or_else(|| Bucket::gather(tensors), Ok)
    }

    /// Returns `flat` as a bucket whose tensors have the shapes of `like`.
    pub fn laid_out(flat: Tensor, like: &[Tensor]) -> Bucket {
        Bucket { flat, places: places(like) }
    }

    /// Splits a list of tensors into the longest runs that fill consecutive slots of a block.
    pub fn runs(tensors: &[Tensor]) -> impl Iterator<Item = &[Tensor]> {
        tensors.chunk_by(follows)
    }

    /// Returns all elements as a 1-D tensor.
    pub fn flat(&self) -> &Tensor {
        &self.flat
    }

    /// Returns a bucket with the same layout and other elements, `flat`, which may have another type or device.
    pub fn with_flat(&self, flat: Tensor) -> Bucket {
        Bucket { flat, places: self.places.clone() }
    }

    /// Returns the tensors as views, in order.
    ///
    /// # Errors
    /// Errors of creating the views, if `flat` is shorter than the bucket.
    pub fn tensors(&self) -> Result<Vec<Tensor>> {
        let view =
            |place: &Place| self.flat.narrow(0, place.start, place.range().len())?.reshape(place.shape.as_slice());
        self.places.iter().map(view).collect()
    }

    /// Returns the range that the tensors `first` to `last` (included) occupy in [`flat`](Bucket::flat).
    pub fn range(&self, first: usize, last: usize) -> Range<usize> {
        self.places[first].start..self.places[last].range().end
    }

    /// Returns the bucket on `device`; the same one if it is already there.
    ///
    /// # Errors
    /// Errors of the devices.
    pub fn to(&self, device: &Device) -> Result<Bucket> {
        Ok(self.with_flat(self.flat.to(device)?))
    }

    /// Overwrites all elements with the elements of `source`, which may be on another device.
    ///
    /// # Errors
    /// Errors of the devices; [`Error::ShapeMismatch`](crate::Error::ShapeMismatch) if the lengths differ.
    pub fn copy_from(&self, source: &Bucket) -> Result<()> {
        if self.flat.dtype() == source.flat.dtype()
            && !self.flat.dtype().is_packed()
            && overwrite(&self.flat, &source.flat)?
        {
            return Ok(());
        }
        copy_(&self.flat, &source.flat.to(self.flat.device())?)
    }

    /// Makes views of this bucket the gradients of `parameters`, in order.
    ///
    /// # Errors
    /// Same as [`tensors`](Bucket::tensors).
    pub fn set_as_gradients_of(&self, parameters: &[Tensor]) -> Result<()> {
        parameters.iter().zip(self.tensors()?).for_each(|(parameter, view)| parameter.set_grad(Some(view)));
        Ok(())
    }
}

/// Returns copies of the tensors, which are on one device, in one block on `device`, outside the graph. Each keeps its
/// shape and type. There is one copy between devices.
pub(crate) fn copied_together(tensors: &[&Tensor], device: &Device) -> Result<Vec<Tensor>> {
    // Copied as words, because the tensors may have several types and keep them.
    let words: Vec<Tensor> = tensors.iter().map(|tensor| tensor.as_words()).collect::<Result<_>>()?;
    let Bucket { flat, places } = Bucket::gather(&words)?.to(device)?;
    let start = flat.layout().offset;
    let view =
        |(tensor, place): (&&Tensor, Place)| flat.tensor_at_word(start + place.start, tensor.shape(), tensor.dtype());
    tensors.iter().zip(places).map(view).collect()
}

fn places(tensors: &[Tensor]) -> Vec<Place> {
    let mut next = 0;
    let place = |tensor: &Tensor| {
        let start = next;
        next += slots(tensor.elem_count());
        Place { start, shape: tensor.shape().to_vec() }
    };
    tensors.iter().map(place).collect()
}

/// Returns whether `next` is in the slot directly after `previous`, in the same block.
fn follows(previous: &Tensor, next: &Tensor) -> bool {
    previous.device() == next.device()
        && previous.dtype() == next.dtype()
        && previous.storage().id() == next.storage().id()
        && previous.layout().is_contiguous()
        && next.layout().is_contiguous()
        && next.layout().offset == previous.layout().offset + slots(previous.elem_count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    fn parts() -> Vec<Tensor> {
        [[7].as_slice(), &[64], &[3, 50], &[]].map(|shape| Tensor::rand(shape, None).unwrap()).to_vec()
    }

    fn values(tensors: &[Tensor]) -> Vec<Vec<f32>> {
        tensors.iter().map(|tensor| tensor.to_vec().unwrap()).collect()
    }

    #[test]
    fn gathered_tensors_are_recognised_in_their_order_alone() -> Result<()> {
        let parts = parts();
        assert!(Bucket::recognise(&parts).is_none() && Bucket::recognise(&[]).is_none());
        let bucket = Bucket::gather(&parts)?;
        assert_eq!((bucket.flat().shape(), bucket.range(1, 2)), (&[64 + 64 + 192 + 1][..], 64..128 + 150));
        let views = bucket.tensors()?;
        assert_eq!(values(&views), values(&parts));
        let again = Bucket::recognise(&views).expect("the same bucket");
        assert_eq!(again.flat().to_vec::<f32>()?, bucket.flat().to_vec::<f32>()?);
        assert_eq!(again.flat().storage().id(), bucket.flat().storage().id());
        assert!(Bucket::recognise(&[views[1].clone(), views[0].clone()]).is_none());
        assert!(Bucket::recognise(&[views[0].clone(), views[2].clone()]).is_none());
        Ok(())
    }

    #[test]
    fn runs_end_where_a_slot_is_left_out() -> Result<()> {
        let views = Bucket::gather(&parts())?.tensors()?;
        let list = [&views[..2], &views[3..], &parts()[..1]].concat();
        assert_eq!(Bucket::runs(&list).map(<[Tensor]>::len).collect::<Vec<_>>(), [2, 1, 1]);
        Ok(())
    }

    #[test]
    fn one_copy_overwrites_all() -> Result<()> {
        let (to, from) = (Bucket::gather(&parts())?, Bucket::gather(&parts())?);
        for device in Device::all() {
            to.copy_from(&from.to(&device)?.with_flat(from.flat().to(&device)?.mul(2.0)?))?;
            let doubled: Vec<f32> = from.flat().to_vec::<f32>()?.iter().map(|v| 2.0 * v).collect();
            assert_eq!(to.flat().to_vec::<f32>()?, doubled, "{device}");
        }
        let other = Bucket::gather(&parts()[..2])?;
        assert!(matches!(to.copy_from(&other), Err(Error::ShapeMismatch { .. })));
        Ok(())
    }
}
