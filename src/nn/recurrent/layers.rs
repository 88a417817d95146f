//! The recurrent layers, with PyTorch's options, names and order of gates.

use super::stack::{Results, Stack};
use super::steps::Kind;
use crate::error::Result;
use crate::nn::simple::probability;
use crate::nn::{Module, Sequential, summary};
use crate::tensor::Tensor;

/// A layer whose sequences may be `[T, N, I]`.
trait TimeFirst {
    fn is_time_first(&self) -> bool;
}

/// Returns whether a net is a recurrent layer that takes sequences `[T, N, I]`, or begins with one.
pub(crate) fn takes_time_first(net: &dyn Module) -> bool {
    if let Some(layers) = net.downcast_ref::<Sequential>() {
        return layers.iter().next().is_some_and(|(_, first)| takes_time_first(first));
    }
    let is = |layer: Option<&dyn TimeFirst>| layer.is_some_and(TimeFirst::is_time_first);
    is(net.downcast_ref::<RNN>().map(|layer| layer as _))
        || is(net.downcast_ref::<LSTM>().map(|layer| layer as _))
        || is(net.downcast_ref::<GRU>().map(|layer| layer as _))
}

/// Defines a recurrent layer from its docs and its type.
macro_rules! recurrent {
    ($(#[$doc:meta])* $name:ident, $kind:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            stack: Stack,
        }

        impl $name {
            /// Creates one layer from `inputs` to `hidden` features, in one direction, for sequences `[T, N, I]`.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if one of the sizes is 0.
            pub fn new(inputs: usize, hidden: usize) -> Result<$name> {
                Ok($name { stack: Stack::new(stringify!($name), $kind, inputs, hidden)? })
            }

            /// Sets the number of layers. Each layer reads the outputs of the one before. The parameters get new random
            /// values: call this first, on a new layer.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if it is 0.
            pub fn num_layers(self, layers: usize) -> Result<$name> {
                Ok($name { stack: self.stack.num_layers(layers)? })
            }

            /// Reads sequences in both directions, with separate parameters. Outputs have the features of both
            /// directions, the forward ones first. The parameters get new random values: call this first, on a new
            /// layer.
            ///
            /// # Errors
            /// Errors of creating the parameters.
            pub fn bidirectional(self) -> Result<$name> {
                Ok($name { stack: self.stack.bidirectional()? })
            }

            /// Returns the same layer without its biases.
            #[must_use]
            pub fn without_bias(self) -> $name {
                $name { stack: self.stack.without_bias() }
            }

            /// Takes and returns sequences with the batch first: `[N, T, I]`. States stay
            /// `[layers · directions, N, H]`, as in PyTorch.
            #[must_use]
            pub fn batch_first(mut self) -> $name {
                self.stack.batch_first = true;
                self
            }

            /// Sets the dropout probability for the outputs of all layers except the last, in training.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) unless `p` is between 0 and 1.
            pub fn dropout(mut self, p: f32) -> Result<$name> {
                self.stack.dropout = probability(stringify!($name), p)?;
                Ok(self)
            }
        }

        impl TimeFirst for $name {
            fn is_time_first(&self) -> bool {
                !self.stack.batch_first
            }
        }

        impl Module for $name {
            /// Returns the outputs of all steps. The first states are zeros.
            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                summary::seen(self, self.stack.run(input, [None, None], None).map(|results| results.outputs))
            }

            fn visit(&self, f: &mut dyn FnMut(&str, &Tensor)) {
                self.stack.visit(f);
            }

            fn visit_mut(&mut self, f: &mut dyn FnMut(&str, &mut Tensor)) {
                self.stack.visit_mut(f);
            }

            fn set_training(&self, training: bool) {
                self.stack.set_training(training);
            }
        }
    };
}

