//! Trains a small transformer on Shakespeare's sonnets and lets it write, with a cache of keys and values on the device:
//!
//!     cargo run --release --example generate_text -- gpu:0         # 120 steps: letters in likely orders
//!     cargo run --release --example generate_text -- cpu 3000      # words
//!
//! Each new character costs one position of work. It is drawn on the device too, so nothing is read back before the end.

use std::time::Instant;

use anygpu::nn::{Embedding, LayerNorm, Linear, Module};
use anygpu::{Attention, Device, Result, Tensor, manual_seed, nn, no_grad, optim, try_gpu};

const TEXT: &[u8] = include_bytes!("../assets/sonnets/sonnets.txt");
const CONTEXT: usize = 96;
const WIDTH: usize = 64;
const HEADS: usize = 4;
const LAYERS: usize = 2;
const BATCH: usize = 8;
const STEPS: usize = 120;
const PROMPTS: [&str; 2] = ["Shall I compare ", "When forty winter"];

anygpu::module! {
    struct Block() {
        ln1: LayerNorm = LayerNorm::new([WIDTH])?,
        qkv: Linear = Linear::new(WIDTH, 3 * WIDTH)?,
        proj: Linear = Linear::new(WIDTH, WIDTH)?,
        ln2: LayerNorm = LayerNorm::new([WIDTH])?,
        up: Linear = Linear::new(WIDTH, 4 * WIDTH)?,
        down: Linear = Linear::new(4 * WIDTH, WIDTH)?,
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [queries, keys, values] = self.heads(x)?;
        self.rest(x, &queries.attention(&keys, &values, &Attention::new().causal())?)
    }
}

impl Block {
    /// The queries, keys and values of `[B, T, WIDTH]`, each `[B, HEADS, T, WIDTH / HEADS]`.
    fn heads(&self, x: &Tensor) -> Result<[Tensor; 3]> {
        let (b, t) = (x.shape()[0], x.shape()[1]);
        let qkv = x.apply(&self.ln1)?.apply(&self.qkv)?;
        let head = |i| qkv.narrow(-1, i * WIDTH, WIDTH)?.reshape([b, t, HEADS, WIDTH / HEADS])?.transpose(1, 2);
        Ok([head(0)?, head(1)?, head(2)?])
    }

    /// The part after the attention.
    fn rest(&self, x: &Tensor, seen: &Tensor) -> Result<Tensor> {
        let x = (x + self.proj.forward(&seen.transpose(1, 2)?.reshape(x.shape())?))?;
        &x + x.apply(&self.ln2)?.apply(&self.up)?.gelu()?.apply(&self.down)
    }

    /// Like `forward`, for the positions from `start` on. The keys and values of all positions before are in the
    /// cache. The keys and values of `x` are added to it in place.
    fn forward_cached(&self, x: &Tensor, cache: &Cache, start: usize) -> Result<Tensor> {
        let [queries, keys, values] = self.heads(x)?;
        let count = x.shape()[1];
        cache.keys.narrow(2, start, count)?.copy_(&keys)?;
        cache.values.narrow(2, start, count)?.copy_(&values)?;
        let (keys, values) = (cache.keys.narrow(2, 0, start + count)?, cache.values.narrow(2, 0, start + count)?);
        // One new position sees all positions before it. The positions of a prompt see only the positions before
        // themselves.
        let attention = if count == 1 { Attention::new() } else { Attention::new().causal() };
        self.rest(x, &queries.attention(&keys, &values, &attention)?)
    }
}

/// The keys and values of a block, `[B, HEADS, CONTEXT, WIDTH / HEADS]`.
struct Cache {
    keys: Tensor,
    values: Tensor,
}

impl Cache {
    fn new(batch: usize, device: &Device) -> Result<Cache> {
        let zeros = || Tensor::zeros([batch, HEADS, CONTEXT, WIDTH / HEADS], device);
        Ok(Cache { keys: zeros()?, values: zeros()? })
    }
}

anygpu::module! {
    struct Transformer(vocabulary: usize) {
        tok: Embedding = Embedding::new(vocabulary, WIDTH)?,
        pos: Embedding = Embedding::new(CONTEXT, WIDTH)?,
        blocks: Vec<Block> = (0..LAYERS).map(|_| Block::new()).collect::<Result<_>>()?,
        ln: LayerNorm = LayerNorm::new([WIDTH])?,
        head: Linear = Linear::new(WIDTH, vocabulary)?,
    }

    /// `[B, T]` → `[B, T, vocabulary]`, T at most CONTEXT
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let mut x = self.embedded(tokens, 0)?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        x.apply(&self.ln)?.apply(&self.head)
    }
}

impl Transformer {
    fn embedded(&self, tokens: &Tensor, start: usize) -> Result<Tensor> {
        &self.tok.forward(tokens)? + self.pos.weight().narrow(0, start, tokens.shape()[1])?
    }

