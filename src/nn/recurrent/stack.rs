//! The layers of a recurrent net, in one direction or in two.

use super::direction::{Outcome, Weights, direction};
use super::steps::{Kind, State};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::nn::{Child, Mode, init};
use crate::process_group;
use crate::tensor::Tensor;

/// The parameters of a layer in one direction.
#[derive(Clone, Debug)]
struct Parameters {
    weight_ih: Tensor,
    weight_hh: Tensor,
    biases: Option<[Tensor; 2]>,
}

impl Parameters {
    fn drawn(kind: Kind, inputs: usize, hidden: usize, biased: bool) -> Result<Parameters> {
        let rows = kind.gates().saturating_mul(hidden); // creating the weight fails if this is too large
        let [weight_ih, weight_hh] = [init::fresh(&[rows, inputs], hidden)?, init::fresh(&[rows, hidden], hidden)?];
        let biases = match biased {
            true => Some([init::fresh(&[rows], hidden)?, init::fresh(&[rows], hidden)?]),
            false => None,
        };
        Ok(Parameters { weight_ih, weight_hh, biases })
    }

    fn weights(&self) -> Weights<'_> {
        let biases = self.biases.as_ref().map(|[input, hidden]| [input, hidden]);
        Weights { input: &self.weight_ih, hidden: &self.weight_hh, biases }
    }
}

/// The results of the layers: the outputs of the last one in the layout of the input, and the last states
/// `[layers · directions, N, H]`, for an LSTM also of c.
pub(super) struct Results {
    pub outputs: Tensor,
    pub h: Tensor,
    pub c: Option<Tensor>,
}

/// The layers, with PyTorch's options.
#[derive(Clone, Debug)]
pub(super) struct Stack {
    name: &'static str,
    pub kind: Kind,
    inputs: usize,
    hidden: usize,
    layers: usize,
    pub batch_first: bool,
    pub dropout: f32,
    bidirectional: bool,
    biased: bool,
    /// Layer after layer; in two directions, the forward one first.
    parameters: Vec<Parameters>,
    mode: Mode,
}

impl Stack {
    /// Returns one layer in one direction.
    pub fn new(name: &'static str, kind: Kind, inputs: usize, hidden: usize) -> Result<Stack> {
        if inputs == 0 || hidden == 0 {
            let detail = format!("{inputs} inputs and {hidden} hidden features: both must be at least 1");
            return Err(Error::argument(name, detail));
        }
        let stack = Stack {
            name,
            kind,
            inputs,
            hidden,
            layers: 1,
            batch_first: false,
            dropout: 0.0,
            bidirectional: false,
            biased: true,
            parameters: Vec::new(),
            mode: Mode::default(),
        };
        stack.redrawn()
    }

    fn directions(&self) -> usize {
        if self.bidirectional { 2 } else { 1 }
    }

    /// Draws new parameters for the options.
    fn redrawn(mut self) -> Result<Stack> {
        let (kind, hidden) = (self.kind, self.hidden);
        self.parameters.clear();
        for layer in 0..self.layers {
            let inputs = if layer == 0 { self.inputs } else { hidden * self.directions() };
            for _ in 0..self.directions() {
                self.parameters.push(Parameters::drawn(kind, inputs, hidden, self.biased)?);
            }
        }
        Ok(self)
    }

    pub fn num_layers(mut self, layers: usize) -> Result<Stack> {
        if layers == 0 {
            return Err(Error::argument(self.name, "there must be at least one layer"));
        }
        self.layers = layers;
        self.redrawn()
    }

    pub fn bidirectional(mut self) -> Result<Stack> {
        self.bidirectional = true;
        self.redrawn()
    }

    pub fn without_bias(mut self) -> Stack {
        self.biased = false;
        self.parameters.iter_mut().for_each(|parameters| parameters.biases = None);
        self
    }

