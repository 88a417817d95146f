//! Absurd sizes: every function that takes sizes returns a result or an error. It never panics, overflows (which panics
//! in debug builds and in those of `.ci/run`), or allocates more memory than the machine has.

use anygpu::nn::{self, Module};
use anygpu::{Conv, ConvPadding, DType, Interpolation, Padding, Pool, Result, Tensor};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::common::property;

/// A size of a tensor: small, or so large that no memory holds it.
fn size() -> impl Strategy<Value = usize> {
    let large =
        [1 << 45, (1 << 45) + 1, 1 << 61, (1 << 62) - 1, 1 << 63, usize::MAX / 3 + 1, usize::MAX - 1, usize::MAX];
    prop_oneof![4 => 0..5usize, 1 => prop::sample::select(large.to_vec())]
}

/// A number of which no tensor has as many elements: a stride, a position.
fn number() -> impl Strategy<Value = usize> {
    prop_oneof![3 => size(), 1 => prop::sample::select(vec![1 << 20, 1 << 30, (1 << 30) + 1, 1 << 31, u32::MAX as usize])]
}

fn shape(rank: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Vec<usize>> {
    vec(size(), rank)
}

/// A tensor that exists: of small sizes, maybe stretched without a copy.
fn tensor(rank: usize) -> impl Strategy<Value = Tensor> {
    (vec(0..4usize, rank), vec(any::<bool>(), rank)).prop_map(|(shape, leaf)| {
        let x = Tensor::full(shape, 1.5f32, None).expect("room for a few elements");
        if leaf.first() == Some(&true) { x.requires_grad() } else { x }
    })
}

/// Follows a result back: gradients have sizes too.
fn differentiate(y: Result<Tensor>) {
    if let Ok(y) = y
        && y.elem_count() < 1 << 20
    {
        let _ = y.sum_all().and_then(|sum| sum.backward());
    }
}

proptest! {
    #![proptest_config(property(512))]

    #[test]
    fn creation(shape in shape(0..=5), n in size(), [a, b, c] in prop::array::uniform3(any::<f32>())) {
        let _ = (Tensor::zeros(&shape, None), Tensor::full(&shape, 1u8, None), Tensor::from_slice(&[1.0f32], &shape, None));
        let _ = (Tensor::rand(&shape, None), Tensor::randn(&shape, None), Tensor::randint(0, 9, &shape, None));
        let _ = (Tensor::uniform(0.0, 1.0, &shape, None), Tensor::bernoulli(0.5, &shape, None));
        let _ = (Tensor::normal(0.0, 1.0, &shape, None), Tensor::from_vec(vec![true; 3], &shape, None));
        let _ = (Tensor::eye(n, None), Tensor::iota(n, None), Tensor::randperm(n, None));
        // Steps that make few elements, or more than there can be.
        let count = ((f64::from(b) - f64::from(a)) / f64::from(c)).abs();
        if !(1e6..1e14).contains(&count) {
            let _ = Tensor::arange(a, b, c, None);
        }
    }

    #[test]
    fn views(x in tensor(3), to in shape(0..=5), [a, b, c] in prop::array::uniform3(size()), dim in 0..4usize, by in any::<i64>()) {
        let stretched = x.broadcast_to(&to).and_then(|_| x.unsqueeze(0)?.broadcast_to([&[a][..], x.shape()].concat()));
        for x in [Ok(x), stretched].into_iter().flatten() {
            let _ = (x.reshape(&to), x.expand(&to), x.repeat(&to), x.flatten(dim), x.squeeze(dim), x.unsqueeze(a));
            let _ = (x.narrow(dim, a, b), x.slice(dim, a, b, c), x.select(dim, a), x.movedim(dim, a), x.transpose(dim, a));
            let _ = (x.diagonal(by, dim, 0), x.roll(by, dim), x.tril(by), x.triu(by), x.flip([dim]));
            let _ = (x.i(a), x.i(anygpu::s![..;b]), x.i(anygpu::s![a..b, ..;c]), x.i(by));
            let _ = (x.split_sizes(&[a, b, c], dim), x.chunk(b.min(5), dim));
            let _ = (Tensor::cat(&[&x, &x, &x], dim), Tensor::stack(&[&x, &x], dim));
            if x.shape().get(dim).is_some_and(|&size| size < 100) {
                let _ = x.split(a, dim);
            }
            if let Ok(line) = x.flatten(0) {
                let _ = line.diag(by);
            }
            differentiate(x.pad(&[(a, b)], Padding::Constant(1.0)));
        }
    }

    #[test]
    fn padding(x in tensor(3), margins in vec((size(), size()), 0..4), kind in 0..4usize) {
        let kind = [Padding::Constant(2.0), Padding::Reflect, Padding::Replicate, Padding::Circular][kind];
        differentiate(x.pad(&margins, kind));
        if let Ok(bytes) = x.detach().to_dtype(DType::U8) {
            let _ = bytes.pad(&margins, kind);
        }
    }

    #[test]
    fn convolutions(
        x in tensor(4), w in tensor(4), [stride, padding, dilation] in prop::array::uniform3([number(), number()]),
        extra in [number(), number()], groups in prop_oneof![3 => 1..4usize, 1 => number()], easy in vec(any::<bool>(), 4),
    ) {
        let mut conv = Conv::new().groups(groups);
        conv = if easy[0] { conv } else { conv.stride(stride) };
        conv = if easy[1] { conv } else { conv.padding(padding) };
        conv = if easy[2] { conv } else { conv.dilation(dilation) };
        differentiate(x.conv2d(&w, None, conv));
        conv = if easy[3] { conv } else { conv.output_padding(extra) };
        differentiate(x.conv_transpose2d(&w, None, conv));
    }

    #[test]
    fn pools(
        x in tensor(4), [kernel, stride, padding, dilation] in prop::array::uniform4([number(), number()]),
        easy in vec(any::<bool>(), 5), out in [size(), size()],
    ) {
        let mut pool = Pool::new(if easy[0] { [2, 1] } else { kernel });
        pool = if easy[1] { pool } else { pool.stride(stride) };
        pool = if easy[2] { pool } else { pool.padding(padding) };
        pool = if easy[3] { pool } else { pool.dilation(dilation) };
        pool = pool.ceil_mode(easy[4]);
        differentiate(x.max_pool2d(pool));
        differentiate(x.avg_pool2d(pool));
        differentiate(x.adaptive_avg_pool2d(out));
        differentiate(x.adaptive_max_pool2d(out));
        for mode in [Interpolation::Nearest, Interpolation::NearestExact, Interpolation::Linear { align_corners: easy[0] }] {
            differentiate(x.interpolate(out, mode));
        }
        let _ = nn::Upsample::new(out[0]).forward(&x);
    }

    #[test]
    fn volumes(
        x in tensor(5), w in tensor(5), each in prop::array::uniform3([number(), number()]), stride in number(),
        extra in number(), easy in vec(any::<bool>(), 3), out in size(),
    ) {
        let mut conv = Conv::new();
        conv = if easy[0] { conv } else { conv.stride(stride) };
        conv = if easy[1] { conv.padding(ConvPadding::Same) } else { conv.padding(each) };
        conv = if easy[2] { conv } else { conv.dilation(extra) };
        differentiate(x.conv3d(&w, None, conv));
        differentiate(x.conv_transpose3d(&w, None, conv.padding(if easy[1] { [[0; 2]; 3] } else { each })));
        differentiate(x.conv_transpose3d(&w, None, conv.padding(extra).output_padding(extra)));
        let mut pool = Pool::new(if easy[0] { [2, 1, 1] } else { [extra, 2, out] });
        pool = if easy[1] { pool } else { pool.stride(stride).padding(extra) };
        differentiate(x.max_pool3d(pool.dilation(each[0][0])));
        differentiate(x.avg_pool3d(pool.ceil_mode(easy[2])));
        differentiate(x.adaptive_avg_pool3d(out));
    }

    #[test]
    fn normalisations(x in tensor(3), groups in number(), normalized in shape(0..=3), c in 0..4usize) {
        let weight = Tensor::ones([c], None).unwrap().requires_grad();
        differentiate(x.group_norm(groups, Some(&weight), Some(&weight), 1e-5));
        differentiate(x.layer_norm(&normalized, None, None, 1e-5));
        differentiate(x.rms_norm(&normalized, None, 1e-5));
        let end = &x.shape()[x.rank() - c.min(x.rank())..];
        let weight = Tensor::ones(end, None).unwrap().requires_grad();
        differentiate(x.layer_norm(end, Some(&weight), Some(&weight), 1e-5));
        for training in [false, true] {
            differentiate(x.batch_norm(None, Some(&weight), None, training, 0.1, 1e-5));
        }
    }

    #[test]
    fn indices(count in 0..4usize, classes in size(), k in number(), x in tensor(2), dim in 0..3usize) {
        let index = Tensor::full([count], 0u32, None).unwrap();
        let _ = (index.one_hot(classes), x.topk(k, dim, true, true), x.index_select(dim, &index));
        differentiate(x.embedding(&index));
    }

    #[test]
    fn layers([a, b, c] in prop::array::uniform3(size()), [k, l] in [size(), size()], groups in number(), stride in number()) {
        let _ = (nn::Linear::new(a, b), nn::Embedding::new(a, b), nn::MultiheadAttention::new(a, groups));
        let _ = (nn::Conv2d::new(a, b, [k, l]).and_then(|conv| conv.groups(groups)), nn::Conv1d::new(a, b, k));
        let _ = nn::ConvTranspose2d::new(a, b, [k, l]).and_then(|conv| conv.groups(groups));
        let _ = (nn::Conv3d::new(a, b, [k, l, 1]), nn::ConvTranspose3d::new(a, b, [k, l, 1]), nn::PReLU::new(a));
        let _ = (nn::LSTM::new(a, b).and_then(|lstm| lstm.bidirectional()), nn::GRU::new(a, b), nn::GRUCell::new(a, b));
        let _ = nn::Embedding::new(a, b).and_then(|table| table.padding_idx(k));
        let _ = nn::TransformerEncoderLayer::new(a, groups).and_then(|layer| layer.dim_feedforward(b));
        let _ = (nn::LayerNorm::new([a, b, c]), nn::RMSNorm::new([a, b, c]), nn::GroupNorm::new(groups, a), nn::BatchNorm2d::new(a));
        let _ = (nn::models::mlp(&[a, b, c]), nn::models::BasicBlock::new(a.min(usize::MAX - 1), 0, stride));
    }
}

/// A padding that is much larger than the image takes no memory. Of the windows, at most one reads a pixel.
#[test]
fn convolutions_with_more_padding_than_image() -> Result<()> {
    let kernels = |stride: usize, padding: usize| Conv::new().stride(stride).padding(padding);
    // The sizes of x, the kernel, the options, the result's size, the window that reads a pixel, and this pixel.
    let cases = [
        ([3, 4, 2, 2], 1, kernels(1 << 30, (1 << 30) - 1), 2, Some((3, 3))),
        ([2, 1, 8, 8], 1, kernels(50_000, 50_000), 3, Some((4, 0))),
        ([1, 2, 3, 3], 2, Conv::new().padding(1 << 29).dilation((1 << 30) - 1), 4, None),
    ];
    for ([n, channels, size, _], kernel, conv, out, reads) in cases {
        let (plane, pixels) = (size * size, out * out);
        let x = Tensor::arange(0.0, (n * channels * plane) as f32, 1.0, None)?;
        let x = x.reshape([n, channels, size, size])?.requires_grad();
        let w = Tensor::ones([1, channels, kernel, kernel], None)?.requires_grad();
        let bias = Tensor::full([1], 0.5f32, None)?;
        let y = x.conv2d(&w, Some(&bias), conv)?;
        y.sum_all()?.backward()?;
        let (mut results, mut dx, mut dw) =
            (vec![0.5; n * pixels], vec![0.0; n * channels * plane], vec![0.0; channels]);
        for (i, c) in (0..n).flat_map(|i| (0..channels).map(move |c| (i, c))) {
            let Some((window, pixel)) = reads else { continue };
            let pixel = (i * channels + c) * plane + pixel;
            results[i * pixels + window] += pixel as f32;
            dx[pixel] = 1.0;
            dw[c] += pixel as f32;
        }
        dw.resize(channels * kernel * kernel, 0.0);
        assert_eq!(y.to_vec::<f32>()?, results, "{conv:?}");
        assert_eq!(x.grad().expect("a gradient").to_vec::<f32>()?, dx, "{conv:?}");
        assert_eq!(w.grad().expect("a gradient").to_vec::<f32>()?, dw, "{conv:?}");
    }
    Ok(())
}

/// Nor does it in the gradient of a weight of several positions.
#[test]
fn gradients_of_weights_with_more_padding_than_image() -> Result<()> {
    // The channels, the size of the image, the options, and whether the last position reads the first pixel, in one window.
    let far = 40_000_001;
    let cases = [
        (8, 8, Conv::new().stride(10_000_000).padding(far), true),
        (1, 10, Conv::new().padding(1 << 29).dilation((1 << 30) - 1), false),
    ];
    for (channels, size, conv, reads) in cases {
        let x = Tensor::arange(1.0, (channels * size * size + 1) as f32, 1.0, None)?;
        let x = x.reshape([1, channels, size, size])?;
        let w = Tensor::ones([1, channels, 2, 2], None)?.requires_grad();
        x.conv2d(&w, None, conv)?.sum_all()?.backward()?;
        let mut dw = vec![0.0; channels * 4];
        for c in (0..channels).filter(|_| reads) {
            dw[c * 4 + 3] = (c * size * size + 1) as f32;
        }
        assert_eq!(w.grad().expect("a gradient").to_vec::<f32>()?, dw, "{conv:?}");
    }
    Ok(())
}
