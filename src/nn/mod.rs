//! Layers, as in `torch.nn`. A [`Module`] has a forward function and named parameters.
//!
//! Every constructor creates its parameters on `cpu`, from the generator that [`manual_seed`](crate::manual_seed) sets.
//! The same seed therefore gives the same initial values on every device. [`Module::to`] then moves the whole net in
//! one copy.
//!
//! Shapes in this module's documentation: N is the batch size, C the number of channels, H and W the height and width,
//! OC the number of output channels, K the kernel size. Images are NCHW, convolution weights OIHW.

mod activation;
mod attention;
mod children;
mod conv;
mod define;
mod distance;
mod embedding;
pub mod init;
mod layers;
mod linear;
mod load_state;
mod loss;
mod mode;
pub mod models;
mod module;
mod norm;
mod pool;
pub(crate) mod recurrent;
mod reduction;
mod relocate;
mod sequential;
mod simple;
mod state_dict;
mod summary;

pub use activation::*;
pub use attention::*;
pub use children::Child;
pub use conv::{Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d};
pub use define::Outputs;
pub use distance::*;
pub use embedding::*;
pub use layers::ModuleClone;
pub use linear::{Linear, WeightNorm};
pub use load_state::KeyReport;
pub use loss::{CrossEntropyLoss, correct, cross_entropy, nll_loss};
pub use mode::{Buffer, Mode};
pub use module::Module;
pub use norm::*;
pub use pool::*;
pub use recurrent::{GRU, GRUCell, LSTM, LSTMCell, RNN, RNNCell};
pub use reduction::Reduction;
pub(crate) use relocate::{buffers_onto, parameters_onto, replacing};
pub use sequential::Sequential;
pub use simple::*;
pub use state_dict::StateDict;
pub(crate) use state_dict::moved;
pub use summary::{LayerSummary, Summary};
