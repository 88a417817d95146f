//! This crate's calls that correspond to PyTorch's.

use anygpu::Attention;
use anygpu::nn::{CrossEntropyLoss, Reduction, bce_with_logits, kl_div, l1_loss, mse_loss, nll_loss};
use anygpu::{Conv, Pool, Tensor};
use anygpu::{Interpolation, Padding};

use super::case::Case;

type Outcome = anygpu::Result<Vec<Tensor>>;
type Function = fn(&Tensor) -> anygpu::Result<Tensor>;
type Pairwise = fn(&Tensor, &Tensor) -> anygpu::Result<Tensor>;

pub fn run(case: &Case, x: &[Tensor]) -> Outcome {
    if let Some(f) = function(case.op()) {
        return Ok(vec![f(&x[0])?]);
    }
    if let Some(f) = pairwise(case.op()) {
        return Ok(vec![f(&x[0], &x[1])?]);
    }
    match case.op() {
        "sort" => pair(x[0].sort(case.dim(), case.flag("descending"))),
        "topk" => pair(x[0].topk(case.size("k"), case.dim(), case.flag("largest"), true)),
        _ => Ok(vec![one(case, x)?]),
    }
}

fn pair(outputs: anygpu::Result<(Tensor, Tensor)>) -> Outcome {
    let (values, indices) = outputs?;
    Ok(vec![values, indices])
}

fn function(op: &str) -> Option<Function> {
    Some(match op {
        "gelu" => Tensor::gelu,
        "gelu_tanh" => Tensor::gelu_tanh,
        "erf" => Tensor::erf,
        "silu" => Tensor::silu,
        "softplus" => |x| x.softplus(1.0, 20.0),
        "hardswish" => Tensor::hardswish,
        "elu" => |x| x.elu(1.0),
        "leaky_relu" => |x| x.leaky_relu(0.01),
        "sigmoid" => Tensor::sigmoid,
        "tanh" => Tensor::tanh,
        "abs" => Tensor::abs,
        "sign" => Tensor::sign,
        "square" => Tensor::square,
        "relu" => Tensor::relu,
        "exp" => Tensor::exp,
        "exp2" => Tensor::exp2,
        "log" => Tensor::log,
        "log2" => Tensor::log2,
        "log1p" => Tensor::log1p,
        "sqrt" => Tensor::sqrt,
        "rsqrt" => Tensor::rsqrt,
        "recip" => Tensor::recip,
        "floor" => Tensor::floor,
        "ceil" => Tensor::ceil,
        "round" => Tensor::round,
        "trunc" => Tensor::trunc,
        "sin" => Tensor::sin,
        "cos" => Tensor::cos,
        "tan" => Tensor::tan,
        _ => return None,
    })
}

fn pairwise(op: &str) -> Option<Pairwise> {
    Some(match op {
        "atan2" => |x, y| x.atan2(y),
        "pow" => |x, y| x.pow(y),
        "rem" => |x, y| x.rem(y),
        "maximum" => |x, y| x.maximum(y),
        "minimum" => |x, y| x.minimum(y),
        "div" => |x, y| x.div(y),
        "lt" => |x, y| x.lt(y),
        "le" => |x, y| x.le(y),
        "gt" => |x, y| x.gt(y),
        "ge" => |x, y| x.ge(y),
        "eq" => |x, y| x.eq(y),
        "ne" => |x, y| x.ne(y),
        "matmul" => Tensor::matmul,
        _ => return None,
    })
}

fn one(case: &Case, x: &[Tensor]) -> anygpu::Result<Tensor> {
    let (dims, keepdim) = (case.sizes("dims"), case.flag("keepdim"));
    match case.op() {
        "max" => x[0].max(&dims, keepdim),
        "min" => x[0].min(&dims, keepdim),
        "prod" => x[0].prod(&dims, keepdim),
        "var" => x[0].var(&dims, case.float("correction"), keepdim),
        "std" => x[0].std(&dims, case.float("correction"), keepdim),
        "logsumexp" => x[0].logsumexp(&dims, keepdim),
        "softmax" => x[0].softmax(case.dim()),
        "log_softmax" => x[0].log_softmax(case.dim()),
        "cumsum" => x[0].cumsum(case.dim()),
        "argmax" => x[0].argmax(case.dim()),
        "argmin" => x[0].argmin(case.dim()),
        "einsum" => Tensor::einsum(case.text("equation"), &x.iter().collect::<Vec<_>>()),
        op if op.starts_with("conv") => convolution(case, x),
        op if op.contains("pool") => pool(case, &x[0]),
        "layer_norm" | "group_norm" | "rms_norm" | "batch_norm_train" | "batch_norm_eval" => norm(case, x),
        "gather" => x[0].gather(case.dim(), &x[1]),
        "scatter_add" => x[0].scatter_add(case.dim(), &x[1], &x[2]),
        "index_select" => x[0].index_select(case.dim(), &x[1]),
        "index_add" => x[0].index_add(case.dim(), &x[1], &x[2]),
        "embedding" => x[0].embedding(&x[1]),
        "one_hot" => x[0].one_hot(case.size("classes")),
        "tril" => x[0].tril(case.int("diagonal")),
        "triu" => x[0].triu(case.int("diagonal")),
        "where" => x[0].where_cond(&x[1], &x[2]),
        "roll" => x[0].roll(case.int("shift"), case.dim()),
        "flip" => x[0].flip(&dims),
        "pad" => pad(case, &x[0]),
        "interpolate" => interpolate(case, &x[0]),
        "sdpa" => attention(case, x),
        "cross_entropy" => cross_entropy(case, x),
        "nll_loss" => nll_loss(&x[0], &x[1], reduction(case)),
        "masked_fill" => x[0].masked_fill(&x[1], case.float("value") as f32),
        "norm" => x[0].norm(case.float("p") as f32, &dims, keepdim),
        "mse_loss" => mse_loss(&x[0], &x[1], reduction(case)),
        "l1_loss" => l1_loss(&x[0], &x[1], reduction(case)),
        "bce_with_logits" => bce_with_logits(&x[0], &x[1], None, reduction(case)),
        "kl_div" => divergence(case, x),
        op => panic!("{op} is not in this file"),
    }
}

