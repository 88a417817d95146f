//! Trains LeNet on several devices at once, writes it as an ONNX file, and reads it again:
//! `cargo run --release --features onnx --example export_onnx -- [folder] [device …]` (a temporary folder, and `cpu`, by default).
//!
//! The folder then contains `model.onnx`, and the test images and the net's scores as .npy files. So you can
//! compare another runtime: `python3 scripts/onnx_exports.py` with the folder around it.

use std::path::Path;

use anygpu::nn::models::{LENET_RECIPE, lenet};
use anygpu::nn::{Module, correct};
use anygpu::{DataParallel, Device, Result, Tensor, data, manual_seed, nn, no_grad, onnx, optim};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let temporary = std::env::temp_dir().join(format!("anygpu-export-{}", std::process::id()));
    let folder = arguments.next().map_or_else(|| temporary.clone(), Into::into);
    let mut devices: Vec<Device> = arguments.map(|name| Device::new(&name)).collect::<Result<_>>()?;
    if devices.is_empty() {
        devices.push(Device::cpu());
    }
    manual_seed(0);
    let (train, test) = data::mnist_5k()?.loaders(LENET_RECIPE.batch_size, 0)?;
    let net = DataParallel::new(lenet()?, &devices)?;
    let mut sgd = optim::SGD::new(net.parameters(), LENET_RECIPE.lr).momentum(LENET_RECIPE.momentum);
    for _ in 0..2 {
        for batch in &train {
            let (images, labels) = batch?;
            net.train_batch(&images, &labels, nn::cross_entropy)?;
            sgd.step()?;
        }
    }
    let accuracy = net.evaluate(&test)?;

    std::fs::create_dir_all(&folder).map_err(|error| failed(&folder, &error))?;
    let path = folder.join("model.onnx");
    let trained = net.module();
    let device = trained.parameters()[0].device().clone();
    onnx::export(trained, &Tensor::zeros([1, 1, 28, 28], &device)?, &path)?;

    // All test images at once: the file takes batches of any size.
    let batches: Vec<(Tensor, Tensor)> = test.into_iter().collect::<Result<_>>()?;
    let (images, labels): (Vec<Tensor>, Vec<Tensor>) = batches.into_iter().unzip();
    let (images, labels) = (Tensor::cat(&images, 0)?, Tensor::cat(&labels, 0)?);
    let model = onnx::load(&path)?;
    let again = correct(&no_grad(|| model.forward(&images))?, &labels)? as f64 / labels.elem_count() as f64;

    trained.eval();
    let scores = no_grad(|| trained.forward(&images.to(&device)?))?;
    for (kind, tensor) in [("input", &images), ("output", &scores), ("labels", &labels)] {
        tensor.save_npy(folder.join(format!("{}_{kind}_0.npy", labels.elem_count())))?;
    }
    println!("test accuracy {accuracy:.4} on {devices:?}, {again:.4} from {}", path.display());
    assert!((accuracy - again).abs() < 1e-6 && accuracy > 0.9);
    if folder == temporary {
        std::fs::remove_dir_all(&folder).map_err(|error| failed(&folder, &error))?;
    }
    Ok(())
}

fn failed(folder: &Path, error: &std::io::Error) -> anygpu::Error {
    anygpu::Error::InvalidArgument { op: "export_onnx", detail: format!("{}: {error}", folder.display()) }
}
