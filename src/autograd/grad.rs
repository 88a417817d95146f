//! Gradients as results, which are not added to the gradients of leaves, and gradients of gradients.

use std::collections::{HashMap, HashSet};

use super::{RECORDING, Sums, Walk, freed, of_type, push_back, users_first};
use crate::device::labelled_by_default;
use crate::error::{Error, Result};
use crate::ops::{self, Differentiable, Gradient, Gradients};
use crate::tensor::Tensor;
use crate::util::sync::lock;

/// The options of [`grad`].
#[derive(Clone, Debug, Default)]
pub struct GradOptions {
    output_grad: Option<Tensor>,
    retain_graph: bool,
    create_graph: bool,
    allow_unused: bool,
}

impl GradOptions {
    /// Returns the default options.
    ///
    /// The output must have one element. The graph is freed afterwards, and the gradients have no gradients themselves.
    #[must_use]
    pub fn new() -> GradOptions {
        GradOptions::default()
    }

    /// Sets the gradient of the output, which has the output's shape. The results are its products with the Jacobian
    /// matrix.
    #[must_use]
    pub fn output_grad(mut self, output_grad: &Tensor) -> GradOptions {
        self.output_grad = Some(output_grad.clone());
        self
    }

    /// Keeps the graph for another backward pass.
    #[must_use]
    pub fn retain_graph(mut self) -> GradOptions {
        self.retain_graph = true;
        self
    }

    /// Records how the gradients are computed, so that they can be differentiated again. Also keeps the graph.
    #[must_use]
    pub fn create_graph(mut self) -> GradOptions {
        self.create_graph = true;
        self
    }

    /// Returns zeros for inputs that the output does not depend on. Without this option, such an input is an error.
    #[must_use]
    pub fn allow_unused(mut self) -> GradOptions {
        self.allow_unused = true;
        self
    }
}

/// Returns the gradients of an output with respect to these inputs, like `torch.autograd.grad`.
///
/// There is one gradient for each input, with the input's shape and type.
///
/// Each input is a leaf, or the result of an op from which the output was computed. Gradients that leaves have
/// accumulated ([`Tensor::grad`]) do not change.
///
/// With [`create_graph`](GradOptions::create_graph), the gradients are part of the graph. Use it for gradient
/// penalties, second derivatives, and training through optimiser steps. Gradients of any order exist for products,
/// matrix factorisations, convolutions, attention, sums, softmax, losses, most functions of one or two elements, and
/// changes of shape. Normalisations, poolings, recurrent layers and some other ops have first-order gradients only.
/// With `create_graph`, they return an error on every device.
///
/// # Errors
/// [`Error::Autograd`] in these cases:
///
/// - The output has several elements, and [`output_grad`](GradOptions::output_grad) is not set.
/// - The output does not depend on an input, and [`allow_unused`](GradOptions::allow_unused) is not set.
/// - The graph was freed, or a tensor that the gradient needs was modified in place.
/// - An op has no gradient, or its gradient has no gradient and `create_graph` is set.
///
/// [`Error::ShapeMismatch`] if `output_grad` does not have the output's shape. Also the errors of the ops that compute
/// the gradients.
///
/// ```
/// use anygpu::{GradOptions, Tensor, grad};
///
/// let x = Tensor::new([1.0, 2.0], None)?.requires_grad();
/// let y = x.pow(3)?.sum_all()?;
/// let dx = grad(&y, &[&x], &GradOptions::new().create_graph())?; // 3 x²
/// assert_eq!(dx[0].to_vec::<f32>()?, [3.0, 12.0]);
///
/// let penalty = dx[0].square()?.sum_all()?; // Σ 9 x⁴, whose gradient is 36 x³
/// penalty.backward()?;
/// assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [36.0, 288.0]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn grad(output: &Tensor, inputs: &[&Tensor], options: &GradOptions) -> Result<Vec<Tensor>> {
    let start = match &options.output_grad {
        Some(given) if given.shape() != output.shape() => {
            let detail = "a gradient has the shape of its tensor";
            return Err(Error::shapes("grad", output.shape(), given.shape(), detail));
        }
        Some(given) => given.clone(),
        None if output.elem_count() != 1 => {
            let shape = output.shape();
            return Err(Error::Autograd(format!(
                "grad of a tensor of shape {shape:?} needs output_grad; or sum the tensor first"
            )));
        }
        None => output.detach().ones_like()?,
    };
    let found = labelled_by_default("gradients", || walk_to(output, start, inputs, options))?;
    let of = |(i, input): (usize, &&Tensor)| match found.get(&input.id()) {
        Some(gradient) => of_type(gradient, input),
        None if options.allow_unused => input.detach().zeros_like(),
        None => Err(Error::Autograd(format!(
            "the output does not depend on input {i}, of shape {:?}: allow_unused() gives zeros",
            input.shape()
        ))),
    };
    inputs.iter().enumerate().map(of).collect()
}

