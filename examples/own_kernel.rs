//! An activation in WGSL, with its gradient, in a net that learns on several adapters at once:
//! `cargo run --release --example own_kernel [DEVICES]`, by default on all adapters.
//!
//! The function is snake, `x + sin²(a·x) / a`, which suits periodic data (Ziyin, Hartwig and Ueda, 2020). Two entry
//! points of one source are the kernels. An override sets the size of their workgroups, and `a` is a param.

use std::sync::Arc;

use anygpu::kernel::WgslKernel;
use anygpu::nn::{self, Linear, Module, Reduction, Sequential};
use anygpu::{DType, DataParallel, Device, Result, Tensor, manual_seed, optim};

const SOURCE: &str = "
override SIZE: u32 = 64;
struct Params { a: f32 }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> dy: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@group(0) @binding(4) var<storage, read_write> dx: array<f32>;

@compute @workgroup_size(SIZE)
fn snake(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= arrayLength(&x) { return; }
    let s = sin(params.a * x[id.x]);
    y[id.x] = x[id.x] + s * s / params.a;
}

@compute @workgroup_size(SIZE)
fn snake_grad(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= arrayLength(&x) { return; }
    dx[id.x] = dy[id.x] * (1.0 + sin(2.0 * params.a * x[id.x]));
}
";

/// The activation as a layer.
#[derive(Clone)]
struct Snake {
    a: f32,
    forward: Arc<WgslKernel>,
    backward: Arc<WgslKernel>,
}

impl Snake {
    fn new(a: f32) -> Result<Snake> {
        let kernel = |entry| WgslKernel::with_overrides(SOURCE, entry, &[("SIZE", 32.0)]).map(Arc::new);
        Ok(Snake { a, forward: kernel("snake")?, backward: kernel("snake_grad")? })
    }
}

impl Module for Snake {
    anygpu::children!();

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (a, backward) = (self.a, self.backward.clone());
        let launch = self.forward.on(x.device()).set("a", a).input("x", x).output("y", (x.shape(), DType::F32));
        let launch = launch.with_backward(move |b| {
            let x = b.input("x")?;
            let launch = backward.on(x.device()).set("a", a).input("x", x).input("dy", b.grad());
            let dx = launch.output("dx", (x.shape(), DType::F32)).dispatch(x.elem_count())?.remove(0);
            Ok(vec![("x", dx)])
        });
        Ok(launch.dispatch(x.elem_count())?.remove(0))
    }
}

/// The same function by the crate's ops, for comparison.
fn by_ops(x: &Tensor, a: f32) -> Result<Tensor> {
    x + (x * a)?.sin()?.pow(2)? / a
}

/// Returns the largest differences of the function and of its gradient from the crate's ops.
fn differences(snake: &Snake, device: &Device) -> Result<[f32; 2]> {
    let x = Tensor::linspace(-3.0, 3.0, 1000, device)?;
    let (own, ops) = (x.requires_grad(), x.requires_grad());
    let results = [snake.forward(&own)?, by_ops(&ops, snake.a)?];
    for y in &results {
        y.pow(2)?.sum_all()?.backward()?;
    }
    let gradients = [own, ops].map(|x| x.grad().expect("a gradient"));
    let largest = |[a, b]: [Tensor; 2]| (a - b)?.abs()?.max_all()?.item();
    Ok([largest(results)?, largest(gradients)?])
}

fn main() -> Result<()> {
    env_logger::init();
    let names: Vec<String> = std::env::args().skip(1).collect();
    let adapters = || Device::all().iter().filter(|device| !device.is_cpu()).cloned().collect();
    let devices: Vec<Device> = if names.is_empty() { adapters() } else { Device::list(&names.join(","))? };
    if devices.is_empty() {
        println!("there is no adapter here that runs WGSL, not even a software adapter");
        return Ok(());
    }
    let snake = Snake::new(2.0)?;
    for device in &devices {
        let [value, gradient] = differences(&snake, device)?;
        println!("{device}: differs from the crate's ops by {value:.1e}, the gradient by {gradient:.1e}");
        // The driver computes the sine: WGSL asks for an absolute error of 2⁻¹¹ or less. The crate has its own
        // sine.
        assert!(value < 1e-3 && gradient < 1e-2);
    }

    // One net on all of them learns sin(3x).
    manual_seed(0);
    let layers =
        Sequential::new().add("hidden", Linear::new(1, 32)?).add("snake", snake).add("out", Linear::new(32, 1)?);
    let net = DataParallel::new(layers, &devices)?;
    let mut adam = optim::Adam::new(net.parameters(), 0.01);
    let x = Tensor::linspace(-2.0, 2.0, 128, None)?.reshape([128, 1])?;
    let wanted = (&x * 3.0)?.sin()?;
    let mut losses = Vec::new();
    for _ in 0..150 {
        losses.push(net.train_batch(&x, &wanted, |y, wanted| nn::mse_loss(y, wanted, Reduction::Mean))?.item::<f32>()?);
        adam.step()?;
    }
    let [first, last] = [losses[0], losses[149]];
    let names: Vec<&str> = devices.iter().map(Device::name).collect();
    println!("the loss on {} fell from {first:.4} to {last:.4}", names.join(", "));
    assert!(last < 0.1 * first);
    Ok(())
}