    pub fn visit(&self, f: &mut dyn FnMut(&str, &Tensor)) {
        for (i, parameters) in self.parameters.iter().enumerate() {
            let end = suffix(i, self.directions());
            f(&format!("weight_ih{end}"), &parameters.weight_ih);
            f(&format!("weight_hh{end}"), &parameters.weight_hh);
            if let Some([input, hidden]) = &parameters.biases {
                f(&format!("bias_ih{end}"), input);
                f(&format!("bias_hh{end}"), hidden);
            }
        }
    }

    pub fn visit_mut(&mut self, f: &mut dyn FnMut(&str, &mut Tensor)) {
        let directions = self.directions();
        for (i, parameters) in self.parameters.iter_mut().enumerate() {
            let end = suffix(i, directions);
            f(&format!("weight_ih{end}"), &mut parameters.weight_ih);
            f(&format!("weight_hh{end}"), &mut parameters.weight_hh);
            if let Some([input, hidden]) = &mut parameters.biases {
                f(&format!("bias_ih{end}"), input);
                f(&format!("bias_hh{end}"), hidden);
            }
        }
    }

    pub fn set_training(&self, training: bool) {
        self.mode.tell_training(training);
    }

    /// Computes all layers for `[T, N, I]`, `[N, T, I]` with `batch_first`, or one sequence `[T, I]`. The first states
    /// are `[layers · directions, N, H]`, without N for one sequence. Missing states are zeros. `lengths` are the
    /// lengths of the sequences, `[N]`.
    pub fn run(&self, x: &Tensor, states: [Option<&Tensor>; 2], lengths: Option<&Tensor>) -> Result<Results> {
        let alone = x.rank() == 2;
        self.not_split_along_time(x)?;
        let shape = x.shape();
        let mut x = self.sequence(x)?;
        let live = match lengths {
            Some(_) if alone => {
                let detail = format!("sequences with lengths are a batch, not one sequence {shape:?}");
                return Err(Error::argument(self.name, detail));
            }
            Some(lengths) => Some(self.live(lengths, &x)?),
            None => None,
        };
        if let Some(live) = &live {
            x = x.masked_fill(&live.eq(0.0)?, 0.0)?; // 0 times a padding of NaN or ∞ would be NaN in gradients
        }
        let first = self.first_states(states, x.shape()[1], alone)?;
        let (mut h, mut c) = (Vec::new(), Vec::new());
        for layer in 0..self.layers {
            let mut outputs = Vec::new();
            for at in layer * self.directions()..(layer + 1) * self.directions() {
                let part = |all: &Tensor| all.select(0, at);
                let state = match &first {
                    [Some(h), c] => Some(State { h: part(h)?, c: c.as_ref().map(part).transpose()? }),
                    [None, _] => None,
                };
                let reverse = at % self.directions() == 1;
                let Outcome { outputs: of_one, state } =
                    direction(self.kind, &x, self.parameters[at].weights(), state.as_ref(), reverse, live.as_ref())?;
                outputs.push(of_one);
                h.push(state.h);
                c.extend(state.c);
            }
            x = if outputs.len() == 1 { outputs.swap_remove(0) } else { Tensor::cat(&outputs, 2)? };
            if layer + 1 < self.layers && self.dropout > 0.0 && self.mode.is_training() {
                // Replicas draw the parts of one mask, in the order of the samples.
                x = x.transpose(0, 1)?.dropout(self.dropout, true)?.transpose(0, 1)?;
            }
        }
        let outputs = if self.batch_first { x.transpose(0, 1)? } else { x };
        let outputs = if alone { outputs.squeeze(self.batch())? } else { outputs };
        let all = |states: &[Tensor]| match alone {
            true => Tensor::stack(states, 0)?.squeeze(1),
            false => Tensor::stack(states, 0),
        };
        Ok(Results { outputs, h: all(&h)?, c: if c.is_empty() { None } else { Some(all(&c)?) } })
    }

