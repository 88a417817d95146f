//! Matrix products with few rows or columns, and long ones: exact values, and memory of at most the operands, the result and a
//! tenth of both. Convolutions of many images with wide paddings.

use std::array;

use anygpu::nn::{Linear, Module};
use anygpu::{Conv, Device, Result, Tensor};

use crate::common::{adapters_of_shape, alone};

/// The elements repeat after so many.
const PERIOD: usize = 35;

/// Small whole numbers, whose sums are exact in f32.
fn left(row: usize, k: usize) -> i64 {
    ((row + k) % 5) as i64 - 2
}

fn right(k: usize, column: usize) -> i64 {
    ((3 * column + k) % 7) as i64 - 3
}

/// `Σ left · right` over all k, from whole periods and a rest.
fn element(row: usize, column: usize, k: usize) -> f32 {
    let sum = |range: std::ops::Range<usize>| range.map(|k| left(row, k) * right(k, column)).sum::<i64>();
    (sum(0..PERIOD) * (k / PERIOD) as i64 + sum(0..k % PERIOD)) as f32
}

/// The product of two matrices. It repeats its elements after five rows and after seven columns.
fn exact([m, k, n]: [usize; 3]) -> Vec<f32> {
    let few: [[f32; 7]; 5] = array::from_fn(|row| array::from_fn(|column| element(row, column, k)));
    (0..m * n).map(|i| few[i / n % 5][i % n % 7]).collect()
}

/// `[m, k]` and `[k, n]`.
fn operands([m, k, n]: [usize; 3], device: &Device) -> Result<[Tensor; 2]> {
    let a: Vec<f32> = (0..m * k).map(|i| left(i / k, i % k) as f32).collect();
    let b: Vec<f32> = (0..k * n).map(|i| right(i / n, i % n) as f32).collect();
    Ok([Tensor::from_vec(a, [m, k], device)?, Tensor::from_vec(b, [k, n], device)?])
}

/// The result of `f`, and the bytes that it took beside what was live before.
fn measured(device: &Device, f: impl FnOnce() -> Result<Tensor>) -> Result<(Tensor, u64)> {
    device.synchronize()?;
    let before = device.memory().live;
    device.reset_peak_memory();
    let out = f()?;
    device.synchronize()?;
    Ok((out, device.memory().peak - before))
}

/// Compares every matrix of a batch with the exact product.
fn check_values(what: &str, sizes: [usize; 3], out: &Tensor) -> Result<()> {
    let expected = exact(sizes);
    for (z, got) in out.to_vec::<f32>()?.chunks(expected.len()).enumerate() {
        let wrong = got.iter().zip(&expected).position(|(got, expected)| got != expected);
        assert_eq!(wrong, None, "{what} on {}: element of matrix {z}", out.device());
    }
    Ok(())
}

/// Compares the values and the memory of one product.
fn check(what: &str, sizes: [usize; 3], device: &Device, product: impl Fn() -> Result<Tensor>) -> Result<()> {
    // Once before: the trial of a variant, which comes before its first use on a device, has buffers of its own.
    product()?;
    let (out, bytes) = measured(device, product)?;
    check_values(what, sizes, &out)?;
    let [m, k, n] = sizes;
    let (inputs, result) = ((4 * k * (m + n)) as u64, (4 * m * n) as u64);
    // Buffers are rounded up to size classes: that of the result, and temporaries by a quarter at most.
    let (_, rounded) = measured(device, || Tensor::zeros([m, n], device))?;
    let most = rounded + (inputs + result) / 10 * 5 / 4 + 4096;
    assert!(bytes <= most, "{what} on {device}: {bytes} bytes, at most {most} expected");
    Ok(())
}

fn as_matrix(what: &str, sizes: [usize; 3], device: &Device) -> Result<()> {
    let [a, b] = operands(sizes, device)?;
    check(what, sizes, device, || a.matmul(&b))
}

/// A product and its check on a device.
type Product<'a> = &'a dyn Fn(&Device) -> Result<()>;

/// Runs each product on `cpu` and on two software adapters, in turn.
fn on_devices(products: &[Product]) -> Result<()> {
    for (i, product) in products.iter().enumerate() {
        product(&Device::cpu())?;
        adapters_of_shape(i).iter().try_for_each(product)?;
    }
    Ok(())
}

