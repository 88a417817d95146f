//! One node with its inputs on a device: the interface of the operators.

use std::borrow::Cow;

use super::array::Array;
use super::element_type::ElementType;
use super::exact;
use super::minifloat::{Conversion, Rounding};
use super::node::Node;
use super::ops::fold;
use super::value::Value;
use super::{detail, fault};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::{BinaryFn, UnaryFn, of_one, of_two};
use crate::tensor::Tensor;

/// The most places of a tensor without elements, where its sizes of 0 do not count. Operators go over rows, planes or channels
/// that have no elements, and a file can ask for any number of these.
const MOST_PLACES: usize = 1 << 28;

/// The most dimensions of a tensor, as in NumPy.
const MOST_RANK: usize = 64;

/// A node that is executed.
pub(super) struct Call<'a> {
    pub node: &'a Node,
    /// The values of its inputs, `None` where one is left out.
    pub inputs: &'a [Option<Value>],
    pub device: &'a Device,
    /// Whether the model is in training mode, in which dropout drops.
    pub training: bool,
    /// Whether tensors of 64 bits are read as such: see `exact.rs`. The device is `cpu` then.
    pub exact: bool,
}

/// How an operator is computed.
#[derive(Clone, Copy)]
pub(super) enum Operator {
    /// One tensor. Its element type is the type of the first input, where tensors can have it.
    One(fn(&Call) -> Result<Tensor>),
    /// Any number of values.
    Values(fn(&Call) -> Result<Vec<Value>>),
    /// A function of one element, as [`Operator::One`].
    Unary(UnaryFn),
    /// A function of two elements, of any number of inputs from left to right.
    Binary(BinaryFn),
}

impl Operator {
    pub fn call(self, call: &Call) -> Result<Vec<Value>> {
        match self {
            _ if !call.exact && exact::is_for(call) => exact::outputs(call, self),
            Operator::One(f) => one(call, f(call)?),
            Operator::Values(f) => f(call),
            Operator::Unary(function) => one(call, of_one(function, &call.x(0)?, [0.0; 2])?),
            Operator::Binary(function) => one(call, fold(call, |x, y| of_two(function, x, y))?),
        }
    }
}

/// One tensor as the values of an operator.
fn one(call: &Call, tensor: Tensor) -> Result<Vec<Value>> {
    let first = call.inputs.iter().flatten().next();
    let value = match first {
        Some(first) if !matches!(first, Value::Sequence(_)) => Value::of(wrapped(tensor, first.kind())?, first.kind()),
        _ => Value::natural(tensor),
    };
    Ok(vec![value])
}

