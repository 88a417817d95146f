//! Chains of elementwise ops, which adapters compute in one kernel after some repeats: the numbers are those of the single
//! kernels, whatever is kept, dropped or read in between.

use anygpu::ops::Conv;
use anygpu::testing::adapters;
use anygpu::{Device, Result, Tensor};

use crate::common::alone;

/// Runs of a chain after which it is one kernel.
pub const RUNS: usize = 4;

/// The same of a chain that begins with a product, on software adapters.
const RUNS_OF_PRODUCT: usize = 72;

fn bits(x: &Tensor) -> Result<Vec<u32>> {
    Ok(x.to_vec::<f32>()?.into_iter().map(f32::to_bits).collect())
}

/// Returns every second adapter, others for even and for odd numbers, or the only one: for cases of which each compiles kernels of
/// its own, which takes most of the time.
fn half_of_the_adapters(number: usize) -> Vec<Device> {
    let all = adapters();
    let first = if all.len() > 1 { number % 2 } else { 0 };
    all.into_iter().skip(first).step_by(2).collect()
}

/// Returns numbers of many sizes and signs, with zeros, infinities and NaN.
fn numbers(count: usize, device: &Device) -> Result<Tensor> {
    let special = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40, 1e30, -1.0];
    let number = |i: usize| if i % 11 == 3 { special[i / 11 % special.len()] } else { (i as f32 * 0.37).sin() * 3.0 };
    Tensor::from_vec((0..count).map(number).collect(), [count], device)
}

/// Returns two such tensors. The second one begins at a multiple of four.
pub fn operands(count: usize, device: &Device) -> Result<[Tensor; 2]> {
    Ok([numbers(count, device)?, numbers(count + 5, device)?.narrow(0, 4, count)?])
}

/// Runs `chain` several times on every adapter and compares the results: the first run is of single kernels, the last one is
/// fused. Returns the kernels of the first and the last run on each adapter.
fn compare(count: usize, chain: impl Fn(&Tensor, &Tensor) -> Result<Vec<Tensor>>) -> Result<Vec<[u64; 2]>> {
    compare_runs(RUNS, count, chain)
}

/// As `compare`, with so many runs.
fn compare_runs(
    times: usize,
    count: usize,
    chain: impl Fn(&Tensor, &Tensor) -> Result<Vec<Tensor>>,
) -> Result<Vec<[u64; 2]>> {
    compare_on(&adapters(), times, count, chain)
}

/// As `compare_runs`, on these adapters.
fn compare_on(
    adapters: &[Device],
    times: usize,
    count: usize,
    chain: impl Fn(&Tensor, &Tensor) -> Result<Vec<Tensor>>,
) -> Result<Vec<[u64; 2]>> {
    let mut kernels = Vec::new();
    for device in adapters {
        let [x, y] = operands(count, device)?;
        let mut runs = Vec::new();
        for _ in 0..times {
            device.synchronize()?;
            let before = device.dispatches();
            let results = chain(&x, &y)?;
            let after = device.dispatches();
            runs.push((results.iter().map(bits).collect::<Result<Vec<_>>>()?, after - before));
        }
        for (results, _) in &runs[1..] {
            assert_eq!(*results, runs[0].0, "{device}, {count} elements");
        }
        kernels.push([runs[0].1, runs[times - 1].1]);
    }
    Ok(kernels)
}

#[test]
fn a_chain_becomes_one_kernel_with_the_same_numbers() -> Result<()> {
    let _alone = alone();
    for count in [1, 3, 4, 31, 1000, 100_003] {
        let kernels = compare(count, |x, y| {
            let scaled = x.mul(y)?.add(y)?.mul_scalar(0.1)?;
            Ok(vec![scaled.tanh()?.add(x)?.relu()?])
        })?;
        // The later sizes use the kernel of the first one, once there is memory for the chain.
        let first = |first| count > 1 || first == 6;
        assert!(kernels.iter().all(|&[before, after]| first(before) && after == 1), "{count}: {kernels:?}");
    }
    Ok(())
}

#[test]
fn results_that_are_held_are_written() -> Result<()> {
    let _alone = alone();
    let kernels = compare(777, |x, y| {
        let a = x.add(y)?;
        let b = a.square()?;
        let c = b.sub(&a)?.exp()?;
        Ok(vec![c, a, b])
    })?;
    assert!(kernels.iter().all(|&[first, last]| first == 4 && last == 1), "{kernels:?}");
    Ok(())
}

