//! Normalisations and losses.

use anygpu::Tensor;
use anygpu::nn::{CrossEntropyLoss, Reduction, nll_loss};

use super::call::skip;
use super::call::{Call, Outcome};

pub fn map(call: &Call) -> Option<Outcome> {
    let out = match call.op() {
        "LayerNormalization" => return Some(layer_norm(call)),
        "BatchNormalization" => return Some(batch_norm(call)),
        "NegativeLogLikelihoodLoss" => return Some(nll(call)),
        "SoftmaxCrossEntropyLoss" => return Some(cross_entropy(call)),
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

fn reduction(call: &Call) -> Reduction {
    match call.text("reduction", "mean").as_str() {
        "none" => Reduction::None,
        "sum" => Reduction::Sum,
        _ => Reduction::Mean,
    }
}

/// −x[label] · weight[label], without the ignored; the mean is over the weights.
fn nll(call: &Call) -> Outcome {
    let x = call.x(0)?;
    let Some(labels) = call.value(1) else { return skip("no labels") };
    if !call.has("ignore_index") && call.value(2).is_none() {
        return Ok(vec![nll_loss(&x, &call.x(1)?, reduction(call))?]);
    }
    let ignored = call.has("ignore_index").then(|| call.int("ignore_index", 0) as f64);
    let kept = |label: f64| ignored != Some(label);
    let weight = |label: f64| call.value(2).map_or(1.0, |weights| weights.data[label as usize]) as f32;
    let weights: Vec<f32> = labels.data.iter().map(|&label| if kept(label) { weight(label) } else { 0.0 }).collect();
    let labels: Vec<u32> = labels.data.iter().map(|&label| if kept(label) { label as u32 } else { 0 }).collect();
    let shape = [&x.shape()[..1], &x.shape()[2..]].concat();
    let (labels, weights) =
        (Tensor::from_slice(&labels, &shape[..], call.device)?, Tensor::from_slice(&weights, &shape[..], call.device)?);
    let losses = nll_loss(&x, &labels, Reduction::None)?.mul(&weights)?;
    Ok(vec![match reduction(call) {
        Reduction::None => losses,
        Reduction::Sum => losses.sum_all()?,
        Reduction::Mean => losses.sum_all()?.div(&weights.sum_all()?)?,
    }])
}

/// On request also the logarithms of the probabilities.
fn cross_entropy(call: &Call) -> Outcome {
    let (x, labels) = (call.x(0)?, call.x(1)?);
    let mut loss = CrossEntropyLoss::new().reduction(reduction(call));
    if call.has("ignore_index") {
        loss = loss.ignore_index(call.int("ignore_index", 0));
    }
    if let Some(weight) = call.maybe(2)? {
        loss = loss.weight(weight);
    }
    let mut outputs = vec![loss.forward(&x, &labels)?, x.log_softmax(1)?];
    outputs.truncate(call.node.output.len());
    Ok(outputs)
}
