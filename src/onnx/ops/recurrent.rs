//! Recurrent layers: RNN, GRU and LSTM.

use super::super::call::{Call, Operator};
use super::super::fault;
use super::super::value::Value;
use super::quantised::{dynamically, integer_product};
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::Tensor;

pub(super) fn find(op: &str) -> Option<Operator> {
    Some(Operator::Values(match op {
        "RNN" => |call| layer(call, 1, 1),
        "GRU" => |call| layer(call, 3, 2),
        "LSTM" => |call| layer(call, 4, 3),
        _ => return None,
    }))
}

/// An LSTM whose products are of integers.
pub(super) fn quantised(op: &str) -> Option<Operator> {
    (op == "DynamicQuantizeLSTM").then_some(Operator::Values(|call| layer(call, 4, 3)))
}

/// An activation with its parameters.
pub(super) struct Activation {
    pub name: String,
    pub alpha: Option<f32>,
    pub beta: Option<f32>,
}

impl Activation {
    pub fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let (alpha, beta) = (|default: f32| self.alpha.unwrap_or(default), |default: f32| self.beta.unwrap_or(default));
        match self.name.to_ascii_lowercase().as_str() {
            "sigmoid" => x.sigmoid(),
            "tanh" => x.tanh(),
            "relu" => x.relu(),
            "leakyrelu" => x.leaky_relu(alpha(0.01)),
            "elu" => x.elu(alpha(1.0)),
            "softsign" => x.softsign(),
            "softplus" => x.softplus(1.0, 20.0),
            "hardsigmoid" => x.mul_scalar(alpha(0.2))?.add_scalar(beta(0.5))?.clamp(Some(0.0), Some(1.0)),
            "affine" => x.mul_scalar(alpha(1.0))?.add_scalar(beta(0.0)),
            "scaledtanh" => x.mul_scalar(beta(1.0))?.tanh()?.mul_scalar(alpha(1.0)),
            "thresholdedrelu" => x.gt(alpha(1.0))?.where_cond(x, 0.0),
            name => Err(fault(format!("the activation {name} is not supported"))),
        }
    }
}

/// The transposed weights of one direction, `[I, gates · H]`.
enum Matrix {
    Floats(Tensor),
    /// Whole numbers without their zero point, and their scale: one, or one for each column.
    Integers {
        whole: Tensor,
        scale: Tensor,
    },
}

impl Matrix {
    /// The weights of direction `d` that are input `i`. Integers are transposed in the file, with a scale and a zero point as inputs
    /// `quantised` and `quantised + 1`.
    fn of(call: &Call, i: usize, d: usize, quantised: Option<usize>) -> Result<Matrix> {
        let Some(at) = quantised else { return Ok(Matrix::Floats(call.x(i)?.select(0, d)?.t()?)) };
        let of_direction = |i: usize| {
            let v = call.x(i)?.to_dtype(DType::F32)?;
            // One number for both directions, one for each, or one for each column of each.
            if v.elem_count() == 1 { v.reshape(()) } else { v.select(0, d) }
        };
        let whole = call.x(i)?.select(0, d)?.to_dtype(DType::F32)?;
        let whole = if call.value(at + 1).is_some() { whole.sub(&of_direction(at + 1)?)? } else { whole };
        Ok(Matrix::Integers { whole, scale: of_direction(at)? })
    }

    /// The product of rows `[.., I]` with the weights; for integers, these are quantised first, all by one scale.
    fn product(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Matrix::Floats(weights) => x.matmul(weights),
            Matrix::Integers { whole, scale } => {
                let (rows, by) = dynamically(x)?;
                integer_product(&rows, whole)?.to_dtype(DType::F32)?.mul(&scale.mul(&by)?)
            }
        }
    }

    /// The part of gate `i` of `hidden` columns.
    fn gate(&self, i: usize, hidden: usize) -> Result<Matrix> {
        let part = |x: &Tensor| x.narrow(-1, i * hidden, hidden);
        Ok(match self {
            Matrix::Floats(weights) => Matrix::Floats(part(weights)?),
            Matrix::Integers { whole, scale } => {
                let scale = if scale.rank() == 0 { scale.clone() } else { part(scale)? };
                Matrix::Integers { whole: part(whole)?, scale }
            }
        })
    }
}

/// What the steps of one direction share.
struct Direction<'a> {
    call: &'a Call<'a>,
    activations: Vec<Activation>,
    /// The weights of the state.
    recurrent: Matrix,
    /// The biases of the state, `[gates · H]`, and the peepholes of an LSTM, `[3 · H]`.
    state_bias: Option<Tensor>,
    peepholes: Option<Tensor>,
    hidden: usize,
    clip: Option<f32>,
}

