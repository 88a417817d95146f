//! Classes of texts: the last state of an LSTM over embedded tokens.

use anygpu::prelude::*;

module! {
    pub struct Encoder(vocabulary: usize, width: usize, hidden: usize, classes: usize) {
        embedding: nn::Embedding = nn::Embedding::new(vocabulary, width)?,
        lstm: nn::LSTM = nn::LSTM::new(width, hidden)?.batch_first(),
        head: nn::Linear = nn::Linear::new(hidden, classes)?,
    }

    fn forward(&self, tokens: &Tensor) -> anygpu::Result<Tensor> {
        tokens.apply(&self.embedding)?.apply(&self.lstm)?.i((.., -1))?.apply(&self.head)
    }
}
