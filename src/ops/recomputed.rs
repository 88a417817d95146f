//! Ops in parts: results whose parts are computed one after the other, and again for their gradients, so that what is between operands
//! and a part is in memory for one part at a time.

use crate::autograd::{GradOptions, RECORDING, grad, is_recording, no_grad};
use crate::error::Result;
use crate::ops::custom_grad::custom;
use crate::ops::inplace::copy_;
use crate::ops::traced::TRACE;
use crate::ops::{Backward, Gradients};
use crate::tensor::Tensor;

/// Parts of a result, along one of its dimensions.
pub(super) struct Cut {
    /// The dimension of the result.
    pub dim: usize,
    /// Its size in a part; the last part may be smaller.
    pub each: usize,
    /// The dimension of each input that is cut with it. Parts have the others as a whole.
    pub inputs: Vec<Option<usize>>,
}

/// How a result is computed in parts.
pub(super) trait InParts: Send + Sync + 'static {
    /// Returns how the result of these inputs is cut, or `None` if it is computed as a whole. Parts may be cut again.
    fn cut(&self, inputs: &[Tensor]) -> Option<Cut>;

    /// Returns the shape of the result of these inputs, which is of f32.
    fn shape(&self, inputs: &[Tensor]) -> Result<Vec<usize>>;

    /// Computes a part, whose rows begin at row `first` of the whole: rows are the dimension before the last one.
    fn part(&self, inputs: &[Tensor], first: usize) -> Result<Tensor>;
}

/// Computes the result of an op part by part. Its gradients have gradients, for which all parts are in memory.
pub(super) fn in_parts(name: &'static str, op: impl InParts, inputs: &[&Tensor]) -> Result<Tensor> {
    if TRACE.get().is_some() {
        return joined(&op, &inputs.iter().map(|&input| input.clone()).collect::<Vec<_>>(), 0); // a file of the net has these ops
    }
    let untracked: Vec<Tensor> = inputs.iter().map(|input| input.detach()).collect();
    let out = Tensor::zeros(op.shape(&untracked)?, inputs[0].device())?;
    no_grad(|| write(&op, &untracked, 0, &out))?;
    let backward = move |b: &Backward| {
        if is_recording() {
            return whole(&op, b);
        }
        gradients(&op, b.inputs(), b.needs(), b.grad(), 0)
    };
    custom(name, inputs, out, Box::new(backward), true)
}

/// A part of a result.
struct Part<'a> {
    inputs: &'a [Tensor],
    /// Its place in the dimension that is cut.
    start: usize,
    len: usize,
    /// The number of its first row in the whole.
    first: usize,
}

/// Calls `f` with each part of a result whose rows begin at row `first` of the whole.
fn each_part(cut: &Cut, inputs: &[Tensor], first: usize, mut f: impl FnMut(Part) -> Result<()>) -> Result<()> {
    let sizes = inputs.iter().zip(&cut.inputs).filter_map(|(x, dim)| dim.map(|dim| x.shape()[dim]));
    let size = sizes.max().unwrap_or(0);
    let cuts_rows = inputs.iter().map(Tensor::rank).max() == Some(cut.dim + 2);
    for start in (0..size).step_by(cut.each) {
        let len = cut.each.min(size - start);
        let of_part = |(x, dim): (&Tensor, &Option<usize>)| match dim {
            Some(dim) => x.narrow(*dim, start, len),
            None => Ok(x.clone()),
        };
        let inputs = inputs.iter().zip(&cut.inputs).map(of_part).collect::<Result<Vec<_>>>()?;
        f(Part { inputs: &inputs, start, len, first: if cuts_rows { first + start } else { first } })?;
    }
    Ok(())
}

/// Computes the parts, and writes each to its place in the result, so that there is one of it.
fn write(op: &impl InParts, inputs: &[Tensor], first: usize, out: &Tensor) -> Result<()> {
    let Some(cut) = op.cut(inputs) else { return copy_(out, &op.part(inputs, first)?) };
    each_part(&cut, inputs, first, |part| {
        write(op, part.inputs, part.first, &out.narrow(cut.dim, part.start, part.len)?)
    })
}

/// Returns the parts, joined by an op that has a gradient.
fn joined(op: &impl InParts, inputs: &[Tensor], first: usize) -> Result<Tensor> {
    let Some(cut) = op.cut(inputs) else { return op.part(inputs, first) };
    let mut parts = Vec::new();
    each_part(&cut, inputs, first, |part| {
        parts.push(joined(op, part.inputs, part.first)?);
        Ok(())
    })?;
    Tensor::cat(&parts, cut.dim)
}

/// Returns the gradients of the inputs, where they are needed, from the gradient of the result.
fn gradients(op: &impl InParts, inputs: &[Tensor], needs: &[bool], g: &Tensor, first: usize) -> Result<Gradients> {
    let Some(cut) = op.cut(inputs) else { return of_part(op, inputs, needs, g, first) };
    let mut found: Vec<Vec<Tensor>> = vec![Vec::new(); inputs.len()];
    each_part(&cut, inputs, first, |part| {
        let g = g.narrow(cut.dim, part.start, part.len)?;
        let of_part = gradients(op, part.inputs, needs, &g, part.first)?;
        for ((found, gradient), dim) in found.iter_mut().zip(of_part).zip(&cut.inputs) {
            match (gradient, dim, found.pop()) {
                (Some(gradient), None, Some(sum)) => found.push(sum.add(&gradient)?),
                (gradient, _, before) => found.extend(before.into_iter().chain(gradient)),
            }
        }
        Ok(())
    })?;
    let join = |(parts, dim): (Vec<Tensor>, &Option<usize>)| match (parts.is_empty(), dim) {
        (true, _) => Ok(None),
        (false, Some(dim)) => Tensor::cat(&parts, *dim).map(Some),
        (false, None) => Ok(parts.into_iter().next()),
    };
    found.into_iter().zip(&cut.inputs).map(join).collect()
}

/// Computes a part again and returns its gradients.
fn of_part(op: &impl InParts, inputs: &[Tensor], needs: &[bool], g: &Tensor, first: usize) -> Result<Gradients> {
    let leaf = |(x, &needed): (&Tensor, &bool)| if needed { x.detach().requires_grad() } else { x.detach() };
    let leaves: Vec<Tensor> = inputs.iter().zip(needs).map(leaf).collect();
    let out = {
        let _recording = RECORDING.set(true);
        op.part(&leaves, first)?
    };
    by(&out, &leaves, needs, &GradOptions::new().output_grad(g))
}

/// Computes the result as part of the graph of the inputs, and returns its gradients as part of it.
fn whole(op: &impl InParts, b: &Backward) -> Result<Gradients> {
    let out = joined(op, b.inputs(), 0)?;
    by(&out, b.inputs(), b.needs(), &GradOptions::new().output_grad(b.grad()).create_graph())
}

fn by(out: &Tensor, inputs: &[Tensor], needs: &[bool], options: &GradOptions) -> Result<Gradients> {
    let wanted: Vec<&Tensor> = inputs.iter().zip(needs).filter_map(|(x, needed)| needed.then_some(x)).collect();
    let mut found = grad(out, &wanted, &options.clone().allow_unused())?.into_iter();
    Ok(needs.iter().map(|&needed| if needed { found.next() } else { None }).collect())
}
