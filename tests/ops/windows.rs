//! Cases of convolution and pooling that the op table does not test: gradients that are a convention, non-finite
//! values, and sizes that are too slow for central differences.

use anygpu::{Conv, DType, Device, Interpolation, Padding, Pool, Result, Tensor};

use crate::common::{devices, signed, values};

/// The first device of each kind, for what takes long.
fn one_of_each_kind() -> Vec<Device> {
    let mut first: Vec<Device> = Vec::new();
    for device in devices() {
        if first.iter().all(|other| other.info().kind != device.info().kind) {
            first.push(device);
        }
    }
    first
}

/// Over several passes the weight's gradient is a sum of parts; for a convolution of ones it is known without an oracle.
#[test]
fn conv2d_gradient_in_several_passes() -> Result<()> {
    for device in &one_of_each_kind() {
        let x = Tensor::ones([520, 1, 62, 62], device)?.requires_grad();
        let w = Tensor::ones([2, 1, 3, 3], device)?.requires_grad();
        let bias = Tensor::zeros([2], device)?.requires_grad();
        x.conv2d(&w, Some(&bias), Conv::new())?.mean_all()?.backward()?;
        // The mean of 2 · P results, each a sum of nine pixels: d/dw = P ones of weight 1 / 2P; the bias likewise.
        for grad in [w.grad(), bias.grad()] {
            let values = values(&grad.expect("a gradient"))?;
            assert!(values.iter().all(|v| (v - 0.5).abs() < 1e-3), "{device}: {values:?}");
        }
        // An inner pixel is in nine windows, for both channels: 18 / 2P; a corner in one: 2 / 2P.
        let dx = values(&x.grad().expect("a gradient"))?;
        let one = 1.0 / f64::from(520 * 60 * 60);
        for image in [0, 1, 259, 518, 519] {
            let at = |y: usize, x: usize| dx[(image * 62 + y) * 62 + x] / one;
            let got = [at(0, 0), at(0, 61), at(61, 0), at(61, 61), at(30, 30), at(0, 30)];
            let close = got.iter().zip([1.0, 1.0, 1.0, 1.0, 9.0, 3.0]).all(|(g, e)| (g - e).abs() < 1e-3);
            assert!(close, "{device}, image {image}: {got:?}");
        }
    }
    Ok(())
}

/// An image of more columns than one pass holds goes in parts: 64 · 9 rows of 300 · 300 pixels are 51.8 M.
#[test]
fn conv2d_of_a_great_image() -> Result<()> {
    let gradients = |device: &Device| -> Result<[Tensor; 4]> {
        let x = signed(&[1, 64, 8, 300], 31).tensor(DType::F32, device)?;
        // Repeated downwards, which is faster than to make all of it.
        let x = x.reshape([1, 64, 8, 1, 300])?.broadcast_to([1, 64, 8, 38, 300])?.reshape([1, 64, 304, 300])?;
        let x = x.requires_grad();
        let w = signed(&[2, 64, 3, 3], 32).tensor(DType::F32, device)?.requires_grad();
        let y = x.conv2d(&w, None, Conv::new().padding(1))?;
        y.mul(&y)?.mean_all()?.backward()?;
        Ok([y.detach(), x.grad().expect("a gradient"), w.grad().expect("a gradient"), x.detach()])
    };
    let expected = gradients(&Device::cpu())?;
    for device in one_of_each_kind().iter().filter(|device| !device.is_cpu()) {
        for (got, expected) in gradients(device)?.iter().zip(&expected) {
            let most = values(&expected.max_all()?)?[0];
            let apart = got.to(Device::cpu())?.sub(expected)?;
            let apart = values(&apart.mul(&apart)?.max_all()?)?[0].sqrt();
            assert!(apart < 1e-4 * most, "{device}: {:?} is {apart} off where {most} is the most", got.shape());
        }
    }
    Ok(())
}

