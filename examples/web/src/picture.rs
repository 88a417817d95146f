//! A WGSL kernel that is edited in the page and runs on a picture.

use std::sync::Arc;

use anygpu::{DType, Device, Error, Tensor, WgslKernel};
use serde_json::json;
use wasm_bindgen::prelude::*;
use web_time::Instant;

use crate::state::{KERNEL, with};
use crate::{Result, since};

/// The result of a kernel.
#[wasm_bindgen(getter_with_clone)]
#[derive(Default)]
pub struct Filtered {
    /// The pixels: red, green, blue and alpha. None after an error.
    pub pixels: Vec<u8>,
    /// The milliseconds that it took.
    pub ms: f64,
    /// What is wrong with the source, if anything, as JSON with `message` and `line`.
    pub error: Option<String>,
}

/// Runs the first entry point of `source` on a picture of red, green, blue and alpha. The kernel may leave out the
/// binding `picture` and the params `width`, `height` and `amount`. It must have the binding `filtered`.
#[wasm_bindgen]
pub async fn filter(device: String, source: String, pixels: Vec<u8>, width: usize, amount: f32) -> Result<Filtered> {
    let device = Device::new(&device)?;
    let begin = Instant::now();
    let filtered = match launched(&device, &source, &pixels, width, amount) {
        Ok(filtered) => filtered.to_vec_async::<u32>().await,
        Err(error) => Err(error),
    };
    let ms = since(begin);
    match filtered {
        Ok(filtered) => {
            Ok(Filtered { pixels: filtered.into_iter().flat_map(u32::to_le_bytes).collect(), ms, error: None })
        }
        Err(Error::Kernel { message, .. }) => {
            let line = message.strip_prefix("line ").and_then(|rest| rest.split(':').next()?.parse::<u32>().ok());
            let error = json!({"message": message.trim_end(), "line": line}).to_string();
            Ok(Filtered { error: Some(error), ..Filtered::default() })
        }
        Err(error) => Err(error.into()),
    }
}

/// Records the kernel. Its result is `[height, width]`, each element a pixel's four bytes.
fn launched(device: &Device, source: &str, pixels: &[u8], width: usize, amount: f32) -> anygpu::Result<Tensor> {
    let kernel = compiled(source)?;
    let height = pixels.len() / 4 / width.max(1);
    let words: Vec<u32> = pixels.chunks_exact(4).map(|p| u32::from_le_bytes([p[0], p[1], p[2], p[3]])).collect();
    let picture = Tensor::from_vec(words, [height, width], device)?;
    let mut launch = kernel.on(device).output("filtered", ([height, width], DType::U32));
    if kernel.inputs().contains(&"picture") {
        launch = launch.input("picture", &picture);
    }
    for name in kernel.params() {
        launch = match name {
            "width" => launch.set("width", width as u32),
            "height" => launch.set("height", height as u32),
            "amount" => launch.set("amount", amount),
            _ => launch,
        };
    }
    Ok(launch.dispatch([width, height, 1])?.remove(0))
}

/// Returns the kernel of a source: the kernel of the last call, if it has the same source.
fn compiled(source: &str) -> anygpu::Result<Arc<WgslKernel>> {
    if let Some(kernel) = with(&KERNEL, |last| last.clone()).and_then(|(of, kernel)| (of == source).then_some(kernel)) {
        return Ok(kernel);
    }
    let entry = WgslKernel::entry_points(source)?.into_iter().next().unwrap_or_else(|| "main".into());
    let kernel = Arc::new(WgslKernel::new(source, &entry)?);
    KERNEL.set(Some((source.into(), kernel.clone())));
    Ok(kernel)
}
