//! Makes tensors of the storages of a file.

use std::collections::HashMap;
use std::sync::Arc;

use crate::checkpoint::file_dtype::FileDType;
use crate::checkpoint::{Fault, text};
use crate::device::cpu::with_room;
use crate::shape::Layout;
use crate::tensor::Tensor;

/// The description of a storage in a pickle.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PickleStorage {
    /// Its name in the file.
    pub key: Arc<str>,
    /// `None` for a storage of bytes: the tensor has the type.
    pub file_dtype: Option<FileDType>,
    /// The number of elements.
    pub count: usize,
    /// A part of a storage in the old format: the first element and the number of elements.
    pub part: Option<(usize, usize)>,
}

/// The description of a tensor in a pickle.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct TensorView {
    pub storage: PickleStorage,
    pub file_dtype: FileDType,
    pub offset: usize,
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
    /// Whether it is a view with the opposite sign.
    pub negative: bool,
}

/// Makes tensors, each view of a storage once. Their total size is limited to a multiple of the file's size.
pub(super) struct Tensors<'a> {
    storages: HashMap<String, &'a [u8]>,
    made: HashMap<TensorView, Tensor>,
    /// The bytes that may still be made.
    budget: usize,
    file: usize,
}

impl<'a> Tensors<'a> {
    /// Creates it for a file of `file` bytes.
    pub fn new(storages: HashMap<String, &'a [u8]>, file: usize) -> Tensors<'a> {
        // Eight, because one byte can become a word of four bytes, and a weight can have two names.
        let budget = file.saturating_mul(8).saturating_add(1 << 16);
        Tensors { storages, made: HashMap::new(), budget, file }
    }

    /// Returns the tensor on `cpu`.
    pub fn make(&mut self, view: &TensorView) -> Result<Tensor, Fault> {
        if let Some(tensor) = self.made.get(view) {
            return Ok(tensor.clone());
        }
        let data = self.data(view)?;
        let (layout, size) = (layout(view, data.len())?, view.file_dtype.size());
        let bytes = layout.elem_count().saturating_mul(size.max(4));
        self.budget = self.budget.checked_sub(bytes).ok_or_else(|| {
            format!(
                "its tensors would take many times the {} bytes of the file: {:?} is one of them",
                self.file, view.shape
            )
        })?;
        let places = || layout.positions().map(|at| &data[at * size..][..size]);
        let tensor = if view.negative {
            let mut dense = with_room(layout.elem_count() * size)?;
            places().for_each(|element| dense.extend_from_slice(element));
            view.file_dtype.negate(&mut dense)?;
            view.file_dtype.tensor(&view.shape, dense.chunks_exact(size))?
        } else if layout.is_contiguous() {
            let dense = &data[layout.offset * size..][..layout.elem_count() * size];
            view.file_dtype.tensor(&view.shape, dense.chunks_exact(size))?
        } else {
            view.file_dtype.tensor(&view.shape, places())?
        };
        self.made.insert(view.clone(), tensor.clone());
        Ok(tensor)
    }

    /// Returns the bytes of a storage, or of a part of it.
    fn data(&self, view: &TensorView) -> Result<&'a [u8], Fault> {
        let PickleStorage { key, file_dtype, count, part } = &view.storage;
        let data = *self.storages.get(&**key).ok_or_else(|| format!("the storage {} is missing", text(key)))?;
        let size = file_dtype.map_or(1, FileDType::size);
        let whole = count.checked_mul(size).filter(|&bytes| bytes == data.len());
        if whole.is_none() {
            return Err(
                format!("the storage {} has {} bytes, not {count} elements of {size}", text(key), data.len()).into()
            );
        }
        let Some((first, count)) = *part else { return Ok(data) };
        let range = first.checked_mul(size).zip(count.checked_mul(size));
        let inside = range.and_then(|(first, bytes)| data.get(first..)?.get(..bytes));
        inside.ok_or_else(|| format!("a part of the storage {} reaches beyond it", text(key)).into())
    }
}

/// Returns the layout of the elements in a storage of `bytes` bytes. Elements outside the storage are an error.
fn layout(view: &TensorView, bytes: usize) -> Result<Layout, Fault> {
    let TensorView { shape, strides, offset, file_dtype, .. } = view;
    let wrong = || {
        Fault::from(format!(
            "a tensor of shape {shape:?}, strides {strides:?} from {offset} on is not inside its storage"
        ))
    };
    if shape.len() != strides.len() {
        return Err(wrong());
    }
    if shape.contains(&0) {
        return Ok(Layout::contiguous(shape));
    }
    let steps = shape
        .iter()
        .zip(strides)
        .try_fold(*offset, |last, (size, stride)| last.checked_add((size - 1).checked_mul(*stride)?));
    let count = shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size));
    match (steps, count) {
        (Some(last), Some(_)) if last < bytes / file_dtype.size() => {
            Ok(Layout { shape: shape.clone(), strides: strides.clone(), offset: *offset })
        }
        _ => Err(wrong()),
    }
}