    /// Returns an error if this is a part of a batch that a call on several devices has split along time. This is
    /// assumed if the part has as many steps as samples, and the number of sequences is not a multiple of that.
    fn not_split_along_time(&self, x: &Tensor) -> Result<()> {
        let samples = process_group::rank().map(|rank| rank.samples());
        match (samples, x.shape()) {
            (Some(n), &[t, sequences, _]) if !self.batch_first && t == n && sequences % n != 0 => {
                let detail = format!(
                    "dimension 0 of the input {:?} is time, and was split into parts of {n} samples: call with_batch_dims(&[1, ..]) on \
                     the net on several devices, or batch_first() on the layer",
                    x.shape()
                );
                Err(Error::argument(self.name, detail))
            }
            _ => Ok(()),
        }
    }

    /// Returns which elements of `x: [T, N, I]` belong to their sequences: 1 or 0 in `[T, N, 1]`.
    fn live(&self, lengths: &Tensor, x: &Tensor) -> Result<Tensor> {
        let (steps, n) = (x.shape()[0], x.shape()[1]);
        if lengths.shape() != [n] {
            let detail = format!("there must be a length for each of {n} sequences");
            return Err(Error::shapes(self.name, lengths.shape(), &[n], detail));
        }
        if lengths.dtype().is_float() || lengths.dtype() == DType::Bool {
            return Err(Error::argument(self.name, format!("lengths are integers, not {}", lengths.dtype())));
        }
        let lengths = lengths.to_vec_f64()?;
        if let Some((i, length)) =
            lengths.iter().enumerate().find(|(_, length)| !(1.0..=steps as f64).contains(*length))
        {
            let detail = format!(
                "sequence {i} has the length {length}: each is from 1 to {steps}, the size of the time dimension"
            );
            return Err(Error::argument(self.name, detail));
        }
        let ones =
            (0..steps).flat_map(|t| lengths.iter().map(move |&length| if (t as f64) < length { 1.0f32 } else { 0.0 }));
        Tensor::from_vec(ones.collect(), [steps, n, 1], x.device())
    }

    /// Returns the dimension of N in the input.
    fn batch(&self) -> usize {
        usize::from(!self.batch_first)
    }

    /// Returns the input as `[T, N, I]`.
    fn sequence(&self, x: &Tensor) -> Result<Tensor> {
        let layout = if self.batch_first { "[N, T, I] or [T, I]" } else { "[T, N, I] or [T, I]" };
        if !matches!(x.rank(), 2 | 3) || x.shape().last() != Some(&self.inputs) {
            let detail = format!("the input is {layout} with I = {}", self.inputs);
            return Err(Error::shapes(self.name, x.shape(), self.parameters[0].weight_ih.shape(), detail));
        }
        let batched = if x.rank() == 2 { x.unsqueeze(self.batch())? } else { x.clone() };
        let sequence = if self.batch_first { batched.transpose(0, 1)? } else { batched };
        if sequence.shape()[0] == 0 {
            return Err(Error::argument(self.name, format!("the sequences of {:?} have no elements", x.shape())));
        }
        Ok(sequence)
    }

    /// Checks the first states, and returns them with N.
    fn first_states(&self, states: [Option<&Tensor>; 2], n: usize, alone: bool) -> Result<[Option<Tensor>; 2]> {
        let expected = [self.layers * self.directions(), n, self.hidden];
        let one = |state: &Tensor| {
            let batched = if alone && state.rank() == 2 { state.unsqueeze(1)? } else { state.clone() };
            if batched.shape() == expected {
                return Ok(batched);
            }
            let detail = "a first state is [layers · directions, N, H], without N for one sequence";
            Err(Error::shapes(self.name, state.shape(), &expected, detail))
        };
        let [h, c] = states.map(|state| state.map(one).transpose());
        Ok([h?, c?])
    }
}

/// Returns the end of the names of the `i`-th parameters.
fn suffix(i: usize, directions: usize) -> String {
    format!("_l{}{}", i / directions, if i % directions == 1 { "_reverse" } else { "" })
}
