//! Writes the numbers of native code to a folder: `native.json` with the losses of `cpu` and the outputs of a model, and the model as
//! `model.onnx`.

use std::path::PathBuf;

use anygpu::nn::Module;
use anygpu::{Device, Error, Result, onnx};
use anygpu_browser_tests::runs;
use serde_json::json;

fn main() -> Result<()> {
    let folder = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| ".".into()));
    let cpu = [Device::cpu()];
    let of = |run: &&str| Ok((run.to_string(), json!(pollster::block_on(runs::losses(run, &cpu))?)));
    let losses = runs::RUNS.iter().map(of).collect::<Result<serde_json::Map<_, _>>>()?;
    let (net, input) = (runs::onnx_net()?, runs::onnx_input(&Device::cpu())?);
    onnx::export(&net, &input, folder.join("model.onnx"))?;
    let output = net.forward(&input)?.to_vec::<f32>()?;
    let path = folder.join("native.json");
    let text = json!({ "losses": losses, "onnx": output }).to_string();
    std::fs::write(&path, text)
        .map_err(|error| Error::Data { path: path.display().to_string(), detail: error.to_string() })
}
