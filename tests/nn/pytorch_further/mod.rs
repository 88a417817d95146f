//! Further functions, layers, losses and optimisers give what PyTorch's give, with their gradients, on every device:
//! tests/data/further.json, which scripts/pytorch_further.py writes. What that does not tell is in plain loops.

mod behaviour;
mod draws;
mod layers;
mod linalg;
mod optimisers;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use anygpu::nn::Module;
use anygpu::{Device, Result, Tensor, no_grad};
use serde_json::Value;

use crate::common::devices_in_turn;

/// Element i is sin(i + k) / 2, as in the script.
fn wave(shape: &[usize], k: f64, device: &Device) -> Result<Tensor> {
    let values: Vec<f32> = (0..shape.iter().product()).map(|i: usize| ((i as f64 + k).sin() / 2.0) as f32).collect();
    Tensor::from_vec(values, shape, device)
}

fn leaf(shape: &[usize], k: f64, device: &Device) -> Result<Tensor> {
    Ok(wave(shape, k, device)?.requires_grad())
}

/// The shape and the numbers of a result.
type Numbers = (Vec<usize>, Vec<f64>);

fn reference(name: &str) -> &'static Numbers {
    static ALL: OnceLock<BTreeMap<String, Numbers>> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        // NaN is not JSON, and occurs in no result.
        let all: Value = serde_json::from_str(include_str!("../../data/further.json")).expect("JSON");
        let numbers = |value: &Value| value.as_array().expect("numbers").iter().filter_map(Value::as_f64).collect();
        let cases = all["cases"].as_object().expect("cases").iter();
        cases
            .map(|(name, case)| {
                let shape: Vec<f64> = numbers(&case["shape"]);
                (name.clone(), (shape.into_iter().map(|size| size as usize).collect(), numbers(&case["values"])))
            })
            .collect()
    });
    all.get(name).unwrap_or_else(|| panic!("tests/data/further.json has no {name}"))
}

/// Compares shape and values with those of a case.
#[track_caller]
fn assert_is(name: &str, got: &Tensor) -> Result<()> {
    let (shape, values) = reference(name);
    assert_eq!(got.shape(), shape, "{name}");
    let got_values = got.to_vec_f64()?;
    assert_eq!(got_values.len(), values.len(), "{name}");
    let worst = got_values.iter().zip(values).map(|(got, value)| (got - value).abs()).fold(0.0, f64::max);
    assert!(worst < 2e-5, "{name} on {}: {worst} away from PyTorch's: {got_values:?}, not {values:?}", got.device());
    Ok(())
}

/// Compares a result, and the gradients of leaves by name, with a case.
#[track_caller]
fn assert_case(name: &str, out: &Tensor, leaves: &[(&str, &Tensor)]) -> Result<()> {
    assert_is(name, out)?;
    if leaves.is_empty() {
        return Ok(());
    }
    out.mul(&wave(out.shape(), 50.0, out.device())?)?.sum_all()?.backward()?;
    for (leaf, tensor) in leaves {
        let grad = tensor.grad().unwrap_or_else(|| panic!("{name}: {leaf} has no gradient"));
        assert_is(&format!("{name} d{leaf}"), &grad)?;
    }
    Ok(())
}

/// Gives the parameters the values of the script.
fn fill(module: &(impl Module + ?Sized)) -> Result<()> {
    for (k, parameter) in module.parameters().iter().enumerate() {
        no_grad(|| parameter.copy_(&wave(parameter.shape(), k as f64, parameter.device())?))?;
    }
    Ok(())
}

