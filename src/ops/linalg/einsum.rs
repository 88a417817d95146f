//! Einstein summation, computed by matrix products.
//!
//! Operands are contracted from left to right, each pair as one batched matrix product. Labels of both operands that
//! are needed later are the batch; the other labels of both are summed.

use std::collections::BTreeSet;

use crate::error::{Error, Result};
use crate::ops::named;
use crate::tensor::Tensor;

/// The label of the last dimension of an ellipsis; `ELLIPSIS + n` is the n-th before it. No user can write these
/// labels.
const ELLIPSIS: u32 = 0x1_0000;

/// The dimensions of an operand by label.
type Labels = Vec<u32>;

/// A parsed equation.
struct Equation {
    inputs: Vec<Labels>,
    output: Labels,
}

fn fail(detail: impl Into<String>) -> Error {
    Error::argument("einsum", detail)
}

/// Returns the labels of one term for an operand of `rank` dimensions, or for the output if `rank` is `None`.
fn labels(term: &str, rank: Option<usize>, widest: &mut usize) -> Result<Labels> {
    let (before, after) = match term.split_once("...") {
        Some((before, after)) => (before, Some(after)),
        None => (term, None),
    };
    let named = |part: &str| -> Result<Labels> {
        let bad = part.chars().find(|c| !c.is_ascii_alphabetic());
        bad.map_or(Ok(()), |c| {
            Err(fail(format!("'{c}' in '{term}' is not a label: use letters, one for each dimension")))
        })?;
        Ok(part.chars().map(u32::from).collect())
    };
    let (mut all, tail) = (named(before)?, named(after.unwrap_or_default())?);
    let hidden = match (rank, after) {
        (None, Some(_)) => *widest,
        (None, None) => 0,
        (Some(rank), Some(_)) => rank.checked_sub(all.len() + tail.len()).unwrap_or(usize::MAX),
        (Some(rank), None) if rank == all.len() => 0,
        (Some(_), None) => usize::MAX,
    };
    if hidden == usize::MAX {
        return Err(fail(format!("'{term}' does not name the {} dimensions of its operand", rank.unwrap_or_default())));
    }
    *widest = hidden.max(*widest);
    all.extend((0..hidden as u32).rev().map(|n| ELLIPSIS + n));
    all.extend(tail);
    Ok(all)
}

impl Equation {
    fn parse(text: &str, operands: &[&Tensor]) -> Result<Equation> {
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let (left, right) = match text.split_once("->") {
            Some((left, right)) => (left, Some(right)),
            None => (text.as_str(), None),
        };
        let terms: Vec<&str> = left.split(',').collect();
        if terms.len() != operands.len() {
            return Err(fail(format!("'{text}' has {} operands, {} were given", terms.len(), operands.len())));
        }
        let mut widest = 0;
        let inputs: Vec<Labels> =
            terms.iter().zip(operands).map(|(t, x)| labels(t, Some(x.rank()), &mut widest)).collect::<Result<_>>()?;
        let seen: Vec<u32> = inputs.concat();
        let output = match right {
            Some(term) => labels(term, None, &mut widest)?,
            None => {
                // The labels of the ellipsis, then those that appear once, in alphabetical order.
                let once = |l: &u32| seen.iter().filter(|s| *s == l).count() == 1;
                let named: BTreeSet<u32> = seen.iter().copied().filter(|l| *l < ELLIPSIS).filter(once).collect();
                (0..widest as u32).rev().map(|n| ELLIPSIS + n).chain(named).collect()
            }
        };
        let distinct: BTreeSet<_> = output.iter().collect();
        if distinct.len() != output.len() {
            return Err(fail(format!("'{text}' names a dimension of its result twice")));
        }
        if let Some(stranger) = output.iter().find(|l| **l < ELLIPSIS && !seen.contains(l)) {
            let label = char::from_u32(*stranger).unwrap_or('?');
            return Err(fail(format!("'{label}' of the result is in no operand of '{text}'")));
        }
        Ok(Equation { inputs, output })
    }
}

/// A tensor whose dimensions have labels, each once.
struct Labelled {
    tensor: Tensor,
    labels: Labels,
}

impl Labelled {
    /// Returns a tensor with labels. Takes the diagonal where a label is repeated.
    fn new(tensor: &Tensor, labels: &[u32]) -> Result<Labelled> {
        let mut out = Labelled { tensor: tensor.clone(), labels: labels.to_vec() };
        while let Some((i, j)) = out.repeated() {
            if out.tensor.shape()[i] != out.tensor.shape()[j] {
                let detail = "a label that is repeated in an operand needs equal sizes";
                return Err(Error::shapes("einsum", &[out.tensor.shape()[i]], &[out.tensor.shape()[j]], detail));
            }
            out.tensor = out.tensor.diagonal(0, i, j)?; // the diagonal is the last dimension
            let label = out.labels[i];
            out.labels.remove(j);
            out.labels.remove(i);
            out.labels.push(label);
        }
        Ok(out)
    }

    fn repeated(&self) -> Option<(usize, usize)> {
        (0..self.labels.len()).find_map(|j| self.labels[..j].iter().position(|l| *l == self.labels[j]).map(|i| (i, j)))
    }

    fn place(&self, label: u32) -> Option<usize> {
        self.labels.iter().position(|l| *l == label)
    }

