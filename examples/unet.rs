//! A user-defined model: a small U-Net (Ronneberger et al., 2015) that learns to separate discs from the background.
//!
//!     cargo run --release --example unet -- gpu:0
//!
//! scripts/pytorch_unet.py has the same net in PyTorch. Without blank lines and comments, the model has 34 lines in
//! both languages.

use anygpu::nn::{BatchNorm2d, Conv2d, ConvTranspose2d, MaxPool2d, Module, ReLU, Sequential};
use anygpu::{Device, Result, Tensor, manual_seed, nn, optim, try_gpu};

const SIZE: usize = 32;
const BATCH: usize = 8;
const STEPS: usize = 30;

// The model begins here.

/// Concatenates the input and the output of the layers along the channels: `[N, C, H, W]` → `[N, C + C', H, W]`
#[derive(Clone)]
struct Skip(Sequential);

impl Module for Skip {
    anygpu::children!(0);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Tensor::cat(&[x, &self.0.forward(x)?], 1)
    }
}

fn double_conv(inputs: usize, outputs: usize) -> Result<Sequential> {
    Ok(Sequential::new()
        .push(Conv2d::new(inputs, outputs, 3)?.padding(1).without_bias())
        .push(BatchNorm2d::new(outputs)?)
        .push(ReLU)
        .push(Conv2d::new(outputs, outputs, 3)?.padding(1).without_bias())
        .push(BatchNorm2d::new(outputs)?)
        .push(ReLU))
}

/// `[N, channels, H, W]` → `[N, classes, H, W]`; H and W are multiples of 4.
fn unet(channels: usize, classes: usize) -> Result<Sequential> {
    let bottom = Sequential::new()
        .push(MaxPool2d::new(2))
        .push(double_conv(16, 32)?)
        .push(ConvTranspose2d::new(32, 16, 2)?.stride(2));
    let middle = Sequential::new()
        .push(MaxPool2d::new(2))
        .push(double_conv(8, 16)?)
        .push(Skip(bottom))
        .push(double_conv(32, 16)?)
        .push(ConvTranspose2d::new(16, 8, 2)?.stride(2));
    Ok(Sequential::new()
        .push(double_conv(channels, 8)?)
        .push(Skip(middle))
        .push(double_conv(16, 8)?)
        .push(Conv2d::new(8, classes, 1)?))
}

// The model ends here.

/// Images `[BATCH, 1, SIZE, SIZE]` of a bright disc under noise, and the disc's pixels `[BATCH, SIZE, SIZE]` (u32).
fn discs(device: &Device) -> Result<(Tensor, Tensor)> {
    let place = Tensor::uniform(0.3, 0.7, [2, BATCH, 1, 1], None)?.mul(SIZE as f32)?;
    let radius = Tensor::uniform(0.15, 0.3, [BATCH, 1, 1], None)?.mul(SIZE as f32)?;
    let line = Tensor::arange(0.0, SIZE as f32, 1.0, None)?;
    let rows = (line.reshape([-1, 1])? - place.i(0))?;
    let columns = (line.reshape([1, -1])? - place.i(1))?;
    let inside = (rows.square()? + columns.square())?.lt(&radius.square()?)?;
    let noise = Tensor::normal(0.0, 0.5, [BATCH, SIZE, SIZE], None)?;
    let images = inside.to_dtype(anygpu::DType::F32)?.add(&noise)?.unsqueeze(1)?;
    Ok((images.to(device)?, inside.to_dtype(anygpu::DType::U32)?.to(device)?))
}

fn main() -> Result<()> {
    let device = std::env::args().nth(1).map_or_else(|| Ok(try_gpu(0)), |name| Device::new(&name))?;
    manual_seed(0);
    let net = unet(1, 2)?.to(&device)?;
    println!("{}", net.summary(&[BATCH, 1, SIZE, SIZE])?);
    let mut adam = optim::Adam::new(net.parameters(), 0.01);
    let (mut first, mut last) = (0.0, 0.0);
    for step in 0..STEPS {
        let (images, masks) = discs(&device)?;
        adam.zero_grad();
        let loss = nn::cross_entropy(&net.forward(&images)?, &masks)?;
        loss.backward()?;
        adam.step()?;
        if step % 5 == 0 || step + 1 == STEPS {
            last = loss.item::<f32>()?;
            first = if step == 0 { last } else { first };
            println!("step {step:2}: loss {last:.3}");
        }
    }
    net.eval();
    let (images, masks) = discs(&device)?;
    let found = net.forward(&images)?.argmax(1)?.eq(&masks)?;
    let right = found.to_dtype(anygpu::DType::F32)?.mean_all()?.item::<f32>()?;
    println!("{:.1} % of the pixels of new images are right", 100.0 * right);
    assert!(last < 0.5 * first, "the loss fell from {first} to {last} only");
    assert!(right > 0.9, "{right} of the pixels");
    Ok(())
}
