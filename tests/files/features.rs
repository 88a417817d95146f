//! The optional features: `cargo test --all-features --test files features`.
#![cfg(all(feature = "serde", feature = "ndarray", feature = "image"))]

use anygpu::{DType, Device, Result, Shape, Tensor};

use crate::common::devices;

#[test]
fn configurations_hold_types_shapes_and_devices() {
    let text = serde_json::to_string(&(DType::BF16, Shape::from([2, 3]), Device::cpu())).unwrap();
    assert_eq!(text, r#"["bf16",[2,3],"cpu"]"#);
    let (dtype, shape, device): (DType, Shape, Device) = serde_json::from_str(&text).unwrap();
    assert_eq!((dtype, shape.dims(), device), (DType::BF16, &[2, 3][..], Device::cpu()));
    let error = serde_json::from_str::<Device>("\"gpu:99\"").unwrap_err().to_string();
    assert!(error.starts_with("unknown device 'gpu:99'"), "{error}");
}

#[test]
fn arrays_go_there_and_back() -> Result<()> {
    let array = ndarray::Array3::from_shape_fn((2, 3, 4), |(i, j, k)| (i * 12 + j * 4 + k) as i32);
    let view = array.slice(ndarray::s![.., 1.., ..;2]);
    for device in devices() {
        let x = Tensor::from_ndarray(&view, &device)?;
        assert_eq!((x.shape(), x.dtype()), (&[2, 2, 2][..], DType::I32));
        assert_eq!(x.to_ndarray::<i32>()?, view.into_dyn(), "{device}");
        assert!(x.to_ndarray::<f32>().is_err());
        let wide = view.mapv(|x| i64::from(x) << 40);
        assert_eq!(Tensor::from_ndarray(&wide.t(), &device)?.to_ndarray::<i64>()?, wide.t().into_dyn(), "{device}");
        let doubles = view.mapv(|x| f64::from(x) + 0.1);
        match Tensor::from_ndarray(&doubles.t(), &device) {
            Ok(x) => {
                assert_eq!((x.dtype(), x.to_ndarray::<f64>()?), (DType::F64, doubles.t().to_owned().into_dyn()));
                assert!(x.to_ndarray::<f32>().is_err());
            }
            Err(error) => assert!(!device.is_cpu() && error.to_string().contains("f64"), "{error}"),
        }
        assert!(x.to_ndarray::<f64>().is_err());
    }
    Ok(())
}

#[test]
fn images_go_there_and_back() -> Result<()> {
    use image::{DynamicImage, Luma, Rgba};
    let grey = DynamicImage::from(image::ImageBuffer::from_fn(5, 3, |x, y| Luma([(50 * y + x) as u8])));
    let clear = DynamicImage::from(image::ImageBuffer::from_fn(4, 2, |x, y| Rgba([x as u8, y as u8, 7, 255])));
    for device in devices() {
        for (image, channels) in [(&grey, 1), (&clear, 4)] {
            let x = Tensor::from_image(image, &device)?;
            assert_eq!(x.shape(), [channels, image.height() as usize, image.width() as usize]);
            assert_eq!(&x.to_image()?, image, "{device}");
        }
        let plane = Tensor::from_slice(&[-1.0, 0.5, 2.0f32], [1, 3], &device)?;
        assert_eq!(plane.to_image()?.into_luma8().into_raw(), [0, 128, 255], "{device}");
        let error = Tensor::zeros([2, 3, 3], &device)?.to_image().unwrap_err().to_string();
        assert!(error.contains("[2, 3, 3]"), "{error}");
    }
    Ok(())
}

#[test]
fn slices_are_lent_without_a_copy() -> Result<()> {
    let values = vec![1.0f32, 2.0, 3.0];
    let place = values.as_ptr();
    let x = Tensor::from_vec(values, 3, None)?;
    assert_eq!(x.with_slice(|s: &[f32]| s.as_ptr())?, place);
    assert_eq!(x.narrow(0, 1, 2)?.with_slice(|s: &[f32]| s.to_vec())?, [2.0, 3.0]);
    for device in devices() {
        let bytes = Tensor::from_slice(&[1u8, 2, 3, 4, 5], 5, &device)?.narrow(0, 1, 3)?;
        assert_eq!(bytes.with_slice(|s: &[u8]| s.to_vec())?, [2, 3, 4], "{device}");
        assert!(bytes.with_slice(|_: &[f32]| ()).is_err());
    }
    Ok(())
}
