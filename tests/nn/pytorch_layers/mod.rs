//! Recurrent and transformer layers give what PyTorch's give, with their gradients, on every device: tests/data/layers.json,
//! which scripts/pytorch_layers.py writes. `behaviour` has what that does not tell: halves, training, wrong arguments.

mod behaviour;
mod transformers;

use anygpu::nn::{GRU, GRUCell, LSTM, LSTMCell, Module, RNN, RNNCell};
use anygpu::{Device, Result, Tensor, no_grad};
use serde_json::Value;

use crate::common::devices_in_turn;

/// Element i is sin(i + k) / 2, as in the script.
fn wave(shape: &[usize], k: f64, device: &Device) -> Result<Tensor> {
    let values: Vec<f32> = (0..shape.iter().product()).map(|i: usize| ((i as f64 + k).sin() / 2.0) as f32).collect();
    Tensor::from_vec(values, shape, device)
}

fn reference(part: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(include_str!("../../data/layers.json")).expect("JSON");
    all[part].as_array().expect("cases").clone()
}

fn numbers(value: &Value) -> Vec<usize> {
    value.as_array().expect("numbers").iter().map(|n| n.as_u64().expect("a number") as usize).collect()
}

fn flag(case: &Value, name: &str) -> bool {
    case["options"][name].as_bool().unwrap_or(false)
}

/// Compares shape and values with those of a tensor in the file.
#[track_caller]
fn assert_is(what: &str, got: &Tensor, expected: &Value) -> Result<()> {
    assert_eq!(got.shape(), numbers(&expected["shape"]), "{what}");
    let values = expected["values"].as_array().expect("values").iter().filter_map(Value::as_f64);
    let worst = got.to_vec::<f32>()?.into_iter().zip(values).map(|(got, value)| (f64::from(got) - value).abs());
    let worst = worst.fold(0.0, f64::max);
    assert!(worst < 2e-5, "{what} on {}: {worst} away from PyTorch's", got.device());
    Ok(())
}

/// Gives the parameters the values of the script.
fn fill(module: &impl Module) -> Result<()> {
    for (k, parameter) in module.parameters().iter().enumerate() {
        no_grad(|| parameter.copy_(&wave(parameter.shape(), k as f64, parameter.device())?))?;
    }
    Ok(())
}

/// Compares all gradients, of parameters and of the inputs by name.
fn assert_gradients(what: &str, module: &impl Module, inputs: &[(&str, &Tensor)], case: &Value) -> Result<()> {
    let parameters = module.named_parameters();
    let all = parameters.iter().map(|(name, p)| (name.as_str(), p)).chain(inputs.iter().copied());
    let mut count = 0;
    for (name, tensor) in all {
        let grad = tensor.grad().unwrap_or_else(|| panic!("{what}: {name} has no gradient"));
        assert_is(&format!("{what}: the gradient of {name}"), &grad, &case["gradients"][name])?;
        count += 1;
    }
    assert_eq!(Some(count), case["gradients"].as_object().map(serde_json::Map::len), "{what}");
    Ok(())
}

/// Sets PyTorch's options of a recurrent layer.
macro_rules! with_options {
    ($name:ident, $case:expr) => {{
        let (case, inputs) = ($case, *numbers(&$case["x"]).last().expect("a size"));
        let mut layer = $name::new(inputs, case["hidden"].as_u64().expect("a size") as usize)?;
        if let Some(layers) = case["options"]["num_layers"].as_u64() {
            layer = layer.num_layers(layers as usize)?;
        }
        layer = if flag(case, "bidirectional") { layer.bidirectional()? } else { layer };
        layer = if flag(case, "batch_first") { layer.batch_first() } else { layer };
        if case["options"]["bias"] == Value::Bool(false) { layer.without_bias() } else { layer }
    }};
}

/// The inputs of a case: x, and the states if it has some.
fn inputs(case: &Value, device: &Device) -> Result<Vec<(&'static str, Tensor)>> {
    let mut all = vec![("x", wave(&numbers(&case["x"]), 100.0, device)?.requires_grad())];
    for (name, result, k) in [("h0", "h", 101.0), ("c0", "c", 102.0)] {
        if case["states"] == Value::Bool(true) && case["results"][result].is_object() {
            all.push((name, wave(&numbers(&case["results"][result]["shape"]), k, device)?.requires_grad()));
        }
    }
    Ok(all)
}

