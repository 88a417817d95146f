//! Normalisations and losses.

use super::super::call::{Call, Operator, size};
use super::super::fault;
use super::super::fuse::MOST_DIMENSIONS;
use super::super::fuse::norms::RANK;
use super::super::value::Value;
use crate::dtype::DType;
use crate::error::Result;
use crate::nn::{CrossEntropyLoss, Reduction, nll_loss};
use crate::tensor::Tensor;

pub(super) fn find(op: &str) -> Option<Operator> {
    Some(match op {
        "LayerNormalization" => Operator::Values(layer_norm),
        "RMSNormalization" | "SimplifiedLayerNormalization" => Operator::One(rms_norm),
        "BatchNormalization" => Operator::Values(batch_norm),
        "NegativeLogLikelihoodLoss" => Operator::One(nll),
        "SoftmaxCrossEntropyLoss" => Operator::Values(cross_entropy),
        "GroupNormalization" => Operator::One(group_norm),
        "InstanceNormalization" => Operator::One(instance_norm),
        "MeanVarianceNormalization" => Operator::One(mean_variance),
        "LpNormalization" => Operator::One(lp_normalization),
        "LRN" => Operator::One(local_response),
        _ => return None,
    })
}

fn epsilon(call: &Call) -> f32 {
    call.float("epsilon", 1e-5)
}

/// Besides the output, on request the mean and 1 / √(variance + ε), with the normalised dimensions of size 1.
fn layer_norm(call: &Call) -> Result<Vec<Value>> {
    let (x, weight, bias) = (call.x(0)?, call.maybe(1)?, call.maybe(2)?);
    let of_doubles = if x.dtype() == DType::F64 { Some((call.axis(-1, x.rank())?..x.rank()).collect()) } else { None };
    if of_doubles.is_some() && (call.wants(1) || call.wants(2)) {
        return call.refuse("the mean and the deviation of double");
    }
    if let Some(dims) = of_doubles.map_or_else(|| elsewhere(call, &x), |dims: Vec<usize>| Ok(Some(dims)))? {
        let centred = x.sub(&x.mean(&dims, true)?)?;
        let y = weighted(over_root(&centred, &dims, epsilon(call))?, weight, bias)?;
        return Ok(vec![Value::of(y, call.needed(0)?.kind())]);
    }
    let axis = call.axis(-1, x.rank())?;
    let normalised = &x.shape()[axis..];
    let fits = |x: &Option<Tensor>| x.as_ref().is_none_or(|x| x.shape() == normalised);
    let y = match fits(&weight) && fits(&bias) {
        true => x.layer_norm(normalised, weight.as_ref(), bias.as_ref(), epsilon(call))?,
        false => weighted(x.layer_norm(normalised, None, None, epsilon(call))?, weight, bias)?,
    };
    let mut outputs = vec![Value::of(y, call.needed(0)?.kind())];
    if call.wants(1) || call.wants(2) {
        let dims: Vec<usize> = (axis..x.rank()).collect();
        let variance = x.var(&dims, 0.0, true)?;
        outputs.push(Value::natural(x.mean(&dims, true)?));
        outputs.push(Value::natural(variance.add_scalar(epsilon(call))?.sqrt()?.recip()?));
    }
    Ok(outputs)
}

fn rms_norm(call: &Call) -> Result<Tensor> {
    let (x, weight) = (call.x(0)?, call.maybe(1)?);
    if let Some(dims) = elsewhere(call, &x)? {
        return weighted(over_root(&x, &dims, epsilon(call))?, weight, None);
    }
    let axis = call.axis(-1, x.rank())?;
    let normalised = &x.shape()[axis..];
    match weight.as_ref().is_none_or(|weight| weight.shape() == normalised) {
        true => x.rms_norm(normalised, weight.as_ref(), epsilon(call)),
        false => weighted(x.rms_norm(normalised, None, epsilon(call))?, weight, None),
    }
}