#[test]
fn rows_are_repeated() -> Result<()> {
    let _alone = alone();
    let kernels = compare(60, |x, y| {
        let (x, row) = (x.reshape([5, 12])?, y.narrow(0, 8, 12)?);
        let flat = row.reshape([1, 12])?.sub(&x.mul(&row)?)?.relu()?;
        Ok(vec![flat])
    })?;
    assert!(kernels.iter().all(|&[first, last]| first == 3 && last == 1), "{kernels:?}");
    compare(35, |x, y| Ok(vec![x.reshape([5, 7])?.mul(&y.narrow(0, 0, 7)?)?.relu()?]))?; // no whole vectors
    Ok(())
}

#[test]
fn numbers_on_either_side_and_arguments_are_those_of_each_step() -> Result<()> {
    let _alone = alone();
    compare(130, |x, y| {
        let a = x.clamp(Some(-1.0), Some(0.5))?.leaky_relu(0.3)?;
        let b = (2.0 - a)?.leaky_relu(0.7)?.clamp(Some(-0.25), Some(8.0))?;
        Ok(vec![b.pow(3.0)?.maximum(y)?.div(x)?])
    })?;
    Ok(())
}

/// In such a chain, Mesa 22.3 had returned wrong bits for asinh, on processors with AVX-512.
#[test]
fn functions_that_move_a_sign_do_so_in_a_chain() -> Result<()> {
    let _alone = alone();
    let functions = [Tensor::asin, Tensor::atan, Tensor::sinh, Tensor::asinh, Tensor::tanh, Tensor::atanh, Tensor::erf];
    for function in functions {
        compare_on(&half_of_the_adapters(0), RUNS, 81, |x, y| {
            let sum = x.add(&y.mul(0.25)?)?;
            let value = function(&sum)?;
            let twice = value.mul(2.0)?;
            Ok(vec![sum, value, twice])
        })?;
    }
    Ok(())
}

/// Compilers make 0 of x − x, and 1 of x ÷ x, for any x that they see twice: also where it is infinite or NaN.
#[test]
fn an_operand_that_is_read_twice_may_be_no_number() -> Result<()> {
    let _alone = alone();
    compare(81, |x, y| {
        let sum = x.add(y)?;
        let (nothing, one) = (sum.sub(&sum)?, x.div(x)?);
        Ok(vec![nothing.relu()?, one.add(&nothing)?])
    })?;
    Ok(())
}

/// The same for two steps that compute the same.
#[test]
fn results_that_are_equal_may_be_no_numbers() -> Result<()> {
    let _alone = alone();
    compare(81, |x, y| {
        let sum = x.add(y)?;
        let nothing = sum.neg()?.sub(&sum.neg()?)?;
        let one = sum.exp()?.div(&sum.exp()?)?;
        Ok(vec![nothing, one, x.mul(y)?.sub(&y.mul(x)?)?])
    })?;
    Ok(())
}

/// The product of the operands is finite, and twice one of them is not.
#[test]
fn operations_are_not_merged_past_a_step_that_returns_its_operand() -> Result<()> {
    let _alone = alone();
    compare(8, |x, _| {
        let (large, small) = (Tensor::new([3e38f32; 8], x.device())?, Tensor::new([1e-8f32; 8], x.device())?);
        let mut results = Vec::new();
        for (a, b) in [(&large, &small), (&small, &large)] {
            let product = a.mul(b)?;
            let same = product.maximum(&product)?;
            results.extend([same.add(&same)?, product]);
        }
        Ok(results)
    })?;
    Ok(())
}

/// A result that nothing reads is computed nevertheless, so that loops that measure an op measure it.
#[test]
fn results_that_are_dropped_unread_are_computed() -> Result<()> {
    let _alone = alone();
    let kernels = compare(64, |x, y| {
        x.exp()?;
        let a = x.add(y)?;
        a.exp()?;
        a.relu()?;
        Ok(vec![a])
    })?;
    // x.exp() is no part of the chain of a; the three of that chain are one kernel.
    assert!(kernels.iter().all(|&[first, last]| first == 4 && last == 2), "{kernels:?}");
    Ok(())
}

/// Writes in place, copies and reads come after the chain that was asked for before them.
#[test]
fn other_work_keeps_its_place() -> Result<()> {
    let _alone = alone();
    compare(500, |x, y| {
        let a = x.copy()?;
        let b = a.add(y)?.mul_scalar(2.0)?;
        a.zero_()?;
        let c = a.add(y)?.relu()?;
        let sum = c.masked_fill(&c.isnan()?, 0.0)?.sum_all()?;
        let half = b.narrow(0, 250, 250)?.neg()?.abs()?;
        let row = c.reshape([2, 250])?.t()?.contiguous()?;
        Ok(vec![a, b, c, sum, half, row])
    })?;
    Ok(())
}