impl<'a> Call<'a> {
    /// Fails for inputs that no operator takes.
    pub fn new(node: &'a Node, inputs: &'a [Option<Value>], device: &'a Device, training: bool) -> Result<Call<'a>> {
        inputs.iter().flatten().try_for_each(is_of_use)?;
        Ok(Call { node, inputs, device, training, exact: false })
    }

    pub fn op(&self) -> &str {
        &self.node.op_type
    }

    pub fn opset(&self) -> i64 {
        self.node.opset
    }

    pub fn int(&self, name: &str, default: i64) -> i64 {
        self.node.attribute(name).map_or(default, |attribute| attribute.i)
    }

    pub fn flag(&self, name: &str) -> bool {
        self.int(name, 0) != 0
    }

    pub fn float(&self, name: &str, default: f32) -> f32 {
        self.node.attribute(name).map_or(default, |attribute| attribute.f)
    }

    pub fn text<'b>(&'b self, name: &str, default: &'b str) -> Cow<'b, str> {
        self.node.attribute(name).map_or(default.into(), |attribute| String::from_utf8_lossy(&attribute.s))
    }

    pub fn ints(&self, name: &str) -> Option<Vec<i64>> {
        self.node.attribute(name).map(|attribute| attribute.ints.clone())
    }

    pub fn has(&self, name: &str) -> bool {
        self.node.attribute(name).is_some()
    }

    /// An attribute that is a tensor.
    pub fn constant(&self, name: &str) -> Result<Option<Array>> {
        self.node.attribute(name).and_then(|attribute| attribute.t.as_ref()).map(Array::decode).transpose()
    }

    /// The value of input `i`, or `None` where it is left out.
    pub fn value(&self, i: usize) -> Option<&Value> {
        self.inputs.get(i)?.as_ref()
    }

    /// The value of input `i`.
    pub fn needed(&self, i: usize) -> Result<&Value> {
        self.value(i).ok_or_else(|| fault(format!("input {i} is missing")))
    }

    /// Input `i` as integers on the host: axes, shapes, sizes.
    pub fn whole(&self, i: usize) -> Result<Option<Vec<i64>>> {
        self.value(i).map(|value| Ok(value.read()?.to_ints())).transpose()
    }

    /// Input `i` as floats on the host.
    pub fn floats(&self, i: usize) -> Result<Option<Vec<f64>>> {
        self.value(i).map(|value| Ok(value.read()?.to_floats())).transpose()
    }

    /// The only element of input `i`, or `None` where it is left out or empty.
    pub fn number(&self, i: usize) -> Result<Option<f64>> {
        Ok(self.floats(i)?.and_then(|values| values.first().copied()))
    }

    /// What later opsets give as input `i` and earlier ones as an attribute.
    pub fn list(&self, name: &str, i: usize) -> Result<Option<Vec<i64>>> {
        Ok(self.whole(i)?.or_else(|| self.ints(name)))
    }

    /// A value as a tensor on the device.
    pub fn tensor(&self, value: &Value) -> Result<Tensor> {
        if self.exact { value.exact() } else { value.tensor(self.device) }
    }

    /// Input `i` as a tensor on the device.
    pub fn x(&self, i: usize) -> Result<Tensor> {
        self.tensor(self.needed(i)?)
    }

    /// Input `i`, or `None` where it is left out.
    pub fn maybe(&self, i: usize) -> Result<Option<Tensor>> {
        self.value(i).map(|value| self.tensor(value)).transpose()
    }

    /// All inputs that are given; at least one.
    pub fn all(&self) -> Result<Vec<Tensor>> {
        let all: Vec<Tensor> = self.inputs.iter().flatten().map(|value| self.tensor(value)).collect::<Result<_>>()?;
        if all.is_empty() { Err(fault("input 0 is missing")) } else { Ok(all) }
    }

    /// Two inputs that an operator combines, in one element type. Tensors that stand for the same integers may be signed or not.
    pub fn pair(&self, i: usize, j: usize) -> Result<(Tensor, Tensor)> {
        alike(self.x(i)?, self.x(j)?)
    }

    /// The dimension that an axis names, counted from the end where it is negative.
    pub fn dim(&self, axis: i64, rank: usize) -> Result<usize> {
        let dim = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
        match usize::try_from(dim) {
            Ok(dim) if dim < rank => Ok(dim),
            _ => Err(fault(format!("axis {axis} is not one of {rank} dimensions"))),
        }
    }

    pub fn dims(&self, axes: &[i64], rank: usize) -> Result<Vec<usize>> {
        axes.iter().map(|&axis| self.dim(axis, rank)).collect()
    }

    /// The dimension of an attribute `axis`.
    pub fn axis(&self, default: i64, rank: usize) -> Result<usize> {
        self.dim(self.int("axis", default), rank)
    }

    /// The type that an attribute names.
    pub fn type_attribute(&self, name: &str) -> Result<Option<ElementType>> {
        match self.has(name) {
            true => ElementType::of(i32::try_from(self.int(name, 0)).unwrap_or(0)).map(Some),
            false => Ok(None),
        }
    }

    /// How floats become floats of 8 bits.
    pub fn conversion(&self) -> Result<Conversion> {
        let rounding = match self.text("round_mode", "up").as_ref() {
            "up" => Rounding::Up,
            "down" => Rounding::Down,
            "nearest" => Rounding::Nearest,
            mode => return self.refuse(format!("the rounding mode {mode}")),
        };
        Ok(Conversion { saturate: self.int("saturate", 1) != 0, rounding })
    }

    /// How many outputs the node has, counting those without a name before the last.
    pub fn outputs(&self) -> usize {
        self.node.outputs.len()
    }

    /// Whether output `i` is used.
    pub fn wants(&self, i: usize) -> bool {
        self.node.outputs.get(i).is_some_and(Option::is_some)
    }

    pub fn refuse<T>(&self, what: impl std::fmt::Display) -> Result<T> {
        Err(fault(format!("{what} is not supported")))
    }
}

/// Refuses a tensor of too many dimensions, or one without elements whose other sizes are too large.
fn is_of_use(value: &Value) -> Result<()> {
    let Ok(shape) = value.shape() else { return Ok(()) };
    if shape.len() > MOST_RANK {
        return Err(fault(format!("a tensor of {} dimensions is not supported", shape.len())));
    }
    if !shape.contains(&0) {
        return Ok(());
    }
    let places = shape.iter().filter(|&&size| size > 0).try_fold(1usize, |places, &size| places.checked_mul(size));
    match places.is_some_and(|places| places <= MOST_PLACES) {
        true => Ok(()),
        false => Err(fault(format!("a tensor without elements of shape {shape:?} is not supported"))),
    }
}

/// Two tensors in one element type: integers that are signed and unsigned become signed.
pub(super) fn alike(x: Tensor, y: Tensor) -> Result<(Tensor, Tensor)> {
    match (x.dtype(), y.dtype()) {
        (DType::I32, DType::U32) => Ok((x, y.to_dtype(DType::I32)?)),
        (DType::U32, DType::I32) => Ok((x.to_dtype(DType::I32)?, y)),
        _ => Ok((x, y)),
    }
}

/// The integers of a tensor in a narrower type, without the upper bits. Other tensors are returned as they are.
pub(super) fn wrapped(x: Tensor, kind: ElementType) -> Result<Tensor> {
    if x.dtype() != DType::I32 || kind.word() != DType::I32 || kind.bits() >= 32 {
        return Ok(x);
    }
    let (low, high) = kind.range();
    let (low, span) = (low as i32, (high - low + 1) as i32);
    x.sub(low)?.rem(span)?.add(low)
}

/// Sizes that must not be negative.
pub(super) fn sizes(values: &[i64]) -> Result<Vec<usize>> {
    values.iter().map(|&value| size(value)).collect()
}

/// A size. None is larger than 2³¹, so products of two do not overflow.
pub(super) fn size(value: i64) -> Result<usize> {
    match usize::try_from(value) {
        Ok(size) if value <= i64::from(i32::MAX) => Ok(size),
        _ => Err(fault(format!("{value} is not a size"))),
    }
}

/// The error of a node with its name.
pub(super) fn of_node(error: Error, node: &Node) -> Error {
    if error.is_of_device() || error.is_abandoned() {
        return error;
    }
    let name = if node.name.is_empty() { String::new() } else { format!(" '{}'", node.name) };
    fault(format!("node{name} ({}): {}", node.op_type, detail(&error)))
}
