//! Modules written by `onnx::export`: read again, they compute the same, for batches of any size, and keep their names.
//!
//! `ANYGPU_ONNX_EXPORTS=DIR` also leaves the files there, with inputs and outputs as .npy, for `scripts/onnx_exports.py`, which runs
//! ONNX's checker and ONNX Runtime on them.

mod extremes;
mod files;
mod functions;
mod nets;

use std::path::Path;

use anygpu::nn::*;
use anygpu::onnx::{self, Exporter};
use anygpu::{
    Attention, ConvPadding, DType, Device, Error, Interpolation, Padding, Pool, Resample, ResampleFilter, Result,
    ScatterReduce, Tensor, Unfold, no_grad,
};

use crate::common::devices;

/// The largest difference, relative to the largest element, but at least to 1.
fn difference(a: &Tensor, b: &Tensor) -> f32 {
    assert_eq!((a.shape(), a.dtype()), (b.shape(), b.dtype()));
    let floats =
        |x: &Tensor| x.cpu().and_then(|x| x.to_dtype(DType::F32)).and_then(|x| x.to_vec::<f32>()).expect("values");
    let (a, b) = (floats(a), floats(b));
    let scale = b.iter().fold(1f32, |most, x| if x.is_finite() { most.max(x.abs()) } else { most });
    let far = |(a, b): (&f32, &f32)| if a == b || (a.is_nan() && b.is_nan()) { 0.0 } else { (a - b).abs() / scale };
    a.iter().zip(&b).map(far).fold(0.0, f32::max)
}

/// Exports the forward function, loads the file and compares both on batches of other sizes.
fn check<M: Module + Clone>(
    name: &str,
    module: &M,
    inputs: impl Fn(usize) -> Result<Vec<Tensor>>,
    forward: impl Fn(&M, &[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<()> {
    exported(name, module, inputs, forward, true)
}

/// As [`check`]; does not run the file here if it has integers of more than 32 bits within, which other runtimes have.
fn exported<M: Module + Clone>(
    name: &str,
    module: &M,
    inputs: impl Fn(usize) -> Result<Vec<Tensor>>,
    forward: impl Fn(&M, &[Tensor]) -> Result<Vec<Tensor>>,
    run: bool,
) -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("net.onnx");
    let examples = inputs(1)?;
    let examples: Vec<&Tensor> = examples.iter().collect();
    Exporter::new().export_with(module, &examples, &path, &forward)?;
    let model = onnx::load(&path)?;
    let copy = module.clone();
    copy.eval();
    for samples in [1, 4] {
        let given = inputs(samples)?;
        let expected = no_grad(|| forward(&copy, &given))?;
        let infos = model.inputs();
        let named: Vec<(&str, &Tensor)> = infos.iter().map(|info| &info.name[..]).zip(&given).collect();
        let got = if run { model.run(&named)?.into_vec() } else { expected.clone() };
        assert_eq!(got.len(), expected.len(), "{name}");
        for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
            let far = difference(got, expected);
            assert!(far < 1e-5, "{name}: output {i} of a batch of {samples} differs by {far}");
        }
        if let Some(folder) = std::env::var_os("ANYGPU_ONNX_EXPORTS") {
            leave(Path::new(&folder), name, &path, samples, [&given, &expected])?;
        }
    }
    Ok(())
}

fn leave(folder: &Path, name: &str, model: &Path, samples: usize, tensors: [&[Tensor]; 2]) -> Result<()> {
    let folder = folder.join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::copy(model, folder.join("model.onnx")).expect("a copy");
    for (kind, tensors) in ["input", "output"].into_iter().zip(tensors) {
        for (i, tensor) in tensors.iter().enumerate() {
            tensor.save_npy(folder.join(format!("{samples}_{kind}_{i}.npy")))?;
        }
    }
    Ok(())
}

/// Numbers between −2 and 2 that are not alike, the same in every run.
fn numbers(shape: &[usize]) -> Result<Tensor> {
    let count: usize = shape.iter().product();
    let value = |i: usize| ((i * 7919 + 13) % 1009) as f32 / 252.25 - 2.0;
    Tensor::from_slice(&(0..count).map(value).collect::<Vec<_>>(), shape, None)
}

/// A net of one input of these sizes for each sample.
fn net(name: &str, module: Sequential, sample: &[usize]) -> Result<()> {
    let inputs = |n: usize| Ok(vec![numbers(&[&[n], sample].concat())?]);
    check(name, &module, inputs, |net, x| Ok(vec![net.forward(&x[0])?]))
}

/// Functions of tensors without parameters.
fn functions(name: &str, sample: &[usize], f: impl Fn(&Tensor) -> Result<Vec<Tensor>>) -> Result<()> {
    let inputs = |n: usize| Ok(vec![numbers(&[&[n], sample].concat())?]);
    check(name, &Identity, inputs, |_, x| f(&x[0]))
}

fn of(module: impl Module) -> Sequential {
    Sequential::new().add("layer", module)
}

/// Gives batch norms statistics that are not 0 and 1.
fn trained<M: Module>(module: M, sample: &[usize]) -> Result<M> {
    module.train();
    no_grad(|| module.forward(&numbers(&[&[3], sample].concat())?.mul(1.5)?.add(0.5)?))?;
    Ok(module)
}
