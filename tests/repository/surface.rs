//! The ways of writing that `Tensor` accepts: shapes, indices, data and operands in several forms, none of which needs a
//! type annotation.

#![allow(clippy::needless_borrows_for_generic_args, reason = "borrowed arguments are among the forms")]

use anygpu::{DType, Device, Error, Index, NewAxis, NewShape, Result, Shape, Tensor, s};
use half::{bf16, f16};

use crate::common::devices_in_turn;

fn counted(shape: impl Into<NewShape>) -> Result<Tensor> {
    Tensor::arange(0.0, 24.0, 1.0, None)?.reshape(shape)
}

fn message<T>(result: Result<T>) -> String {
    result.map_or_else(|error| error.to_string(), |_| "no error".to_owned())
}

#[test]
fn shapes_in_every_form() -> Result<()> {
    let (n, sizes) = (3usize, vec![2, 3]);
    let x = Tensor::zeros([2, 3], None)?;
    let all = [
        Tensor::zeros((2, 3), None)?,
        Tensor::zeros((2, n), None)?,
        Tensor::zeros([2, n], None)?,
        Tensor::zeros(&[2, 3], None)?,
        Tensor::zeros(vec![2, 3], None)?,
        Tensor::zeros(&sizes, None)?,
        Tensor::zeros(x.shape(), None)?,
        Tensor::zeros(Shape::from((2, 3)), None)?,
        Tensor::from_slice(&[0u8; 6], (2, 3), None)?,
        Tensor::rand((2, 3), None)?,
        Tensor::full((2, 3), 1, None)?,
    ];
    assert!(all.iter().all(|x| x.shape() == [2, 3]));
    assert_eq!(Tensor::zeros((), None)?.rank(), 0);
    assert_eq!(Tensor::zeros(6, None)?.shape(), [6]);
    assert_eq!(Tensor::zeros((6,), None)?.shape(), [6]);
    assert_eq!(Tensor::zeros((1, 2, 3, 4, 5, 6, 7, 8), None)?.shape(), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(x.repeat((2, 1))?.shape(), [4, 3]);
    Ok(())
}

#[test]
fn reshape_takes_every_form() -> Result<()> {
    let x = Tensor::arange(0.0, 6.0, 1.0, None)?;
    let like = Tensor::zeros((2, 3), None)?;
    let (n, signed, sizes) = (3usize, [2i64, -1], vec![2usize, 3]);
    let all = [
        x.reshape([2, 3])?,
        x.reshape((2, 3))?,
        x.reshape(&[2, 3])?,
        x.reshape(vec![2, 3])?,
        x.reshape(vec![2, -1])?,
        x.reshape(&sizes)?,
        x.reshape(&sizes[..])?,
        x.reshape(sizes.clone())?,
        x.reshape(like.shape())?,
        x.reshape(Shape::from([2, 3]))?,
        x.reshape(&Shape::from([2, 3]))?,
        x.reshape([2, n])?,
        x.reshape([x.elem_count() / n, n])?,
        x.reshape([-1, 3])?,
        x.reshape([2, -1])?,
        x.reshape(signed)?,
        x.reshape(&signed[..])?,
        x.reshape((-1, n))?,
        x.reshape((2usize, -1i32))?,
        x.reshape((2isize, 3i64))?,
    ];
    for shaped in &all {
        assert_eq!(shaped.to_vec2::<f32>()?, [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]);
    }
    assert_eq!(like.reshape(6)?.shape(), [6]);
    assert_eq!(like.reshape(-1)?.shape(), [6]);
    assert_eq!(like.reshape(like.elem_count())?.shape(), [6]);
    assert_eq!(like.sum_all()?.reshape([1; 4])?.reshape(())?.rank(), 0);
    assert_eq!(like.sum_all()?.reshape(-1)?.shape(), [1]);
    assert_eq!(counted((2, -1, 2, 1, 1, 1, 1, 3))?.shape(), [2, 2, 2, 1, 1, 1, 1, 3]);
    assert_eq!(like.t()?.reshape([-1])?.shape(), [6]); // a copy, as without -1
    assert_eq!(Tensor::zeros((0, 4), None)?.reshape((-1, 2))?.shape(), [0, 2]);
    Ok(())
}

#[test]
fn reshape_refuses_what_has_no_answer() -> Result<()> {
    let x = Tensor::zeros((2, 3), None)?;
    assert_eq!(message(x.reshape([-1, -1])), "reshape: only one size can be inferred, but [-1, -1] has several -1");
    assert_eq!(message(x.reshape([-1, 4])), "reshape: shape [-1, 4] is invalid for the 6 elements of shape [2, 3]");
    assert_eq!(message(x.reshape([-2, 3])), "reshape: invalid size -2 in [-2, 3]");
    assert_eq!(message(x.reshape((i64::MIN, 3))), format!("reshape: invalid size {} in [{0}, 3]", i64::MIN));
    assert_eq!(
        message(Tensor::zeros((0, 3), None)?.reshape([-1, 0])),
        "reshape: cannot reshape tensor of 0 elements into shape [-1, 0] because the unspecified dimension size -1 can be \
         any value and is ambiguous"
    );
    assert!(matches!(x.reshape([4, 2]), Err(Error::ShapeMismatch { op: "reshape", .. })));
    assert!(x.reshape((-1, usize::MAX, 2)).is_err());
    Ok(())
}

#[test]
fn a_reshape_with_an_inferred_size_has_a_gradient() -> Result<()> {
    for device in devices_in_turn() {
        let x = Tensor::new([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], &device)?.requires_grad();
        let weights = Tensor::new([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]], &device)?;
        (x.reshape([-1, 2])? * weights)?.sum_all()?.backward()?;
        let grad = x.grad().ok_or_else(|| Error::Autograd("none".into()))?;
        assert_eq!(grad.to_vec2::<f32>()?, [[1.0, 10.0, 2.0], [20.0, 3.0, 30.0]], "{device}");
    }
    Ok(())
}

