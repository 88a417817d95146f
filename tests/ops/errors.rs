//! Errors of ops: the exact variant, and both shapes in the message.

use anygpu::{Conv, DType, Device, Error, Interpolation, Padding, Pool, Result, Tensor};

use crate::common::devices;

/// The kind of error that is expected.
enum Kind {
    Shapes,
    Argument,
    DType,
}

type Row = (&'static str, Kind, Result<Tensor>, &'static [&'static str]);

/// Op, kind of error, result, and the parts that its message must have.
fn rows(device: &Device) -> Result<Vec<Row>> {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, device);
    let (a, b, image) = (zeros(&[2, 3])?, zeros(&[4, 5])?, zeros(&[1, 2, 5, 5])?);
    let labels = Tensor::from_slice(&[0u32, 1, 2], 3, device)?;
    let both = &["[2, 3]", "[4, 5]"][..];
    Ok(vec![
        ("add", Kind::Shapes, &a + &b, both),
        ("mul", Kind::Shapes, &a * &b, both),
        ("eq", Kind::Shapes, a.eq(&b), both),
        ("matmul", Kind::Shapes, a.matmul(&b), &["[2, 3]", "[4, 5]", "k is 3 on the left and 4 on the right"]),
        ("matmul", Kind::Shapes, a.matmul(&zeros(&[3])?), &["[2, 3]", "[3]"]),
        ("matmul", Kind::Shapes, zeros(&[2, 2, 3])?.matmul(&zeros(&[3, 3, 1])?), &["[2, 2, 3]", "[3, 3, 1]", "batch"]),
        (
            "conv2d",
            Kind::Shapes,
            image.conv2d(&zeros(&[1, 3, 3, 3])?, None, Conv::new()),
            &["[1, 2, 5, 5]", "[1, 3, 3, 3]"],
        ),
        ("conv2d", Kind::Shapes, a.conv2d(&image, None, Conv::new()), &["[2, 3]", "[1, 2, 5, 5]"]),
        (
            "conv2d",
            Kind::Shapes,
            image.conv2d(&zeros(&[4, 2, 3, 3])?, Some(&zeros(&[3])?), Conv::new()),
            &["[4, 2, 3, 3]", "[3]"],
        ),
        ("conv2d", Kind::Argument, image.conv2d(&zeros(&[4, 2, 7, 7])?, None, Conv::new()), &["[7, 7]", "[5, 5]"]),
        (
            "conv2d",
            Kind::Argument,
            image.conv2d(&zeros(&[4, 2, 3, 3])?, None, Conv::new().stride([0, 1])),
            &["stride [0, 1]"],
        ),
        ("max_pool2d", Kind::Argument, a.max_pool2d(Pool::new(2)), &["[2, 3]"]),
        ("avg_pool2d", Kind::Argument, image.avg_pool2d(Pool::new([6, 2]).stride(1)), &["[6, 2]", "[5, 5]"]),
        ("avg_pool2d", Kind::Argument, image.avg_pool2d(Pool::new(2).dilation(2)), &["dilation [2, 2]"]),
        ("max_pool2d", Kind::Argument, image.max_pool2d(Pool::new(2).padding([2, 0])), &["[2, 0]", "[2, 2]"]),
        ("pad", Kind::Argument, a.pad(&[(3, 0)], Padding::Reflect), &["Reflect", "dimension of 3", "at most 2"]),
        ("pad", Kind::Argument, a.pad(&[(0, 0); 3], Padding::Replicate), &["3 pairs", "[2, 3]"]),
        ("interpolate", Kind::Argument, a.interpolate([2, 2], Interpolation::Nearest), &["4 dimensions", "[2, 3]"]),
        ("interpolate", Kind::Argument, image.interpolate([2, 0], Interpolation::Nearest), &["[2, 0]"]),
        ("max_pool1d", Kind::Argument, image.max_pool1d(Pool::new(2)), &["[1, 2, 5, 5]"]),
        ("adaptive_avg_pool2d", Kind::Argument, image.adaptive_avg_pool2d([0, 1]), &["[0, 1]", "[1, 2, 5, 5]"]),
        ("adaptive_max_pool2d", Kind::Argument, a.adaptive_max_pool2d(1), &["[2, 3]"]),
        (
            "conv2d",
            Kind::Argument,
            image.conv2d(&zeros(&[4, 2, 3, 3])?, None, Conv::new().groups(4)),
            &["2 channels", "4 equal groups"],
        ),
        (
            "conv2d",
            Kind::Shapes,
            image.conv2d(&zeros(&[4, 2, 3, 3])?, None, Conv::new().groups(2)),
            &["2 channels", "2 in each of 2 groups"],
        ),
        (
            "conv2d",
            Kind::Argument,
            image.conv2d(&zeros(&[4, 2, 3, 3])?, None, Conv::new().dilation(usize::MAX)),
            &["more than 1073741824"],
        ),
        ("conv1d", Kind::Shapes, image.conv1d(&zeros(&[4, 2, 3])?, None, Conv::new()), &["[1, 2, 5, 5]", "[4, 2, 3]"]),
        (
            "conv_transpose2d",
            Kind::Argument,
            image.conv_transpose2d(&zeros(&[2, 4, 3, 3])?, None, Conv::new().output_padding(1)),
            &["output_padding [1, 1]"],
        ),
        (
            "conv_transpose2d",
            Kind::Shapes,
            image.conv_transpose2d(&zeros(&[4, 2, 3, 3])?, None, Conv::new()),
            &["2 channels", "for 4"],
        ),
        (
            "conv_transpose2d",
            Kind::Argument,
            image.conv_transpose2d(&zeros(&[2, 4, 3, 3])?, None, Conv::new().padding(4)),
            &["[4, 4]"],
        ),
        ("reshape", Kind::Shapes, a.reshape([4, 2]), &["[2, 3]", "[4, 2]"]),
        ("reshape", Kind::Argument, a.reshape([-1, 4]), &["[-1, 4]", "6 elements"]),
        ("broadcast_to", Kind::Shapes, a.broadcast_to([2, 2]), &["[2, 3]", "[2, 2]"]),
        ("broadcast_to", Kind::Shapes, a.broadcast_to([3]), &["[2, 3]", "[3]"]),
        ("narrow", Kind::Argument, a.narrow(1, 2, 2), &["[2, 3]"]),
        ("narrow", Kind::Argument, a.narrow(1, usize::MAX, 2), &["[2, 3]"]),
        ("narrow", Kind::Argument, a.narrow(2, 0, 1), &["dimension 2", "[2, 3]"]),
        ("permute", Kind::Argument, a.permute([0, 0]), &["dimension 0", "named twice"]),
        ("squeeze", Kind::Argument, a.squeeze(0), &["[2, 3]"]),
        ("unsqueeze", Kind::Argument, a.unsqueeze(3), &["3", "[2, 3]"]),
        ("t", Kind::Argument, labels.t(), &["[3]"]),
        ("sum", Kind::Argument, a.sum([2], false), &["dimension 2", "[2, 3]"]),
        ("max", Kind::Argument, zeros(&[2, 0])?.max([1], false), &["[2, 0]"]),
        ("argmax", Kind::Argument, zeros(&[2, 0])?.argmax(1), &["[2, 0]"]),
        ("softmax", Kind::Argument, a.softmax(2), &["dimension 2", "[2, 3]"]),
        ("cross_entropy", Kind::Shapes, labels.cross_entropy(&a), &["[3]", "[2, 3]"]),
        ("cross_entropy", Kind::Shapes, a.cross_entropy(&labels), &["[2, 3]", "[3]"]),
        ("add", Kind::DType, labels.add(&labels.to_dtype(DType::I32)?), &["u32", "i32"]),
        ("sub", Kind::DType, a.to_dtype(DType::Bool)?.sub(true), &["bool"]),
        ("add_scalar", Kind::Argument, labels.to_dtype(DType::U8)?.add_scalar(300), &["300", "u8"]),
        ("lt", Kind::Argument, labels.lt(-1), &["-1", "u32"]),
        ("clamp", Kind::Argument, a.clamp(None, None), &["min or max"]),
        (
            "where_cond",
            Kind::Shapes,
            a.where_cond(&a, &labels.to_dtype(DType::F32)?.reshape([3, 1])?),
            &["[2, 3]", "[3, 1]"],
        ),
        ("matmul", Kind::DType, a.matmul(&a.t()?.to_dtype(DType::I32)?), &["f32", "i32"]),
        ("mean_all", Kind::DType, labels.mean_all(), &["u32"]),
        ("cross_entropy", Kind::DType, a.cross_entropy(&zeros(&[2])?), &["u32", "f32"]),
    ])
}

#[test]
fn what_does_not_go_together() -> Result<()> {
    let mut failures = Vec::new();
    for device in devices() {
        for (i, (op, kind, result, parts)) in rows(&device)?.into_iter().enumerate() {
            let Err(error) = result else {
                failures.push(format!("row {i} ({op}) on {device} is no error"));
                continue;
            };
            let right = match (&kind, &error) {
                (Kind::Shapes, Error::ShapeMismatch { op: named, .. })
                | (Kind::Argument, Error::InvalidArgument { op: named, .. })
                | (Kind::DType, Error::DTypeMismatch { op: named, .. }) => *named == op,
                _ => false,
            };
            let text = error.to_string();
            if !right || parts.iter().any(|part| !text.contains(part)) {
                failures.push(format!("row {i} ({op}) on {device}: {error:?}: {text}"));
            }
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    Ok(())
}

#[test]
fn creation_refuses_what_does_not_fit() {
    for device in devices() {
        let error = Tensor::from_slice(&[1.0f32, 2.0], [3], &device).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { op: "from_slice", .. }), "{error}");
        assert_eq!(error.to_string(), "from_slice: 2 elements do not fill shape [3]");
        let error = Tensor::zeros([usize::MAX, 2], &device).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{device}: {error:?}");
    }
}

/// Memory of the host is requested with a fallible allocation: a refusal does not end the process.
#[test]
fn more_than_the_host_has() {
    for device in devices() {
        for (what, made) in [
            ("rand", Tensor::rand([1 << 50], &device)),
            ("randn", Tensor::randn([1 << 50], &device)),
            ("eye", Tensor::eye(1 << 25, &device)),
            ("arange", Tensor::arange(0.0, 1e15, 1.0, &device)),
        ] {
            let error = made.expect_err(what);
            let limit = matches!(error, Error::LimitExceeded { .. }) && !device.is_cpu();
            assert!(error.is_out_of_memory() || limit, "{what} on {device}: {error:?}");
        }
    }
}

/// A tensor that no adapter can hold is an error that says what the limit is, and the device still works.
#[test]
fn more_than_an_adapter_allows() -> Result<()> {
    for device in devices().iter().filter(|d| !d.is_cpu()) {
        let words = device.info().limits.max_buffer as usize / 4 + 1;
        let error = Tensor::zeros([words], device).unwrap_err();
        assert!(matches!(error, Error::LimitExceeded { .. } | Error::OutOfMemory { .. }), "{device}: {error:?}");
        assert!(error.to_string().contains(device.name()), "{error}");
        assert_eq!(Tensor::ones([3], device)?.to_vec::<f32>()?, [1.0; 3], "{device} still works");
    }
    Ok(())
}

/// Windows that need more iterations of one invocation than some drivers run are refused, not computed in part.
#[test]
fn pooling_refuses_what_a_driver_would_cut_short() -> Result<()> {
    for device in devices().iter().filter(|d| !d.is_cpu()) {
        let x = Tensor::zeros([1, 1, 70_000], device)?;
        let error = x.max_pool1d(Pool::new(70_000)).expect_err("70 001 steps");
        assert!(error.to_string().contains("60000"), "{device}: {error}");
        let error = Tensor::zeros([1, 1, 120_000], device)?.adaptive_max_pool1d(2).expect_err("60 002 steps");
        assert!(error.to_string().contains("60000"), "{device}: {error}");
        let empty = Tensor::zeros([1, 1, 0, 4], device)?;
        assert!(empty.avg_pool2d(Pool::new(2).padding(1)).is_err(), "{device}");
    }
    Ok(())
}

#[test]
fn equations_that_do_not_fit_say_why() {
    let (x, y) = (Tensor::ones([2, 3], None).unwrap(), Tensor::ones([4, 5], None).unwrap());
    for (equation, operands, why) in [
        ("ij,jk->ik", &[&x][..], "has 2 operands, 1 were given"),
        ("ij,jk->ik", &[&x, &y], "label 'j' has size 3 in one operand and 4 in another"),
        ("ijk->i", &[&x], "'ijk' does not name the 2 dimensions"),
        ("ij->ik", &[&x], "'k' of the result is in no operand"),
        ("ij->ii", &[&x], "names a dimension of its result twice"),
        ("i1->i", &[&x], "'1' in 'i1' is not a label"),
        ("ii->i", &[&x], "equal sizes"),
    ] {
        let error = Tensor::einsum(equation, operands).unwrap_err().to_string();
        assert!(error.contains(why), "{equation}: {error}");
    }
    let same = Tensor::einsum("...j,kj->...k", &[&x, &x]).unwrap();
    assert_eq!(same.to_vec::<f32>().unwrap(), [3.0; 4]);
    let implicit = Tensor::einsum("ji", &[&x]).unwrap(); // letters in alphabetical order: the transpose
    assert_eq!(implicit.shape(), [3, 2]);
}