/// More steps, inputs and results than one kernel takes.
#[test]
fn long_and_wide_chains_are_cut() -> Result<()> {
    let _alone = alone();
    let kernels = compare(40, |x, y| {
        let mut sum = x.clone();
        for _ in 0..300 {
            sum = sum.add(y)?;
        }
        Ok(vec![sum])
    })?;
    assert!(kernels.iter().all(|&[first, last]| first > 200 && last == 3), "{kernels:?}");
    compare(40, |x, y| {
        let others: Vec<Tensor> = (0..40).map(|i| y.add_scalar(i as f32)).collect::<Result<_>>()?;
        let mut all = vec![x.clone()];
        for other in &others {
            all.push(all[all.len() - 1].add(other)?);
        }
        Ok(all)
    })?;
    Ok(())
}

#[test]
fn gradients_are_the_same() -> Result<()> {
    let _alone = alone();
    compare(300, |x, y| {
        let finite = |x: &Tensor| x.masked_fill(&x.isfinite()?.logical_not()?, 0.5)?.clamp(Some(-2.0), Some(2.0));
        let (x, y) = (finite(x)?.requires_grad(), finite(y)?.requires_grad());
        let loss = x.mul(&y)?.tanh()?.mul(&x)?.relu()?.sum_all()?;
        loss.backward()?;
        Ok([Some(loss.detach()), x.grad(), y.grad()].into_iter().flatten().collect())
    })?;
    Ok(())
}

/// Returns finite numbers of a shape from some of `numbers`.
fn finite(x: &Tensor, shape: &[usize]) -> Result<Tensor> {
    let count = shape.iter().product();
    x.masked_fill(&x.isfinite()?.logical_not()?, 0.5)?.clamp(Some(-2.0), Some(2.0))?.narrow(0, 0, count)?.reshape(shape)
}

/// A product that reads its operands where they are is one kernel.
#[test]
fn a_product_with_a_bias_and_relu_is_one_kernel() -> Result<()> {
    let _alone = alone();
    let kernels = compare_runs(RUNS_OF_PRODUCT, 4000, |x, y| {
        let (a, b) = (x.narrow(0, 0, 2600)?.reshape([130, 20])?, y.narrow(0, 0, 80)?.reshape([20, 4])?);
        Ok(vec![a.matmul(&b)?.add(&y.narrow(0, 80, 4)?)?.relu()?])
    })?;
    assert!(kernels.iter().all(|&[_, last]| last == 1), "{kernels:?}");
    Ok(())
}

/// Products of all kinds: tiles, few rows or columns, transposed and batched operands.
#[test]
fn what_follows_a_product_becomes_a_part_of_it() -> Result<()> {
    let _alone = alone();
    for (i, [m, k, n]) in [[70, 33, 132], [3, 40, 64], [130, 20, 4], [9, 1, 8]].into_iter().enumerate() {
        compare_on(&half_of_the_adapters(i), RUNS_OF_PRODUCT, 20_000, |x, y| {
            let (a, b) = (finite(x, &[m, k])?, finite(y, &[k, n])?);
            let (row, other) = (finite(y, &[n])?, finite(x, &[m, n])?);
            let linear = a.matmul(&b)?.add(&row)?.relu()?;
            let scaled = a.matmul(&b)?.mul_scalar(0.5)?;
            Ok(vec![linear, scaled.add(&other)?, scaled])
        })?;
    }
    compare_runs(RUNS_OF_PRODUCT, 20_000, |x, y| {
        let (a, b) = (finite(x, &[3, 20, 30])?, finite(y, &[3, 44, 20])?);
        let (plane, all) = (finite(x, &[44, 30])?, finite(x, &[2, 3, 44, 30])?);
        let product = b.matmul(&a)?; // is read twice, and by results of other sizes
        let one = product.mul(&product)?.sub(&product)?;
        let turned = a.transpose(1, 2)?.matmul(&b.transpose(1, 2)?)?.neg()?.add_scalar(3.0)?;
        let heavy = b.matmul(&a)?.add_scalar(0.1)?.gelu()?.tanh()?;
        Ok(vec![one, product.add(&plane)?, product.add(&all)?, turned, heavy])
    })?;
    Ok(())
}

/// A sum of many products is split, and a result without elements has no kernel.
#[test]
fn products_that_are_split_or_empty_take_nothing() -> Result<()> {
    let _alone = alone();
    compare_runs(RUNS_OF_PRODUCT, 50_000, |x, y| {
        let long = finite(x, &[2, 20_000])?.matmul(&finite(y, &[20_000, 2])?)?.reshape([4])?.add_scalar(1.0)?.relu()?;
        let deep = finite(x, &[1, 45_000])?.matmul(&finite(y, &[45_000, 1])?)?.neg()?.abs()?;
        let none = finite(x, &[5, 0])?.matmul(&finite(y, &[0, 8])?)?.add_scalar(2.0)?.relu()?;
        let empty = finite(x, &[0, 5])?.matmul(&finite(y, &[5, 8])?)?.add_scalar(2.0)?.relu()?;
        Ok(vec![long, deep, none, empty])
    })?;
    Ok(())
}