impl Direction<'_> {
    /// Gate `i` of a tensor `[.., gates · H]`.
    fn gate(&self, x: &Tensor, i: usize) -> Result<Tensor> {
        x.narrow(-1, i * self.hidden, self.hidden)
    }

    fn act(&self, i: usize, x: &Tensor) -> Result<Tensor> {
        match self.clip {
            Some(clip) => self.activations[i].apply(&x.clamp(Some(-clip), Some(clip))?),
            None => self.activations[i].apply(x),
        }
    }

    /// The product of the state with its weights, and its bias.
    fn of_state(&self, h: &Tensor) -> Result<Tensor> {
        let product = self.recurrent.product(h)?;
        match &self.state_bias {
            Some(bias) => product.add(bias),
            None => Ok(product),
        }
    }

    /// The next state and cell from the input's products and biases `[B, gates · H]`.
    fn step(&self, x: &Tensor, h: &Tensor, c: &Tensor) -> Result<(Tensor, Tensor)> {
        match self.activations.len() {
            1 => Ok((self.act(0, &x.add(&self.of_state(h)?)?)?, c.clone())),
            2 => Ok((self.gru(x, h)?, c.clone())),
            _ => self.lstm(x, h, c),
        }
    }

    /// Gates in ONNX's order: update, reset, hidden.
    fn gru(&self, x: &Tensor, h: &Tensor) -> Result<Tensor> {
        let state = self.of_state(h)?;
        let z = self.act(0, &self.gate(x, 0)?.add(&self.gate(&state, 0)?)?)?;
        let r = self.act(0, &self.gate(x, 1)?.add(&self.gate(&state, 1)?)?)?;
        let candidate = match self.call.flag("linear_before_reset") {
            true => r.mul(&self.gate(&state, 2)?)?,
            false => {
                let product = self.recurrent.gate(2, self.hidden)?.product(&r.mul(h)?)?;
                match &self.state_bias {
                    Some(bias) => product.add(&self.gate(bias, 2)?)?,
                    None => product,
                }
            }
        };
        let candidate = self.act(1, &self.gate(x, 2)?.add(&candidate)?)?;
        // (1 − z) n + z h
        candidate.add(&z.mul(&h.sub(&candidate)?)?)
    }

    /// Gates in ONNX's order: input, output, forget, cell.
    fn lstm(&self, x: &Tensor, h: &Tensor, c: &Tensor) -> Result<(Tensor, Tensor)> {
        let all = x.add(&self.of_state(h)?)?;
        let peeped = |gate: usize, peephole: usize, c: &Tensor| {
            let x = self.gate(&all, gate)?;
            match &self.peepholes {
                Some(peepholes) => x.add(&c.mul(&self.gate(peepholes, peephole)?)?),
                None => Ok(x),
            }
        };
        let i = self.act(0, &peeped(0, 0, c)?)?;
        let f = match self.call.flag("input_forget") {
            true => i.neg()?.add_scalar(1.0)?,
            false => self.act(0, &peeped(2, 2, c)?)?,
        };
        let candidate = self.act(1, &self.gate(&all, 3)?)?;
        let c = f.mul(c)?.add(&i.mul(&candidate)?)?;
        let o = self.act(0, &peeped(1, 1, &c)?)?;
        // The cell itself is not clipped.
        Ok((o.mul(&self.activations[2].apply(&c)?)?, c))
    }
}

/// The activations of direction `d`. Parameters are listed for those functions that have them, in the order of all functions; or
/// one for each.
fn activations(call: &Call, d: usize, count: usize) -> Vec<Activation> {
    let defaults: &[&str] = if count == 1 { &["Tanh"] } else { &["Sigmoid", "Tanh", "Tanh"] };
    let floats = |name: &str| call.node.attribute(name).map(|attribute| attribute.floats.clone()).unwrap_or_default();
    let names = call.node.attribute("activations").map(|attribute| attribute.strings.clone()).unwrap_or_default();
    let name =
        |i: usize| names.get(i).map_or(defaults[i % count].into(), |name| String::from_utf8_lossy(name).into_owned());
    let of = |list: &str, takers: &[&str]| -> Vec<Option<f32>> {
        let values = floats(list);
        if values.len() == names.len() {
            return values.into_iter().map(Some).collect();
        }
        let mut values = values.into_iter();
        let takes = |i: usize| takers.contains(&name(i).to_ascii_lowercase().as_str());
        (0..(d + 1) * count).map(|i| if takes(i) { values.next() } else { None }).collect()
    };
    let alphas =
        of("activation_alpha", &["affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu"]);
    let betas = of("activation_beta", &["affine", "scaledtanh", "hardsigmoid"]);
    let at = |list: &[Option<f32>], i: usize| list.get(i).copied().flatten();
    let one = |i: usize| Activation { name: name(i), alpha: at(&alphas, i), beta: at(&betas, i) };
    (d * count..(d + 1) * count).map(one).collect()
}

