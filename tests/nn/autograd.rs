//! The graph: what is recorded, how gradients are summed, and which uses are errors.

use anygpu::optim::SGD;
use anygpu::parallel::{ReduceOp, all_reduce};
use anygpu::{Device, Error, NoGrad, Result, Tensor, no_grad};

use crate::common::devices_in_turn;

fn leaf(values: &[f32]) -> Result<Tensor> {
    Ok(Tensor::from_slice(values, values.len(), None)?.requires_grad())
}

fn grad(tensor: &Tensor) -> Vec<f32> {
    tensor.grad().expect("a gradient").to_vec().expect("its values")
}

#[test]
fn no_grad_records_nothing() -> Result<()> {
    let x = leaf(&[1.0, 2.0])?;
    assert!(!no_grad(|| x.mul_scalar(2.0))?.is_tracked());
    assert!(x.mul_scalar(2.0)?.is_tracked());
    {
        let _outer = NoGrad::new();
        no_grad(|| ());
        assert!(!x.neg()?.is_tracked(), "the inner end does not switch recording on");
    }
    assert!(x.neg()?.is_tracked());
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| no_grad(|| panic!("on purpose"))));
    assert!(caught.is_err() && x.neg()?.is_tracked(), "a panic inside switches it on again");
    Ok(())
}

/// d(x · detach(x))/dx = x, not 2x.
#[test]
fn detach_cuts_the_graph() -> Result<()> {
    let x = leaf(&[3.0, -1.0])?;
    assert!(!x.detach().is_tracked());
    (&x * &x.detach())?.sum_all()?.backward()?;
    assert_eq!(grad(&x), [3.0, -1.0]);
    Ok(())
}

#[test]
fn gradients_add_up_until_they_are_cleared() -> Result<()> {
    let x = leaf(&[1.0, 2.0])?;
    assert!(x.grad().is_none());
    for times in 1..=3 {
        x.mul_scalar(2.0)?.sum_all()?.backward()?;
        assert_eq!(grad(&x), [2.0 * times as f32; 2]);
    }
    x.set_grad(None);
    assert!(x.grad().is_none());
    // One graph, walked twice.
    let loss = (&x * &x)?.sum_all()?;
    loss.backward_retain_graph()?;
    loss.backward()?;
    assert_eq!(grad(&x), [4.0, 8.0]);
    Ok(())
}

/// y = a·b with a = 2x, b = x + 1: dy/dx = 2·b + a = 4x + 2. Each node is walked after all of its users.
#[test]
fn a_diamond_adds_both_ways() -> Result<()> {
    for device in devices_in_turn() {
        let x = Tensor::from_slice(&[1.0f32, -3.0], 2, &device)?.requires_grad();
        let (a, b) = (x.mul_scalar(2.0)?, x.add_scalar(1.0)?);
        (&a * &b)?.sum_all()?.backward()?;
        assert_eq!(grad(&x), [6.0, -10.0], "{device}");
    }
    Ok(())
}

/// y = Σ x⁸ through three squarings, each with twice the same input: dy/dx = 8x⁷.
#[test]
fn one_tensor_as_both_operands() -> Result<()> {
    let x = leaf(&[1.5])?;
    let mut y = x.clone();
    for _ in 0..3 {
        y = (&y * &y)?;
    }
    y.backward()?; // a shape of one element needs no sum
    assert!((grad(&x)[0] / (8.0 * 1.5f32.powi(7)) - 1.0).abs() < 1e-5);
    Ok(())
}

#[test]
fn only_what_is_asked_for_gets_a_gradient() -> Result<()> {
    let (x, frozen) = (leaf(&[2.0])?, Tensor::from_slice(&[5.0f32], 1, None)?);
    let unused = leaf(&[1.0])?;
    let y = (&x * &frozen)?;
    y.sum_all()?.backward()?;
    assert_eq!(grad(&x), [5.0]);
    assert!(frozen.grad().is_none() && unused.grad().is_none());
    assert!(y.grad().is_none(), "a result keeps no gradient");
    assert!(!grad_tensor(&x).is_tracked(), "a gradient is outside of the graph");
    Ok(())
}

fn grad_tensor(x: &Tensor) -> Tensor {
    x.grad().expect("a gradient")
}

/// Σ y + Σ p² over parts p of y = 3x that have elements in common, in every order of the uses: dx = 3 + 18x · (the number of the parts
/// that hold it).
#[test]
fn parts_and_the_whole_add_up() -> Result<()> {
    let squares = |part: Result<Tensor>| part.and_then(|part| (&part * &part)?.sum_all());
    let uses: [fn(&Tensor) -> Result<Tensor>; 4] =
        [|y| y.narrow(1, 0, 2), |y| y.narrow(1, 1, 3), |y| y.slice(1, 0, 4, 2), |y| y.narrow(0, 1, 1)?.narrow(1, 3, 1)];
    for device in devices_in_turn() {
        for first in 0..5 {
            let x = Tensor::arange(0.0, 8.0, 1.0, &device)?.reshape([2, 4])?.requires_grad();
            let y = x.mul_scalar(3.0)?;
            let mut total = Tensor::zeros([], &device)?;
            for i in (first..5).chain(0..first) {
                let term = if i == 4 { y.sum_all()? } else { squares(uses[i](&y))? };
                total = total.add(&term)?;
            }
            total.backward()?;
            let of_parts = [2.0, 2.0, 2.0, 1.0, 2.0, 2.0, 2.0, 2.0];
            let expected: Vec<f32> = (0..8).map(|i| 3.0 + 18.0 * i as f32 * of_parts[i]).collect();
            assert_eq!(grad(&x), expected, "{device}, from {first} on");
        }
    }
    Ok(())
}

