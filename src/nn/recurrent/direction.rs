//! One layer of a recurrent net in one direction. All its steps are one op of the graph, whose gradient goes back
//! through the steps. The products of the input with its weight, and the gradients of both weights, are one matrix
//! product each for all steps.

use super::steps::{self, Kept, Kind, State};
use crate::autograd::is_recording;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::no_grad;
use crate::ops::custom_grad::attached;
use crate::ops::long::refuse;
use crate::ops::{Backward, lowered};
use crate::tensor::Tensor;

/// The parameters of a layer in one direction, with G gates (see [`Kind`]).
#[derive(Clone, Copy)]
pub(crate) struct Weights<'a> {
    /// `[G·H, I]`
    pub input: &'a Tensor,
    /// `[G·H, H]`
    pub hidden: &'a Tensor,
    /// `[G·H]` each: the bias of the input and the bias of h.
    pub biases: Option<[&'a Tensor; 2]>,
}

/// The result of a layer in one direction: the outputs of all steps `[T, N, H]`, and the state after the last step,
/// `[N, H]` each.
pub(crate) struct Outcome {
    pub outputs: Tensor,
    pub state: State,
}

/// Computes a layer in one direction, for `x: [T, N, I]` with T ≥ 1 and a state of `[N, H]` each. The default state is
/// zeros. In `reverse`, the last element of the sequence is the first step; the outputs keep the order of x.
/// `live: [T, N, 1]`, of 1 and 0, tells which elements belong to their sequences. At other elements, the state stays as
/// it is, and the output is 0.
///
/// The result has the type of x, or the type of products in autocast. The steps are computed in f32.
///
/// # Errors
/// The errors of the products: shapes that do not fit, different devices or types.
pub(crate) fn direction(
    kind: Kind,
    x: &Tensor,
    weights: Weights,
    state: Option<&State>,
    reverse: bool,
    live: Option<&Tensor>,
) -> Result<Outcome> {
    let &[steps, n, _] = x.shape() else {
        return Err(Error::argument("direction", format!("a sequence is [T, N, I], not {:?}", x.shape())));
    };
    if steps == 0 {
        return Err(Error::argument("direction", "a sequence needs at least one element"));
    }
    let states = state.into_iter().flat_map(|state| [Some(&state.h), state.c.as_ref()]).flatten();
    refuse("direction", states.chain(weights.biases.into_iter().flatten()))?;
    let (dtype, width) = (lowered(x.dtype()), weights.hidden.shape()[1]);
    let input = product(kind, x, weights)?;
    let zeros = || Tensor::zeros([n, width], x.device());
    let start = |given: Option<&Tensor>| given.map_or_else(zeros, |given| given.to_dtype(DType::F32));
    let mut inputs = vec![input, weights.hidden.clone(), start(state.map(|state| &state.h))?];
    match (kind, weights.biases) {
        (Kind::Lstm, _) => inputs.push(start(state.and_then(|state| state.c.as_ref()))?),
        (Kind::Gru, Some([_, bias])) => inputs.push(bias.clone()),
        _ => (),
    }
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    let order = if reverse { (0..steps).rev().collect() } else { (0..steps).collect() };
    let run = Run { kind, dtype, order, live: live.map(Live::new).transpose()? };
    let keeps = is_recording() && inputs.iter().any(|input| input.is_tracked());
    let detached: Vec<Tensor> = inputs.iter().map(|input| input.detach()).collect();
    let (all, kept) = no_grad(|| run.forward(&detached, keeps))?;
    let last = if reverse { 0 } else { steps - 1 };
    let all = match keeps {
        true => attached("recurrent", &inputs, all, Box::new(move |b| run.backward(b, &kept)))?,
        false => all,
    };
    let outputs = all.narrow(0, 0, steps)?.to_dtype(dtype)?;
    let c = if kind == Kind::Lstm { Some(all.select(0, steps)?.to_dtype(dtype)?) } else { None };
    let h = match live {
        Some(_) => all.select(0, all.shape()[0] - 1)?.to_dtype(dtype)?,
        None => outputs.select(0, last)?,
    };
    Ok(Outcome { state: State { h, c }, outputs })
}

/// Returns the products of all elements with the weight of the input, with the biases that can be added before the steps:
/// `[T, N, G·H]`, f32.
fn product(kind: Kind, x: &Tensor, weights: Weights) -> Result<Tensor> {
    let [steps, n] = [x.shape()[0], x.shape()[1]];
    let rows = x.reshape([steps * n, x.shape()[2]])?.matmul_f32(&weights.input.t()?)?;
    let rows = match (kind, weights.biases) {
        (_, None) => rows,
        (Kind::Gru, Some([bias, _])) => rows.add(&bias.to_dtype(DType::F32)?)?,
        (_, Some([bias, other])) => rows.add(&bias.add(other)?.to_dtype(DType::F32)?)?,
    };
    rows.reshape([steps, n, weights.input.shape()[0]])
}

/// All steps of one direction. The inputs are the products of the sequence, the weight of h, and the first h. An LSTM
/// also has the first c, and a GRU with a bias has the bias of h.
struct Run {
    kind: Kind,
    /// The type in which h is multiplied.
    dtype: DType,
    /// The elements of the sequence in the order of the steps.
    order: Vec<usize>,
    live: Option<Live>,
}

/// Which elements belong to their sequences.
struct Live {
    /// 1 for these, and 0 for others: `[N, 1]` for each element of the batch's sequence.
    ones: Vec<Tensor>,
    /// 0 for these, and 1 for others.
    others: Vec<Tensor>,
}

