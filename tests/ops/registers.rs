//! Convolutions whose results software adapters keep in registers: groups of few channels, and results of few pixels, against
//! the host. The other devices compute the same shapes in their ways.

use anygpu::{Conv, DType, Device, DeviceKind, Result, Tensor};

use crate::common::{adapters_of_shape, devices, signed, values};

/// x `[N, C, H, W]`, w `[OC, C / groups, KH, KW]`, and the options.
type Shape = ([usize; 4], [usize; 4], Conv<2>);

fn shapes() -> Vec<Shape> {
    let conv = Conv::new;
    vec![
        // Tiles of 2 × 4 results: as many as fit, one more and one less, and less than one tile.
        ([2, 3, 4, 8], [3, 1, 3, 3], conv().groups(3).padding(1)),
        ([1, 3, 5, 9], [3, 1, 3, 3], conv().groups(3).padding(1)),
        ([3, 2, 3, 7], [2, 1, 3, 3], conv().groups(2).padding(1)),
        ([1, 2, 1, 1], [2, 1, 1, 1], conv().groups(2)),
        ([1, 2, 3, 3], [2, 1, 3, 3], conv().groups(2)),
        ([0, 2, 3, 3], [2, 1, 3, 3], conv().groups(2)),
        // More tiles than a workgroup has, in long rows and in long columns.
        ([1, 2, 70, 90], [2, 1, 5, 5], conv().groups(2).padding(2)),
        ([1, 2, 1, 1500], [2, 1, 1, 4], conv().groups(2)),
        ([2, 2, 1500, 1], [2, 1, 3, 1], conv().groups(2).padding([1, 0])),
        // Strides, more than the kernel too, and padding that is wider than the kernel.
        ([2, 4, 11, 13], [4, 1, 3, 3], conv().groups(4).stride(2).padding(1)),
        ([2, 4, 11, 13], [4, 1, 3, 3], conv().groups(4).stride([1, 2]).padding(1)),
        ([2, 4, 11, 13], [4, 1, 5, 5], conv().groups(4).stride([2, 1]).padding(2)),
        ([1, 2, 12, 17], [2, 1, 2, 2], conv().groups(2).stride([3, 5])),
        ([2, 3, 4, 5], [3, 1, 2, 2], conv().groups(3).padding([3, 4])),
        // Several channels in a group, several results of one, and a dilation.
        ([2, 6, 7, 9], [6, 3, 3, 3], conv().groups(2).padding(1)),
        ([2, 3, 7, 9], [12, 1, 3, 3], conv().groups(3).padding(1)),
        ([2, 4, 9, 9], [4, 1, 3, 3], conv().groups(4).dilation(2).padding(2)),
        // Few results: 1 to 13 of them, of channels that are no multiple of four.
        ([1, 5, 3, 3], [1, 5, 3, 3], conv()),
        ([1, 129, 1, 4], [128, 129, 1, 3], conv().padding([0, 1])),
        ([2, 7, 1, 6], [9, 7, 1, 3], conv().padding([0, 1])),
        ([3, 5, 1, 640], [11, 5, 1, 256], conv().stride([1, 128])),
        ([13, 6, 1, 1], [5, 6, 1, 1], conv()),
        ([1, 3, 6, 8], [6, 3, 3, 3], conv().stride(2).dilation([2, 1]).padding(1)),
        ([1, 2, 2, 2], [3, 2, 1, 1], conv().stride(3).padding(4)),
        // Longer sums than an invocation of few results may add.
        ([1, 40, 40, 40], [3, 40, 40, 40], conv()),
    ]
}

/// Every operand begins at an offset, as in a batch or a bucket.
fn operand(shape: &[usize], seed: u64, dtype: DType, device: &Device) -> Result<Tensor> {
    let more: Vec<usize> = shape.iter().enumerate().map(|(d, &size)| size + usize::from(d == 0)).collect();
    signed(&more, seed).tensor(DType::F32, device)?.narrow(0, 1, shape[0])?.to_dtype(dtype)
}

#[test]
fn convolutions_in_registers() -> Result<()> {
    let results = |(x, w, conv): &Shape, dtype: DType, device: &Device| -> Result<[Tensor; 2]> {
        let (x, bias) = (operand(x, 1, dtype, device)?, operand(&w[..1], 3, dtype, device)?);
        let w = operand(w, 2, dtype, device)?;
        Ok([x.conv2d(&w, Some(&bias), *conv)?.relu()?, x.conv2d(&w, None, *conv)?])
    };
    for (i, shape) in shapes().iter().enumerate() {
        // The kernels differ in how they load, which four shapes show for the other types: every pipeline takes its time to compile.
        let more: &[DType] = if matches!(i, 1 | 9 | 18 | 22) { &[DType::F16, DType::BF16] } else { &[] };
        for &dtype in [DType::F32].iter().chain(more) {
            let expected = results(shape, dtype, &Device::cpu())?;
            for device in &adapters_of_shape(i) {
                for (got, expected) in results(shape, dtype, device)?.iter().zip(&expected) {
                    assert_eq!(got.shape(), expected.shape());
                    let (got, expected) = (values(got)?, values(expected)?);
                    let most = expected.iter().fold(1.0f64, |most, v| most.max(v.abs()));
                    let apart = got.iter().zip(&expected).fold(0.0f64, |apart, (g, e)| apart.max((g - e).abs()));
                    let share = match dtype {
                        DType::F32 => 1e-5,
                        DType::F16 => 1e-3,
                        _ => 8e-3,
                    };
                    assert!(apart <= share * most, "{device}, {dtype:?}: {shape:?} is {apart} off, of {most}");
                }
            }
        }
    }
    Ok(())
}

/// An infinite weight is multiplied by pixels only, not by the zeros around the image, unlike in the products of other ways.
#[test]
fn infinite_weights_at_edges() -> Result<()> {
    for device in devices().iter().filter(|device| device.info().kind == DeviceKind::Software) {
        for groups in [1, 2] {
            let x = Tensor::ones([1, 2, 3, 3], device)?;
            let mut w = vec![0.0; 2 * (2 / groups) * 9];
            w[0] = f32::INFINITY; // above and left of the middle
            let w = Tensor::from_slice(&w, [2, 2 / groups, 3, 3], device)?;
            let y = x.conv2d(&w, None, Conv::new().padding(1).groups(groups))?.to_vec::<f32>()?;
            let inf = f32::INFINITY;
            assert_eq!(y[..9], [0.0, 0.0, 0.0, 0.0, inf, inf, 0.0, inf, inf], "{device}, {groups} groups");
            assert_eq!(y[9..], [0.0; 9], "{device}, {groups} groups");
        }
    }
    Ok(())
}