fn check_recurrent(
    case: &Value,
    module: &impl Module,
    inputs: &[(&'static str, Tensor)],
    forward: impl Fn() -> Result<(Tensor, Tensor, Option<Tensor>)>,
) -> Result<()> {
    let what = format!("{} {}", case["kind"], case["options"]);
    let (outputs, h, c) = forward()?;
    assert_is(&format!("{what}: outputs"), &outputs, &case["results"]["outputs"])?;
    assert_is(&format!("{what}: h"), &h, &case["results"]["h"])?;
    let mut loss = outputs.square()?.sum_all()?.add(&h.sum_all()?)?;
    if let Some(c) = c {
        assert_is(&format!("{what}: c"), &c, &case["results"]["c"])?;
        loss = loss.add(&c.sum_all()?.mul_scalar(2.0)?)?;
    }
    loss.backward()?;
    let inputs: Vec<_> = inputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
    assert_gradients(&what, module, &inputs, case)?;
    // Without a graph, the same.
    let again = no_grad(forward)?;
    assert_eq!(again.0.to_vec::<f32>()?, outputs.to_vec::<f32>()?, "{what}");
    assert!(!again.0.is_tracked() && outputs.is_tracked());
    Ok(())
}

#[test]
fn recurrent_layers_are_pytorchs() -> Result<()> {
    for (device, case) in
        devices_in_turn().iter().flat_map(|device| reference("recurrent").into_iter().map(move |c| (device, c)))
    {
        let given = inputs(&case, device)?;
        let state = |i: usize| given.get(i).map(|(_, tensor)| tensor);
        let (x, h0) = (&given[0].1, state(1));
        match case["kind"].as_str() {
            Some("LSTM") => {
                let layer = with_options!(LSTM, &case).to(device)?;
                fill(&layer)?;
                check_recurrent(&case, &layer, &given, || {
                    let (outputs, (h, c)) = layer.forward_with_state(x, h0.zip(state(2)))?;
                    Ok((outputs, h, Some(c)))
                })?;
            }
            Some("GRU") => {
                let layer = with_options!(GRU, &case).to(device)?;
                fill(&layer)?;
                check_recurrent(&case, &layer, &given, || {
                    layer.forward_with_state(x, h0).map(|(outputs, h)| (outputs, h, None))
                })?;
            }
            _ => {
                let layer = with_options!(RNN, &case);
                let layer = if case["options"]["nonlinearity"] == "relu" { layer.relu() } else { layer }.to(device)?;
                fill(&layer)?;
                check_recurrent(&case, &layer, &given, || {
                    layer.forward_with_state(x, h0).map(|(outputs, h)| (outputs, h, None))
                })?;
            }
        }
    }
    Ok(())
}

#[test]
fn cells_are_pytorchs() -> Result<()> {
    for (device, case) in
        devices_in_turn().iter().flat_map(|device| reference("cells").into_iter().map(move |c| (device, c)))
    {
        let hidden = case["hidden"].as_u64().expect("a size") as usize;
        let x = wave(&[2, 3], 100.0, device)?.requires_grad();
        let h0 = wave(&[2, hidden], 101.0, device)?.requires_grad();
        let what = case["kind"].to_string();
        let check = |h: &Tensor| {
            assert_is(&what, h, &case["results"]["h"])?;
            h.square()?.sum_all()?.backward()
        };
        let given = [("x", &x), ("h0", &h0)];
        match case["kind"].as_str() {
            Some("LSTMCell") => {
                let c0 = wave(&[2, hidden], 102.0, device)?.requires_grad();
                let cell = LSTMCell::new(3, hidden)?.to(device)?;
                fill(&cell)?;
                let (h, c) = cell.forward_with_state(&x, Some((&h0, &c0)))?;
                assert_is(&what, &h, &case["results"]["h"])?;
                assert_is(&what, &c, &case["results"]["c"])?;
                h.square()?.sum_all()?.add(&c.sum_all()?.mul_scalar(2.0)?)?.backward()?;
                assert_gradients(&what, &cell, &[&given[..], &[("c0", &c0)]].concat(), &case)?;
            }
            Some("GRUCell") => {
                let cell = GRUCell::new(3, hidden)?.to(device)?;
                fill(&cell)?;
                check(&cell.forward_with_state(&x, Some(&h0))?)?;
                assert_gradients(&what, &cell, &given, &case)?;
            }
            _ => {
                let mut cell = RNNCell::new(3, hidden)?.to(device)?;
                if case["options"]["nonlinearity"] == "relu" {
                    cell = cell.relu().without_bias();
                }
                fill(&cell)?;
                check(&cell.forward_with_state(&x, Some(&h0))?)?;
                assert_gradients(&what, &cell, &given, &case)?;
            }
        }
    }
    Ok(())
}
