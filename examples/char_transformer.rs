//! Trains a character-level transformer on Shakespeare's sonnets, on any device:
//!
//!     cargo run --release --example char_transformer -- gpu:0
//!
//! The initial weights and the order of the batches are the same as in scripts/pytorch_char_transformer.py. The
//! loss of each step is compared with PyTorch's.

use anygpu::nn::{Embedding, LayerNorm, Linear, Module};
use anygpu::{Attention, Device, Result, Tensor, nn, optim, try_gpu};

const TEXT: &[u8] = include_bytes!("../assets/sonnets/sonnets.txt");
const PYTORCH: &str = include_str!("../tests/data/char_transformer.csv");
const BATCH: usize = 16;
const CONTEXT: usize = 32;
const WIDTH: usize = 64;
const HEADS: usize = 4;
const LAYERS: usize = 2;

anygpu::module! {
    /// A block of attention and a feed-forward net, each applied to the normalised input and added to it.
    struct Block() {
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
    struct Transformer(vocabulary: usize) {
        tok: Embedding = Embedding::new(vocabulary, WIDTH)?,
        pos: Embedding = Embedding::new(CONTEXT, WIDTH)?,
        blocks: Vec<Block> = (0..LAYERS).map(|_| Block::new()).collect::<Result<_>>()?,
        ln: LayerNorm = LayerNorm::new([WIDTH])?,
        head: Linear = Linear::new(WIDTH, vocabulary)?,
    }

    /// `[B, CONTEXT]` u32 → `[B, CONTEXT, vocabulary]`
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let mut x = (&self.tok.forward(tokens)? + self.pos.weight())?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        x.apply(&self.ln)?.apply(&self.head)
    }
}

/// The random generator of the PyTorch script.
struct Lcg(u64);

impl Lcg {
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0
    }
}

/// Initialises matrices uniformly on ±bound, weights of norms with 1 and other vectors with 0.
fn initialise(net: &mut Transformer) -> Result<()> {
    let mut lcg = Lcg(1);
    let mut done = Ok(());
    net.visit_mut(&mut |name, parameter| {
        let shape = parameter.shape().to_vec();
        let values: Vec<f32> = match shape[..] {
            [_, inputs] => {
                let table = name.starts_with("tok") || name.starts_with("pos");
                let bound = if table { 0.125 } else { (inputs as f32).sqrt().recip() };
                let unit = |_| (lcg.draw() >> 40) as f32 / (1 << 24) as f32;
                (0..parameter.elem_count()).map(unit).map(|u| (2.0 * u - 1.0) * bound).collect()
            }
            _ => vec![f32::from(u8::from(name.ends_with("weight"))); parameter.elem_count()],
        };
        match Tensor::from_vec(values, shape, None) {
            Ok(start) => *parameter = start.requires_grad(),
            Err(error) => done = Err(error),
        }
    });
    done
}

fn main() -> Result<()> {
    let device = std::env::args().nth(1).map_or_else(|| Ok(try_gpu(0)), |name| Device::new(&name))?;
    let mut alphabet = TEXT.to_vec();
    alphabet.sort_unstable();
    alphabet.dedup();
    let tokens: Vec<u32> = TEXT.iter().map(|b| alphabet.partition_point(|a| a < b) as u32).collect();

    let mut net = Transformer::new(alphabet.len())?;
    initialise(&mut net)?;
    let net = net.to(&device)?;
    println!("{} parameters, {} characters of text, on {device}", net.num_parameters(), tokens.len());

    let mut sgd = optim::SGD::new(net.parameters(), 0.1).momentum(0.9);
    let mut lcg = Lcg(2);
    let steps = PYTORCH.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit()));
    let mut worst = 0f32;
    for (step, line) in steps.enumerate() {
        let expected: f32 = line.split(',').nth(1).and_then(|loss| loss.parse().ok()).expect("a loss in the table");
        let starts: Vec<usize> =
            (0..BATCH).map(|_| ((lcg.draw() >> 33) % (tokens.len() - CONTEXT) as u64) as usize).collect();
        let windows =
            |shift| starts.iter().flat_map(|s| &tokens[s + shift..][..CONTEXT]).copied().collect::<Vec<u32>>();
        let inputs = Tensor::from_vec(windows(0), [BATCH, CONTEXT], &device)?;
        let targets = Tensor::from_vec(windows(1), BATCH * CONTEXT, &device)?;

        let logits = net.forward(&inputs)?.reshape((-1, alphabet.len()))?;
        let loss = nn::cross_entropy(&logits, &targets)?;
        sgd.zero_grad();
        loss.backward()?;
        sgd.step()?;

        let loss: f32 = loss.item()?;
        worst = worst.max((loss - expected).abs());
        if step % 20 == 0 {
            println!("step {step:3}: loss {loss:.4}, PyTorch's {expected:.4}");
        }
        // The first loss tests only the forward pass; later ones also test every gradient and every update.
        let tolerance = if step < 50 { 1e-3 } else { 2e-2 };
        assert!((loss - expected).abs() < tolerance, "step {step}: loss {loss}, PyTorch's {expected}");
    }
    println!("largest difference from PyTorch's losses: {worst:.2e}");
    Ok(())
}