impl Live {
    fn new(live: &Tensor) -> Result<Live> {
        let others = live.neg()?.add(1.0)?;
        let each = |all: &Tensor| (0..all.shape()[0]).map(|t| all.select(0, t)).collect::<Result<_>>();
        Ok(Live { ones: each(live)?, others: each(&others)? })
    }

    /// Returns `new` where the element belongs to the sequence, and `old` elsewhere.
    fn choose(&self, t: usize, new: &Tensor, old: &Tensor) -> Result<Tensor> {
        new.mul(&self.ones[t])?.add(&old.mul(&self.others[t])?)
    }
}

impl Run {
    /// Returns the outputs `[T, N, H]`. For an LSTM, the last c follows them: `[T + 1, N, H]`. For sequences of several
    /// lengths, the last h follows that. If `keeps`, also returns what the gradient reads of each step.
    fn forward(&self, inputs: &[Tensor], keeps: bool) -> Result<(Tensor, Vec<(Tensor, Kept)>)> {
        let (products, weight) = (&inputs[0], inputs[1].to_dtype(self.dtype)?.t()?);
        let last = inputs.get(3);
        let (c, bias) = if self.kind == Kind::Lstm { (last.cloned(), None) } else { (None, last) };
        let bias = bias.map(|bias| bias.to_dtype(DType::F32)).transpose()?;
        let mut state = State { h: inputs[2].clone(), c };
        let (mut outputs, mut all) = (vec![None; self.order.len()], Vec::new());
        for &t in &self.order {
            let mut hidden = state.h.to_dtype(self.dtype)?.matmul_f32(&weight)?;
            if let Some(bias) = &bias {
                hidden = hidden.add(bias)?;
            }
            let (mut next, kept) = steps::kept_step(self.kind, &products.select(0, t)?, &hidden, &state)?;
            outputs[t] = Some(next.h.clone());
            if let Some(live) = &self.live {
                outputs[t] = Some(next.h.mul(&live.ones[t])?);
                next.h = live.choose(t, &next.h, &state.h)?;
                next.c = match (next.c, &state.c) {
                    (Some(new), Some(old)) => Some(live.choose(t, &new, old)?),
                    (c, _) => c,
                };
            }
            if keeps {
                all.push((state.h, kept));
            }
            state = next;
        }
        let h = self.live.as_ref().map(|_| state.h);
        let outputs: Vec<Tensor> = outputs.into_iter().flatten().chain(state.c).chain(h).collect();
        Ok((Tensor::stack(&outputs, 0)?, all))
    }

    /// Goes back through the steps.
    fn backward(&self, b: &Backward, kept: &[(Tensor, Kept)]) -> Result<Vec<Option<Tensor>>> {
        let (inputs, grad) = (b.inputs(), b.grad().to_dtype(DType::F32)?);
        let weight = inputs[1].to_dtype(DType::F32)?;
        let steps = self.order.len();
        let (mut dh, mut dc): (Option<Tensor>, _) = (None, None);
        if self.kind == Kind::Lstm {
            dc = Some(grad.select(0, steps)?);
        }
        if self.live.is_some() {
            dh = Some(grad.select(0, grad.shape()[0] - 1)?);
        }
        let (mut products, mut hidden) = (vec![None; steps], Vec::new());
        for (&t, (_, kept)) in self.order.iter().zip(kept).rev() {
            // What goes past the step, as the state does where the element does not belong to the sequence.
            let past = |d: &Option<Tensor>| match (&self.live, d) {
                (Some(live), Some(d)) => Ok(Some(d.mul(&live.others[t])?)),
                _ => Ok::<_, Error>(None),
            };
            let (dh_past, dc_past) = (past(&dh)?, past(&dc)?);
            let mut here = grad.select(0, t)?;
            if let Some(later) = dh {
                here = here.add(&later)?;
            }
            if let Some(live) = &self.live {
                here = here.mul(&live.ones[t])?;
                dc = dc.map(|dc| dc.mul(&live.ones[t])).transpose()?;
            }
            let step = steps::backward(kept, &here, dc.as_ref())?;
            let plus = |a: Tensor, b: Option<Tensor>| b.map_or(Ok(a.clone()), |b| a.add(&b));
            let before = plus(step.hidden.matmul_f32(&weight)?, step.h)?;
            dh = Some(plus(before, dh_past)?);
            dc = step.c.map(|dc| plus(dc, dc_past)).transpose()?;
            products[t] = Some(step.input);
            hidden.push(step.hidden);
        }
        let rows = steps * inputs[2].shape()[0];
        let all = |of: &[Tensor]| Tensor::stack(of, 0)?.reshape([rows, of[0].shape()[1]]);
        let hidden = all(&hidden)?;
        let before: Vec<Tensor> = kept.iter().rev().map(|(h, _)| h.clone()).collect();
        let d_weight = hidden.t()?.matmul_f32(&all(&before)?)?;
        let products: Vec<Tensor> = products.into_iter().flatten().collect();
        let mut gradients = vec![Some(Tensor::stack(&products, 0)?), Some(d_weight), dh];
        match (self.kind, inputs.get(3)) {
            (Kind::Lstm, _) => gradients.push(dc),
            (_, Some(_)) => gradients.push(Some(hidden.sum(0, false)?)),
            _ => (),
        }
        let typed = |(gradient, input): (Option<Tensor>, &Tensor)| {
            gradient.map(|gradient| gradient.to_dtype(input.dtype())).transpose()
        };
        gradients.into_iter().zip(inputs).map(typed).collect()
    }
}
