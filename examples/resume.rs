//! Training that can be killed at any time. When it is run again, it continues with the same losses as an uninterrupted
//! run.
//!
//! `cargo run --release --example resume [file] [device]`

use std::path::{Path, PathBuf};

use anygpu::checkpoint::TrainingState;
use anygpu::nn::{self, Dropout, Sequential, models::lenet};
use anygpu::{DataParallel, Device, Result, data, manual_seed, optim, try_gpu};

/// Trains for `steps` steps in total. Continues from `file` if it exists, and writes it every `every` steps. `report`
/// is called with each step and its loss.
pub fn train(
    file: &Path,
    device: &Device,
    (steps, every): (usize, usize),
    mut report: impl FnMut(usize, f32),
) -> Result<()> {
    manual_seed(0);
    let (loader, _) = data::mnist_5k()?.loaders(16, 0)?;
    let net = Sequential::new().add("noise", Dropout::new(0.1)?).add("lenet", lenet()?);
    let net = DataParallel::new(net, std::slice::from_ref(device))?;
    let mut sgd = optim::SGD::new(net.parameters(), 0.05).momentum(0.9);
    let mut step = 0;
    if file.exists() {
        let run = TrainingState::load(file)?;
        run.restore_module(&net)?.restore_optimizer(&mut sgd)?.restore_random_state();
        loader.set_state(run.loader_state()?);
        step = run.get("step")? as usize;
    }
    'all: loop {
        for batch in &loader {
            if step == steps {
                break 'all;
            }
            let (images, labels) = batch?;
            let loss = net.train_batch(&images, &labels, nn::cross_entropy)?;
            sgd.step()?;
            report(step, loss.item()?);
            step += 1;
            if step.is_multiple_of(every) {
                let run = TrainingState::new().module(&net).optimizer(&sgd)?.loader(loader.state());
                run.number("step", step as f64).save(file)?;
            }
        }
    }
    Ok(())
}

/// Without arguments, trains half of the steps, continues as a new process would, and compares with an uninterrupted
/// run.
#[allow(dead_code, reason = "the test that kills takes the rest of this file")]
fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().map(PathBuf::from);
    let device = match arguments.next() {
        Some(name) => Device::new(&name)?,
        None => try_gpu(0),
    };
    if let Some(file) = file {
        return train(&file, &device, (500, 10), |step, loss| println!("step {step}: loss {loss}"));
    }
    let folder = std::env::temp_dir().join(format!("anygpu-resume-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the files");
    let (mut once, mut twice) = (Vec::new(), Vec::new());
    train(&folder.join("once.safetensors"), &device, (20, 5), |_, loss| once.push(loss))?;
    for steps in [13, 20] {
        // The first run stops after step 13; the second continues from the file of step 10.
        train(&folder.join("twice.safetensors"), &device, (steps, 5), |step, loss| {
            twice.truncate(step);
            twice.push(loss);
        })?;
    }
    assert_eq!(once, twice, "the same losses, to the bit");
    println!("twenty losses on {device}, in one go and in two: the same, the last is {}", once[19]);
    std::fs::remove_dir_all(&folder).expect("the folder is ours");
    Ok(())
}
