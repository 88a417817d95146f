//! One step of a recurrent layer as a layer, for users' own loops.

use super::steps::{Kind, State, step};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::nn::{Module, init, summary};
use crate::ops::long::refuse;
use crate::ops::lowered;
use crate::tensor::Tensor;

/// Defines a cell from its docs and its type.
macro_rules! cell {
    ($(#[$doc:meta])* $name:ident, $kind:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            weight_ih: Tensor,
            weight_hh: Tensor,
            bias_ih: Option<Tensor>,
            bias_hh: Option<Tensor>,
            kind: Kind,
        }

        impl $name {
            /// Creates a cell from `inputs` to `hidden` features.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] if one of the sizes is 0.
            pub fn new(inputs: usize, hidden: usize) -> Result<$name> {
                if inputs == 0 || hidden == 0 {
                    let detail = format!("{inputs} inputs and {hidden} hidden features: both must be at least 1");
                    return Err(Error::argument(stringify!($name), detail));
                }
                let kind = $kind;
                let rows = kind.gates().saturating_mul(hidden); // creating the weight fails if this is too large
                Ok($name {
                    weight_ih: init::fresh(&[rows, inputs], hidden)?,
                    weight_hh: init::fresh(&[rows, hidden], hidden)?,
                    bias_ih: Some(init::fresh(&[rows], hidden)?),
                    bias_hh: Some(init::fresh(&[rows], hidden)?),
                    kind,
                })
            }

            /// Returns the same cell without its biases.
            #[must_use]
            pub fn without_bias(mut self) -> $name {
                (self.bias_ih, self.bias_hh) = (None, None);
                self
            }

            /// Computes a step for `[N, I]` or `[I]` from a state of `[N, H]` or `[H]` each. The default state is
            /// zeros.
            fn run(&self, x: &Tensor, h: Option<&Tensor>, c: Option<&Tensor>) -> Result<State> {
                let operands = Operands {
                    name: stringify!($name),
                    kind: self.kind,
                    weights: [&self.weight_ih, &self.weight_hh],
                    biases: [self.bias_ih.as_ref(), self.bias_hh.as_ref()],
                };
                operands.step(x, h, c).map_err(|error| error.of_layer(stringify!($name)))
            }
        }

        impl Module for $name {
            crate::children!(weight_ih, weight_hh, bias_ih, bias_hh);

            /// Returns h after a step from a state of zeros.
            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                summary::seen(self, self.run(input, None, None).map(|state| state.h))
            }
        }
    };
}

/// What a cell multiplies.
struct Operands<'a> {
    name: &'static str,
    kind: Kind,
    weights: [&'a Tensor; 2],
    biases: [Option<&'a Tensor>; 2],
}

impl Operands<'_> {
    fn step(&self, x: &Tensor, h: Option<&Tensor>, c: Option<&Tensor>) -> Result<State> {
        let [inputs, hidden] = self.weights.map(|weight| weight.shape()[1]);
        let alone = x.rank() == 1;
        if !matches!(x.rank(), 1 | 2) || x.shape().last() != Some(&inputs) {
            let detail = format!("the input is [N, {inputs}] or [{inputs}]");
            return Err(Error::shapes(self.name, x.shape(), self.weights[0].shape(), detail));
        }
        let x = if alone { x.unsqueeze(0)? } else { x.clone() };
        let n = x.shape()[0];
        let state = |given: Option<&Tensor>| {
            let Some(given) = given else { return Tensor::zeros([n, hidden], x.device()) };
            let batched = if alone && given.rank() == 1 { given.unsqueeze(0)? } else { given.clone() };
            if batched.shape() != [n, hidden] {
                let detail = "a state is [N, H], without N for one element";
                return Err(Error::shapes(self.name, given.shape(), &[n, hidden], detail));
            }
            refuse(self.name, [&batched])?;
            batched.to_dtype(DType::F32)
        };
        let (h, dtype) = (state(h)?, lowered(x.dtype()));
        let product = |i: usize, of: &Tensor| {
            let product = of.matmul_f32(&self.weights[i].t()?)?;
            match self.biases[i] {
                Some(bias) => product.add(&bias.to_dtype(DType::F32)?),
                None => Ok(product),
            }
        };
        let (by_input, by_hidden) = (product(0, &x)?, product(1, &h.to_dtype(dtype)?)?);
        let c = if self.kind == Kind::Lstm { Some(state(c)?) } else { None };
        let next = step(self.kind, &by_input, &by_hidden, &State { h, c })?;
        let back = |state: Tensor| {
            let state = state.to_dtype(dtype)?;
            if alone { state.squeeze(0) } else { Ok(state) }
        };
        Ok(State { h: back(next.h)?, c: next.c.map(back).transpose()? })
    }
}