/// An invocation computes several planes of large tensors, and images of all sizes share a pipeline. The numbers of planes,
/// images and channels here are no multiples of what one invocation computes.
#[test]
fn many_planes_of_several_sizes() -> Result<()> {
    type Layer = fn(&Tensor) -> Result<Tensor>;
    let layers: [(&str, Layer); 5] = [
        ("max_pool2d", |x| x.max_pool2d(Pool::new([3, 2]).stride(2).padding(1))),
        ("avg_pool2d", |x| x.avg_pool2d(Pool::new(2).stride([1, 2]).padding([0, 1]).count_include_pad(false))),
        ("conv2d", |x| x.conv2d(&weights(x, [11, 7, 3, 2])?, None, Conv::new().stride([1, 2]).padding([2, 1]))),
        ("depthwise", |x| x.conv2d(&weights(x, [14, 1, 2, 3])?, None, Conv::new().groups(7).dilation([2, 1]))),
        ("transposed", |x| x.conv_transpose2d(&weights(x, [7, 3, 2, 2])?, None, Conv::new().stride(2))),
    ];
    fn weights(x: &Tensor, shape: [usize; 4]) -> Result<Tensor> {
        signed(&shape, 5).tensor(DType::F32, x.device())
    }
    let run = |layer: Layer, shape: [usize; 4], device: &Device| -> Result<[Tensor; 2]> {
        let x = signed(&shape, 4).tensor(DType::F32, device)?.requires_grad();
        let y = layer(&x)?;
        y.mul(&y)?.sum_all()?.backward()?;
        Ok([y.detach(), x.grad().expect("a gradient")])
    };
    for (name, layer) in layers {
        for shape in [[19, 7, 61, 67], [3, 7, 5, 9], [5, 7, 130, 131]] {
            let expected = run(layer, shape, &Device::cpu())?;
            for device in devices().iter().filter(|device| !device.is_cpu()) {
                for (got, expected) in run(layer, shape, device)?.iter().zip(&expected) {
                    let apart = got.to(Device::cpu())?.sub(expected)?.abs()?.max_all()?.item::<f32>()?;
                    assert!(apart < 2e-3, "{device}: {name} of {shape:?} is {apart} off");
                }
            }
        }
    }
    Ok(())
}

/// A dilation can make windows that hold no pixel.
#[test]
fn max_pool2d_without_a_pixel() -> Result<()> {
    for device in devices() {
        let x = Tensor::ones([1, 1, 1, 2], &device)?.requires_grad();
        let y = x.max_pool2d(Pool::new([1, 2]).stride(1).padding([0, 1]).dilation([1, 3]))?;
        assert_eq!(y.to_vec::<f32>()?, [f32::NEG_INFINITY], "{device}");
        y.sum_all()?.backward()?;
        assert_eq!(x.grad().expect("a gradient").to_vec::<f32>()?, [0.0, 0.0], "{device}");
    }
    Ok(())
}

/// NaN wins over everything, −∞ over nothing.
#[test]
fn maxima_of_what_is_not_finite() -> Result<()> {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    for device in devices() {
        let x = Tensor::from_slice(&[nan, 1.0, 2.0, nan, -inf, -inf, inf, 3.0], [1, 1, 8], &device)?;
        for y in [x.max_pool1d(Pool::new(2))?, x.adaptive_max_pool1d(4)?] {
            let y = y.to_vec::<f32>()?;
            assert!(y[0].is_nan() && y[1].is_nan() && y[2..] == [-inf, inf], "{device}: {y:?}");
        }
    }
    Ok(())
}

/// Of equal largest pixels the first gets the whole gradient, as in PyTorch.
#[test]
fn maxima_of_equal_pixels() -> Result<()> {
    for device in devices() {
        let x = Tensor::ones([1, 1, 2, 4], &device)?.requires_grad();
        x.max_pool2d(Pool::new(2))?.add(&x.adaptive_max_pool2d([1, 2])?)?.sum_all()?.backward()?;
        let grad = x.grad().expect("a gradient").to_vec::<f32>()?;
        assert_eq!(grad, [2.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0], "{device}");
    }
    Ok(())
}