#[test]
fn products_take_their_operands_their_result_and_a_tenth() -> Result<()> {
    let _alone = alone();
    const LONG: usize = 530_000;
    on_devices(&[
        &|device| {
            let [a, b] = operands([1, LONG, 1], device)?;
            let (a, b) = (a.reshape([LONG])?, b.reshape([LONG])?);
            check("dot", [1, LONG, 1], device, || a.dot(&b))
        },
        &|device| {
            let [a, b] = operands([3, LONG, 1], device)?;
            check("mv of a wide matrix", [3, LONG, 1], device, || a.mv(&b.reshape([LONG])?))
        },
        &|device| {
            let [a, b] = operands([LONG, 10, 1], device)?;
            check("mv of a tall matrix", [LONG, 10, 1], device, || a.mv(&b.reshape([10])?))
        },
        &|device| as_matrix("[1, k] by [k, 10]", [1, LONG, 10], device),
        &|device| as_matrix("[10, k] by [k, 1]", [10, LONG, 1], device),
        &|device| as_matrix("[n, 1] by [1, 10]", [LONG, 1, 10], device),
        &|device| as_matrix("[10, 1] by [1, n]", [10, 1, LONG], device),
        &|device| as_matrix("[10, k] by [k, 16]", [10, LONG, 16], device),
        &|device| as_matrix("[n, 10] by [10, 16]", [LONG, 10, 16], device),
        // The gradient of a Linear's weight, of all rows at once.
        &|device| {
            let [x, g] = operands([10, LONG, 16], device)?;
            let x = x.t()?.contiguous()?;
            check("transposed view", [10, LONG, 16], device, || x.t()?.matmul(&g))?;
            let mut layer = Linear::new(10, 16)?;
            layer.to_(device)?;
            layer.forward(&x)?.mul(&g)?.sum_all()?.backward()?;
            let gradient = layer.weight().grad().expect("a gradient").t()?;
            check_values("gradient of a weight", [10, LONG, 16], &gradient)
        },
    ])
}

/// Panels beyond what is always granted: cut along k, along rows and columns, and along the batch.
#[test]
fn blocks_have_the_same_numbers() -> Result<()> {
    let _alone = alone();
    let of_batch = |(sizes, batch): ([usize; 3], usize), device: &Device| {
        let [m, k, n] = sizes;
        let [a, b] = operands(sizes, device)?;
        let a = a.broadcast_to([batch, m, k])?.contiguous()?;
        let b = b.broadcast_to([batch, k, n])?.contiguous()?;
        check_values("batch", sizes, &a.matmul(&b)?)
    };
    on_devices(&[
        &|device| of_batch(([64, 150_000, 70], 1), device),
        &|device| of_batch(([70, 40_000, 67], 3), device),
        &|device| of_batch(([40_000, 6, 300], 1), device),
        // A factor that is shared by the batch: long sums in parts would be larger than both.
        &|device| {
            let (batch, sizes) = (100, [4, 2560, 100]);
            let [a, b] = operands(sizes, device)?;
            let a = a.broadcast_to([batch, sizes[0], sizes[1]])?.contiguous()?;
            check_values("shared factor", sizes, &a.matmul(&b)?)
        },
    ])
}

/// The gradient of a weight has the paddings of few images in memory at once. With those of all, it would take 820 MB.
#[test]
fn wide_paddings_of_many_images_take_little_memory() -> Result<()> {
    let _alone = alone();
    let (images, cpu) = (200, Device::cpu());
    let x = Tensor::ones([images, 8, 8, 8], &cpu)?;
    let w = Tensor::ones([20, 8, 4, 4], &cpu)?.requires_grad();
    let y = x.conv2d(&w, None, Conv::new().stride([1, 1000]).padding([0, 8000]))?.sum_all()?;
    cpu.reset_peak_memory();
    let before = cpu.memory().live;
    y.backward()?;
    let more = cpu.memory().peak - before;
    assert!(more < 64 << 20, "{more} bytes");
    // In each of five lines of windows, one reads the image.
    let dw = w.grad().expect("a gradient").to_vec::<f32>()?;
    assert!(dw.iter().all(|v| *v == (images * 5) as f32), "{:?}", dw.first());
    Ok(())
}