/// Adds the forward function of layers whose state is one tensor.
macro_rules! of_one_state {
    ($($name:ident),*) => {$(
        impl $name {
            /// Returns the outputs of all steps, like [`forward`](Module::forward), and the last states
            /// `[layers · directions, N, H]`. The forward direction of each layer comes first. `h` has the first states
            /// in this shape. Without `h`, they are zeros. For one sequence `[T, I]`, states are
            /// `[layers · directions, H]`.
            ///
            /// # Errors
            /// The errors of [`forward`](Module::forward); [`Error::ShapeMismatch`](crate::Error::ShapeMismatch) for a
            /// state of another shape.
            pub fn forward_with_state(&self, input: &Tensor, h: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
                self.given(input, h, None)
            }

            /// Returns the same as [`forward_with_state`](Self::forward_with_state), for a batch of sequences of
            /// several lengths: `lengths: [N]`, of integers from 1 to T. Elements after the end of a sequence have no
            /// influence, and their outputs are zeros. The last states are the states at the end of each sequence,
            /// where the reverse direction begins. This equals PyTorch's `pack_padded_sequence` and
            /// `pad_packed_sequence` (with `total_length`). The lengths may be in any order.
            ///
            /// The lengths are read by the host, so keep them on `cpu`: elsewhere, the call waits for their device. On
            /// several devices, make them an input of [`step`](crate::DataParallel::step), split with the sequences
            /// ([`with_batch_dims(&[1, 0])`](crate::DataParallel::with_batch_dims) unless the batch comes first).
            ///
            /// # Errors
            /// The errors of [`forward_with_state`](Self::forward_with_state);
            /// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch) unless there is a length for each sequence;
            /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a length outside 1 to T, or without a
            /// batch.
            pub fn forward_with_lengths(
                &self,
                input: &Tensor,
                lengths: &Tensor,
                h: Option<&Tensor>,
            ) -> Result<(Tensor, Tensor)> {
                self.given(input, h, Some(lengths))
            }

            fn given(&self, input: &Tensor, h: Option<&Tensor>, lengths: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
                let results = self.stack.run(input, [h, None], lengths);
                let results = results.map_err(|error| error.of_layer(stringify!($name)))?;
                summary::recorded(self, Ok(results.outputs.clone()))?;
                Ok((results.outputs, results.h))
            }
        }
    )*};
}

recurrent! {
    /// A recurrent net (Elman's): `h = tanh(W_ih x + b_ih + W_hh h + b_hh)` for each element x of a sequence.
    ///
    /// `x: [T, N, I]` → `[T, N, directions · H]`; with [`batch_first`](RNN::batch_first) `[N, T, I]`; one sequence
    /// `[T, I]` → `[T, directions · H]`. The parameters have PyTorch's names and shapes: `weight_ih_l0: [H, I]`,
    /// `weight_hh_l0: [H, H]`, `bias_ih_l0: [H]`, `bias_hh_l0: [H]`, then `_l0_reverse`, `_l1` and so on. All are
    /// initialised uniformly on ±1/√H. With 16-bit floats, the steps are computed in f32.
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{Module, RNN};
    /// use anygpu::Tensor;
    ///
    /// let layer = RNN::new(3, 8)?.num_layers(2)?.batch_first();
    /// let x = Tensor::rand([4, 10, 3], None)?;
    /// assert_eq!(layer.forward(&x)?.shape(), [4, 10, 8]);
    /// let (_, h) = layer.forward_with_state(&x, None)?;
    /// assert_eq!(layer.forward_with_state(&x, Some(&h))?.1.shape(), [2, 4, 8]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    RNN, Kind::Tanh
}

recurrent! {
    /// Long short-term memory (Hochreiter & Schmidhuber, 1997). With the gates i, f, g, o of `W_ih x + b_ih + W_hh h + b_hh`:
    /// `c = σ(f) · c + σ(i) · tanh(g)`, `h = σ(o) · tanh(c)`, for each element x of a sequence.
    ///
    /// `x: [T, N, I]` → `[T, N, directions · H]`; with [`batch_first`](LSTM::batch_first) `[N, T, I]`; one sequence
    /// `[T, I]` → `[T, directions · H]`. The parameters have PyTorch's names and shapes: `weight_ih_l0: [4 H, I]`,
    /// `weight_hh_l0: [4 H, H]`, `bias_ih_l0: [4 H]`, `bias_hh_l0: [4 H]`, then `_l0_reverse`, `_l1` and so on. All are
    /// initialised uniformly on ±1/√H. With 16-bit floats, the steps are computed in f32. PyTorch's `proj_size` is not
    /// supported.
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{LSTM, Module};
    /// use anygpu::Tensor;
    ///
    /// let layer = LSTM::new(3, 8)?.bidirectional()?.batch_first();
    /// let x = Tensor::rand([4, 10, 3], None)?;
    /// let (outputs, (h, c)) = layer.forward_with_state(&x, None)?;
    /// assert_eq!((outputs.shape(), h.shape(), c.shape()), (&[4, 10, 16][..], &[2, 4, 8][..], &[2, 4, 8][..]));
    /// assert_eq!(layer.forward_with_state(&x, Some((&h, &c)))?.0.shape(), [4, 10, 16]);
    /// assert_eq!(layer.named_parameters()[4].0, "weight_ih_l0_reverse");
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    LSTM, Kind::Lstm
}

