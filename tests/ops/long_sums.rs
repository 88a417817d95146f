//! Sums of many terms on `cpu`, compared with f64. A single running f32 sum would be off by about 1e-4.

use anygpu::{Conv, Interpolation, Padding, Pool, Result, Tensor};

/// Numbers around 0.1, so that sums grow.
fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| 0.1 + (i * 7919 % 1000) as f32 * 1e-5).collect()
}

fn tensor(shape: &[usize]) -> Result<Tensor> {
    Tensor::from_vec(numbers(shape.iter().product()), shape, None)
}

fn total(values: impl IntoIterator<Item = f32>) -> f64 {
    values.into_iter().map(f64::from).sum()
}

#[track_caller]
fn assert_near(what: &str, got: f32, expected: f64) {
    let off = (f64::from(got) / expected - 1.0).abs();
    assert!(off < 1e-6, "{what}: {got}, not {expected}, off by {off:e}");
}

/// The gradient of `g · f(x)`, where g are the numbers.
fn gradient(x: &Tensor, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Vec<f32>> {
    let x = x.detach().requires_grad();
    let y = f(&x)?;
    y.mul(&tensor(y.shape())?)?.sum_all()?.backward()?;
    x.grad().expect("a gradient").to_vec()
}

#[test]
fn softmax_of_many_classes() -> Result<()> {
    for count in [50_257, 1_000_000] {
        let scores: Vec<f32> = (0..count).map(|i| (i * 7919 % 8191) as f32 * 1e-3 - 4.0).collect();
        let sum: f64 = scores.iter().map(|&v| f64::from(v).exp()).sum();
        for shape in [[1, count], [count, 1]] {
            let both = Tensor::from_slice(&scores, shape, None)?.broadcast_to(if shape[0] == 1 {
                [3, count]
            } else {
                [count, 3]
            })?;
            let dim = usize::from(shape[0] == 1);
            let (p, log) = (both.softmax(dim)?, both.log_softmax(dim)?);
            let part = |t: &Tensor| t.narrow(1 - dim, 1, 1)?.to_vec::<f32>();
            for (i, (p, log)) in part(&p)?.into_iter().zip(part(&log)?).enumerate() {
                assert_near("softmax", p, f64::from(scores[i]).exp() / sum);
                assert_near("log_softmax", log, f64::from(scores[i]) - sum.ln());
            }
        }
    }
    Ok(())
}

#[test]
fn reductions_and_products() -> Result<()> {
    let x = tensor(&[2_000_000, 2])?;
    let sums = x.sum([0], false)?.to_vec::<f32>()?;
    assert_near("sum", sums[1], total(numbers(4_000_000).into_iter().skip(1).step_by(2)));
    let x = tensor(&[1_000_000])?;
    let squares: f64 = numbers(1_000_000).iter().map(|&v| f64::from(v).powi(2)).sum();
    assert_near("dot", x.dot(&x)?.item()?, squares);
    Ok(())
}

#[test]
fn pools_with_large_windows() -> Result<()> {
    let x = tensor(&[1, 1, 600_000])?;
    let half = total(numbers(300_000)) / 3e5;
    assert_near("adaptive", x.adaptive_avg_pool1d(2)?.to_vec::<f32>()?[0], half);
    assert_near("average", x.avg_pool1d(Pool::new(300_000))?.to_vec::<f32>()?[0], half);
    // Each pixel is in 300 000 parts, and in 3000 windows; the largest in as many.
    let thirds = gradient(&tensor(&[1, 1, 3])?, |x| x.adaptive_avg_pool1d(900_000))?;
    assert_near("adaptive gradient", thirds[1], total(numbers(900_000).into_iter().skip(300_000).take(300_000)));
    let windows = gradient(&tensor(&[1, 1, 6000])?, |x| x.avg_pool1d(Pool::new(3000).stride(1)))?;
    assert_near("average gradient", windows[2999], total(numbers(3000)) / 3e3);
    let mut peak = vec![0f32; 6000];
    peak[2999] = 1.0;
    let x = Tensor::from_vec(peak, [1, 1, 6000], None)?;
    assert_near("max gradient", gradient(&x, |x| x.max_pool1d(Pool::new(3000).stride(1)))?[2999], total(numbers(3000)));
    Ok(())
}

#[test]
fn sums_by_index() -> Result<()> {
    let count = 600_000;
    let index: Vec<u32> = (0..count).map(|i| if i % 1000 == 7 { 2 } else { 1 }).collect();
    let index = Tensor::from_vec(index, count, None)?;
    let values = numbers(count);
    let expected = |r: u32| {
        let of_r = (0..count).filter(|i| u32::from(i % 1000 == 7) + 1 == r);
        0.5 + total(of_r.map(|i| values[i]))
    };
    let base = Tensor::full([4], 0.5f32, None)?;
    for (what, out) in [
        ("index_add", base.index_add(0, &index, &tensor(&[count])?)?),
        ("scatter_add", base.scatter_add(0, &index, &tensor(&[count])?)?),
    ] {
        let out = out.to_vec::<f32>()?;
        assert_eq!([out[0], out[3]], [0.5; 2], "{what}");
        assert_near(what, out[1], expected(1));
        assert_near(what, out[2], expected(2));
    }
    // Rows of two elements, and two sets of indices beside each other: each with its own sums.
    let rows = tensor(&[count, 1])?.broadcast_to([count, 2])?;
    let both = index.unsqueeze(1)?.broadcast_to([count, 2])?.contiguous()?;
    let base = Tensor::full([3, 2], 0.5f32, None)?;
    for out in [base.index_add(0, &index, &rows)?, base.scatter_add(0, &both, &rows)?] {
        let out = out.to_vec::<f32>()?;
        assert_eq!((out[0], out[2], out[4]), (0.5, out[3], out[5]));
        assert_near("rows", out[2], expected(1));
        assert_near("rows", out[4], expected(2));
    }
    Ok(())
}

#[test]
fn edges_and_pixels_that_stand_for_many() -> Result<()> {
    let edges = gradient(&tensor(&[2])?, |x| x.pad(&[(500_000, 0)], Padding::Replicate))?;
    assert_near("pad", edges[0], total(numbers(500_001)));
    let nearest = gradient(&tensor(&[1, 1, 1, 2])?, |x| x.interpolate([1, 1_000_000], Interpolation::Nearest))?;
    assert_near("nearest", nearest[0], total(numbers(500_000)));
    let linear = Interpolation::Linear { align_corners: false };
    let linear = gradient(&tensor(&[1, 1, 1, 1])?, |x| x.interpolate([1, 1_000_000], linear))?;
    assert_near("linear", linear[0], total(numbers(1_000_000)));
    Ok(())
}

#[test]
fn convolutions_over_many_pixels() -> Result<()> {
    // Depthwise: the weight's gradient is a sum over all images and pixels.
    let (x, w) = (Tensor::ones([200, 2, 50, 50], None)?, tensor(&[2, 1, 1, 1])?);
    let dw = gradient(&w, |w| x.conv2d(w, None, Conv::new().groups(2)))?;
    let own = numbers(200 * 2 * 2500).chunks(2500).step_by(2).flatten().copied().collect::<Vec<_>>();
    assert_near("weight gradient", dw[0], total(own));
    // Kernels of a thousand elements, one channel and in groups; forward and both gradients.
    for groups in [1, 2] {
        let (x, w) = (Tensor::ones([1, groups, 1, 2000], None)?, tensor(&[groups, 1, 1, 1000])?);
        let conv = Conv::new().groups(groups);
        assert_near("forward", x.conv2d(&w, None, conv)?.to_vec::<f32>()?[5], total(numbers(1000)));
        let g = numbers(1001);
        let dx = gradient(&x, |x| x.conv2d(&Tensor::ones(w.shape(), None)?, None, conv))?;
        assert_near("input gradient", dx[999], total(g[..1000].iter().copied()));
    }
    Ok(())
}