fn norm(case: &Case, x: &[Tensor]) -> anygpu::Result<Tensor> {
    let eps = case.float("eps") as f32;
    let last = |count: usize| &x[0].shape()[x[0].rank() - count..];
    match case.op() {
        "layer_norm" => x[0].layer_norm(last(case.size("dims")), Some(&x[1]), Some(&x[2]), eps),
        "rms_norm" => x[0].rms_norm(last(1), Some(&x[1]), eps),
        "group_norm" => x[0].group_norm(case.size("groups"), Some(&x[1]), Some(&x[2]), eps),
        "batch_norm_train" => x[0].batch_norm(None, Some(&x[1]), Some(&x[2]), true, 0.1, eps),
        _ => x[0].batch_norm(Some((&x[1], &x[2])), Some(&x[3]), Some(&x[4]), false, 0.1, eps),
    }
}

fn attention(case: &Case, x: &[Tensor]) -> anygpu::Result<Tensor> {
    let options = match case.text("mask") {
        "causal" => Attention::new().causal(),
        "bool" | "float" => Attention::new().mask(&x[3]),
        _ => Attention::new(),
    };
    x[0].attention(&x[1], &x[2], &options)
}

/// PyTorch's pairs begin with the last dimension.
fn pad(case: &Case, x: &Tensor) -> anygpu::Result<Tensor> {
    let pads = case.sizes("pads");
    let margins: Vec<(usize, usize)> = pads.chunks(2).rev().map(|pair| (pair[0], pair[1])).collect();
    let padding = match case.text("mode") {
        "constant" => Padding::Constant(case.float("value")),
        "reflect" => Padding::Reflect,
        _ => Padding::Replicate,
    };
    x.pad(&margins, padding)
}

fn interpolate(case: &Case, x: &Tensor) -> anygpu::Result<Tensor> {
    let mode = match case.text("mode") {
        "nearest" => Interpolation::Nearest,
        _ => Interpolation::Linear { align_corners: case.flag("align_corners") },
    };
    x.interpolate(case.pair("size", 1), mode)
}

fn convolution(case: &Case, x: &[Tensor]) -> anygpu::Result<Tensor> {
    let groups = case.size("groups").max(1);
    let [stride, dilation] = ["stride", "dilation"].map(|name| case.pair(name, 1));
    let [padding, more] = ["padding", "output_padding"].map(|name| case.pair(name, 0));
    let flat = Conv::<1>::new().stride(stride[0]).padding(padding[0]).dilation(dilation[0]).groups(groups);
    let both = Conv::<2>::new().stride(stride).padding(padding).dilation(dilation).groups(groups);
    let (w, bias) = (&x[1], x.get(2));
    match case.op() {
        "conv1d" => x[0].conv1d(w, bias, flat),
        "conv2d" => x[0].conv2d(w, bias, both),
        "conv_transpose1d" => x[0].conv_transpose1d(w, bias, flat.output_padding(more[0])),
        _ => x[0].conv_transpose2d(w, bias, both.output_padding(more)),
    }
}

fn pool(case: &Case, x: &Tensor) -> anygpu::Result<Tensor> {
    let pool = || {
        let kernel = case.pair("kernel_size", 1);
        let pool = Pool::<2>::new(kernel).padding(case.pair("padding", 0)).dilation(case.pair("dilation", 1));
        pool.stride(case.pair("stride", 1)).ceil_mode(case.flag("ceil_mode"))
    };
    match case.op() {
        "adaptive_avg_pool2d" => x.adaptive_avg_pool2d(case.pair("size", 1)),
        "adaptive_max_pool2d" => x.adaptive_max_pool2d(case.pair("size", 1)),
        "max_pool2d" => x.max_pool2d(pool()),
        _ => x.avg_pool2d(pool().count_include_pad(case.flag("count_include_pad"))),
    }
}

fn reduction(case: &Case) -> Reduction {
    match case.text("reduction") {
        "none" => Reduction::None,
        "sum" => Reduction::Sum,
        _ => Reduction::Mean,
    }
}

fn cross_entropy(case: &Case, x: &[Tensor]) -> anygpu::Result<Tensor> {
    let loss = CrossEntropyLoss::new().reduction(reduction(case)).label_smoothing(case.float("label_smoothing") as f32);
    match case.int("ignore_index") {
        -100 => loss.forward(&x[0], &x[1]),
        ignored => loss.ignore_index(ignored).forward(&x[0], &x[1]),
    }
}

/// Our target is a probability, and the mean over the batch a sum by its size.
fn divergence(case: &Case, x: &[Tensor]) -> anygpu::Result<Tensor> {
    let target = if case.flag("log_target") { x[1].exp()? } else { x[1].clone() };
    match case.text("reduction") {
        "batchmean" => kl_div(&x[0], &target, Reduction::Sum)?.div_scalar(x[0].shape()[0] as f32),
        _ => kl_div(&x[0], &target, reduction(case)),
    }
}
