//! Normalisations and losses.

use anygpu::Tensor;

use super::call::{Call, Outcome};

pub fn map(call: &Call) -> Option<Outcome> {
    let out = match call.op() {
        "LayerNormalization" => return Some(layer_norm(call)),
        "BatchNormalization" => return Some(batch_norm(call)),
        "GroupNormalization" => group_norm(call),
        "InstanceNormalization" => instance_norm(call),
        "MeanVarianceNormalization" => mean_variance(call),
        _ => return None,
    };
    Some(out.map(|tensor| vec![tensor]))
}

fn epsilon(call: &Call) -> f32 {
    call.float("epsilon", 1e-5)
}

/// Besides the output, on request the mean and 1 / √(variance + ε), with the normalised dimensions of size 1.
fn layer_norm(call: &Call) -> Outcome {
    let (x, weight, bias) = (call.x(0)?, call.x(1)?, call.maybe(2)?);
    let axis = call.dim(call.int("axis", -1), x.rank());
    let dims: Vec<usize> = (axis..x.rank()).collect();
    let y = x.layer_norm(&x.shape()[axis..], Some(&weight), bias.as_ref(), epsilon(call))?;
    let mean = x.mean(&dims, true)?;
    let scale = Tensor::ones((), x.device())?.div(&x.var(&dims, 0.0, true)?.add_scalar(epsilon(call))?.sqrt()?)?;
    let mut outputs = vec![y, mean, scale];
    outputs.truncate(call.node.output.len());
    Ok(outputs)
}

/// In training the running statistics come out too. Theirs has the biased variance, ours and PyTorch's the other.
fn batch_norm(call: &Call) -> Outcome {
    let x = call.all()?;
    let [input, weight, bias, mean, variance] = [0, 1, 2, 3, 4].map(|i| &x[i]);
    let training = call.int("training_mode", 0) == 1;
    let keep = call.float("momentum", 0.9);
    let before = variance.mul_scalar(keep)?;
    let running = Some((mean, variance));
    let y = input.batch_norm(running, Some(weight), Some(bias), training, 1.0 - keep, epsilon(call))?;
    if !training {
        return Ok(vec![y]);
    }
    let count = (input.elem_count() / input.shape()[1]) as f32;
    let variance = variance.sub(&before)?.mul_scalar((count - 1.0) / count)?.add(&before)?;
    Ok(vec![y, mean.clone(), variance])
}

/// Weights are for each group up to opset 20, for each channel since.
fn group_norm(call: &Call) -> Outcome<Tensor> {
    let x = call.x(0)?;
    let (groups, channels) = (call.int("num_groups", 1) as usize, x.shape()[1]);
    let each = |v: Tensor| match call.opset < 21 {
        true => v.reshape([groups, 1])?.broadcast_to([groups, channels / groups])?.reshape(channels),
        false => Ok(v),
    };
    let (weight, bias) = (each(call.x(1)?)?, each(call.x(2)?)?);
    Ok(x.group_norm(groups, Some(&weight), Some(&bias), epsilon(call))?)
}

fn instance_norm(call: &Call) -> Outcome<Tensor> {
    let (x, weight, bias) = (call.x(0)?, call.x(1)?, call.x(2)?);
    Ok(x.group_norm(x.shape()[1], Some(&weight), Some(&bias), epsilon(call))?)
}

/// (x − mean) / (deviation + 10⁻⁹)
fn mean_variance(call: &Call) -> Outcome<Tensor> {
    let x = call.x(0)?;
    let axes = call.ints("axes").unwrap_or(vec![0, 2, 3]);
    let dims: Vec<usize> = axes.iter().map(|&axis| call.dim(axis, x.rank())).collect();
    Ok(x.sub(&x.mean(&dims, true)?)?.div(&x.std(&dims, 0.0, true)?.add_scalar(1e-9)?)?)
}
