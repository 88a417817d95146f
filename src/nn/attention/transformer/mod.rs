//! The layers of transformers, with PyTorch's options and names. Batches come first.

mod layers;
mod stacks;

pub use layers::{TransformerDecoderLayer, TransformerEncoderLayer};
pub use stacks::{TransformerDecoder, TransformerEncoder};
