//! Calls with arguments that the methods refuse: wrong shapes, types, dimensions and numbers; tensors of two devices.

use std::sync::mpsc::channel;

use anygpu::nn::{self, CrossEntropyLoss, Reduction};
use anygpu::{
    Attention, Conv, DType, Device, Interpolation, Padding, Pool, Result, Tensor, autocast, tensor::to_together,
};

/// The name that the error must have, and the result.
pub type Call = (&'static str, Result<()>);

/// Calls of a row of methods with the same arguments.
macro_rules! each {
    ($calls:ident, $x:expr, [$($name:ident),*] $arguments:tt) => {
        $($calls.push((stringify!($name), $x.$name $arguments.map(drop)));)*
    };
}
pub(crate) use each;

/// Creation and reading.
pub fn creation(d: &Device) -> Result<Vec<Call>> {
    let huge = [usize::MAX, 2];
    let (x, whole) = (Tensor::zeros([2, 3], d)?, Tensor::zeros([2, 3], d)?.to_dtype(DType::I32)?);
    let mut calls: Vec<Call> = vec![
        ("Tensor::new", Tensor::new([vec![1.0], vec![]], d).map(drop)),
        ("Tensor::new", Tensor::new([u64::MAX], d).map(drop)),
        ("from_slice", Tensor::from_slice(&[1.0f32], 2, d).map(drop)),
        ("from_f64", Tensor::from_f64(&[1.0], 2, d).map(drop)),
        ("from_vec", Tensor::from_vec(vec![1.0f32], 2, d).map(drop)),
        ("zeros", Tensor::zeros(huge, d).map(drop)),
        ("ones", Tensor::ones(huge, d).map(drop)),
        ("full", Tensor::full(huge, 1u8, d).map(drop)),
        ("arange", Tensor::arange(0.0, 1.0, -1.0, d).map(drop)),
        ("arange", Tensor::arange(0.0, 1.0, 1e-38, d).map(drop)),
        ("eye", Tensor::eye(usize::MAX, d).map(drop)),
        ("iota", Tensor::iota(usize::MAX, d).map(drop)),
        ("linspace", Tensor::linspace(0.0, f32::NAN, 2, d).map(drop)),
        ("linspace", Tensor::linspace(0.0, 1.0, usize::MAX, d).map(drop)),
        ("rand", Tensor::rand(huge, d).map(drop)),
        ("randn", Tensor::randn(huge, d).map(drop)),
        ("uniform", Tensor::uniform(0.0, 1.0, huge, d).map(drop)),
        ("normal", Tensor::normal(0.0, 1.0, huge, d).map(drop)),
        ("bernoulli", Tensor::bernoulli(0.5, huge, d).map(drop)),
        ("bernoulli", Tensor::bernoulli(2.0, 1, d).map(drop)),
        ("randint", Tensor::randint(0, 9, huge, d).map(drop)),
        ("randint", Tensor::randint(9, 0, 1, d).map(drop)),
        ("randperm", Tensor::randperm(usize::MAX, d).map(drop)),
        ("item", x.item::<f32>().map(drop)),
        ("item", x.sum_all()?.item::<i32>().map(drop)),
        ("with_slice", x.with_slice(|_: &[i32]| ())),
        ("to_vec2", x.sum_all()?.to_vec2::<f32>().map(drop)),
        ("to_vec3", x.to_vec3::<f32>().map(drop)),
        ("to_vec3", x.unsqueeze(0)?.to_vec3::<i32>().map(drop)),
        ("autocast", autocast(DType::I32, || Ok(()))),
    ];
    each!(calls, whole, [rand_like, randn_like]());
    calls.extend([("to_vec", x.to_vec::<u8>().map(drop)), ("to_vec2", x.to_vec2::<u8>().map(drop))]);
    calls.push(("to_vec_async", pollster::block_on(x.to_vec_async::<u8>()).map(drop)));
    let (sender, receiver) = channel();
    x.to_vec_then(move |elements: Result<Vec<u8>>| sender.send(elements).expect("the receiver is there"));
    calls.push(("to_vec_then", receiver.recv().expect("the function is called").map(drop)));
    #[cfg(feature = "ndarray")]
    calls.push(("to_ndarray", x.to_ndarray::<i32>().map(drop)));
    #[cfg(feature = "image")]
    calls.extend([
        ("to_image", x.unsqueeze(0)?.unsqueeze(0)?.to_image().map(drop)),
        ("to_image", whole.to_image().map(drop)),
    ]);
    Ok(calls)
}

/// Views, and what joins or parts tensors.
pub fn shapes(d: &Device) -> Result<Vec<Call>> {
    let x = &Tensor::zeros([2, 3], d)?;
    let (whole, unsigned) = (&x.to_dtype(DType::I32)?, &x.to_dtype(DType::U32)?);
    let (cube, vector) = (&Tensor::zeros([1, 2, 3], d)?, &Tensor::zeros([3], d)?);
    let most = usize::MAX / 8;
    let mut calls: Vec<Call> = vec![
        ("i", x.i((0, 3)).map(drop)),
        ("i", x.i((0, 0, 0)).map(drop)),
        ("i", x.i((.., 4..)).map(drop)),
        ("t", vector.t().map(drop)),
        ("permute", x.permute([0]).map(drop)),
        ("permute", x.permute([0, 2]).map(drop)),
        ("transpose", x.transpose(0, 2).map(drop)),
        ("movedim", x.movedim(2, 0).map(drop)),
        ("narrow", x.narrow(1, 2, 2).map(drop)),
        ("narrow", x.narrow(2, 0, 1).map(drop)),
        ("select", x.select(0, 2).map(drop)),
        ("select", x.select(-3, 0).map(drop)),
        ("slice", x.slice(0, 0, 9, 1).map(drop)),
        ("slice", x.slice(2, 0, 1, 1).map(drop)),
        ("diagonal", x.diagonal(0, 0, 0).map(drop)),
        ("diagonal", x.diagonal(0, 0, 2).map(drop)),
        ("diag", cube.diag(0).map(drop)),
        ("diag", vector.diag(i64::MAX).map(drop)),
        ("squeeze", x.squeeze(0).map(drop)),
        ("squeeze", x.squeeze(2).map(drop)),
        ("unsqueeze", x.unsqueeze(3).map(drop)),
        ("flatten", x.flatten(2).map(drop)),
        ("cat", Tensor::cat(&[] as &[&Tensor], 0).map(drop)),
        ("cat", Tensor::cat(&[x, vector], 0).map(drop)),
        ("cat", Tensor::cat(&[whole, unsigned], 0).map(drop)),
        ("cat", Tensor::cat(&[x], 2).map(drop)),
        ("stack", Tensor::stack(&[] as &[&Tensor], 0).map(drop)),
        ("stack", Tensor::stack(&[x, vector], 0).map(drop)),
        ("stack", Tensor::stack(&[x], 3).map(drop)),
        ("stack", Tensor::stack(&[whole, unsigned], 0).map(drop)),
        ("split", x.split(0, 0).map(drop)),
        ("split", x.split(1, 2).map(drop)),
        ("split_sizes", x.split_sizes(&[1], 0).map(drop)),
        ("chunk", x.chunk(0, 0).map(drop)),
        ("chunk", x.chunk(1, 2).map(drop)),
        ("repeat", x.repeat([2]).map(drop)),
        ("repeat", x.repeat([most, most]).map(drop)),
        ("flip", x.flip(2).map(drop)),
        ("roll", x.roll(1, 2).map(drop)),
        ("pad", x.pad(&[(0, 0); 3], Padding::Replicate).map(drop)),
        ("pad", x.pad(&[(9, 9)], Padding::Circular).map(drop)),
        ("pad", x.pad(&[(most, most)], Padding::Constant(0.0)).map(drop)),
    ];
    each!(calls, x, [reshape, broadcast_to, expand]([5, 5]));
    each!(calls, x, [reshape, broadcast_to, expand]([-2, 3]));
    each!(calls, x, [broadcast_to, expand]([most, 2, 3]));
    calls.push(("reshape", x.reshape([-1, 4]).map(drop)));
    Ok(calls)
}

/// Reductions, sorting and indices.
pub fn reductions(d: &Device) -> Result<Vec<Call>> {
    let x = &Tensor::zeros([2, 3], d)?;
    let (whole, empty) = (&x.to_dtype(DType::I32)?, &Tensor::zeros([2, 0], d)?);
    let (index, rows) = (&Tensor::zeros([1, 3], d)?, &Tensor::new([0, 1], d)?);
    let mut calls: Vec<Call> = vec![
        ("norm", x.norm(2.0, 2, false).map(drop)),
        ("norm", whole.norm(2.0, 0, false).map(drop)),
        ("norm", empty.norm(f32::INFINITY, 1, false).map(drop)),
        ("norm", empty.norm(f32::NEG_INFINITY, 1, false).map(drop)),
        ("norm_all", whole.norm_all(2.0).map(drop)),
        ("norm_all", empty.norm_all(f32::INFINITY).map(drop)),
        ("argmax", empty.argmax(1).map(drop)),
        ("argmin", empty.argmin(1).map(drop)),
        ("argsort", x.argsort(2, false).map(drop)),
        ("sort", x.sort(2, false).map(drop)),
        ("topk", x.topk(1, 2, true, true).map(drop)),
        ("topk", x.topk(9, 1, true, true).map(drop)),
        ("embedding", x.sum_all()?.embedding(rows).map(drop)),
        ("embedding", x.embedding(x).map(drop)),
        ("one_hot", x.one_hot(3).map(drop)),
        ("one_hot", rows.one_hot(usize::MAX).map(drop)),
        ("one_hot", Tensor::zeros(0, d)?.to_dtype(DType::U32)?.one_hot(usize::MAX).map(drop)),
        ("index_add", x.index_add(0, rows, index).map(drop)),
        ("index_add", x.index_add(0, rows, whole).map(drop)),
    ];
    each!(calls, x, [sum, prod, max, min, mean, any, all, logsumexp](2, false));
    each!(calls, x, [var, std](2, 1.0, false));
    each!(calls, empty, [max, min](1, false));
    each!(calls, whole, [mean, logsumexp](0, false));
    each!(calls, whole, [var, std](0, 1.0, false));
    each!(calls, whole, [mean_all, var_all, std_all]());
    each!(calls, empty, [max_all, min_all, argmax_all, argmin_all]());
    let (flat, singular) = (&Tensor::zeros(3, d)?, &Tensor::zeros([2, 2], d)?);
    let (broken, integers) = (&singular.add(f32::NAN)?, &singular.to_dtype(DType::I32)?);
    calls.extend::<Vec<Call>>(vec![
        ("solve", x.solve(x).map(drop)),
        ("solve", singular.solve(x).map(drop)),
        ("solve", singular.solve(flat).map(drop)),
        ("solve", singular.solve(integers).map(drop)),
        ("svd", broken.svd().map(drop)),
        ("qr", flat.qr().map(drop)),
        ("svd", flat.svd().map(drop)),
        ("slogdet", x.slogdet().map(drop)),
        ("qr", integers.qr().map(drop)),
        ("svd", integers.svd().map(drop)),
        ("slogdet", integers.slogdet().map(drop)),
    ]);
    each!(calls, x, [inv, det, cholesky]());
    each!(calls, flat, [inv, det, cholesky]());
    each!(calls, integers, [inv, det, cholesky]());
    each!(calls, singular, [inv, cholesky]());
    #[cfg(feature = "fft")]
    {
        each!(calls, x, [fft, ifft, rfft, irfft](None, 2));
        each!(calls, x, [fft, ifft, irfft](None, 0));
        each!(calls, singular, [fft, ifft, irfft](None, 1));
        each!(calls, singular, [fft, ifft, rfft, irfft](Some(0), 0));
        each!(calls, integers, [fft, ifft, rfft, irfft](None, 0));
    }
    each!(calls, x, [softmax, log_softmax, cumsum, cumprod, argmax, argmin](2));
    each!(calls, whole, [softmax, log_softmax](0));
    each!(calls, x, [gather, index_select](2, rows));
    each!(calls, x, [gather, index_select](0, index));
    each!(calls, x, [gather, index_select](0, &x.i(0)?));
    each!(calls, x, [scatter, scatter_add, index_add](2, rows, x));
    each!(calls, x, [scatter, scatter_add](0, whole, whole));
    each!(calls, x, [scatter, scatter_add](0, whole, index));
    Ok(calls)
}

/// Functions of one and of two elements, and in-place writes.
pub fn elements(d: &Device) -> Result<Vec<Call>> {
    let x = &Tensor::zeros([2, 3], d)?;
    let other = &Tensor::zeros([4, 5], d)?;
    let (whole, unsigned, truth) = (&x.to_dtype(DType::I32)?, &x.to_dtype(DType::U32)?, &x.to_dtype(DType::Bool)?);
    let shown = &Tensor::zeros(1, d)?.broadcast_to([2, 3])?;
    let leaf = &x.requires_grad();
    let mut calls: Vec<Call> = vec![
        ("add", (x + other).map(drop)),
        ("mul", (x * Ok(other.clone())).map(drop)),
        ("sub", truth.sub(true).map(drop)),
        ("clamp", x.clamp(None, None).map(drop)),
        ("clamp", truth.clamp(Some(0.0), None).map(drop)),
        ("hardtanh", x.hardtanh(1.0, 0.0).map(drop)),
        ("where_cond", truth.where_cond(x, other).map(drop)),
        ("where_cond", other.where_cond(x, 0.0).map(drop)),
        ("masked_fill", x.masked_fill(other, 0.0).map(drop)),
        ("dropout", x.dropout(2.0, true).map(drop)),
        ("dropout", whole.dropout(0.5, true).map(drop)),
        ("copy_", x.copy_(other)),
        ("zero_", leaf.zero_()),
        ("zero_", shown.zero_()),
        ("fill_", unsigned.fill_(-1)),
        ("allclose", x.allclose(other, 0.0, 0.0).map(drop)),
        ("allclose", x.allclose(whole, 0.0, 0.0).map(drop)),
        ("allclose", x.allclose(x, -1.0, 0.0).map(drop)),
        ("allclose", x.allclose(x, 0.0, f32::NAN).map(drop)),
    ];
    each!(calls, x, [add, sub, mul, div, div_trunc, div_floor, rem, fmod, pow, maximum, minimum, atan2](other));
    each!(calls, x, [eq, ne, lt, le, gt, ge, logical_and, logical_or, logical_xor](other));
    each!(calls, whole, [add, sub, mul, div, rem, pow, maximum, minimum](unsigned));
    each!(calls, unsigned, [add_scalar, sub_scalar, mul_scalar](1i64 << 40));
    each!(calls, truth, [sub_scalar](true));
    each!(calls, x, [add_, sub_, mul_, div_](other));
    each!(calls, whole, [add_, sub_, mul_, div_](unsigned));
    each!(calls, unsigned, [add_, sub_, mul_](0.5));
    each!(calls, leaf, [add_, sub_, mul_, div_](1.0));
    each!(calls, leaf, [fill_](1.0));
    each!(calls, shown, [fill_](1.0));
    each!(calls, truth, [neg, square, relu]());
    Ok(calls)
}

/// Products, normalisations, convolutions, pooling and losses.
pub fn layers(d: &Device) -> Result<Vec<Call>> {
    let x = &Tensor::zeros([2, 3], d)?;
    let (whole, vector, image) = (&x.to_dtype(DType::I32)?, &Tensor::zeros(3, d)?, &Tensor::zeros([1, 2, 5, 5], d)?);
    let (line, integers) = (&Tensor::zeros([1, 2, 5], d)?, &vector.to_dtype(DType::I32)?);
    let (labels, half) = (&Tensor::new([0, 1], d)?, &x.to_dtype(DType::F16)?);
    let masked = Attention::new().mask(&Tensor::zeros([7, 7, 7], d)?);
    let mut calls: Vec<Call> = vec![
        ("matmul", x.matmul(x).map(drop)),
        ("matmul", whole.matmul(&whole.t()?).map(drop)),
        ("mv", x.mv(labels).map(drop)),
        ("mv", x.mv(integers).map(drop)),
        ("dot", vector.dot(x).map(drop)),
        ("dot", integers.dot(integers).map(drop)),
        ("outer", x.outer(vector).map(drop)),
        ("outer", integers.outer(&vector.to_dtype(DType::U32)?).map(drop)),
        ("einsum", Tensor::einsum("ij->k", &[x]).map(drop)),
        ("einsum", Tensor::einsum("ij,jk", &[x, x]).map(drop)),
        ("einsum", Tensor::einsum("ij,ij->i", &[x, half]).map(drop)),
        ("attention", vector.attention(x, x, &Attention::new()).map(drop)),
        ("attention", x.attention(x, half, &Attention::new()).map(drop)),
        ("attention", x.attention(x, &x.t()?, &Attention::new()).map(drop)),
        ("attention", x.attention(x, x, &masked).map(drop)),
        ("attention", x.attention(x, x, &Attention::new().dropout(2.0)).map(drop)),
        ("layer_norm", x.layer_norm(&[2], None, None, 0.0).map(drop)),
        ("layer_norm", whole.layer_norm(&[3], None, None, 0.0).map(drop)),
        ("layer_norm", x.layer_norm(&[3], Some(x), None, 0.0).map(drop)),
        ("rms_norm", x.rms_norm(&[2], None, 0.0).map(drop)),
        ("rms_norm", half.rms_norm(&[3], Some(integers), 0.0).map(drop)),
        ("group_norm", x.group_norm(2, None, None, 0.0).map(drop)),
        ("group_norm", whole.group_norm(3, None, None, 0.0).map(drop)),
        ("batch_norm", vector.batch_norm(None, None, None, true, 0.1, 0.0).map(drop)),
        ("batch_norm", whole.batch_norm(None, None, None, true, 0.1, 0.0).map(drop)),
        ("batch_norm_relu", vector.batch_norm_relu(None, None, None, true, 0.1, 0.0).map(drop)),
        ("batch_norm_relu", whole.batch_norm_relu(None, None, None, true, 0.1, 0.0).map(drop)),
        ("batch_norm_add_relu", x.batch_norm_add_relu(vector, None, None, None, true, 0.1, 0.0).map(drop)),
        ("batch_norm_add_relu", whole.batch_norm_add_relu(whole, None, None, None, true, 0.1, 0.0).map(drop)),
        ("interpolate", x.interpolate([2, 2], Interpolation::Nearest).map(drop)),
        ("interpolate", image.to_dtype(DType::I32)?.interpolate([2, 2], Interpolation::Nearest).map(drop)),
        ("nll_loss", nn::nll_loss(x, vector, Reduction::Mean).map(drop)),
        ("nll_loss", nn::nll_loss(whole, labels, Reduction::Mean).map(drop)),
        ("cross_entropy", nn::cross_entropy(whole, labels).map(drop)),
        ("cross_entropy", CrossEntropyLoss::new().weight(x.clone()).forward(x, labels).map(drop)),
        ("cross_entropy", CrossEntropyLoss::new().forward(x, vector).map(drop)),
        ("bce_with_logits", nn::bce_with_logits(x, x, Some(image), Reduction::Mean).map(drop)),
        ("smooth_l1_loss", nn::smooth_l1_loss(x, vector, 0.0, Reduction::Mean).map(drop)),
        ("correct", nn::correct(x, vector).map(drop)),
        ("correct", nn::correct(&Tensor::zeros([2, 0], d)?, labels).map(drop)),
    ];
    each!(calls, x, [conv1d, conv_transpose1d](x, None, Conv::new()));
    each!(calls, line, [conv1d, conv_transpose1d](&Tensor::zeros([3, 3, 3], d)?, None, Conv::new()));
    each!(calls, line.to_dtype(DType::I32)?, [conv1d, conv_transpose1d](line, None, Conv::new()));
    each!(calls, x, [conv2d, conv_transpose2d](x, None, Conv::new()));
    each!(calls, image, [conv2d, conv_transpose2d](image, Some(x), Conv::new()));
    each!(calls, image.to_dtype(DType::I32)?, [conv2d, conv_transpose2d](image, None, Conv::new()));
    each!(calls, image.to_dtype(DType::I32)?, [max_pool2d, avg_pool2d](Pool::new(2)));
    each!(calls, image, [max_pool2d, avg_pool2d](Pool::new(7)));
    each!(calls, line.to_dtype(DType::I32)?, [max_pool1d, avg_pool1d](Pool::new(2)));
    each!(calls, line, [max_pool1d, avg_pool1d](Pool::new(7)));
    each!(calls, image, [adaptive_max_pool2d, adaptive_avg_pool2d](0));
    each!(calls, image.to_dtype(DType::I32)?, [adaptive_max_pool2d, adaptive_avg_pool2d]([1, 2]));
    each!(calls, line.to_dtype(DType::I32)?, [adaptive_max_pool1d, adaptive_avg_pool1d](1));
    each!(calls, line.to_dtype(DType::I32)?, [adaptive_max_pool1d, adaptive_avg_pool1d](2));
    let volume = &Tensor::zeros([1, 2, 3, 5, 5], d)?;
    each!(calls, x, [conv3d, conv_transpose3d](x, None, Conv::new()));
    each!(calls, volume, [conv3d, conv_transpose3d](volume, Some(x), Conv::new()));
    each!(calls, volume.to_dtype(DType::I32)?, [conv3d, conv_transpose3d](&volume.transpose(0, 1)?, None, Conv::new()));
    each!(calls, volume, [max_pool3d, avg_pool3d](7));
    each!(calls, volume.to_dtype(DType::I32)?, [max_pool3d, avg_pool3d](2));
    each!(calls, volume, [adaptive_max_pool3d, adaptive_avg_pool3d](0));
    each!(calls, image, [max_pool2d_with_indices](7));
    each!(calls, image.to_dtype(DType::I32)?, [max_pool2d_with_indices](2));
    each!(calls, line, [max_pool1d_with_indices](7));
    each!(calls, line.to_dtype(DType::I32)?, [max_pool1d_with_indices](2));
    each!(calls, whole, [cross_entropy](labels));
    each!(calls, x, [cross_entropy](vector));
    each!(calls, vector, [tril, triu](0));
    type Loss = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let losses: [(&str, Loss); 6] = [
        ("mse_loss", |x, y| nn::mse_loss(x, y, Reduction::Mean)),
        ("l1_loss", |x, y| nn::l1_loss(x, y, Reduction::Mean)),
        ("smooth_l1_loss", |x, y| nn::smooth_l1_loss(x, y, 1.0, Reduction::Mean)),
        ("huber_loss", |x, y| nn::huber_loss(x, y, 1.0, Reduction::Mean)),
        ("bce_with_logits", |x, y| nn::bce_with_logits(x, y, None, Reduction::Mean)),
        ("kl_div", |x, y| nn::kl_div(x, y, Reduction::Mean)),
    ];
    for (name, loss) in losses {
        calls.extend([(name, loss(x, vector).map(drop)), (name, loss(x, whole).map(drop))]);
    }
    Ok(calls)
}

/// Calls with tensors of two devices.
pub fn mixed(d: &Device, other: &Device) -> Result<Vec<Call>> {
    let (x, y) = (&Tensor::zeros([2, 3], d)?, &Tensor::zeros([2, 3], other)?);
    let (z, index) = (&Tensor::zeros(3, other)?, &Tensor::new([0, 1], other)?);
    let (vector, rows) = (&Tensor::zeros(3, d)?, &Tensor::new([[0, 1, 0]], other)?);
    let (image, far) = (&Tensor::zeros([1, 2, 5, 5], d)?, &Tensor::zeros([2, 2, 1, 1], other)?);
    let (line, near) = (&image.i((.., .., 0))?, &far.i((.., .., 0))?);
    let masked = Attention::new().mask(&Tensor::zeros((), other)?);
    let mut calls: Vec<Call> = vec![
        ("cat", Tensor::cat(&[x, y], 0).map(drop)),
        ("stack", Tensor::stack(&[x, y], 0).map(drop)),
        ("einsum", Tensor::einsum("ij,ij->i", &[x, y]).map(drop)),
        ("to_together", to_together(&[x, y], d).map(drop)),
        ("matmul", x.matmul(&y.t()?).map(drop)),
        ("mv", x.mv(z).map(drop)),
        ("attention", x.attention(x, y, &Attention::new()).map(drop)),
        ("attention", x.attention(y, x, &Attention::new()).map(drop)),
        ("attention", x.attention(x, x, &masked).map(drop)),
        ("equal", x.equal(y).map(drop)),
        ("allclose", x.allclose(y, 0.0, 0.0).map(drop)),
        ("where_cond", x.where_cond(x, y).map(drop)),
        ("where_cond", x.where_cond(y, 0).map(drop)),
        ("masked_fill", x.masked_fill(y, 0.0).map(drop)),
        ("embedding", x.embedding(index).map(drop)),
        ("layer_norm", x.layer_norm(&[3], Some(z), None, 0.0).map(drop)),
        ("rms_norm", x.rms_norm(&[3], Some(z), 0.0).map(drop)),
        ("group_norm", x.group_norm(3, None, Some(z), 0.0).map(drop)),
        ("batch_norm", x.batch_norm(Some((z, z)), None, None, true, 0.1, 0.0).map(drop)),
        ("batch_norm", x.batch_norm(Some((z, z)), None, None, false, 0.1, 0.0).map(drop)),
        ("batch_norm_relu", x.batch_norm_relu(Some((z, z)), None, None, true, 0.1, 0.0).map(drop)),
        ("batch_norm_add_relu", x.batch_norm_add_relu(z, None, None, None, true, 0.1, 0.0).map(drop)),
        ("cross_entropy", x.cross_entropy(index).map(drop)),
        ("nll_loss", nn::nll_loss(x, index, Reduction::Mean).map(drop)),
        ("mse_loss", nn::mse_loss(x, y, Reduction::Mean).map(drop)),
        ("l1_loss", nn::l1_loss(x, y, Reduction::Mean).map(drop)),
        ("smooth_l1_loss", nn::smooth_l1_loss(x, y, 0.0, Reduction::Mean).map(drop)),
        ("huber_loss", nn::huber_loss(x, y, 1.0, Reduction::Mean).map(drop)),
        ("bce_with_logits", nn::bce_with_logits(x, y, None, Reduction::Mean).map(drop)),
        ("kl_div", nn::kl_div(x, y, Reduction::Mean).map(drop)),
    ];
    each!(calls, x, [add, sub, mul, div, div_trunc, div_floor, rem, fmod, pow, maximum, minimum, atan2](y));
    each!(calls, x, [eq, ne, lt, le, gt, ge, logical_and, logical_or, logical_xor](y));
    each!(calls, x, [add_, sub_, mul_, div_, copy_](y));
    each!(calls, vector, [dot, outer](z));
    each!(calls, x, [gather](0, rows));
    each!(calls, x, [index_select](0, index));
    each!(calls, x, [scatter, scatter_add](0, rows, x));
    each!(calls, x, [scatter, scatter_add](0, &rows.to(d)?, y));
    each!(calls, x, [index_add](0, index, x));
    each!(calls, x, [index_add](0, &index.to(d)?, y));
    each!(calls, image, [conv2d, conv_transpose2d](far, None, Conv::new()));
    each!(calls, image, [conv2d, conv_transpose2d](&far.to(d)?, Some(&z.i(..2)?), Conv::new()));
    each!(calls, line, [conv1d, conv_transpose1d](near, None, Conv::new()));
    Ok(calls)
}
