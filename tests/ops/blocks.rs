//! Convolutions over blocks of four images or channels, which software adapters with subgroups compute, against the host.
//! The other devices compute the same shapes in their ways.

use anygpu::{Conv, DType, Device, Result, Tensor};

use crate::common::{adapters_of_shape, devices, signed, values};

/// x `[N, C, H, W]`, w `[OC, C / groups, KH, KW]`, and the options.
type Shape = ([usize; 4], [usize; 4], Conv<2>);

fn shapes() -> Vec<Shape> {
    let conv = Conv::new;
    vec![
        // As few images and rows as blocks take, and one more and one less.
        ([2, 3, 6, 5], [8, 3, 3, 3], conv()),
        ([3, 3, 6, 5], [5, 3, 3, 3], conv()),
        ([4, 4, 6, 5], [4, 4, 3, 3], conv()),
        // Rows for one, two and three panels, and one more than three.
        ([5, 5, 7, 9], [8, 5, 3, 2], conv().padding([1, 0])),
        ([6, 6, 7, 9], [16, 6, 2, 3], conv().padding([0, 1])),
        ([7, 7, 7, 9], [24, 7, 3, 3], conv().padding(1)),
        ([9, 9, 7, 9], [25, 9, 3, 3], conv().padding(1)),
        ([4, 1, 28, 28], [20, 1, 3, 3], conv()),
        ([5, 20, 13, 13], [50, 20, 5, 5], conv()),
        // Strides, dilations, groups, and padding that is wider than the kernel.
        ([3, 6, 11, 10], [12, 6, 3, 3], conv().stride(2).padding(1)),
        ([3, 5, 12, 9], [7, 5, 3, 3], conv().stride([3, 2])),
        ([5, 6, 11, 10], [9, 6, 3, 2], conv().dilation([2, 3])),
        ([5, 12, 8, 8], [18, 4, 3, 3], conv().padding(1).groups(3)),
        ([4, 8, 5, 6], [8, 8, 2, 2], conv().padding(4)),
        ([4, 8, 5, 6], [8, 8, 1, 1], conv()),
        ([4, 8, 5, 6], [8, 8, 1, 1], conv().padding([2, 3])),
        // A kernel as large as the image, and images of one line.
        ([4, 6, 5, 4], [8, 6, 5, 4], conv()),
        ([5, 6, 1, 40], [8, 6, 1, 7], conv()),
        // More output pixels than one part of the weight's gradient adds: 6 · 30 · 30.
        ([6, 5, 30, 30], [6, 5, 3, 3], conv().padding(1)),
    ]
}

/// Returns y, dx, dw and db of the sum of y · t, for some t.
fn results(device: &Device, (x, w, conv): &Shape) -> Result<Vec<Tensor>> {
    let tensor = |shape: &[usize], seed| signed(shape, seed).tensor(DType::F32, device);
    // From an offset on, as in a batch or a bucket.
    let later = |shape: &[usize], seed| -> Result<Tensor> {
        let more: Vec<usize> = shape.iter().enumerate().map(|(d, &size)| size + usize::from(d == 0)).collect();
        Ok(tensor(&more, seed)?.narrow(0, 1, shape[0])?.detach().requires_grad())
    };
    let (x, w, bias) = (later(x, 1)?, later(w, 2)?, later(&w[..1], 3)?);
    let y = x.conv2d(&w, Some(&bias), *conv)?;
    y.mul(&tensor(y.shape(), 4)?)?.sum_all()?.backward()?;
    let grads = [&x, &w, &bias].map(|t| t.grad().expect("a gradient"));
    Ok([vec![y.detach()], grads.to_vec()].concat())
}

#[test]
fn convolutions_in_blocks() -> Result<()> {
    for (i, shape) in shapes().iter().enumerate() {
        let expected = results(&Device::cpu(), shape)?;
        for device in &adapters_of_shape(i) {
            for (got, (expected, name)) in
                results(device, shape)?.iter().zip(expected.iter().zip(["y", "dx", "dw", "db"]))
            {
                assert_eq!(got.shape(), expected.shape());
                let (got, expected) = (values(got)?, values(expected)?);
                let most = expected.iter().fold(1.0f64, |most, v| most.max(v.abs()));
                // False for NaN.
                let close = |(got, expected): (&f64, &f64)| (got - expected).abs() <= 1e-5 * most;
                let wrong = got.iter().zip(&expected).position(|pair| !close(pair));
                assert_eq!(wrong.map(|i| (i, got[i], expected[i])), None, "{name} of {shape:?} on {device}, of {most}");
            }
        }
    }
    Ok(())
}

/// More images than one buffer holds in blocks go in several passes: 64 channels of 202 · 102 pixels, 12 images at a time.
#[test]
fn convolutions_in_blocks_in_several_passes() -> Result<()> {
    let device = match devices().into_iter().find(|device| !device.is_cpu()) {
        Some(device) => device,
        None => return Ok(()),
    };
    let shape = ([17, 64, 200, 100], [5, 64, 3, 3], Conv::new().padding(1));
    let (got, expected) = (results(&device, &shape)?, results(&Device::cpu(), &shape)?);
    for (got, (expected, name)) in got.iter().zip(expected.iter().zip(["y", "dx", "dw", "db"])) {
        let most = values(&expected.abs()?.max_all()?)?[0];
        let apart = values(&got.to(Device::cpu())?.sub(expected)?.abs()?.max_all()?)?[0];
        assert!(apart <= 1e-4 * most, "{name} on {device}: {apart} off where {most} is the most");
    }
    Ok(())
}
