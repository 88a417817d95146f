//! A job that nobody watches: it survives the loss of its device and a lack of memory, and ends with the same
//! losses as a run without either.
//!
//! `cargo run --release --example headless_job [DEVICE]`, by default on the first adapter. The faults are injected:
//! the job runs on the device `chaos:DEVICE?oom=250&lose=800`.

use std::path::{Path, PathBuf};

use anygpu::checkpoint::TrainingState;
use anygpu::nn::{self, Module, models::lenet};
use anygpu::{Device, Result, Tensor, data, manual_seed, optim};

const STEPS: usize = 24;
const BATCH: usize = 32;
/// The steps from one checkpoint to the next.
const EVERY: usize = 4;
/// The faults in a row, without a checkpoint between them, after which the job gives up.
const MOST_FAULTS: usize = 5;

/// The settings of a run of the job, besides its checkpoint.
struct Job {
    device: Device,
    /// The parts of a batch that are computed one after the other, with the memory of one.
    pieces: usize,
    file: PathBuf,
}

impl Job {
    /// Makes the steps from the checkpoint, if there is one, to the last. `losses` has one for each step that was made.
    fn run(&self, losses: &mut Vec<f32>) -> Result<()> {
        manual_seed(0);
        let (loader, _) = data::mnist_5k()?.loaders(BATCH, 0)?;
        let mut net = lenet()?;
        net.to_(&self.device)?;
        let mut sgd = optim::SGD::new(net.parameters(), 0.05).momentum(0.9);
        losses.clear();
        if self.file.exists() {
            let run = TrainingState::load(&self.file)?;
            run.restore_module(&net)?.restore_optimizer(&mut sgd)?.restore_random_state();
            loader.set_state(run.loader_state()?);
            for step in 0..run.get("step")? as usize {
                losses.push(run.get(&format!("loss.{step}"))? as f32);
            }
        }
        'all: loop {
            for batch in &loader {
                if losses.len() == STEPS {
                    break 'all;
                }
                let (images, labels) = batch?;
                sgd.zero_grad();
                losses.push(self.gradients(&net, &images, &labels)?);
                sgd.step()?;
                if losses.len().is_multiple_of(EVERY) {
                    let run = TrainingState::new().module(&net).optimizer(&sgd)?.loader(loader.state());
                    let all = losses.iter().enumerate().map(|(step, loss)| (step.to_string(), f64::from(*loss)));
                    run.number("step", losses.len() as f64).numbers("loss", all).save(&self.file)?;
                }
            }
        }
        Ok(())
    }

    /// Adds up the gradients of a batch, piece by piece, and returns its loss.
    fn gradients(&self, net: &dyn Module, images: &Tensor, labels: &Tensor) -> Result<f32> {
        let mut sum = 0.0;
        for (images, labels) in images.chunk(self.pieces, 0)?.iter().zip(labels.chunk(self.pieces, 0)?) {
            let (images, labels) = (images.to(&self.device)?, labels.to(&self.device)?);
            let weight = labels.elem_count() as f32 / BATCH as f32;
            let loss = nn::cross_entropy(&net.forward(&images)?, &labels)?.mul(weight)?;
            loss.backward()?;
            sum += loss.item::<f32>()?;
        }
        Ok(sum)
    }

    /// Runs the job until it is done. Returns the losses and the faults that it survived.
    fn supervise(mut self) -> Result<(Vec<f32>, Vec<String>)> {
        let (mut losses, mut faults, mut in_a_row, mut saved) = (Vec::new(), Vec::new(), 0, 0);
        loop {
            let Err(error) = self.run(&mut losses) else { return Ok((losses, faults)) };
            let progress = losses.len() / EVERY;
            in_a_row = if progress == saved { in_a_row + 1 } else { 1 };
            saved = progress;
            if in_a_row > MOST_FAULTS {
                return Err(error);
            }
            if error.is_device_lost() {
                // The card may be gone; the job is not.
                self.device = self.device.reopen().unwrap_or_else(|_| Device::cpu());
            } else if error.is_out_of_memory() && self.pieces < BATCH {
                self.device.empty_cache()?;
                self.pieces *= 2;
            } else {
                return Err(error);
            }
            println!("step {}: {error}", losses.len());
            println!("  the job continues on {} with batches in {} pieces", self.device, self.pieces);
            faults.push(error.to_string());
        }
    }
}

fn job(device: &Device, folder: &Path, name: &str) -> Result<(Vec<f32>, Vec<String>)> {
    Job { device: device.clone(), pieces: 1, file: folder.join(name) }.supervise()
}

fn main() -> Result<()> {
    let device = match std::env::args().nth(1) {
        Some(name) => Device::new(&name)?,
        None => Device::all()[0].clone(), // an adapter, or cpu if there is none
    };
    let folder = std::env::temp_dir().join(format!("anygpu-headless-job-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the checkpoints");
    let (expected, faults) = job(&device, &folder, "undisturbed.safetensors")?;
    println!("{STEPS} steps on {device}: the loss went from {:.4} to {:.4}", expected[0], expected[STEPS - 1]);
    assert!(faults.is_empty() && expected[STEPS - 1] < expected[0]);
    if device.is_cpu() || device.info().api == "GL" {
        println!("faults can be injected on Vulkan, Metal and DirectX 12 only");
    } else {
        let faulty = Device::new(&format!("chaos:{device}?oom=250&lose=800"))?;
        let (losses, faults) = job(&faulty, &folder, "disturbed.safetensors")?;
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].contains("out of memory") && faults[1].contains("is lost"), "{faults:?}");
        // The gradients of pieces are added in another order.
        let worst = losses.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        println!("{STEPS} steps with both faults: losses differ by at most {worst:.1e}");
        assert!(losses.len() == STEPS && worst < 1e-3, "{losses:?}, expected {expected:?}");
    }
    std::fs::remove_dir_all(&folder).expect("the folder is ours");
    Ok(())
}