#[test]
fn expansions_keep_a_size() -> Result<()> {
    let x = Tensor::new([[1.0], [2.0]], None)?;
    assert_eq!(x.expand([-1, 2])?.to_vec2::<f32>()?, [[1.0, 1.0], [2.0, 2.0]]);
    assert_eq!(x.expand((3, -1, -1))?.shape(), [3, 2, 1]);
    assert_eq!(x.broadcast_to((3, 2, 2))?.shape(), [3, 2, 2]);
    assert!(message(x.expand([-1, 2, 1])).starts_with("expand: -1 in the new dimension 0 of [-1, 2, 1]"));
    Ok(())
}

#[test]
fn indices_in_tuples() -> Result<()> {
    let x = counted((2, 3, 4))?;
    let (row, column) = (1usize, -1);
    assert_eq!(x.i((0, 1, 2))?.item::<f32>()?, 6.0);
    assert_eq!(x.i((row, 2, column))?.item::<f32>()?, 23.0);
    assert_eq!(x.i((.., -1))?.shape(), [2, 4]);
    assert_eq!(x.i((1,))?.shape(), [3, 4]);
    assert_eq!(x.i((0, 1.., ..2))?.to_vec2::<f32>()?, [[4.0, 5.0], [8.0, 9.0]]);
    assert_eq!(x.i((.., 0..=1, -2..))?.shape(), [2, 2, 2]);
    assert_eq!(x.i((NewAxis, .., NewAxis, 0usize, 1u32..))?.shape(), [1, 2, 1, 3]);
    assert_eq!(x.i((Index::Ellipsis, 0))?.shape(), [2, 3]);
    assert_eq!(x.i((0, Index::from(..).step_by(2)))?.shape(), [2, 4]);
    // The same as `s!`.
    assert_eq!(x.i((0, -2.., 1))?.to_vec::<f32>()?, x.i(s![0, -2.., 1])?.to_vec::<f32>()?);
    let deep = counted((1, 2, 1, 3, 1, 4))?;
    assert_eq!(deep.i((0, 1, 0, 2, 0, 3))?.item::<f32>()?, 23.0);
    assert_eq!(deep.i((.., .., 0, .., 0, ..))?.shape(), [1, 2, 3, 4]);
    x.i((.., 0))?.fill_(-1.0)?;
    assert_eq!(x.i((1, 0, 0))?.item::<f32>()?, -1.0);
    assert!(message(x.i((0, 3))).starts_with("i: index 3"));
    assert!(message(x.i((0, 0, 0, 0))).starts_with("i: 4 indices"));
    Ok(())
}