    /// The scores of the character after `tokens`, which are at the positions from `start` on: `[B, vocabulary]`.
    fn next(&self, tokens: &Tensor, caches: &[Cache], start: usize) -> Result<Tensor> {
        let mut x = self.embedded(tokens, start)?;
        for (block, cache) in self.blocks.iter().zip(caches) {
            x = block.forward_cached(&x, cache, start)?;
        }
        x.select(1, tokens.shape()[1] - 1)?.apply(&self.ln)?.apply(&self.head)
    }
}

/// Draws from the probabilities of the scores, `[B, vocabulary]` → `[B, 1]`: adds random noise of Gumbel's
/// distribution to each score, and takes the largest one.
fn drawn(scores: &Tensor, temperature: f32) -> Result<Tensor> {
    let noise = Tensor::uniform(1e-9, 1.0, scores.shape(), scores.device())?.log()?.neg()?.log()?.neg()?;
    scores.mul_scalar(1.0 / temperature)?.add(&noise)?.argmax(1)?.unsqueeze(1)
}

fn main() -> Result<()> {
    let device = std::env::args().nth(1).map_or_else(|| Ok(try_gpu(0)), |name| Device::new(&name))?;
    let steps = std::env::args().nth(2).map_or(STEPS, |steps| steps.parse().expect("a number of steps"));
    manual_seed(1);
    let mut alphabet = TEXT.to_vec();
    alphabet.sort_unstable();
    alphabet.dedup();
    let encoded =
        |text: &[u8]| -> Vec<u32> { text.iter().map(|b| alphabet.partition_point(|a| a < b) as u32).collect() };
    let tokens = Tensor::from_vec(encoded(TEXT), TEXT.len(), None)?;
    let net = Transformer::new(alphabet.len())?.to(&device)?;

    let mut adam = optim::Adam::new(net.parameters(), 3e-3);
    let (mut first, mut last) = (0.0, 0.0);
    for step in 0..steps {
        let starts = Tensor::randint(0, (TEXT.len() - CONTEXT - 1) as i32, [BATCH], None)?.to_vec::<i32>()?;
        let windows = |shift: usize| -> Result<Tensor> {
            let rows = starts.iter().map(|&start| tokens.narrow(0, start as usize + shift, CONTEXT));
            Tensor::stack(&rows.collect::<Result<Vec<_>>>()?, 0)?.to(&device)
        };
        let scores = net.forward(&windows(0)?)?.reshape((-1, alphabet.len()))?;
        let loss = nn::cross_entropy(&scores, &windows(1)?.reshape(-1)?)?;
        adam.zero_grad();
        loss.backward()?;
        adam.step()?;
        if step % (steps / 6).max(1) == 0 || step + 1 == steps {
            last = loss.item::<f32>()?;
            first = if step == 0 { last } else { first };
            println!("step {step:3}: loss {last:.3}");
        }
    }
    assert!(last < first - 1.0, "the loss went from {first} to {last}");

    no_grad(|| {
        let length = PROMPTS[0].len().min(PROMPTS[1].len());
        let prompt: Vec<u32> = PROMPTS.iter().flat_map(|text| encoded(&text.as_bytes()[..length])).collect();
        let prompt = Tensor::from_vec(prompt, [PROMPTS.len(), length], &device)?;
        let caches = net.blocks.iter().map(|_| Cache::new(PROMPTS.len(), &device)).collect::<Result<Vec<_>>>()?;

        let begin = Instant::now();
        let mut scores = net.next(&prompt, &caches, 0)?;
        let mut text = vec![prompt];
        for position in length..CONTEXT {
            let token = drawn(&scores, 0.6)?;
            scores = net.next(&token, &caches, position)?;
            text.push(token.to_dtype(text[0].dtype())?);
        }
        let written = Tensor::cat(&text, 1)?;
        let letters = written.to_vec::<u32>()?;
        let seconds = begin.elapsed().as_secs_f64();
        for row in letters.chunks(CONTEXT) {
            let row: Vec<u8> = row.iter().map(|&token| alphabet[token as usize]).collect();
            println!("---\n{}", String::from_utf8_lossy(&row));
        }
        println!(
            "---\n{:.2} ms for each character of {} texts on {device}",
            seconds * 1e3 / (CONTEXT - length) as f64,
            PROMPTS.len()
        );

        // The whole text at once, without a cache, has the same scores for the character after it.
        let whole = net.forward(&written)?.select(1, CONTEXT - 1)?;
        let difference = whole.sub(&scores)?.abs()?.max_all()?.item::<f32>()?;
        println!("largest difference from the scores without a cache: {difference:.1e}");
        assert!(difference < 1e-3);
        Ok(())
    })
}
