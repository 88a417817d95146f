//! Writes in place, and indices that are refused.

use anygpu::{DType, Result, Tensor, s};

use crate::common::devices;

/// Views share the elements, so what is written to one is seen in the other, and only there.
#[test]
fn writes_in_place() -> Result<()> {
    for device in devices() {
        let data = Tensor::arange(0.0, 12.0, 1.0, &device)?.reshape([3, 4])?;
        data.i(s![1, ..;2])?.add_(&Tensor::from_slice(&[10.0f32, 20.0], [2], &device)?)?;
        data.t()?.i(3)?.mul_(&Tensor::scalar(-1.0, &device)?)?;
        data.i(s![2, 0..2])?.copy_(&data.i(s![0, 1..3])?)?; // one storage on both sides
        data.diagonal(1, 0, 1)?.fill_(0.5)?;
        let expected = [0.0, 0.5, 2.0, -3.0, 14.0, 5.0, 0.5, -7.0, 1.0, 2.0, 10.0, 0.5f32];
        // (0, 1) was 1 when it was copied
        assert_eq!(data.to_vec::<f32>()?, expected, "{device}");
        let ints = Tensor::from_slice(&[1i32, 2, 3], [3], &device)?;
        ints.i(1..)?.fill_(-7.9)?;
        assert_eq!(ints.to_vec::<i32>()?, [1, -7, -7], "{device}");
        // Elements that share words with others.
        let bytes = Tensor::from_slice(&(0..21u8).collect::<Vec<_>>(), [3, 7], &device)?;
        bytes.i(s![1, 1..;3])?.fill_(99.0)?;
        bytes.i(s![.., 6])?.copy_(&bytes.i(s![.., 0])?)?;
        let expected = [0, 1, 2, 3, 4, 5, 0, 7, 99, 9, 10, 99, 12, 7, 14, 15, 16, 17, 18, 19, 14u8];
        assert_eq!(bytes.to_vec::<u8>()?, expected, "{device}");
        let halves = Tensor::ones([5], &device)?.to_dtype(DType::F16)?;
        halves.i(1..4)?.add_(&Tensor::ones([3], &device)?.to_dtype(DType::F16)?)?;
        assert_eq!(halves.to_dtype(DType::F32)?.to_vec::<f32>()?, [1.0, 2.0, 2.0, 2.0, 1.0], "{device}");
    }
    Ok(())
}

#[test]
fn writes_in_place_are_refused_in_the_graph() -> Result<()> {
    for device in devices() {
        let x = Tensor::ones([2, 2], &device)?;
        let leaf = x.requires_grad();
        let y = leaf.mul_scalar(2.0)?;
        let refused = |result: Result<()>, part: &str| {
            let error = result.expect_err("it must be refused").to_string();
            assert!(error.contains(part), "{device}: {error}");
        };
        refused(leaf.fill_(0.0), "fill_: the tensor is in the gradient graph");
        refused(leaf.i(0)?.add_(&x), "add_: the tensor is in the gradient graph");
        refused(x.add_(&y), "add_: the other operand is in the gradient graph");
        refused(x.copy_(&y), "copy_: the source is in the gradient graph");
        refused(x.i(0)?.expand([2, 2])?.fill_(1.0), "more than once");
        refused(x.i(0)?.copy_(&x), "broadcast to the tensor");
        // Within `no_grad` it is done, and a gradient that needs the old values is an error.
        let z = leaf.mul(&leaf)?.sum_all()?;
        anygpu::no_grad(|| leaf.fill_(3.0))?;
        assert_eq!(x.to_vec::<f32>()?, [3.0; 4], "{device}: a leaf shares its elements");
        let error = z.backward().expect_err("the old values are gone").to_string();
        assert!(error.contains("modified in place"), "{device}: {error}");
    }
    Ok(())
}

#[test]
fn indices_that_do_not_fit() -> Result<()> {
    let x = Tensor::zeros([2, 3], None)?;
    for (result, part) in [
        (x.i(2), "index 2 is not within dimension 0 of [2, 3]"),
        (x.i(-3), "index -3 is not within"),
        (x.i(s![.., 1..4]), "range 1..4 in steps of 1 is not within dimension 1"),
        (x.i(s![.., -4..]), "range -4.."),
        (x.i(s![.., 2..1]), "range 2..1"),
        (x.i(s![..;0]), "steps of 0"),
        (x.i(s![1;2]), "steps of 0"),
        (x.i(s![0, 0, 0]), "3 indices for the 2 dimensions"),
        (x.i(s![..., ...]), "more than one ellipsis"),
        (x.i(s![usize::MAX]), "not within"),
        (x.i(s![..=usize::MAX]), "not within"),
    ] {
        let error = result.expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    }
    Ok(())
}