/// A layer of `gates` gates and `functions` activations, in one or both directions.
fn layer(call: &Call, gates: usize, functions: usize) -> Result<Vec<Value>> {
    let batch_first = call.flag("layout");
    let turned = |x: Tensor| if batch_first { x.transpose(0, 1) } else { Ok(x) };
    // [T, B, I]
    let x = turned(call.x(0)?)?;
    let is_quantised = call.op() == "DynamicQuantizeLSTM";
    // [directions, gates · H, I] and [directions, gates · H, H]
    let of_weights = |i: usize| -> Result<Vec<usize>> {
        let mut shape = call.needed(i)?.shape()?.to_vec();
        if is_quantised && shape.len() == 3 {
            shape.swap(1, 2);
        }
        Ok(shape)
    };
    let (w, r) = (of_weights(1)?, of_weights(2)?);
    let (&[steps, batch, _], &[directions, wide, hidden]) = (x.shape(), r.as_slice()) else {
        return Err(fault(format!("an input of shape {:?} and weights of shape {r:?}", x.shape())));
    };
    if wide != gates * hidden || w.len() != 3 || w[..2] != r[..2] || steps == 0 {
        return Err(fault(format!("{steps} steps and weights of shapes {w:?} and {r:?}")));
    }
    let mask = mask(call, steps, batch)?;
    let both = [call.maybe(5)?, if gates == 4 { call.maybe(6)? } else { None }];
    let both = both.map(|state| state.map(turned).transpose());
    let [first_h, first_c] = both;
    let (first_h, first_c) = (first_h?, first_c?);
    let start = |state: &Option<Tensor>, d: usize| match state {
        Some(state) => state.select(0, d),
        None => Tensor::zeros([batch, hidden], call.device)?.to_dtype(x.dtype()),
    };
    let (mut outputs, mut last_h, mut last_c) = (Vec::new(), Vec::new(), Vec::new());
    let clip = call.has("clip").then(|| call.float("clip", 0.0));
    if let Some(clip) = clip.filter(|clip| *clip <= 0.0 || clip.is_nan()) {
        return Err(fault(format!("a clip of {clip}, which is not positive")));
    }
    for d in 0..directions {
        let bias = call.maybe(3)?.map(|bias| bias.select(0, d)).transpose()?;
        let half = |i: usize| bias.as_ref().map(|bias| bias.narrow(0, i * wide, wide)).transpose();
        let direction = Direction {
            call,
            activations: activations(call, d, functions),
            recurrent: Matrix::of(call, 2, d, is_quantised.then_some(10))?,
            state_bias: half(1)?,
            peepholes: if gates == 4 { call.maybe(7)?.map(|p| p.select(0, d)).transpose()? } else { None },
            hidden,
            clip,
        };
        // The products of all steps at once.
        let mut inputs = Matrix::of(call, 1, d, is_quantised.then_some(8))?.product(&x)?;
        if let Some(bias) = half(0)? {
            inputs = inputs.add(&bias)?;
        }
        let (mut h, mut c) = (start(&first_h, d)?, start(&first_c, d)?);
        let back = d == 1 || call.text("direction", "forward") == "reverse";
        let mut made = Vec::with_capacity(steps);
        for step in 0..steps {
            let at = if back { steps - 1 - step } else { step };
            let (mut next_h, mut next_c) = direction.step(&inputs.select(0, at)?, &h, &c)?;
            let mut output = next_h.clone();
            if let Some(mask) = &mask {
                let within = mask.select(0, at)?;
                next_h = within.where_cond(&next_h, &h)?;
                next_c = within.where_cond(&next_c, &c)?;
                output = within.where_cond(&output, 0.0)?;
            }
            (h, c) = (next_h, next_c);
            made.push(output);
        }
        if back {
            made.reverse();
        }
        outputs.push(Tensor::stack(&made, 0)?);
        last_h.push(h);
        last_c.push(c);
    }
    // [T, D, B, H], or [B, T, D, H]
    let y = Tensor::stack(&outputs, 1)?;
    let y = if batch_first { y.permute([2, 0, 1, 3])? } else { y };
    let mut all = vec![y, turned(Tensor::stack(&last_h, 0)?)?];
    if gates == 4 {
        all.push(turned(Tensor::stack(&last_c, 0)?)?);
    }
    Ok(all.into_iter().map(Value::natural).collect())
}

/// Whether each step is within its sequence, `[T, B, 1]`; `None` if all are.
fn mask(call: &Call, steps: usize, batch: usize) -> Result<Option<Tensor>> {
    let Some(lengths) = call.value(4) else { return Ok(None) };
    if lengths.array().is_some_and(|array| array.to_ints().iter().all(|&length| length >= steps as i64)) {
        return Ok(None);
    }
    let lengths = lengths.tensor(call.device)?.to_dtype(DType::I32)?.reshape([1, batch, 1])?;
    let counted = Tensor::iota(steps, call.device)?.to_dtype(DType::I32)?.reshape([steps, 1, 1])?;
    Ok(Some(counted.lt(&lengths)?))
}
