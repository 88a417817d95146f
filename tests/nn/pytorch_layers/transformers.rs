//! Transformers.

use anygpu::nn::{
    LayerNorm, Module, TransformerDecoder, TransformerDecoderLayer, TransformerEncoder, TransformerEncoderLayer,
};
use anygpu::{Attention, Result, Tensor, no_grad};
use serde_json::Value;

use super::{assert_gradients, assert_is, fill, flag, reference, wave};
use crate::common::devices_in_turn;

/// Applies PyTorch's options of a transformer's layer.
macro_rules! layer {
    ($name:ident, $case:expr) => {{
        let mut layer = $name::new(6, 2)?.dim_feedforward(5)?.dropout(0.0)?;
        layer = if flag($case, "norm_first") { layer.norm_first() } else { layer };
        layer = if $case["options"]["activation"] == "gelu" { layer.gelu() } else { layer };
        match $case["options"]["layer_norm_eps"].as_f64() {
            Some(eps) => layer.layer_norm_eps(eps as f32),
            None => layer,
        }
    }};
}

fn check_transformer(
    case: &Value,
    module: &impl Module,
    inputs: &[(&str, &Tensor)],
    forward: impl Fn() -> Result<Tensor>,
) -> Result<()> {
    let what = format!("{} {} {}", case["kind"], case["layers"], case["options"]);
    let names: Vec<String> = module.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(serde_json::json!(names), case["names"], "{what}");
    fill(module)?;
    let outputs = forward()?;
    assert_is(&what, &outputs, &case["results"]["outputs"])?;
    outputs.square()?.mul(&wave(outputs.shape(), 7.0, outputs.device())?)?.sum_all()?.backward()?;
    assert_gradients(&what, module, inputs, case)
}

#[test]
fn transformers_are_pytorchs() -> Result<()> {
    for (device, case) in
        devices_in_turn().iter().flat_map(|device| reference("transformers").into_iter().map(move |c| (device, c)))
    {
        let x = wave(&[2, 3, 6], 100.0, device)?.requires_grad();
        let memory = wave(&[2, 4, 6], 103.0, device)?.requires_grad();
        let layers = case["layers"].as_u64().map(|count| count as usize);
        if case["kind"] == "Encoder" {
            let seen = Tensor::from_slice(&[true, true, true, true, true, false], [2, 1, 1, 3], device)?;
            let options = Attention::new().mask(&seen);
            let layer = layer!(TransformerEncoderLayer, &case);
            match layers {
                Some(count) => {
                    let encoder = TransformerEncoder::new(&layer, count)?.norm(LayerNorm::new([6])?).to(device)?;
                    check_transformer(&case, &encoder, &[("x", &x)], || encoder.forward_with(&x, &options))?;
                }
                None => {
                    let layer = layer.to(device)?;
                    check_transformer(&case, &layer, &[("x", &x)], || layer.forward_with(&x, &options))?;
                }
            }
            continue;
        }
        let seen = [true, true, true, false, true, true, false, false];
        let (own, other) =
            (Attention::new().causal(), Attention::new().mask(&Tensor::from_slice(&seen, [2, 1, 1, 4], device)?));
        let layer = layer!(TransformerDecoderLayer, &case);
        let given = [("x", &x), ("memory", &memory)];
        match layers {
            Some(count) => {
                let decoder = TransformerDecoder::new(&layer, count)?.norm(LayerNorm::new([6])?).to(device)?;
                check_transformer(&case, &decoder, &given, || decoder.decode(&x, &memory, &own, &other))?;
            }
            None => {
                let layer = layer.to(device)?;
                check_transformer(&case, &layer, &given, || layer.decode(&x, &memory, &own, &other))?;
            }
        }
    }
    Ok(())
}

/// The layers of a stack have parameters of their own, and dropout is in training only.
#[test]
fn transformers_in_training() -> Result<()> {
    let layer = TransformerEncoderLayer::new(4, 2)?.dim_feedforward(8)?;
    let encoder = TransformerEncoder::new(&layer, 2)?;
    let [first, second] = [0, 1].map(|i| encoder.get(&format!("layers.{i}.linear1.weight")).expect("a weight"));
    assert_eq!(first.to_vec::<f32>()?, second.to_vec::<f32>()?);
    no_grad(|| first.fill_(0.0))?;
    assert_ne!(first.to_vec::<f32>()?, second.to_vec::<f32>()?);
    assert_eq!(encoder.parameters().len(), 24);
    let x = Tensor::rand([2, 3, 4], None)?;
    assert_ne!(encoder.forward(&x)?.to_vec::<f32>()?, encoder.forward(&x)?.to_vec::<f32>()?);
    encoder.eval();
    assert_eq!(encoder.forward(&x)?.to_vec::<f32>()?, encoder.forward(&x)?.to_vec::<f32>()?);
    let bare = TransformerDecoderLayer::new(4, 2)?.without_bias().dim_feedforward(8)?;
    assert!(bare.named_parameters().iter().all(|(name, _)| name.ends_with("weight")));
    assert!(bare.forward(&x).is_err_and(|error| error.to_string().contains("decode")));
    assert!(TransformerEncoder::new(&layer, 0).is_err());
    Ok(())
}
