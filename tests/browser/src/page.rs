//! What `run.mjs` calls in a page. Each function returns what was seen, and throws an error.

use anygpu::check::{Options, Table};
use anygpu::kernel::WgslKernel;
use anygpu::nn::{self, Linear, Module};
use anygpu::optim::SGD;
use anygpu::{DType, DataParallel, Device, Error, Tensor, jspi, manual_seed, no_grad, onnx};
use wasm_bindgen::prelude::*;
use web_time::Instant;

use crate::runs;

type Result<T> = std::result::Result<T, JsError>;

#[wasm_bindgen(start)]
fn start() {
    console_error_panic_hook::set_once();
    let _ = console_log::init_with_level(log::Level::Debug);
    log::set_max_level(log::LevelFilter::Warn);
}

/// Writes what the crate logs to the console, where `run.mjs` shows it if CONSOLE is set.
#[wasm_bindgen]
pub fn log_all() {
    log::set_max_level(log::LevelFilter::Debug);
}

/// Returns an error unless a condition holds.
fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(JsError::new(&what())) }
}

/// Opens all devices, and returns their names, each with its kind and adapter.
#[wasm_bindgen]
pub async fn devices() -> Vec<String> {
    let devices = anygpu::init().await;
    devices.iter().map(|device| format!("{device}, {}, {}", device.info().kind, device.info().adapter)).collect()
}

/// Runs the quick op table on a device. Returns the number of cases, and what is wrong.
#[wasm_bindgen]
pub async fn op_table(device: &str, family: Option<String>) -> Result<Vec<String>> {
    let device = Device::new_async(device).await?;
    let table = Table::new(&Options { quick: true, family, ..Options::default() });
    let report = table.run_async(&device).await?;
    let cases: usize = report.ops.iter().map(|op| op.cases).sum();
    let failures = report.ops.iter().flat_map(|op| &op.failures).map(ToString::to_string);
    Ok([cases.to_string()].into_iter().chain(failures).chain(report.quarantined).collect())
}

/// Returns the losses of a run on devices.
#[wasm_bindgen]
pub async fn losses(run: &str, devices: Vec<String>) -> Result<Vec<f32>> {
    let mut opened = Vec::new();
    for name in devices {
        opened.push(Device::new_async(&name).await?);
    }
    Ok(runs::losses(run, &opened).await?)
}

/// Returns the outputs of a model.
#[wasm_bindgen]
pub async fn onnx_outputs(model: &[u8], device: &str) -> Result<Vec<f32>> {
    let device = Device::new_async(device).await?;
    let model = onnx::load_bytes(model)?.to(&device)?;
    Ok(model.forward(&runs::onnx_input(&device)?)?.to_vec_async::<f32>().await?)
}

const SCALE: &str = "
struct Params { factor: f32 }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64)
fn scale(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < arrayLength(&x) { y[id.x] = params.factor * x[id.x]; }
}";

/// A kernel of one's own: right numbers, an error of the source, and one of the browser's compiler.
#[wasm_bindgen]
pub async fn own_kernel(device: &str) -> Result<()> {
    let device = Device::new_async(device).await?;
    let kernel = WgslKernel::new(SCALE, "scale")?;
    kernel.compile_async(&device).await?;
    let x = Tensor::arange(0.0, 1000.0, 1.0, &device)?;
    let y = kernel.on(&device).set("factor", 2.5).input("x", &x).output("y", ([1000], DType::F32)).dispatch(1000)?;
    let y = y[0].to_vec_async::<f32>().await?;
    ensure(y.iter().enumerate().all(|(i, v)| *v == 2.5 * i as f32), || format!("{:?}", &y[..10]))?;

    let wrong = WgslKernel::new(&SCALE.replace("params.factor", "factors"), "scale");
    ensure(wrong.as_ref().is_err_and(|error| error.to_string().contains("line 8")), || format!("{wrong:?}"))?;
    let deep = WgslKernel::new(&SCALE.replace("params.factor", &format!("{}1.0", "1.0 + ".repeat(20_000))), "scale");
    ensure(deep.as_ref().is_err_and(|error| error.to_string().contains("statement")), || format!("{deep:?}"))?;
    // naga takes a barrier where control flow may differ, and browsers do not.
    let uneven = SCALE.replace("y[id.x] =", "workgroupBarrier(); y[id.x] =");
    let refused = match WgslKernel::new(&uneven, "scale") {
        Ok(kernel) => kernel.compile_async(&device).await,
        Err(error) => Err(error),
    };
    ensure(matches!(refused, Err(Error::Kernel { .. })), || format!("{refused:?}"))?;
    // The device goes on.
    ensure(x.sum_all()?.item_async::<f32>().await? == 499_500.0, || "the sum is wrong".into())
}

