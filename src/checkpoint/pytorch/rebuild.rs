//! The functions of PyTorch that rebuild a tensor.

use super::calls::Known;
use super::pickle::{Machine, Object, Ref, Step};
use super::tensors::TensorView;
use crate::checkpoint::file_dtype::FileDType;
use crate::checkpoint::text;

/// How a tensor is rebuilt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Rebuild {
    /// From a storage with an element type.
    Plain,
    /// From a storage of bytes and an element type.
    Typed,
    /// A parameter, from a tensor.
    Parameter,
    /// A tensor with attributes, from another call.
    FromType,
}

/// The number of words of a tensor besides its sizes.
const VIEW: usize = 16;

impl Machine<'_> {
    /// Returns the tensor of a call, or what is skipped instead of it. Every argument is used or checked.
    pub(super) fn rebuilt(&mut self, rebuild: Rebuild, arguments: &[Ref]) -> Step<Ref> {
        match (rebuild, arguments) {
            // The last argument, if there is one, holds attributes of Python, which tensors do not have here.
            (Rebuild::Parameter, [tensor, rest @ ..]) if rest.len() <= 3 => match self.objects[*tensor] {
                Object::Tensor(_) | Object::Unsupported(_) => {
                    self.check_gradient(&rest[..rest.len().min(2)])?;
                    Ok(*tensor)
                }
                _ => Err("its pickle makes a parameter of another kind of object than a tensor".into()),
            },
            // As above, the last argument holds attributes.
            (Rebuild::FromType, [call, class, inner, rest @ ..]) if rest.len() <= 1 => {
                if !matches!(self.objects[*class], Object::Known(Known::Type)) {
                    return Err("its pickle makes a tensor of an unknown class".into());
                }
                match (&self.objects[*call], &self.objects[*inner]) {
                    (Object::Known(Known::Skipped(what)), _) => {
                        let what = *what;
                        Ok(self.make(Object::Unsupported(what)))
                    }
                    (&Object::Known(Known::Tensor(call)), Object::Tuple(inner)) if call != Rebuild::FromType => {
                        let inner = inner.clone();
                        self.spend(inner.len())?;
                        self.rebuilt(call, &inner)
                    }
                    _ => Err("its pickle makes a tensor by an unknown function".into()),
                }
            }
            (Rebuild::Plain, [storage, offset, shape, strides, rest @ ..]) if rest.len() <= 3 => {
                self.check_gradient(&rest[..rest.len().min(2)])?;
                let negative = self.is_negative(rest.get(2))?;
                self.tensor([storage, offset, shape, strides], None, negative)
            }
            (Rebuild::Typed, [storage, offset, shape, strides, requires_grad, hooks, dtype, rest @ ..])
                if rest.len() <= 1 =>
            {
                self.check_gradient(&[*requires_grad, *hooks])?;
                let negative = self.is_negative(rest.first())?;
                match self.objects[*dtype] {
                    Object::Known(Known::DType(file_dtype, _)) => {
                        self.tensor([storage, offset, shape, strides], Some(file_dtype), negative)
                    }
                    _ => Err("its pickle has a tensor of no known type".into()),
                }
            }
            _ => Err("its pickle makes a tensor of arguments of another kind".into()),
        }
    }

    /// Checks `requires_grad`, which is not needed because the result is outside the graph, and `backward_hooks`.
    fn check_gradient(&self, arguments: &[Ref]) -> Step<()> {
        match arguments.first().map(|&at| &self.objects[at]) {
            None | Some(Object::Bool(_)) => {}
            Some(_) => return Err("its pickle has a tensor whose requires_grad is neither true nor false".into()),
        }
        match arguments.get(1).map(|&at| &self.objects[at]) {
            None | Some(Object::None) => Ok(()),
            Some(Object::Dict(hooks)) if hooks.is_empty() => Ok(()),
            Some(_) => {
                Err("its pickle has a tensor with backward_hooks, which are code: in Python, save x.detach()".into())
            }
        }
    }

    /// Returns whether a tensor's elements are stored with the opposite sign, from PyTorch's metadata of the tensor.
    fn is_negative(&mut self, metadata: Option<&Ref>) -> Step<bool> {
        let entries = match metadata.map(|&at| &self.objects[at]) {
            None | Some(Object::None) => return Ok(false),
            Some(Object::Dict(entries)) => entries.clone(),
            Some(_) => return Err("its pickle has a tensor whose metadata are no dict".into()),
        };
        self.spend(2 * entries.len())?;
        let mut negative = false;
        for (key, value) in entries {
            match (self.text_of(key)?, &self.objects[value]) {
                ("neg", Object::Bool(value)) => negative = *value,
                // A real number is its own conjugate, and complex numbers are skipped.
                ("conj", Object::Bool(_)) => {}
                (key, _) => {
                    return Err(
                        format!("its pickle has a tensor with the metadata {}: that is not known", text(key)).into()
                    );
                }
            }
        }
        Ok(negative)
    }

    fn tensor(
        &mut self,
        [storage, offset, shape, strides]: [&Ref; 4],
        file_dtype: Option<FileDType>,
        negative: bool,
    ) -> Step<Ref> {
        let Object::Storage(storage) = &self.objects[*storage] else {
            return Err("its pickle has a tensor without a storage".into());
        };
        let file_dtype = file_dtype.or(storage.file_dtype).ok_or("its pickle has a tensor of no known type")?;
        let (storage, offset) = (storage.as_ref().clone(), self.size_of(*offset)?);
        let (shape, strides) = (self.sizes_of(*shape)?, self.sizes_of(*strides)?);
        self.spend(VIEW + shape.len() + strides.len())?;
        let view = TensorView { storage, file_dtype, offset, shape, strides, negative };
        Ok(self.make(Object::Tensor(Box::new(view))))
    }
}