/// Dropping it one inside the other would overflow the stack, and so would a recursive walk.
#[test]
fn a_chain_of_100_000_ops() -> Result<()> {
    let x = leaf(&[1.0])?;
    let mut y = x.clone();
    for _ in 0..100_000 {
        y = y.add_scalar(1.0)?;
    }
    assert_eq!(y.item::<f32>()?, 100_001.0);
    y.backward()?;
    assert_eq!(grad(&x), [1.0]);
    let branch = y.neg()?;
    drop(y);
    drop(branch);
    Ok(())
}

/// The end of a long chain may be dropped on a thread with a small stack, with its tensors shared.
#[test]
fn a_long_chain_dies_anywhere() {
    let chain = || -> Result<Tensor> {
        let mut y = leaf(&[1.0])?;
        for _ in 0..20_000 {
            y = (&y + &y.neg()?)?;
        }
        Ok(y)
    };
    let y = chain().expect("a chain");
    let small = std::thread::Builder::new().stack_size(64 << 10);
    small.spawn(move || drop(y)).expect("a thread").join().expect("no overflow");
}

#[test]
fn what_cannot_be_differentiated() -> Result<()> {
    let x = leaf(&[1.0, 2.0])?;
    let several = x.neg()?.backward().unwrap_err();
    assert!(matches!(several, Error::Autograd(_)) && several.to_string().contains("[2]"), "{several}");
    let constant = Tensor::ones([1], None)?.backward().unwrap_err();
    assert!(matches!(constant, Error::Autograd(_)) && constant.to_string().contains("requires_grad"), "{constant}");
    let cut = no_grad(|| x.sum_all())?.backward().unwrap_err();
    assert!(matches!(cut, Error::Autograd(_)), "{cut}");
    assert!(x.grad().is_none());
    Ok(())
}

/// y = x² needs x as it was; an optimiser's step between forward and backward has changed it.
#[test]
fn a_write_in_place_is_noticed() -> Result<()> {
    for device in devices_in_turn() {
        let x = Tensor::ones([3], &device)?.requires_grad();
        let loss = (&x * &x)?.sum_all()?;
        x.set_grad(Some(Tensor::ones([3], &device)?));
        SGD::new(vec![x.clone()], 0.1).step()?;
        let error = loss.backward().unwrap_err();
        assert!(matches!(error, Error::Autograd(_)), "{device}: {error:?}");
        assert!(error.to_string().contains("in place") && error.to_string().contains("mul"), "{device}: {error}");
        // A graph made after the write is in order.
        x.set_grad(None);
        (&x * &x)?.sum_all()?.backward()?;
        assert!(grad(&x).iter().all(|g| (g - 1.8).abs() < 1e-6), "{device}: {:?}", grad(&x));
    }
    Ok(())
}

/// x lives on one device, the loss on another, through every ordered pair: d(Σ (2x)²)/dx = 8x, on the device of x.
#[test]
fn gradients_cross_devices() -> Result<()> {
    let all = devices_in_turn();
    for from in &all {
        for to in &all {
            let x = Tensor::from_slice(&[1.0f32, -2.0, 3.0], 3, from)?.requires_grad();
            let y = x.mul_scalar(2.0)?.to(to)?;
            (&y * &y)?.sum_all()?.backward()?;
            let grad = grad_tensor(&x);
            assert_eq!(grad.device(), from);
            assert_eq!(grad.to_vec::<f32>()?, [8.0, -16.0, 24.0], "{from} to {to}");
        }
    }
    Ok(())
}

/// Through a view with gaps, and there and back again.
#[test]
fn a_moved_view_brings_its_gradient_home() -> Result<()> {
    let all = devices_in_turn();
    for to in &all {
        let x = Tensor::arange(0.0, 6.0, 1.0, None)?.reshape([2, 3])?.requires_grad();
        let part = x.t()?.narrow(0, 1, 2)?.to(to)?.to(&all[0])?;
        (&part * &part)?.sum_all()?.backward()?;
        assert_eq!(grad(&x), [0.0, 2.0, 4.0, 0.0, 8.0, 10.0], "{to}");
    }
    Ok(())
}

/// `a + b` hands one gradient to both leaves; a collective that writes one in place must not reach the other.
#[test]
fn leaves_own_their_gradients() -> Result<()> {
    for device in devices_in_turn() {
        let a = Tensor::ones([3], &device)?.requires_grad();
        let b = Tensor::ones([3], &device)?.requires_grad();
        a.add(&b)?.sum_all()?.backward()?;
        let (ga, gb) = (a.grad().expect("a gradient"), b.grad().expect("a gradient"));
        all_reduce(&[ga, Tensor::ones([3], &other(&device)?)?], ReduceOp::Sum)?;
        assert_eq!(gb.to_vec::<f32>()?, [1.0; 3], "{device}");
    }
    Ok(())
}

/// Any device but this one.
fn other(device: &Device) -> Result<Device> {
    devices_in_turn().into_iter().find(|d| d != device).map_or_else(|| Device::new("cpu/1"), Ok)
}

/// The gradient of exp is a formula of its result: a later write into that must be noticed.
#[test]
fn a_result_modified_in_place_is_refused() -> Result<()> {
    let all = devices_in_turn();
    let [first, second, ..] = all.as_slice() else { return Ok(()) };
    let x = Tensor::ones([2], first)?.requires_grad();
    let y = x.exp()?;
    all_reduce(&[y.detach(), Tensor::ones([2], second)?], ReduceOp::Sum)?;
    let error = y.sum_all()?.backward().expect_err("y was written");
    assert!(error.to_string().contains("exp"), "{error}");
    Ok(())
}