/// Returns the gradients of the inputs that the output depends on, by their ids.
fn walk_to(output: &Tensor, start: Tensor, inputs: &[&Tensor], options: &GradOptions) -> Result<HashMap<u64, Tensor>> {
    let create = options.create_graph;
    let _recording = RECORDING.set(create);
    let _types = ops::products(None); // gradients have the types of the forward pass
    let wanted: HashSet<u64> = inputs.iter().map(|input| input.id()).collect();
    let order = users_first(output)?;
    let reached = reached(&order, &wanted)?;
    let walk = Walk { retain: create || options.retain_graph, create, reached: Some(reached) };
    let mut grads = Sums::from([(output.id(), (start, false))]);
    let mut found = HashMap::new();
    for tensor in order {
        let Some((gradient, _)) = grads.remove(&tensor.id()) else { continue };
        if wanted.contains(&tensor.id()) {
            found.insert(tensor.id(), gradient.clone());
        }
        match tensor.node() {
            Some(node) if any_input(&tensor, |input| walk.needs(input))? => {
                push_back(node, &tensor, gradient, &walk, &mut grads)?;
            }
            _ => {}
        }
    }
    Ok(found)
}

/// Returns an error if a gradient is outside the graph although it depends on tensors in the graph. Its own gradient
/// would silently lack a part.
pub(super) fn all_recorded(op: &dyn Differentiable, ctx: &Gradient, gradients: &Gradients) -> Result<()> {
    let changes = |input: usize| {
        let with = op.gradient_changes_with(input);
        let tracked = |(i, x): (usize, &Tensor)| with.input(i) && x.is_tracked();
        ctx.grad.is_tracked() || with.output() || ctx.inputs.iter().enumerate().any(tracked)
    };
    let outside = |(i, gradient): (usize, &Option<Tensor>)| {
        ctx.needs[i] && gradient.as_ref().is_some_and(|gradient| !gradient.is_tracked()) && changes(i)
    };
    let Some(i) = gradients.iter().enumerate().position(outside) else { return Ok(()) };
    let op = op.op_name();
    Err(Error::Autograd(format!(
        "the gradient of {op} has no gradient: the gradient of input {i} is outside the graph"
    )))
}

/// Returns the ids of the wanted tensors and of all tensors that depend on them. `order` has the graph's tensors, users
/// first.
fn reached(order: &[Tensor], wanted: &HashSet<u64>) -> Result<HashSet<u64>> {
    let mut reached = HashSet::new();
    for tensor in order.iter().rev() {
        if wanted.contains(&tensor.id()) || any_input(tensor, |input| reached.contains(&input.id()))? {
            reached.insert(tensor.id());
        }
    }
    Ok(reached)
}

/// Returns whether an input of the op that made a tensor has a property.
fn any_input(tensor: &Tensor, has: impl Fn(&Tensor) -> bool) -> Result<bool> {
    let Some(node) = tensor.node() else { return Ok(false) };
    Ok(lock(&node.0.saved).as_ref().ok_or_else(freed)?.inputs.iter().any(has))
}
