//! A small transformer that predicts the next token, with normalised inputs of its blocks, as GPT-2 has them.

use anygpu::nn::{self, Embedding, LayerNorm, Linear};
use anygpu::{Attention, Result, Tensor};

pub const VOCABULARY: usize = 128;
pub const CONTEXT: usize = 128;
pub const WIDTH: usize = 256;
pub const LAYERS: usize = 4;
const HEADS: usize = 8;

anygpu::module! {
    /// Attention and a feed-forward net, each of the normalised input and added to it.
    pub struct Block() {
        ln1: LayerNorm = LayerNorm::new([WIDTH])?,
        qkv: Linear = Linear::new(WIDTH, 3 * WIDTH)?,
        proj: Linear = Linear::new(WIDTH, WIDTH)?,
        ln2: LayerNorm = LayerNorm::new([WIDTH])?,
        up: Linear = Linear::new(WIDTH, 4 * WIDTH)?,
        down: Linear = Linear::new(4 * WIDTH, WIDTH)?,
    }

    /// `[B, T, WIDTH]` → `[B, T, WIDTH]`
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (b, t) = (x.shape()[0], x.shape()[1]);
        let qkv = x.apply(&self.ln1)?.apply(&self.qkv)?;
        let head = |i| qkv.narrow(-1, i * WIDTH, WIDTH)?.reshape([b, t, HEADS, WIDTH / HEADS])?.transpose(1, 2);
        let seen = head(0)?.attention(&head(1)?, &head(2)?, &Attention::new().causal())?;
        let x = (x + self.proj.forward(&seen.transpose(1, 2)?.reshape([b, t, WIDTH])?))?;
        &x + x.apply(&self.ln2)?.apply(&self.up)?.gelu()?.apply(&self.down)
    }
}

anygpu::module! {
    /// The net.
    pub struct Transformer() {
        tok: Embedding = Embedding::new(VOCABULARY, WIDTH)?,
        pos: Embedding = Embedding::new(CONTEXT, WIDTH)?,
        blocks: Vec<Block> = (0..LAYERS).map(|_| Block::new()).collect::<Result<_>>()?,
        ln: LayerNorm = LayerNorm::new([WIDTH])?,
        head: Linear = Linear::new(WIDTH, VOCABULARY)?,
    }

    /// `[B, CONTEXT]` u32 → `[B, CONTEXT, VOCABULARY]`
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let mut x = (&self.tok.forward(tokens)? + self.pos.weight())?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        x.apply(&self.ln)?.apply(&self.head)
    }
}

/// The mean cross entropy over all tokens.
pub fn loss(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    nn::cross_entropy(&logits.reshape((-1, VOCABULARY))?, &targets.reshape([-1])?)
}
