//! The functions that the worker of the page calls: one for each thing that the page can do.
//!
//! All of it runs in the worker's thread. Ops are recorded, and their results are read with `.await`, so that the
//! worker takes messages meanwhile.
#![cfg(target_arch = "wasm32")]

mod digit;
mod model;
mod picture;
mod recipe;
mod state;
mod training;

use anygpu::nn::{Module, models::lenet};
use anygpu::{Device, DeviceKind, Tensor, checkpoint, no_grad};
use serde_json::json;
use wasm_bindgen::prelude::*;
use web_time::Instant;

use state::{CLASSIFIER, WEIGHTS, with};

type Result<T> = std::result::Result<T, JsError>;

#[wasm_bindgen(start)]
fn start() {
    std::panic::set_hook(Box::new(|info| {
        // The worker reads it when a call of it ends with a trap, and shows it in the page.
        let _ = js_sys::Reflect::set(&js_sys::global(), &"panicked".into(), &info.to_string().into());
        console_error_panic_hook::hook(info);
    }));
    let _ = console_log::init_with_level(log::Level::Warn);
}

/// The milliseconds since then.
fn since(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1e3
}

/// Looks for adapters and opens them. Returns the devices as JSON.
#[wasm_bindgen]
pub async fn devices() -> String {
    let devices = anygpu::init().await;
    let kind = |device: &Device| match device.info().kind {
        DeviceKind::Software => "software",
        DeviceKind::Cpu => "cpu",
        _ => "gpu",
    };
    let of = |device: &Device| json!({"name": device.name(), "kind": kind(device), "adapter": device.info().adapter});
    json!(devices.iter().map(of).collect::<Vec<_>>()).to_string()
}

/// Takes the weights that come with the page: a file of safetensors, of halves.
#[wasm_bindgen]
pub fn load_weights(bytes: &[u8]) -> Result<()> {
    let weights = checkpoint::from_bytes(bytes, "lenet.safetensors", Device::cpu())?;
    WEIGHTS.set(Some(weights));
    Ok(())
}

/// The answer of a net to a drawing.
#[wasm_bindgen(getter_with_clone)]
pub struct Answer {
    /// The probabilities of the ten digits; none for an empty drawing.
    pub probabilities: Vec<f32>,
    /// The picture of 28 × 28 that the net was given.
    pub seen: Vec<f32>,
    /// The milliseconds that it took.
    pub ms: f64,
}

/// Classifies a drawing: a square of ink, 0 to 255. `trained` asks for the net that is being trained in the page,
/// if there is one.
#[wasm_bindgen]
pub async fn classify(device: String, trained: bool, ink: Vec<u8>) -> Result<Answer> {
    let Some(seen) = digit::like_mnist(&ink) else {
        return Ok(Answer { probabilities: Vec::new(), seen: Vec::new(), ms: 0.0 });
    };
    let begin = Instant::now();
    let own = with(&state::TRAINED, |net| net.clone()).filter(|_| trained);
    let (net, device) = match own {
        Some(own) => own,
        None => shipped(&device)?,
    };
    let [mean, deviation] = recipe::MEAN_AND_DEVIATION;
    let pixels: Vec<f32> = seen.iter().map(|ink| (ink - mean) / deviation).collect();
    let x = Tensor::from_slice(&pixels, [1, 1, digit::SIDE, digit::SIDE], &device)?;
    let probabilities = no_grad(|| net.forward(&x)?.softmax(-1))?.to_vec_async::<f32>().await?;
    Ok(Answer { probabilities, seen, ms: since(begin) })
}

/// Returns the net with the weights that come with the page, on a device. It stays there for the next drawing.
fn shipped(name: &str) -> Result<(anygpu::nn::Sequential, Device)> {
    if let Some(found) = with(&CLASSIFIER, |net| net.clone()).filter(|(_, device)| device.name() == name) {
        return Ok(found);
    }
    let device = Device::new(name)?;
    let net = lenet()?;
    let weights = with(&WEIGHTS, |weights| weights.clone());
    net.load_state_dict(&weights.ok_or_else(|| JsError::new("the weights are not loaded yet"))?, true)?;
    let net = (net.to(&device)?, device);
    CLASSIFIER.set(Some(net.clone()));
    Ok(net)
}
