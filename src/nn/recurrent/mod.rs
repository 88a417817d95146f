//! Recurrent layers. `steps` has the formulas of one step and their gradients, `direction` computes a layer in one
//! direction, `stack` combines layers with PyTorch's options, and `layers` and `cells` define the modules.

mod cells;
pub(crate) mod direction;
mod layers;
mod stack;
pub(crate) mod steps;

pub use cells::{GRUCell, LSTMCell, RNNCell};
pub(crate) use layers::takes_time_first;
pub use layers::{GRU, LSTM, RNN};