recurrent! {
    /// Gated recurrent units (Cho et al., 2014), with PyTorch's formula: `r = σ(W_ir x + b_ir + W_hr h + b_hr)`, z likewise,
    /// `n = tanh(W_in x + b_in + r · (W_hn h + b_hn))`, `h = (1 − z) · n + z · h`, for each element x of a sequence.
    ///
    /// `x: [T, N, I]` → `[T, N, directions · H]`; with [`batch_first`](GRU::batch_first) `[N, T, I]`; one sequence
    /// `[T, I]` → `[T, directions · H]`. The parameters have PyTorch's names and shapes, with the gates r, z, n:
    /// `weight_ih_l0: [3 H, I]`, `weight_hh_l0: [3 H, H]`, `bias_ih_l0: [3 H]`, `bias_hh_l0: [3 H]`, then
    /// `_l0_reverse`, `_l1` and so on. All are initialised uniformly on ±1/√H. With 16-bit floats, the steps are
    /// computed in f32.
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{GRU, Module};
    /// use anygpu::Tensor;
    ///
    /// let layer = GRU::new(3, 8)?.num_layers(2)?.dropout(0.5)?;
    /// let (outputs, h) = layer.forward_with_state(&Tensor::rand([10, 4, 3], None)?, None)?;
    /// assert_eq!((outputs.shape(), h.shape()), (&[10, 4, 8][..], &[2, 4, 8][..]));
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    GRU, Kind::Gru
}

of_one_state!(RNN, GRU);

impl RNN {
    /// Uses ReLU instead of tanh: PyTorch's `nonlinearity="relu"`.
    #[must_use]
    pub fn relu(mut self) -> RNN {
        self.stack.kind = Kind::Relu;
        self
    }
}

impl LSTM {
    /// Returns the outputs of all steps, like [`forward`](Module::forward), and the last states h and c,
    /// `[layers · directions, N, H]` each.
    ///
    /// The forward direction of each layer comes first. `state` has the first h and c in this shape. Without it, they
    /// are zeros. For one sequence `[T, I]`, states are `[layers · directions, H]`.
    ///
    /// # Errors
    /// The errors of [`forward`](Module::forward); [`Error::ShapeMismatch`](crate::Error::ShapeMismatch) for a state of
    /// another shape.
    pub fn forward_with_state(
        &self,
        input: &Tensor,
        state: Option<(&Tensor, &Tensor)>,
    ) -> Result<(Tensor, (Tensor, Tensor))> {
        self.given(input, state, None)
    }

    /// Returns the same as [`forward_with_state`](LSTM::forward_with_state), for a batch of sequences of several
    /// lengths: `lengths: [N]`, of integers from 1 to T. Elements after the end of a sequence have no influence, and
    /// their outputs are zeros.
    ///
    /// The last states are the states at the end of each sequence, where the reverse direction begins. This equals
    /// PyTorch's `pack_padded_sequence` and `pad_packed_sequence` (with `total_length`). The lengths may be in any
    /// order.
    ///
    /// The lengths are read by the host, so keep them on `cpu`: elsewhere, the call waits for their device. On several
    /// devices, make them an input of [`step`](crate::DataParallel::step), split with the sequences
    /// ([`with_batch_dims(&[1, 0])`](crate::DataParallel::with_batch_dims) unless the batch comes first).
    ///
    /// # Errors
    /// The errors of [`forward_with_state`](LSTM::forward_with_state);
    /// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch) unless there is a length for each sequence;
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a length outside 1 to T, or without a batch.
    ///
    /// ```
    /// use anygpu::Tensor;
    /// use anygpu::nn::LSTM;
    ///
    /// let layer = LSTM::new(3, 8)?.bidirectional()?.batch_first();
    /// let (x, lengths) = (Tensor::rand([2, 10, 3], None)?, Tensor::new([10u32, 4], None)?);
    /// let (outputs, (h, _)) = layer.forward_with_lengths(&x, &lengths, None)?;
    /// // The second sequence alone, without its padding.
    /// let (alone, (last, _)) = layer.forward_with_state(&x.narrow(0, 1, 1)?.narrow(1, 0, 4)?, None)?;
    /// assert!(outputs.narrow(0, 1, 1)?.narrow(1, 0, 4)?.allclose(&alone, 1e-5, 1e-6)?);
    /// assert!(h.narrow(1, 1, 1)?.allclose(&last, 1e-5, 1e-6)?);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn forward_with_lengths(
        &self,
        input: &Tensor,
        lengths: &Tensor,
        state: Option<(&Tensor, &Tensor)>,
    ) -> Result<(Tensor, (Tensor, Tensor))> {
        self.given(input, state, Some(lengths))
    }

    fn given(
        &self,
        input: &Tensor,
        state: Option<(&Tensor, &Tensor)>,
        lengths: Option<&Tensor>,
    ) -> Result<(Tensor, (Tensor, Tensor))> {
        let results = self.stack.run(input, [state.map(|(h, _)| h), state.map(|(_, c)| c)], lengths);
        let Results { outputs, h, c } = results.map_err(|error| error.of_layer("LSTM"))?;
        summary::recorded(self, Ok(outputs.clone()))?;
        let c = c.unwrap_or_else(|| h.clone()); // an LSTM has one
        Ok((outputs, (h, c)))
    }
}
