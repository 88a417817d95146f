//! One step of a recurrent layer: what follows the matrix products. The gates are in PyTorch's order.

use crate::error::Result;
use crate::tensor::Tensor;

/// What a step computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `h' = tanh(input + hidden)`
    Tanh,
    /// `h' = relu(input + hidden)`
    Relu,
    /// Gates i, f, g, o: `c' = σ(f) · c + σ(i) · tanh(g)`, `h' = σ(o) · tanh(c')`.
    Lstm,
    /// Gates r, z, n: `n = tanh(input + σ(r) · hidden)`, `h' = (1 − σ(z)) · n + σ(z) · h`.
    Gru,
}

impl Kind {
    /// Returns the number of gates: a step's products have this many times the width of h.
    pub fn gates(self) -> usize {
        match self {
            Kind::Tanh | Kind::Relu => 1,
            Kind::Lstm => 4,
            Kind::Gru => 3,
        }
    }
}

/// What the gradient of a step reads.
pub(super) enum Kept {
    Plain { kind: Kind, h: Tensor },
    Lstm { i: Tensor, f: Tensor, g: Tensor, o: Tensor, c: Tensor, tanh: Tensor },
    Gru { r: Tensor, z: Tensor, n: Tensor, hidden: Tensor, h: Tensor },
}

/// The state after a step: h, and c of an LSTM.
pub(crate) struct State {
    pub h: Tensor,
    pub c: Option<Tensor>,
}

/// Gate `i` of `[N, G·H]`, for gates of `width`.
fn gate(all: &Tensor, i: usize, width: usize) -> Result<Tensor> {
    all.narrow(1, i * width, width)
}

/// Computes a step from the products of the input and of h with their weights, `[N, G·H]` each, biases included. All tensors are
/// f32.
pub(crate) fn step(kind: Kind, input: &Tensor, hidden: &Tensor, state: &State) -> Result<State> {
    Ok(kept_step(kind, input, hidden, state)?.0)
}

/// Computes a [`step`], and returns what the gradient reads.
pub(super) fn kept_step(kind: Kind, input: &Tensor, hidden: &Tensor, state: &State) -> Result<(State, Kept)> {
    let width = state.h.shape()[1];
    match kind {
        Kind::Tanh | Kind::Relu => {
            let sum = input.add(hidden)?;
            let h = if kind == Kind::Tanh { sum.tanh()? } else { sum.relu()? };
            Ok((State { h: h.clone(), c: None }, Kept::Plain { kind, h }))
        }
        Kind::Lstm => {
            let sum = input.add(hidden)?;
            let first = sum.narrow(1, 0, 2 * width)?.sigmoid()?;
            let [i, f] = [gate(&first, 0, width)?, gate(&first, 1, width)?];
            let [g, o] = [gate(&sum, 2, width)?.tanh()?, gate(&sum, 3, width)?.sigmoid()?];
            let before = state.c.clone().map_or_else(|| Tensor::zeros(state.h.shape(), state.h.device()), Ok)?;
            let c = f.mul(&before)?.add(&i.mul(&g)?)?;
            let tanh = c.tanh()?;
            let h = o.mul(&tanh)?;
            Ok((State { h, c: Some(c) }, Kept::Lstm { i, f, g, o, c: before, tanh }))
        }
        Kind::Gru => {
            let first = input.narrow(1, 0, 2 * width)?.add(&hidden.narrow(1, 0, 2 * width)?)?.sigmoid()?;
            let [r, z] = [gate(&first, 0, width)?, gate(&first, 1, width)?];
            let hidden = gate(hidden, 2, width)?;
            let n = gate(input, 2, width)?.add(&r.mul(&hidden)?)?.tanh()?;
            let h = n.add(&z.mul(&state.h.sub(&n)?)?)?;
            Ok((State { h, c: None }, Kept::Gru { r, z, n, hidden, h: state.h.clone() }))
        }
    }
}

/// The gradients of a step.
pub(super) struct StepGrad {
    /// Of the product of the input, `[N, G·H]`.
    pub input: Tensor,
    /// Of the product of h, `[N, G·H]`: the same unless it is a GRU's.
    pub hidden: Tensor,
    /// Of h before the step, without the part through its product; `None` for zeros.
    pub h: Option<Tensor>,
    /// Of c before the step.
    pub c: Option<Tensor>,
}

/// Returns `y · (1 − y)`, the derivative of the sigmoid by its result.
fn slope(y: &Tensor) -> Result<Tensor> {
    y.sub(&y.square()?)
}

/// Returns `d · (1 − y²)`, the gradient through a tanh with the result y.
fn through_tanh(d: &Tensor, y: &Tensor) -> Result<Tensor> {
    d.sub(&d.mul(&y.square()?)?)
}

/// Computes the gradients of a step from the gradients of h and c after it.
pub(super) fn backward(kept: &Kept, dh: &Tensor, dc: Option<&Tensor>) -> Result<StepGrad> {
    match kept {
        Kept::Plain { kind, h } => {
            let sum = match kind {
                Kind::Relu => dh.mul(&h.gt(0.0)?.to_dtype(dh.dtype())?)?,
                _ => through_tanh(dh, h)?,
            };
            Ok(StepGrad { input: sum.clone(), hidden: sum, h: None, c: None })
        }
        Kept::Lstm { i, f, g, o, c, tanh } => {
            let by_h = through_tanh(&dh.mul(o)?, tanh)?;
            let dc = match dc {
                Some(dc) => dc.add(&by_h)?,
                None => by_h,
            };
            let gates = [
                dc.mul(g)?.mul(&slope(i)?)?,
                dc.mul(c)?.mul(&slope(f)?)?,
                through_tanh(&dc.mul(i)?, g)?,
                dh.mul(tanh)?.mul(&slope(o)?)?,
            ];
            let sum = Tensor::cat(&gates, 1)?;
            Ok(StepGrad { input: sum.clone(), hidden: sum, h: None, c: Some(dc.mul(f)?) })
        }
        Kept::Gru { r, z, n, hidden, h } => {
            let by_z = dh.mul(z)?;
            let dn = through_tanh(&dh.sub(&by_z)?, n)?;
            let dr = dn.mul(hidden)?.mul(&slope(r)?)?;
            let dz = dh.mul(&h.sub(n)?)?.mul(&slope(z)?)?;
            let input = Tensor::cat(&[&dr, &dz, &dn], 1)?;
            let hidden = Tensor::cat(&[&dr, &dz, &dn.mul(r)?], 1)?;
            Ok(StepGrad { input, hidden, h: Some(by_z), c: None })
        }
    }
}