#[test]
fn what_follows_a_convolution_becomes_a_part_of_it() -> Result<()> {
    let _alone = alone();
    let conv = Conv::<2>::new().padding(1);
    let cases = [(4, [16, 12], 1), (5, [3, 20], 1), (2, [8, 8], 8), (4, [12, 8], 2)];
    for (i, (images, [from, to], groups)) in cases.into_iter().enumerate() {
        compare_on(&half_of_the_adapters(i), RUNS_OF_PRODUCT, 20_000, |x, y| {
            let input = finite(x, &[images, from, 9, 7])?.requires_grad();
            let weight = finite(y, &[to, from / groups, 3, 3])?.requires_grad();
            let bias = finite(y, &[to])?.requires_grad();
            let out = input.neg()?.conv2d(&weight, Some(&bias), conv.groups(groups))?;
            let other = finite(x, &[images, to, 9, 7])?;
            let y = out.add(&other)?.relu()?;
            y.mul(&y)?.sum_all()?.backward()?;
            let grads = [input.grad(), weight.grad(), bias.grad()];
            Ok([y.detach(), out.detach()].into_iter().chain(grads.into_iter().flatten()).collect())
        })?;
    }
    Ok(())
}

/// The numbers of formulas come after the params of the convolution, of which Winograd's tiles have nine, and begin at a multiple
/// of four words.
#[test]
fn numbers_of_formulas_come_after_the_params_of_a_convolution() -> Result<()> {
    let _alone = alone();
    let conv = Conv::<2>::new().padding(1);
    let kernels = compare_runs(RUNS_OF_PRODUCT, 20_000, |x, y| {
        let (input, weight) = (finite(x, &[4, 16, 16, 16])?, finite(y, &[16, 16, 3, 3])?);
        let out = input.conv2d(&weight, None, conv)?.mul_scalar(0.7)?;
        Ok(vec![out.add_scalar(0.3)?])
    })?;
    assert!(kernels.iter().all(|[before, after]| after < before), "{kernels:?}");
    Ok(())
}

/// Batch norm by given statistics follows a convolution in its kernel, with relu and a residual, and is a step of a chain.
#[test]
fn batch_norm_with_given_statistics_is_a_part_of_the_convolution() -> Result<()> {
    let _alone = alone();
    let conv = Conv::<2>::new().padding(1);
    compare_runs(RUNS_OF_PRODUCT, 20_000, |x, y| {
        let (input, weight) = (finite(x, &[4, 6, 8, 10])?, finite(y, &[8, 6, 3, 3])?);
        let [mean, variance, w, b] = [1, 2, 3, 4].map(|i| finite(&y.narrow(0, 8 * i, 100)?, &[8]));
        let (mean, variance, w, b) = (mean?, variance?.square()?, w?, b?);
        let running = Some((&mean, &variance));
        let out = input.conv2d(&weight, None, conv)?;
        let plain = out.batch_norm(running, Some(&w), Some(&b), false, 0.1, 1e-5)?;
        let again = input.neg()?.conv2d(&weight, Some(&w), conv)?;
        let relu = again.batch_norm_relu(running, Some(&w), Some(&b), false, 0.1, 1e-5)?;
        let third = input.abs()?.conv2d(&weight, None, conv)?;
        let block = third.batch_norm_add_relu(&relu, running, Some(&w), Some(&b), false, 0.1, 1e-5)?;
        let chain = block.add(&relu)?.batch_norm(running, Some(&w), Some(&b), false, 0.1, 1e-5)?.mul_scalar(0.3)?;
        Ok(vec![plain, relu, block, chain])
    })?;
    Ok(())
}

/// Threads that share a device break each other's chains, and nothing else.
#[test]
fn threads_share_a_device() -> Result<()> {
    let _alone = alone();
    for device in &adapters() {
        std::thread::scope(|scope| {
            let one = |seed: f32| {
                for _ in 0..50 {
                    let x = Tensor::full([64], seed, device)?;
                    let y = x.add_scalar(1.0)?.mul_scalar(2.0)?.sub(&x)?;
                    assert_eq!(y.to_vec::<f32>()?, vec![(seed + 1.0) * 2.0 - seed; 64], "{device}");
                }
                Ok::<(), anygpu::Error>(())
            };
            let threads: Vec<_> = (0..4).map(|i| scope.spawn(move || one(i as f32))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().unwrap())
        })?;
    }
    Ok(())
}
