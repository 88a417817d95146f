//! What the gradients of ops read.

/// The elements that the gradient of an op reads. The graph keeps no others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Saves {
    /// The elements of all inputs and of the output.
    All,
    Inputs,
    /// The elements of one input.
    Input(usize),
    Output,
    /// The elements of the inputs whose bits are set, the first one in the lowest bit, and of the output.
    OutputAnd(u32),
    /// Shapes and types only.
    Nothing,
}

impl Saves {
    pub(crate) fn input(self, i: usize) -> bool {
        match self {
            Saves::All | Saves::Inputs => true,
            Saves::Input(one) => one == i,
            Saves::OutputAnd(inputs) => inputs >> i & 1 == 1,
            Saves::Output | Saves::Nothing => false,
        }
    }

    /// Returns the other one of two inputs, for the gradient of a product. For the gradient of a further input, such as
    /// a bias, nothing.
    pub(crate) fn other_factor(input: usize) -> Saves {
        if input < 2 { Saves::Input(1 - input) } else { Saves::Nothing }
    }

    pub(crate) fn output(self) -> bool {
        matches!(self, Saves::All | Saves::Output | Saves::OutputAnd(_))
    }
}