    /// Sums over the dimensions whose labels are not `needed`.
    fn keep(self, needed: impl Fn(u32) -> bool) -> Result<Labelled> {
        let dims: Vec<usize> = (0..self.labels.len()).filter(|&d| !needed(self.labels[d])).collect();
        if dims.is_empty() {
            return Ok(self);
        }
        let labels = self.labels.iter().copied().filter(|l| needed(*l)).collect();
        Ok(Labelled { tensor: self.tensor.sum(&dims, false)?, labels })
    }

    /// Returns the tensor with the dimensions in this order; missing dimensions have size 1.
    fn ordered(&self, order: &[u32]) -> Result<Tensor> {
        let dims: Vec<usize> = order.iter().filter_map(|l| self.place(*l)).collect();
        let mut out = self.tensor.permute(&dims)?;
        for (at, label) in order.iter().enumerate() {
            if self.place(*label).is_none() {
                out = out.unsqueeze(at)?;
            }
        }
        Ok(out)
    }

    fn size(&self, label: u32) -> usize {
        self.place(label).map_or(1, |d| self.tensor.shape()[d])
    }
}

/// Contracts two operands by a batched matrix product. `later` returns whether a label is needed afterwards.
fn contract(a: Labelled, b: Labelled, later: impl Fn(u32) -> bool) -> Result<Labelled> {
    let a = a.keep(|l| later(l) || b.place(l).is_some())?;
    let b = b.keep(|l| later(l) || a.place(l).is_some())?;
    for &l in a.labels.iter().filter(|l| b.place(**l).is_some()) {
        let (m, n) = (a.size(l), b.size(l));
        if m != n && m != 1 && n != 1 {
            let label = char::from_u32(l).filter(char::is_ascii_alphabetic).unwrap_or('…');
            let detail = format!("label '{label}' has size {m} in one operand and {n} in another");
            return Err(Error::shapes("einsum", a.tensor.shape(), b.tensor.shape(), detail));
        }
    }
    let both = |l: &&u32| b.place(**l).is_some();
    let batch: Labels = a.labels.iter().filter(both).copied().filter(|l| later(*l)).collect();
    let summed: Labels = a.labels.iter().filter(both).copied().filter(|l| !later(*l)).collect();
    let left: Labels = a.labels.iter().filter(|l| !both(l)).copied().collect();
    let right: Labels = b.labels.iter().filter(|l| a.place(**l).is_none()).copied().collect();
    let labels = [&batch[..], &left, &right].concat();
    if summed.is_empty() || !a.tensor.dtype().is_float() {
        let order = [&labels[..], &summed].concat();
        let product = a.ordered(&order)?.mul(&b.ordered(&order)?)?;
        return Labelled { tensor: product, labels: order }.keep(|l| labels.contains(&l));
    }
    // A label of size 1 in one operand is broadcast to the size in the other.
    let size = |l: &u32| if a.size(*l) == 1 { b.size(*l) } else { a.size(*l) };
    let sizes = |labels: &[u32]| labels.iter().map(size).collect::<Vec<_>>();
    let (many, deep, rows, columns) = (sizes(&batch), sizes(&summed), sizes(&left), sizes(&right));
    let count = |sizes: &[usize]| sizes.iter().product::<usize>();
    let x = a.ordered(&[&batch[..], &left, &summed].concat())?;
    let x = x.broadcast_to([&many[..], &rows, &deep].concat())?.reshape([count(&many), count(&rows), count(&deep)])?;
    let y = b.ordered(&[&batch[..], &summed, &right].concat())?;
    let y = y.broadcast_to([&many[..], &deep, &columns].concat())?;
    let y = y.reshape([count(&many), count(&deep), count(&columns)])?;
    let tensor = x.matmul(&y)?.reshape([many, rows, columns].concat())?;
    Ok(Labelled { tensor, labels })
}

impl Tensor {
    /// Computes an Einstein summation: `"bij,bjk->bik"` is a batched matrix product.
    ///
    /// The equation has one term for each operand, with one letter for each dimension. Letters that are not in the
    /// result are summed over.
    ///
    /// As in PyTorch, a letter that is repeated in one term takes the diagonal, `...` stands for any leading dimensions
    /// (broadcast), and a size of 1 is broadcast. Without `->`, the result has the letters that appear once, in
    /// alphabetical order. Operands are contracted from left to right.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an equation that does not match the operands; [`Error::ShapeMismatch`] if the
    /// sizes of one letter differ; otherwise same as [`Tensor::matmul`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([[1.0, 2.0], [3.0, 4.0]], None)?;
    /// let y = Tensor::new([10.0, 1.0], None)?;
    /// assert_eq!(Tensor::einsum("ij,j->i", &[&x, &y])?.to_vec::<f32>()?, [12.0, 34.0]);
    /// assert_eq!(Tensor::einsum("ii", &[&x])?.item::<f32>()?, 5.0); // the trace
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn einsum(equation: &str, operands: &[&Tensor]) -> Result<Tensor> {
        crate::ops::same_device("einsum", operands)?;
        let Equation { inputs, output } = Equation::parse(equation, operands)?;
        named("einsum", || {
            let mut parts = operands.iter().zip(&inputs).map(|(x, labels)| Labelled::new(x, labels));
            let mut done = parts.next().unwrap_or_else(|| Err(fail("needs an operand")))?;
            for (i, next) in parts.enumerate() {
                let later = |l: u32| output.contains(&l) || inputs[i + 2..].iter().any(|labels| labels.contains(&l));
                done = contract(done, next?, later)?;
            }
            done.keep(|l| output.contains(&l))?.ordered(&output)
        })
    }
}