#[test]
fn counts_places_and_repeats() -> Result<()> {
    for d in &devices_in_turn() {
        let x = Tensor::new([3u32, 1, 0, 3, 3, 7], d)?;
        assert_is("bincount", &x.bincount(None, 10)?)?;
        assert_is("bincount weights", &x.bincount(Some(&wave(&[6], 1.0, d)?), 0)?)?;
        let edges = wave(&[9], 2.0, d)?.sort(0, false)?.0;
        let values = Tensor::cat(&[wave(&[12], 3.0, d)?, edges.narrow(0, 2, 3)?], 0)?;
        assert_is("searchsorted False", &edges.searchsorted(&values, false)?)?;
        assert_is("searchsorted True", &edges.searchsorted(&values, true)?)?;
        let rows = wave(&[3, 5], 4.0, d)?.sort(1, false)?.0;
        assert_is("searchsorted rows", &rows.searchsorted(&wave(&[3, 4], 5.0, d)?, false)?)?;
        let (nan, values) = (Tensor::new([-1.0, 2.0, f32::NAN], d)?, Tensor::new([f32::NAN, 5.0, 2.0], d)?);
        assert_is("searchsorted nan", &nan.searchsorted(&values, true)?)?;
        let x = leaf(&[2, 3], 6.0, d)?;
        assert_case("repeat_interleave", &x.repeat_interleave(2, 1)?, &[("x", &x)])?;
        let x = leaf(&[3, 2], 6.0, d)?;
        let repeated = x.repeat_interleave_by(&Tensor::new([2u32, 0, 3], d)?, 0)?;
        assert_case("repeat_interleave_by", &repeated, &[("x", &x)])?;
    }
    Ok(())
}

#[test]
fn grids_and_distances() -> Result<()> {
    for d in &devices_in_turn() {
        let (a, b) = (leaf(&[3], 7.0, d)?, leaf(&[2], 8.0, d)?);
        let grid = Tensor::meshgrid(&[&a, &b])?;
        assert_case("meshgrid", &Tensor::stack(&grid, 0)?, &[("a", &a), ("b", &b)])?;
        let turned = grid.iter().map(|axis| axis.transpose(0, 1)).collect::<Result<Vec<_>>>()?;
        assert_is("meshgrid xy", &Tensor::stack(&turned, 0)?)?;
        for (name, p) in [("0.0", 0.0), ("1.0", 1.0), ("1.5", 1.5), ("2.0", 2.0), ("inf", f32::INFINITY)] {
            let (x, y) = (leaf(&[2, 4, 3], 9.0, d)?, leaf(&[2, 5, 3], 10.0, d)?);
            let leaves = [("x", &x), ("y", &y)];
            assert_case(&format!("cdist {name}"), &x.cdist(&y, p)?, if p == 0.0 { &[] } else { &leaves })?;
        }
        let x = leaf(&[3, 2], 9.0, d)?;
        assert_case("cdist itself", &x.cdist(&x, 2.0)?, &[("x", &x)])?;
    }
    Ok(())
}

/// Sets whose differences do not fit into a block give what small parts of them give.
#[test]
fn distances_of_large_sets_are_computed_in_blocks() -> Result<()> {
    for d in &devices_in_turn() {
        let (x, y) = (leaf(&[2, 17, 8], 1.0, d)?, leaf(&[1, 16_400, 8], 2.0, d)?);
        let far = x.cdist(&y, 2.0)?;
        let slopes = wave(far.shape(), 3.0, d)?;
        far.mul(&slopes)?.sum_all()?.backward()?;
        let (a, b) = (x.detach().requires_grad(), y.detach().requires_grad());
        let parts = [(0, 9), (9, 8)].map(|(start, rows)| a.narrow(1, start, rows)?.narrow(0, 0, 1)?.cdist(&b, 2.0));
        let first = Tensor::cat(&parts.into_iter().collect::<Result<Vec<_>>>()?, 1)?;
        assert!(far.narrow(0, 0, 1)?.allclose(&first, 1e-5, 1e-6)?, "{d}");
        let others = [(0, 9), (9, 8)].map(|(start, rows)| a.narrow(1, start, rows)?.narrow(0, 1, 1)?.cdist(&b, 2.0));
        let second = Tensor::cat(&others.into_iter().collect::<Result<Vec<_>>>()?, 1)?;
        Tensor::cat(&[first, second], 0)?.mul(&slopes)?.sum_all()?.backward()?;
        for (whole, part) in [(&x, &a), (&y, &b)] {
            let [whole, part] = [whole, part].map(|leaf| leaf.grad().expect("a gradient"));
            assert!(whole.allclose(&part, 1e-3, 1e-3)?, "{d}");
        }
    }
    Ok(())
}