/// A call that would wait is an error with the name of what does not, and nothing is lost.
#[wasm_bindgen]
pub async fn blocking_calls(device: &str) -> Result<Vec<String>> {
    let device = Device::new_async(device).await?;
    let x = Tensor::arange(0.0, 6.0, 1.0, &device)?.exp()?.requires_grad();
    let y = x.square()?.sum_all()?;
    y.backward()?;
    let all = [
        y.item::<f32>().err(),
        x.to_vec::<f32>().err(),
        x.to(&Device::cpu()).err(),
        device.synchronize().err(),
        x.nonzero().err(),
    ];
    let texts: Vec<String> =
        all.iter().map(|error| error.as_ref().map_or("none".into(), ToString::to_string)).collect();
    ensure(
        all.iter().flatten().filter(|error| matches!(error, Error::WouldBlock { .. })).count() == all.len(),
        || texts.join("\n"),
    )?;
    let net = Linear::new(3, 2)?.to(&device)?;
    ensure(net.clone().to(&Device::cpu()).is_err_and(|error| error.to_string().contains("Module::to_async")), || {
        "to".into()
    })?;
    ensure(net.to_async(&Device::cpu()).await?.parameters()[0].device().is_cpu(), || "not on cpu".into())?;
    let host = x.grad().ok_or_else(|| JsError::new("no gradient"))?.to_async(&Device::cpu()).await?;
    let expected: Vec<f32> = (0..6).map(|i| 2.0 * (i as f32).exp()).collect();
    let close = host.to_vec::<f32>()?.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-3);
    ensure(close, || host.to_string())?;
    Ok(texts)
}

/// A device that is lost: an error at the next wait, and it can be opened again. Others are not affected.
#[wasm_bindgen]
pub async fn lost_device(device: &str) -> Result<()> {
    let device = Device::new_async(device).await?;
    let x = Tensor::ones([1000], &device)?;
    x.sum_all()?.item_async::<f32>().await?;
    device.lose()?;
    let lost = x.exp().map(|y| y.to_vec_async::<f32>());
    let lost = match lost {
        Ok(read) => read.await.map(|_| ()),
        Err(error) => Err(error),
    };
    ensure(lost.as_ref().is_err_and(Error::is_device_lost), || format!("{lost:?}"))?;
    ensure(device.is_lost(), || "the device does not know that it is lost".into())?;
    let again = device.reopen_async().await?;
    let sum = Tensor::ones([1000], &again)?.sum_all()?.item_async::<f32>().await?;
    ensure(sum == 1000.0, || format!("{sum}"))
}

/// A browser that has no memory for one of the next buffers, as `run.mjs` lets it say: the next wait returns that, and the next try works.
#[wasm_bindgen]
pub async fn out_of_memory(device: &str) -> Result<String> {
    let device = Device::new_async(device).await?;
    let sum = async || Tensor::ones([1000, 1000], &device)?.exp()?.sum_all()?.item_async::<f32>().await;
    let error = match sum().await {
        Err(error) if error.is_out_of_memory() => error,
        other => return Err(JsError::new(&format!("{other:?}"))),
    };
    let sum = sum().await?;
    ensure((sum / 2_718_281.8 - 1.0).abs() < 1e-5, || format!("{sum}"))?;
    Ok(error.to_string())
}

