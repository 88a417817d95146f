//! ONNX files that are dropped onto the page.

use anygpu::nn::Module;
use anygpu::onnx::{self, Dimension, Model, ValueInfo};
use anygpu::{DType, Device, Tensor, no_grad};
use serde_json::{Value, json};
use wasm_bindgen::prelude::*;
use web_time::Instant;

use crate::digit::SIDE;
use crate::recipe::MEAN_AND_DEVIATION;
use crate::state::{MODELS, with};
use crate::{Result, since};

/// The mean and the deviation of red, green and blue that models of ImageNet expect.
const IMAGENET: [[f32; 2]; 3] = [[0.485, 0.229], [0.456, 0.224], [0.406, 0.225]];

/// How many of the largest elements of an output are shown.
const TOP: usize = 5;

/// Reads a file. Returns its inputs and outputs as JSON: a size that the file leaves open is a text.
#[wasm_bindgen]
pub fn onnx_load(bytes: &[u8]) -> Result<String> {
    let model = onnx::load_bytes(bytes)?;
    let size = |dimension: &Dimension| match dimension {
        Dimension::Size(size) => json!(size),
        Dimension::Symbol(name) => json!(name),
        _ => json!("?"),
    };
    let value = |info: &ValueInfo| {
        let shape = info.shape.as_ref().map(|shape| shape.iter().map(size).collect::<Vec<_>>());
        json!({"name": info.name, "type": info.element_type.to_string(), "shape": shape})
    };
    let all = |infos: &[ValueInfo]| infos.iter().map(value).collect::<Vec<_>>();
    let description = json!({
        "inputs": all(model.inputs()),
        "outputs": all(model.outputs()),
        "parameters": model.num_parameters(),
    });
    with(&MODELS, |models| {
        models.clear();
        models.insert("cpu".into(), model);
    });
    Ok(description.to_string())
}

/// Runs the model that was read last. `sizes` has the sizes of all inputs, one after the other. `fill` is `zeros`,
/// `ramp` or `image`. With `image`, the input number `at` is the picture `pixels`: 28 × 28 of ink from 0 to 1 for
/// one channel, or red, green, blue and alpha from 0 to 255 for three. Returns the outputs as JSON.
#[wasm_bindgen]
pub async fn onnx_run(
    device: String,
    sizes: Vec<u32>,
    fill: String,
    at: usize,
    pixels: Vec<f32>,
    scale: String,
) -> Result<String> {
    let device = Device::new(&device)?;
    let model = placed(&device)?;
    let mut sizes = sizes.into_iter().map(|size| size as usize);
    let mut inputs = Vec::new();
    for (i, info) in model.inputs().iter().enumerate() {
        let shape: Vec<usize> = info.shape.iter().flatten().map(|_| sizes.next().unwrap_or(1)).collect();
        let count: usize = shape.iter().product();
        let dtype = info.element_type.dtype();
        let elements = match &*fill {
            "image" if i == at => image(&shape, &pixels, &scale)?,
            "zeros" => vec![0.0; count],
            _ if dtype.is_float() => (0..count).map(|i| i as f32 / count.max(1) as f32).collect(),
            _ => (0..count).map(|i| (i % 256) as f32).collect(),
        };
        let x = Tensor::from_vec(elements, shape, None)?.to_dtype(dtype)?;
        // Integers may be sizes, which the host needs.
        inputs.push((info.name.clone(), if dtype.is_float() && dtype != DType::F64 { x.to(&device)? } else { x }));
    }
    let named: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, x)| (name.as_str(), x)).collect();
    let begin = Instant::now();
    let outputs = no_grad(|| model.run(&named))?;
    let mut results = Vec::new();
    for (name, y) in outputs.iter() {
        let elements = y.to_dtype(DType::F32)?.to_vec_async::<f32>().await?;
        results.push((name, y, elements));
    }
    let ms = since(begin);
    let results: Vec<Value> = results.iter().map(|(name, y, elements)| described(name, y, elements)).collect();
    Ok(json!({"outputs": results, "ms": ms}).to_string())
}

/// Returns the model on a device.
fn placed(device: &Device) -> Result<Model> {
    let found = with(&MODELS, |models| models.get(device.name()).or_else(|| models.get("cpu")).cloned());
    let model = found.ok_or_else(|| JsError::new("no file was read yet"))?.to(device)?;
    with(&MODELS, |models| models.insert(device.name().into(), model.clone()));
    Ok(model)
}

/// Returns the elements of an input `[1, C, H, W]` for a picture.
fn image(shape: &[usize], pixels: &[f32], scale: &str) -> Result<Vec<f32>> {
    let &[1, channels, height, width] = shape else {
        return Err(JsError::new("a picture needs an input of [1, C, H, W]"));
    };
    let scaled = |value: f32, channel: usize| {
        let [mean, deviation] = match scale {
            "255" => [0.0, 1.0 / 255.0],
            "imagenet" => IMAGENET[channel % 3],
            "mnist" => MEAN_AND_DEVIATION,
            _ => [0.0, 1.0],
        };
        (value - mean) / deviation
    };
    let plane = height * width;
    match channels {
        1 if plane == SIDE * SIDE && pixels.len() == plane => Ok(pixels.iter().map(|&ink| scaled(ink, 0)).collect()),
        1 | 3 if pixels.len() == 4 * plane => {
            let value = |c: usize, i: usize| match channels {
                3 => pixels[4 * i + c],
                _ => 0.299 * pixels[4 * i] + 0.587 * pixels[4 * i + 1] + 0.114 * pixels[4 * i + 2],
            };
            let elements = (0..channels).flat_map(|c| (0..plane).map(move |i| (c, i)));
            Ok(elements.map(|(c, i)| scaled(value(c, i) / 255.0, c)).collect())
        }
        _ => Err(JsError::new(&format!("the picture does not fit an input of {shape:?}"))),
    }
}

/// Returns the description of an output that is shown.
fn described(name: &str, y: &Tensor, elements: &[f32]) -> Value {
    // The largest first; of equal ones, the first.
    let falling = |a: &usize, b: &usize| elements[*b].total_cmp(&elements[*a]).then(a.cmp(b));
    let mut order: Vec<usize> = (0..elements.len()).collect();
    if order.len() > TOP {
        order.select_nth_unstable_by(TOP, falling);
        order.truncate(TOP);
    }
    order.sort_by(falling);
    let least = elements.iter().copied().fold(f32::INFINITY, f32::min);
    let most = elements.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mean = elements.iter().map(|&v| f64::from(v)).sum::<f64>() / elements.len().max(1) as f64;
    json!({
        "name": name,
        "shape": y.shape(),
        "type": y.dtype().to_string(),
        "top": order.iter().map(|&i| json!([i, elements[i]])).collect::<Vec<_>>(),
        "least": least,
        "most": most,
        "mean": mean,
    })
}
