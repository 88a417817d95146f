//! Execution of a graph.

use std::cell::Cell;

use super::array::{Array, Elements};
use super::call::{Call, of_node};
use super::fault;
use super::host;
use super::node::{Body, Declared, Graph, Node, Source};
use super::value::Value;
use super::weights::Weight;
use crate::device::Device;
use crate::error::Result;

/// The values of a graph that is executed, by slot.
type Values = Vec<Option<Value>>;

/// The most trips of all `Loop`s and `Scan`s of one execution: a file can ask for a loop without an end, which stacks an output of each trip.
const MOST_TRIPS: usize = 1 << 20;

/// An execution on a device.
pub(super) struct Run<'a> {
    weights: &'a [Weight],
    device: &'a Device,
    training: bool,
    /// The trips of `Loop`s and `Scan`s so far.
    trips: Cell<usize>,
}

impl<'a> Run<'a> {
    pub fn new(weights: &'a [Weight], device: &'a Device, training: bool) -> Run<'a> {
        Run { weights, device, training, trips: Cell::new(0) }
    }

    /// Executes a graph with its inputs; `outer` are the values of the graph around it. Each value is dropped after its last use,
    /// so its memory serves the next ones.
    pub fn graph(&self, graph: &Graph, inputs: Vec<Value>, outer: &Values) -> Result<Vec<Value>> {
        if inputs.len() != graph.inputs.len() {
            return Err(fault(format!("a graph of {} inputs is given {}", graph.inputs.len(), inputs.len())));
        }
        let mut values: Values = vec![None; graph.slots];
        for (&slot, value) in graph.inputs.iter().zip(inputs) {
            values[slot] = Some(value);
        }
        for &(source, slot) in &graph.captures {
            values[slot] = Some(self.value(source, outer)?);
        }
        for node in &graph.nodes {
            let outputs = self.node(node, &values).map_err(|error| of_node(error, node))?;
            let mut outputs = outputs.into_iter();
            for slot in &node.outputs {
                let value = outputs.next();
                if let Some(slot) = *slot {
                    let missing = || of_node(fault("an output that is used is not supported"), node);
                    values[slot] = Some(value.ok_or_else(missing)?);
                }
            }
            node.dead.iter().for_each(|&slot| values[slot] = None);
        }
        graph.outputs.iter().map(|&output| self.value(output, &values)).collect()
    }

    fn value(&self, source: Source, values: &Values) -> Result<Value> {
        match source {
            Source::Weight(weight) => self.weights[weight].value(),
            Source::Slot(slot) => values[slot].clone().ok_or_else(|| fault("a value is read before it is computed")),
        }
    }

    fn node(&self, node: &Node, values: &Values) -> Result<Vec<Value>> {
        let get = |source: &Option<Source>| source.map(|source| self.value(source, values)).transpose();
        let inputs: Vec<Option<Value>> = node.inputs.iter().map(get).collect::<Result<_>>()?;
        let call = Call::new(node, &inputs, self.device, self.training)?;
        match &node.body {
            Body::Operator(operator) => match host::evaluate(&call) {
                Some(outputs) => outputs,
                None => operator.call(&call),
            },
            Body::If { then, otherwise } => {
                let condition = truth(call.needed(0)?)?;
                self.graph(if condition { then } else { otherwise }, Vec::new(), values)
            }
            Body::Loop(body) => self.repeat(body, &call, values),
            Body::Scan(body) => self.scan(body, &call, values),
            Body::Function(body) => {
                // Inputs at the end may be left out; a function that reads one of these cannot be called so.
                let given = inputs.iter().take(body.inputs.len()).cloned();
                let given: Option<Vec<Value>> = given.collect();
                self.graph(body, given.ok_or_else(|| fault("an input is missing"))?, values)
            }
        }
    }

    /// `Loop`: a number of trips, a condition and values that are carried from trip to trip; further outputs of the body are
    /// stacked.
    fn repeat(&self, body: &Graph, call: &Call, values: &Values) -> Result<Vec<Value>> {
        let trips = call.value(0).map(|value| Ok(value.read()?.to_ints().first().copied().unwrap_or(0))).transpose()?;
        let mut go = call.value(1).map_or(Ok(true), truth)?;
        let mut carried: Vec<Value> = (2..call.inputs.len()).map(|i| call.needed(i).cloned()).collect::<Result<_>>()?;
        let stacked = body.outputs.len().checked_sub(1 + carried.len());
        let mut stacks = vec![Vec::new(); stacked.ok_or_else(|| fault("the body has too few outputs"))?];
        let mut trip = 0;
        while go && trips.is_none_or(|trips| trip < trips) {
            self.trip(call)?;
            let counted = Array::scalar(super::ElementType::Int64, trip).into();
            let inputs = [counted, Array::bool(go).into()].into_iter().chain(carried.iter().cloned()).collect();
            let mut outputs = self.graph(body, inputs, values)?.into_iter();
            go = outputs.next().as_ref().map_or(Ok(false), truth)?;
            carried.iter_mut().zip(&mut outputs).for_each(|(value, output)| *value = output);
            stacks.iter_mut().zip(outputs).for_each(|(stack, output)| stack.push(output));
            trip += 1;
        }
        let states = carried.len();
        for (i, stack) in stacks.into_iter().enumerate() {
            carried.push(self.stacked(stack, 0, body.declared.get(1 + states + i))?);
        }
        Ok(carried)
    }

    /// `Scan`: a loop over slices of its last inputs.
    fn scan(&self, body: &Graph, call: &Call, values: &Values) -> Result<Vec<Value>> {
        if call.opset() < 9 {
            return call.refuse("Scan of operator set 8");
        }
        let scanned = usize::try_from(call.int("num_scan_inputs", 0)).unwrap_or(0);
        let states = call.inputs.len().checked_sub(scanned).ok_or_else(|| fault("inputs are missing"))?;
        let all: Vec<Value> = (0..call.inputs.len()).map(|i| call.needed(i).cloned()).collect::<Result<_>>()?;
        let mut state = all[..states].to_vec();
        let each = |name: &str, i: usize| call.ints(name).and_then(|list| list.get(i).copied()).unwrap_or(0);
        let mut slices = Vec::with_capacity(scanned);
        for (i, value) in all[states..].iter().enumerate() {
            let x = value.whole(self.device)?;
            let dim = call.dim(each("scan_input_axes", i), x.rank())?;
            let back = each("scan_input_directions", i) == 1;
            slices.push((x.clone(), value.kind(), dim, back));
        }
        let length = slices.first().map_or(0, |(x, _, dim, _)| x.shape()[*dim]);
        if slices.iter().any(|(x, _, dim, _)| x.shape()[*dim] != length) {
            return Err(fault("the inputs to scan differ in length"));
        }
        let outputs = body.outputs.len().checked_sub(states).ok_or_else(|| fault("the body has too few outputs"))?;
        let mut stacks: Vec<Vec<Value>> = vec![Vec::new(); outputs];
        for step in 0..length {
            self.trip(call)?;
            let mut inputs = state.clone();
            for (x, kind, dim, back) in &slices {
                let at = if *back { length - 1 - step } else { step };
                inputs.push(Value::of(x.select(*dim, at)?, *kind).settled_if_long(self.device)?);
            }
            let mut made = self.graph(body, inputs, values)?.into_iter();
            state.iter_mut().zip(&mut made).for_each(|(value, output)| *value = output);
            stacks.iter_mut().zip(made).for_each(|(stack, output)| stack.push(output));
        }
        for (i, mut stack) in stacks.into_iter().enumerate() {
            if each("scan_output_directions", i) == 1 {
                stack.reverse();
            }
            state.push(self.stacked(stack, each("scan_output_axes", i), body.declared.get(states + i))?);
        }
        Ok(state)
    }

    /// Counts a trip of a loop.
    fn trip(&self, call: &Call) -> Result<()> {
        self.trips.set(self.trips.get() + 1);
        match self.trips.get() > MOST_TRIPS {
            true => call.refuse(format!("more than {MOST_TRIPS} trips of loops in one run")),
            false => Ok(()),
        }
    }

    /// The values of all trips along a new dimension. Without a trip, its size is 0, and so are the sizes that the
    /// file leaves open.
    fn stacked(&self, values: Vec<Value>, axis: i64, declared: Option<&Declared>) -> Result<Value> {
        let Some(first) = values.first() else {
            let Some(Some((kind, sizes))) = declared else {
                return Err(fault("a loop without a trip has no type for its stacked outputs"));
            };
            let rank = sizes.len() as i64 + 1;
            let dim = usize::try_from(if axis < 0 { axis.saturating_add(rank) } else { axis });
            let dim = dim.ok().filter(|&dim| dim <= sizes.len()).ok_or_else(|| fault(format!("axis {axis}")))?;
            let mut shape = sizes.clone();
            shape.insert(dim, 0);
            let elements = if kind.is_float() { Elements::Floats(Vec::new()) } else { Elements::Ints(Vec::new()) };
            return Ok(Array { shape, kind: *kind, elements }.into());
        };
        Value::joined(&values, first.kind(), self.device, |tensors| crate::Tensor::stack(&tensors, axis))
    }
}

/// A condition: one element.
fn truth(value: &Value) -> Result<bool> {
    let array = value.read()?;
    array.to_floats().first().map(|&value| value != 0.0).ok_or_else(|| fault("a condition has no element"))
}