#[test]
fn data_in_every_form() -> Result<()> {
    for device in devices_in_turn() {
        let d = &device;
        let floats = |x: Tensor, shape: &[usize]| {
            assert_eq!((x.shape(), x.dtype(), x.device()), (shape, DType::F32, d));
            x.to_vec::<f32>()
        };
        let rows = vec![vec![1.0, 2.0], vec![3.0, 4.0]];
        assert_eq!(floats(Tensor::new(1.5, d)?, &[])?, [1.5]);
        assert_eq!(floats(Tensor::new([1.0, 2.0], d)?, &[2])?, [1.0, 2.0]);
        assert_eq!(floats(Tensor::new([[1.0, 2.0], [3.0, 4.0]], d)?, &[2, 2])?, [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(floats(Tensor::new(&[[1.0], [2.0]], d)?, &[2, 1])?, [1.0, 2.0]);
        assert_eq!(floats(Tensor::new(&rows, d)?, &[2, 2])?, [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(floats(Tensor::new(&rows[1], d)?, &[2])?, [3.0, 4.0]);
        assert_eq!(floats(Tensor::new(&rows[..], d)?, &[2, 2])?, [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(floats(Tensor::new(rows, d)?, &[2, 2])?, [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(floats(Tensor::new([&[1.0f32, 2.0][..], &[3.0, 4.0]], d)?, &[2, 2])?, [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(floats(Tensor::new([[[[1.0]], [[2.0]]]], d)?, &[1, 2, 1, 1])?, [1.0, 2.0]);
        assert_eq!(floats(Tensor::new([0.1f64, 1e300, -0.0], d)?, &[3])?[..2], [0.1f32, f32::INFINITY]);
        assert_eq!(floats(Tensor::new([[0f32; 3]; 0], d)?, &[0, 3])?, [0f32; 0]);
        assert_eq!(floats(Tensor::new(Vec::<Vec<f64>>::new(), d)?, &[0, 0])?, [0f32; 0]);
        assert_eq!(floats(Tensor::new([Vec::<f32>::new(), vec![]], d)?, &[2, 0])?, [0f32; 0]);
        let integers = Tensor::new([[1, -2], [3, 4]], d)?;
        assert_eq!((integers.dtype(), integers.to_vec2::<i32>()?), (DType::I32, vec![vec![1, -2], vec![3, 4]]));
    }
    Ok(())
}

#[test]
fn data_of_every_type() -> Result<()> {
    let dtype = |x: Result<Tensor>| x.map(|x| x.dtype());
    assert_eq!(dtype(Tensor::new([f16::ONE], None)), Ok(DType::F16));
    assert_eq!(dtype(Tensor::new([bf16::ONE], None)), Ok(DType::BF16));
    assert_eq!(dtype(Tensor::new([1u32], None)), Ok(DType::U32));
    assert_eq!(dtype(Tensor::new([1u8], None)), Ok(DType::U8));
    assert_eq!(Tensor::new([true, false], None)?.to_vec::<bool>()?, [true, false]);
    assert_eq!(Tensor::new([i64::from(i32::MIN), 7], None)?.to_vec::<i32>()?, [i32::MIN, 7]);
    assert_eq!(Tensor::new([-7isize], None)?.to_vec::<i32>()?, [-7]);
    assert_eq!(Tensor::new([u64::from(u32::MAX)], None)?.to_vec::<u32>()?, [u32::MAX]);
    assert_eq!(Tensor::new((0..3).collect::<Vec<usize>>(), None)?.to_vec::<u32>()?, [0, 1, 2]);
    let wide = [vec![0, 1], vec![2, 1i64 << 31, 1 << 40]];
    assert_eq!(message(Tensor::new(&wide[1], None)), "Tensor::new: data[1] is 2147483648, which does not fit i32");
    assert_eq!(
        message(Tensor::new([[0, -1i64 << 31], [0, -1 << 32]], None)).replace("-4294967296", "N"),
        "Tensor::new: data[1][1] is N, which does not fit i32"
    );
    assert_eq!(
        message(Tensor::new(u64::MAX, None)),
        format!("Tensor::new: data is {}, which does not fit u32", u64::MAX)
    );
    assert_eq!(message(Tensor::new(&wide, None)), "Tensor::new: data[1] has 3 elements, but data[0] has 2");
    let ragged = vec![vec![vec![1.0], vec![2.0]], vec![vec![3.0], vec![]]];
    assert_eq!(message(Tensor::new(&ragged, None)), "Tensor::new: data[1][1] has 0 elements, but data[0][0] has 1");
    Ok(())
}

#[test]
fn results_as_nested_vectors() -> Result<()> {
    for device in devices_in_turn() {
        let x = Tensor::new([[[1, 2, 3], [4, 5, 6]]], &device)?;
        assert_eq!(x.to_vec3::<i32>()?, [[[1, 2, 3], [4, 5, 6]]]);
        assert_eq!(x.i(0)?.to_vec2::<i32>()?, [[1, 2, 3], [4, 5, 6]]);
        assert_eq!(x.transpose(1, 2)?.to_vec3::<i32>()?, [[[1, 4], [2, 5], [3, 6]]]);
        assert_eq!(x.gt(3)?.i(0)?.to_vec2::<bool>()?, [[false; 3], [true; 3]]);
        assert_eq!(Tensor::zeros((2, 0), &device)?.to_vec2::<f32>()?, [[], []] as [[f32; 0]; 2]);
        assert_eq!(message(x.to_vec2::<i32>()), "to_vec2: a tensor of shape [1, 2, 3] does not have 2 dimensions");
        assert_eq!(message(x.i(0)?.to_vec3::<i32>()), "to_vec3: a tensor of shape [2, 3] does not have 3 dimensions");
        assert_eq!(
            message(x.to_vec3::<f32>()),
            "to_vec3: expected a tensor of f32, got i32 (convert it with .to_dtype())"
        );
        let there = x.cpu()?;
        assert!(there.device().is_cpu() && there.is_same(&there.cpu()?));
    }
    Ok(())
}

#[test]
fn operators_in_every_form() -> Result<()> {
    for device in devices_in_turn() {
        let (x, y) = (Tensor::new([1.0, 2.0], &device)?, Tensor::new([10.0, 20.0], &device)?);
        let is = |got: Result<Tensor>, expected: [f32; 2]| -> Result<()> {
            assert_eq!(got?.to_vec::<f32>()?, expected, "{device}");
            Ok(())
        };
        is(&x + (&y * 2.0), [21.0, 42.0])?;
        is(x.clone() + (&y * 2.0), [21.0, 42.0])?;
        is(&x - (&x * (&y / (1.0 + &x))), [-4.0, 2.0 - 2.0 * 20.0 / 3.0])?;
        is(&y % (&x + 2.0), [1.0, 0.0])?;
        is((&x * 2.0)? + &y, [12.0, 24.0])?;
        is((&x + (&y * 2.0))? - 1.0, [20.0, 41.0])?;
        is(2.0 * &x, [2.0, 4.0])?;
        is(1 - x.clone(), [0.0, -1.0])?;
        is(x.clone() * y.clone(), [10.0, 40.0])?;
        is(x.clone() / &y, [0.1, 0.1])?;
        is(&x * y.clone(), [10.0, 40.0])?;
        is(-&x, [-1.0, -2.0])?;
        let difference = (&x + (-&y))?;
        is(-difference, [9.0, 18.0])?;
        // The first error is the one that is returned.
        let wrong = &x + (&y * Tensor::zeros(3, &device)?);
        assert!(message(wrong).starts_with("shape mismatch in mul: [2] and [3]"));
    }
    Ok(())
}

#[test]
fn a_printed_tensor_shows_its_place_in_the_graph() -> Result<()> {
    for device in devices_in_turn() {
        let place = if device.is_cpu() { String::new() } else { format!(", device='{device}'") };
        let x = Tensor::new([1.0, 2.0], &device)?;
        let leaf = x.requires_grad();
        assert_eq!(x.to_string(), format!("tensor([1., 2.]{place})"));
        assert_eq!(leaf.to_string(), format!("tensor([1., 2.]{place}, requires_grad=True)"));
        assert_eq!((&leaf * 2.0)?.to_string(), format!("tensor([2., 4.]{place}, grad_fn=<mul>)"));
        assert_eq!(leaf.reshape([2, -1])?.t()?.to_string(), format!("tensor([[1., 2.]]{place}, grad_fn=<permute>)"));
        assert_eq!(leaf.detach().to_string(), x.to_string());
        assert!(!anygpu::no_grad(|| leaf.exp())?.is_tracked());
        let half = leaf.to_dtype(DType::F16)?;
        assert_eq!(half.to_string(), format!("tensor([1., 2.]{place}, dtype=f16, grad_fn=<to_dtype>)"));
    }
    let second = Tensor::new([1.0], &Device::new("cpu/1")?)?;
    assert_eq!(second.to_string(), "tensor([1.], device='cpu/1')");
    // A line that would be longer than 80 characters is wrapped before the suffix, as in PyTorch.
    let wide = (Tensor::arange(1000.0, 1009.0, 1.0, None)?.requires_grad() * 1.0)?.to_string();
    assert_eq!(wide.lines().map(str::len).max(), Some(71), "{wide}");
    assert!(wide.ends_with(",\n       grad_fn=<mul>)"), "{wide}");
    Ok(())
}