/// The dimensions of a norm that was several operators in the file, if these are not the last ones of x.
fn elsewhere(call: &Call, x: &Tensor) -> Result<Option<Vec<usize>>> {
    let rank = size(call.int(RANK, 0).clamp(0, MOST_DIMENSIONS as i64))?;
    if rank == 0 || rank == x.rank() {
        return Ok(None);
    }
    let count = size(call.int("axis", -1).saturating_neg())?;
    let axes: Vec<i64> = (rank.saturating_sub(count)..rank).map(|dim| dim as i64).collect();
    call.dims(&axes, x.rank()).map(Some)
}

/// x / √(mean of x² + ε)
fn over_root(x: &Tensor, dims: &[usize], epsilon: f32) -> Result<Tensor> {
    x.div(&x.square()?.mean(dims, true)?.add_scalar(epsilon)?.sqrt()?)
}

fn weighted(x: Tensor, weight: Option<Tensor>, bias: Option<Tensor>) -> Result<Tensor> {
    let x = weight.map_or(Ok(x.clone()), |weight| x.mul(&weight))?;
    bias.map_or(Ok(x.clone()), |bias| x.add(&bias))
}

/// In training form the running statistics come out too. ONNX uses the biased variance for them, this crate and
/// PyTorch the unbiased one.
fn batch_norm(call: &Call) -> Result<Vec<Value>> {
    let (input, weight, bias) = (call.x(0)?, call.x(1)?, call.x(2)?);
    let (mean, variance) = (call.x(3)?, call.x(4)?);
    if call.int("training_mode", 0) == 0 && input.dtype() == DType::F64 {
        let each = |v: &Tensor| v.reshape([&[v.elem_count()][..], &vec![1; input.rank().saturating_sub(2)]].concat());
        let root = each(&variance)?.add_scalar(epsilon(call))?.sqrt()?;
        let y = input.sub(&each(&mean)?)?.div(&root)?.mul(&each(&weight)?)?.add(&each(&bias)?)?;
        return Ok(vec![Value::natural(y)]);
    }
    if call.int("training_mode", 0) == 0 {
        let running = Some((&mean, &variance));
        return Ok(vec![Value::natural(input.batch_norm(
            running,
            Some(&weight),
            Some(&bias),
            false,
            0.1,
            epsilon(call),
        )?)]);
    }
    let keep = call.float("momentum", 0.9);
    let dims: Vec<usize> = (0..input.rank()).filter(|&dim| dim != 1).collect();
    let y = input.batch_norm(None, Some(&weight), Some(&bias), true, 0.1, epsilon(call))?;
    let moved = |old: &Tensor, new: Tensor| old.mul_scalar(keep)?.add(&new.mul_scalar(1.0 - keep)?);
    let mean = moved(&mean, input.mean(&dims, false)?)?;
    let variance = moved(&variance, input.var(&dims, 0.0, false)?)?;
    Ok([y, mean, variance].map(Value::natural).into())
}

/// Weights are for each group up to opset 20, for each channel since.
fn group_norm(call: &Call) -> Result<Tensor> {
    let x = call.x(0)?;
    let groups = size(call.int("num_groups", 1))?;
    let &[_, channels, ..] = x.shape() else { return Err(fault("an input without channels")) };
    if groups == 0 || channels % groups != 0 {
        return Err(fault(format!("{channels} channels do not divide into {groups} groups")));
    }
    let each = |v: Tensor| match call.opset() < 21 {
        true => v.reshape([groups, 1])?.broadcast_to([groups, channels / groups])?.reshape(channels),
        false => Ok(v),
    };
    let (weight, bias) = (each(call.x(1)?)?, each(call.x(2)?)?);
    x.group_norm(groups, Some(&weight), Some(&bias), epsilon(call))
}

fn instance_norm(call: &Call) -> Result<Tensor> {
    let (x, weight, bias) = (call.x(0)?, call.x(1)?, call.x(2)?);
    let &[_, channels, ..] = x.shape() else { return Err(fault("an input without channels")) };
    x.group_norm(channels, Some(&weight), Some(&bias), epsilon(call))
}