/// Within an export that may suspend, calls wait: those of single tensors, an opening, the op table, and a step on two devices.
#[wasm_bindgen(jspi)]
pub fn waiting(device: &str) -> Result<String> {
    jspi(|| waits(device))
}

fn waits(device: &str) -> Result<String> {
    let device = Device::new(&format!("{device}/4"))?;
    let x = Tensor::arange(0.0, 4.0, 1.0, &device)?;
    ensure(x.to_vec::<f32>()? == [0.0, 1.0, 2.0, 3.0] && x.sum_all()?.item::<f32>()? == 6.0, || "wrong".into())?;
    ensure(x.nonzero()?.shape() == [3, 1], || "nonzero".into())?;
    let report =
        Table::new(&Options { quick: true, family: Some("softmax".into()), ..Options::default() }).run(&device)?;
    ensure(report.ops.iter().all(|op| op.failures.is_empty()), || format!("{report}"))?;

    manual_seed(1);
    let net = DataParallel::new(Linear::new(3, 2)?, &[device.clone(), Device::cpu()])?;
    let (x, labels) = (Tensor::rand([6, 3], None)?, Tensor::from_slice(&[0u32, 1].repeat(3), 6, None)?);
    let loss = net.train_batch(&x, &labels, nn::cross_entropy)?.item::<f32>()?;
    let alone = nn::cross_entropy(&net.module().forward(&x)?, &labels)?.item::<f32>()?;
    ensure((loss - alone).abs() < 1e-5, || format!("{loss}, expected {alone}"))?;
    Ok(x.to(&device)?.to_string())
}

/// Two calls at the same time, one of which records no graph while it waits: the other one does.
#[wasm_bindgen(jspi)]
pub fn two_at_a_time(device: &str, records: bool) -> Result<()> {
    jspi(|| records_or_not(device, records))
}

fn records_or_not(device: &str, records: bool) -> Result<()> {
    let device = Device::new(device)?;
    let x = Tensor::ones([100], &device)?.requires_grad();
    let work = || -> anygpu::Result<bool> {
        let mut alike = true;
        for _ in 0..20 {
            x.exp()?.sum_all()?.item::<f32>()?;
            alike &= x.exp()?.is_tracked() == records;
        }
        Ok(alike)
    };
    let alike = if records { work()? } else { no_grad(work)? };
    ensure(alike, || format!("recording was not {records} all the time"))
}

/// Images a second of LeNet in batches of 64, for `benches/peers/tfjs.mjs`: in training, with the loss read after each step, or in
/// predictions that are read.
#[wasm_bindgen]
pub async fn rate(device: &str, trains: bool, seconds: f64) -> Result<f64> {
    let device = Device::new_async(device).await?;
    let net = nn::models::lenet()?.to(&device)?;
    let mut sgd = SGD::new(net.parameters(), 0.05).momentum(0.9);
    let images = Tensor::rand([64, 1, 28, 28], &device)?;
    let labels = Tensor::from_vec((0..64u32).map(|i| i % 10).collect(), 64, &device)?;
    let (mut began, mut steps) = (Instant::now(), 0);
    for step in 0i32.. {
        if trains {
            sgd.zero_grad();
            let loss = nn::cross_entropy(&net.forward(&images)?, &labels)?;
            loss.backward()?;
            sgd.step()?;
            loss.item_async::<f32>().await?;
        } else {
            no_grad(|| net.forward(&images))?.to_vec_async::<f32>().await?;
        }
        if step == 1 {
            began = Instant::now();
        }
        steps = step - 1;
        if step > 2 && began.elapsed().as_secs_f64() > seconds {
            break;
        }
    }
    Ok(64.0 * f64::from(steps) / began.elapsed().as_secs_f64())
}