/// Adds the forward function of cells whose state is one tensor.
macro_rules! of_one_state {
    ($($name:ident),*) => {$(
        impl $name {
            /// Returns h after a step for `[N, I]` from `h: [N, H]`. Without `h`, the state is zeros. For one element
            /// `[I]`, h is `[H]`.
            ///
            /// # Errors
            /// [`Error::ShapeMismatch`] for other shapes; the errors of the product.
            pub fn forward_with_state(&self, input: &Tensor, h: Option<&Tensor>) -> Result<Tensor> {
                summary::seen(self, self.run(input, h, None).map(|state| state.h))
            }
        }
    )*};
}

cell! {
    /// One step of an [`RNN`](super::RNN): `x: [N, I]` → `[N, H]`, with the parameters `weight_ih`, `weight_hh`, `bias_ih` and
    /// `bias_hh`.
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{Module, RNNCell};
    /// use anygpu::Tensor;
    ///
    /// let (cell, x) = (RNNCell::new(3, 8)?, Tensor::rand([10, 4, 3], None)?);
    /// let mut h = cell.forward(&x.select(0, 0)?)?;
    /// for t in 1..10 {
    ///     h = cell.forward_with_state(&x.select(0, t)?, Some(&h))?;
    /// }
    /// assert_eq!(h.shape(), [4, 8]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    RNNCell, Kind::Tanh
}

cell! {
    /// One step of an [`LSTM`](super::LSTM): `x: [N, I]` → h and c of `[N, H]`, with the parameters `weight_ih`,
    /// `weight_hh`, `bias_ih` and `bias_hh`. [`forward`](Module::forward) returns h.
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::LSTMCell;
    /// use anygpu::Tensor;
    ///
    /// let (cell, x) = (LSTMCell::new(3, 8)?, Tensor::rand([4, 3], None)?);
    /// let (h, c) = cell.forward_with_state(&x, None)?;
    /// let (h, _) = cell.forward_with_state(&x, Some((&h, &c)))?;
    /// assert_eq!(h.shape(), [4, 8]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    LSTMCell, Kind::Lstm
}

cell! {
    /// One step of a [`GRU`](super::GRU): `x: [N, I]` → `[N, H]`, with the parameters `weight_ih`, `weight_hh`, `bias_ih` and
    /// `bias_hh`.
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::GRUCell;
    /// use anygpu::Tensor;
    ///
    /// let (cell, x) = (GRUCell::new(3, 8)?, Tensor::rand([4, 3], None)?);
    /// let h = cell.forward_with_state(&x, None)?;
    /// assert_eq!(cell.forward_with_state(&x, Some(&h))?.shape(), [4, 8]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    GRUCell, Kind::Gru
}

of_one_state!(RNNCell, GRUCell);

impl RNNCell {
    /// Uses ReLU instead of tanh: PyTorch's `nonlinearity="relu"`.
    #[must_use]
    pub fn relu(mut self) -> RNNCell {
        self.kind = Kind::Relu;
        self
    }
}

impl LSTMCell {
    /// Returns h and c after a step for `[N, I]` from h and c of `[N, H]`.
    ///
    /// Without `state`, both are zeros. For one element `[I]`, they are `[H]`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for other shapes; the errors of the product.
    pub fn forward_with_state(&self, input: &Tensor, state: Option<(&Tensor, &Tensor)>) -> Result<(Tensor, Tensor)> {
        let State { h, c } = self.run(input, state.map(|(h, _)| h), state.map(|(_, c)| c))?;
        summary::recorded(self, Ok(h.clone()))?;
        let c = c.unwrap_or_else(|| h.clone()); // an LSTM has one
        Ok((h, c))
    }
}