/// (x − mean) / (deviation + 10⁻⁹)
fn mean_variance(call: &Call) -> Result<Tensor> {
    let x = call.x(0)?;
    let dims = call.dims(&call.ints("axes").unwrap_or(vec![0, 2, 3]), x.rank())?;
    x.sub(&x.mean(&dims, true)?)?.div(&x.std(&dims, 0.0, true)?.add_scalar(1e-9)?)
}

fn lp_normalization(call: &Call) -> Result<Tensor> {
    let x = call.x(0)?;
    let dim = call.axis(-1, x.rank())?;
    let norm = x.norm(call.int("p", 2) as f32, [dim], true)?;
    // A vector of zeros stays one.
    x.div(&norm.eq(0.0)?.where_cond(1.0, &norm)?)
}

/// x / (bias + α / size · Σ x²)^β, the sum over `size` neighbouring channels.
fn local_response(call: &Call) -> Result<Tensor> {
    let x = call.x(0)?;
    let count = size(call.int("size", 1))?;
    let &[n, c, ..] = x.shape() else { return Err(fault("an input without channels")) };
    let rest: usize = x.shape()[2..].iter().product();
    let before = count.saturating_sub(1) / 2;
    let squares = x.square()?.reshape([n, c, rest])?;
    let padded =
        squares.pad(&[(0, 0), (before, count.saturating_sub(1) - before), (0, 0)], crate::Padding::Constant(0.0))?;
    let mut sum = padded.narrow(1, 0, c)?;
    for i in 1..count {
        sum = sum.add(&padded.narrow(1, i, c)?)?;
    }
    let scale = sum.mul_scalar(call.float("alpha", 1e-4) / count as f32)?.add_scalar(call.float("bias", 1.0))?;
    x.div(&scale.pow(call.float("beta", 0.75))?.reshape(x.shape())?)
}

fn reduction(call: &Call) -> Reduction {
    match call.text("reduction", "mean").as_ref() {
        "none" => Reduction::None,
        "sum" => Reduction::Sum,
        _ => Reduction::Mean,
    }
}

/// −x[label] · weight[label], without the ignored; the mean is over the weights.
fn nll(call: &Call) -> Result<Tensor> {
    let (x, labels) = (call.x(0)?, call.x(1)?);
    let weight = call.maybe(2)?;
    if !call.has("ignore_index") && weight.is_none() {
        return nll_loss(&x, &labels, reduction(call));
    }
    let labels = labels.to_dtype(DType::I32)?;
    let ignored = labels.eq(call.int("ignore_index", -1) as i32)?;
    let kept = if call.has("ignore_index") { ignored.where_cond(0, &labels)? } else { labels };
    let weights = match weight {
        Some(weight) => weight.index_select(0, &kept.reshape(-1)?)?.reshape(kept.shape())?,
        None => Tensor::ones(kept.shape(), call.device)?,
    };
    let weights = if call.has("ignore_index") { ignored.where_cond(0.0, &weights)? } else { weights };
    let losses = nll_loss(&x, &kept, Reduction::None)?.mul(&weights)?;
    match reduction(call) {
        Reduction::None => Ok(losses),
        Reduction::Sum => losses.sum_all(),
        Reduction::Mean => losses.sum_all()?.div(&weights.sum_all()?),
    }
}

/// On request also the logarithms of the probabilities.
fn cross_entropy(call: &Call) -> Result<Vec<Value>> {
    let (x, labels) = (call.x(0)?, call.x(1)?);
    let mut loss = CrossEntropyLoss::new().reduction(reduction(call));
    if call.has("ignore_index") {
        loss = loss.ignore_index(call.int("ignore_index", 0));
    }
    if let Some(weight) = call.maybe(2)? {
        loss = loss.weight(weight);
    }
    let mut outputs = vec![Value::natural(loss.forward(&x, &labels)?)];
    if call.wants(1) {
        outputs.push(Value::natural(x.log_softmax(1)?));
    }
    Ok(outputs)
}