/// Windows of more elements than an invocation may walk, and means over more than that.
#[test]
fn windows_past_the_loops_of_a_driver() -> Result<()> {
    for device in devices() {
        let x = Tensor::arange(0.0, 90_000.0, 1.0, &device)?.reshape([1, 1, 300, 300])?.requires_grad();
        let y = x.max_pool2d(Pool::new(290).stride(10))?;
        assert_eq!(y.to_vec::<f32>()?, [86_989.0, 86_999.0, 89_989.0, 89_999.0], "{device}");
        y.sum_all()?.backward()?;
        let sum = x.grad().expect("a gradient").sum_all()?.to_vec::<f32>()?;
        assert_eq!(sum, [4.0], "{device}");
        let mean = Tensor::ones([2, 1, 300, 300], &device)?.adaptive_avg_pool2d(1)?.to_vec::<f32>()?;
        assert!(mean.iter().all(|m| (m - 1.0).abs() < 1e-6), "{device}: {mean:?}");
        let line = Tensor::ones([1, 1, 200_000], &device)?.adaptive_avg_pool1d(1)?.to_vec::<f32>()?;
        assert!((line[0] - 1.0).abs() < 1e-6, "{device}: {line:?}");
    }
    Ok(())
}

/// The longest loops that are granted are run to their end.
#[test]
fn loops_as_long_as_the_limit() -> Result<()> {
    for device in devices() {
        let x = Tensor::ones([2], &device)?.requires_grad();
        x.pad(&[(59_999, 1)], Padding::Replicate)?.sum_all()?.backward()?;
        assert_eq!(x.grad().expect("a gradient").to_vec::<f32>()?, [60_000.0, 2.0], "{device}");
        let x = Tensor::ones([1, 1, 1], &device)?.requires_grad();
        x.interpolate([29_998], Interpolation::Nearest)?.sum_all()?.backward()?;
        assert_eq!(x.grad().expect("a gradient").to_vec::<f32>()?, [29_998.0], "{device}");
        let line = Tensor::arange(0.0, 119_996.0, 1.0, &device)?.reshape([1, 1, 119_996])?;
        assert_eq!(line.adaptive_max_pool1d(2)?.to_vec::<f32>()?, [59_997.0, 119_995.0], "{device}");
    }
    Ok(())
}

/// The output padding of a transposed convolution may be longer than what its few taps reach.
#[test]
fn transposed_with_an_output_padding_past_the_taps() -> Result<()> {
    for device in devices() {
        for kernel in [1, 2] {
            let x = Tensor::ones([1, 1, 1, 13], &device)?;
            let conv = Conv::new().dilation([1, 100]).output_padding([0, 50]);
            let y = x.conv_transpose2d(&Tensor::ones([1, 1, 1, kernel], &device)?, None, conv)?;
            let flat = Conv::new().dilation(100).output_padding(50);
            let line = x.squeeze(2)?.conv_transpose1d(&Tensor::ones([1, 1, kernel], &device)?, None, flat)?;
            let size = 13 + 100 * (kernel - 1) + 50;
            let expected: Vec<f32> = (0..size).map(|i| f32::from(i % 100 < 13 && i / 100 < kernel)).collect();
            assert_eq!(y.to_vec::<f32>()?, expected, "{device}: kernel {kernel}");
            assert_eq!(line.to_vec::<f32>()?, expected, "{device}: kernel {kernel}");
        }
    }
    Ok(())
}

/// A convolution with much padding is one without padding of the padded images. Several windows read pixels, two of them
/// at different positions of the kernel.
#[test]
fn conv2d_with_more_padding_than_image() -> Result<()> {
    let run = |padded: bool| -> Result<[Vec<f32>; 3]> {
        let x = signed(&[2, 6, 4, 5], 41).tensor(DType::F32, &Device::cpu())?.requires_grad();
        let w = signed(&[12, 3, 2, 3], 42).tensor(DType::F32, &Device::cpu())?.requires_grad();
        let conv = Conv::new().stride([350, 400]).dilation([351, 2]).groups(2);
        let y = match padded {
            true => x.pad(&[(700, 700), (800, 800)], Padding::Constant(0.0))?.conv2d(&w, None, conv)?,
            false => x.conv2d(&w, None, conv.padding([700, 800]))?,
        };
        y.mul(&y)?.sum_all()?.backward()?;
        let [dx, dw] = [x, w].map(|leaf| leaf.grad().expect("a gradient"));
        Ok([y.to_vec()?, dx.to_vec()?, dw.to_vec()?])
    };
    for (got, expected) in run(false)?.iter().zip(&run(true)?) {
        assert!(expected.iter().any(|v| *v != 0.0));
        assert!(got.iter().zip(expected).all(|(g, e)| (g - e).abs() < 1e-5), "{got:?}, expected {expected:?}");
    }
    Ok(())
}
