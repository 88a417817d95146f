//! Kernels that read four elements at a time: any number of elements from any offset on, with every kind of broadcasting.

use anygpu::{Device, Result, Tensor};

/// Whole numbers from −20 to 20, so that sums are exact.
fn numbers(count: usize, device: &Device) -> Result<Tensor> {
    let values: Vec<f32> = (0..count).map(|i| ((i * 7919) % 41) as f32 - 20.0).collect();
    Tensor::from_vec(values, count, device)
}

/// Returns results that are the same on every device, of `[rows, columns]` from an offset on.
fn results(offset: usize, [rows, columns]: [usize; 2], device: &Device) -> Result<Vec<Vec<f32>>> {
    let part = |skip: usize, shape: &[usize]| {
        let count = shape.iter().product();
        numbers(skip + count + 3, device)?.narrow(0, skip, count)?.reshape(shape)
    };
    let x = part(offset, &[rows, columns])?;
    let (y, row, column) = (part(4, &[rows, columns])?, part(offset, &[columns])?, part(1, &[rows, 1])?);
    let leaf = x.detach().requires_grad();
    leaf.relu()?.mul(&y)?.sum_all()?.backward()?;
    let all = [
        x.relu()?,
        leaf.grad().expect("a gradient"),
        x.add(&y)?,
        x.sub(&row)?,
        row.sub(&x)?,
        x.mul(&column)?,
        column.sub(&x)?,
        row.add(&column)?,
        x.add(2.5)?,
        (2.5 - &x)?,
        x.gt(&y)?.to_dtype(anygpu::DType::F32)?,
        x.sum_all()?,
        x.sum([0], false)?,
        x.sum([1], false)?,
        x.max([0], false)?,
        x.max([1], false)?,
        x.unsqueeze(1)?.broadcast_to([rows, 3, columns])?.sum([1], false)?,
    ];
    all.iter().map(Tensor::to_vec).collect()
}

#[test]
fn any_count_from_any_offset_on() -> Result<()> {
    let shapes = [[1, 1], [1, 3], [5, 4], [3, 7], [70, 31], [33, 64], [2, 5000], [1, 100_003], [300, 12], [4, 40_000]];
    for shape in shapes {
        for offset in [0, 1, 4, 6] {
            let expected = results(offset, shape, &Device::cpu())?;
            for device in Device::all().iter().filter(|device| !device.is_cpu()) {
                for (i, (got, expected)) in results(offset, shape, device)?.iter().zip(&expected).enumerate() {
                    assert!(got == expected, "result {i} of {shape:?} from {offset} on {device}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn softmax_of_rows_at_any_offset() -> Result<()> {
    for device in Device::all() {
        for (offset, columns) in [(0, 8), (2, 8), (4, 1000), (0, 7)] {
            let x = numbers(offset + 5 * columns, &device)?.narrow(0, offset, 5 * columns)?.reshape([5, columns])?;
            let expected = x.to(Device::cpu())?.softmax(1)?.to_vec::<f32>()?;
            let got = x.softmax(1)?.to_vec::<f32>()?;
            let near = got.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 1e-6 + 1e-5 * b);
            assert!(near, "{columns} columns from {offset} on {device}");
        }
    }
    Ok(())
}
