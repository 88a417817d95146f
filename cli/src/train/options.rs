//! The options of `anygpu train`.

use std::path::PathBuf;

use anygpu::DType;
use anygpu::data::Limits;
use anygpu::optim::{CosineAnnealingLR, OneCycleLR, SGD, Schedule, Scheduler, StepLR};
use clap::ValueEnum;

use crate::net::Model;
use crate::values::{above_zero, at_least_one, whole};

/// Trains a net on images, on any mix of devices.
///
/// Without options, it trains LeNet on 5,000 built-in handwritten digits (4,000 to train, 1,000 to test).
///
/// On several machines: `mpirun --hostfile HOSTS anygpu train ...`, if the command was built with its feature
/// `mpi`.
#[derive(clap::Args, Clone, Debug)]
#[command(allow_negative_numbers = true)]
pub struct Args {
    /// The net to train
    #[arg(value_enum, default_value = "lenet")]
    pub model: Model,
    /// The devices. auto: all hardware GPUs, else the CPU. all: also software adapters and the CPU. Or a list:
    /// gpu:0,soft:1,cpu
    #[arg(long, alias = "device", default_value = "auto", value_name = "auto|all|LIST")]
    pub devices: String,
    /// The images: mnist-5k (built in), fashion-mnist (downloaded once), or a folder. A folder has the four IDX
    /// files of MNIST, the binary files of CIFAR-10, or a folder of PNG and JPEG images for each class (in train/
    /// and test/, or else a fifth is held out)
    #[arg(long, default_value = "mnist-5k", value_name = "mnist-5k|fashion-mnist|DIR")]
    pub data: String,
    /// The largest image that is decoded, in pixels [default: 67108864]
    #[arg(long, value_name = "PIXELS", value_parser = at_least_one)]
    pub max_pixels: Option<usize>,
    /// The most bytes that the elements of an IDX or CIFAR-10 file may take [default: 805306368]
    #[arg(long, value_name = "BYTES", value_parser = at_least_one)]
    pub max_bytes: Option<usize>,
    /// Use at most this many images to train, and as many to test
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub limit: Option<usize>,
    /// Height and width that images are resized to [default: 28 for lenet, 96 for resnet18]
    #[arg(long, value_name = "PIXELS", value_parser = at_least_one)]
    pub resize: Option<usize>,
    /// Number of passes over the training images [default: 10]
    #[arg(long, value_parser = at_least_one)]
    pub epochs: Option<usize>,
    /// Number of images in one step, over all devices together [default: 64 for lenet; 32 for resnet18, which omits
    /// the images of an epoch that do not fill a batch]
    #[arg(long, value_parser = at_least_one)]
    pub batch_size: Option<usize>,
    /// Learning rate of SGD with momentum [default: 0.05 for lenet, 0.01 for resnet18]
    #[arg(long, value_parser = above_zero)]
    pub lr: Option<f32>,
    /// How the learning rate changes from --lr, step by step
    #[arg(long, value_enum, default_value = "constant")]
    pub scheduler: Rate,
    /// Seed of the initial weights and the order of the images
    #[arg(long, default_value_t = 0, value_parser = whole)]
    pub seed: u64,
    /// Begin with the weights of this file instead of random ones: .safetensors (also from --save and
    /// --checkpoint), or PyTorch's .pt, .pth or .bin. Names and shapes must match the net, including its last layer
    #[arg(long, value_name = "FILE")]
    pub weights: Option<PathBuf>,
    /// Compute products and convolutions of 16-bit floats in training, for less memory; weights stay f32. With f16,
    /// the loss is scaled, and steps whose gradients overflow are skipped
    #[arg(long, value_enum)]
    pub mixed_precision: Option<Half>,
    /// End the run after this many epochs in a row whose test loss is not below the lowest one before. The saved
    /// net is the net of the last epoch
    #[arg(long, value_name = "EPOCHS", value_parser = at_least_one)]
    pub early_stopping: Option<usize>,
    /// Write the trained net to this file, for `anygpu predict` and for PyTorch
    #[arg(long, value_name = "out.safetensors")]
    pub save: Option<PathBuf>,
    /// Write the trained net as an ONNX file for other runtimes: input `image`, [batch, channels, height, width] of
    /// 0 to 1; output `scores`
    #[arg(long, value_name = "out.onnx")]
    pub export: Option<PathBuf>,
    /// Write the whole state of the run to this file after each epoch and at Ctrl-C, atomically, so that --resume
    /// can continue it
    #[arg(long, value_name = "run.safetensors")]
    pub checkpoint: Option<PathBuf>,
    /// Also write --checkpoint within an epoch, each time after this many steps
    #[arg(long, value_name = "STEPS", value_parser = at_least_one, requires = "checkpoint")]
    pub checkpoint_steps: Option<usize>,
    /// Continue from --checkpoint, on any devices. If there is no such file yet, start a new run
    #[arg(long, requires = "checkpoint")]
    pub resume: bool,
    /// What to do when the only device, or the last of several, is lost (a driver reset, an unplugged card): end
    /// the run, or reopen the devices and continue from --checkpoint, without the devices that do not open
    #[arg(long, value_enum, default_value = "stop")]
    pub on_device_loss: OnDeviceLoss,
    /// Write the losses for TensorBoard into this folder. If that fails, training goes on with a warning
    #[arg(long, value_name = "DIR")]
    pub log_dir: Option<PathBuf>,
    /// Write a picture of loss and accuracy by epoch, as PNG or SVG, after each epoch. If that fails, training goes
    /// on with a warning
    #[arg(long, value_name = "out.png|out.svg")]
    pub plot: Option<PathBuf>,
    /// At the end, print for each of several devices its share and its time for samples, for copies and without
    /// work; and print how many times as fast they were together as the fastest one alone
    #[arg(long)]
    pub report: bool,
    /// Write a trace of when each of several devices computed and copied, for ui.perfetto.dev or chrome://tracing
    #[arg(long, value_name = "FILE.json")]
    pub trace: Option<PathBuf>,
    /// Compile the kernels of an earlier run on all cores before the first step needs them, if this file exists;
    /// write the kernels of this run to it at the end
    #[arg(long, value_name = "FILE.txt")]
    pub kernels: Option<PathBuf>,
    /// Draw the curves in the terminal during training
    #[arg(long)]
    pub live: bool,
}

/// The values of `--on-device-loss`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnDeviceLoss {
    /// The run ends with an error; --resume can continue it from --checkpoint
    Stop,
    /// The run continues from its last checkpoint, or from its start if it has none
    Resume,
}

/// The values of `--mixed-precision`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Half {
    /// 11 bits of precision, numbers up to 65504
    F16,
    /// 8 bits of precision, the range of f32
    Bf16,
}

impl Half {
    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Half::F16 => "f16",
            Half::Bf16 => "bf16",
        }
    }

    /// Returns the type of products.
    pub fn dtype(self) -> DType {
        match self {
            Half::F16 => DType::F16,
            Half::Bf16 => DType::BF16,
        }
    }
}

/// The values of `--scheduler`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Rate {
    /// The same in all steps
    Constant,
    /// Divided by ten after each third of the run
    Step,
    /// Down to 0 along half a cosine
    Cosine,
    /// From 1/25 of --lr up to --lr, and down again
    Onecycle,
}

impl Rate {
    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Rate::Constant => "constant",
            Rate::Step => "step",
            Rate::Cosine => "cosine",
            Rate::Onecycle => "onecycle",
        }
    }

    /// Starts the schedule of a run of this many steps.
    pub fn start(self, steps: u64, sgd: &mut SGD) -> anygpu::Result<Option<Scheduler>> {
        Ok(match self {
            Rate::Constant => None,
            Rate::Step => Some(StepLR::new(steps.div_ceil(3), 0.1)?.start(sgd)),
            Rate::Cosine => Some(CosineAnnealingLR::new(steps)?.start(sgd)),
            Rate::Onecycle => Some(OneCycleLR::new(f64::from(sgd.lr()), steps)?.start(sgd)),
        })
    }
}

impl Args {
    /// Images in one step.
    pub fn batch_size(&self) -> usize {
        self.batch_size.unwrap_or(self.model.recipe().batch_size)
    }

    /// The learning rate at the start.
    pub fn lr(&self) -> f32 {
        self.lr.unwrap_or(self.model.recipe().lr)
    }

    /// Height and width of the images.
    pub fn side(&self) -> usize {
        self.resize.unwrap_or(self.model.side())
    }

    /// The options of a process that neither prints nor writes files.
    pub fn without_outputs(&self) -> Args {
        Args {
            save: None,
            export: None,
            log_dir: None,
            plot: None,
            trace: None,
            kernels: None,
            live: false,
            report: false,
            ..self.clone()
        }
    }

    /// The limits on what the files of `--data` may decode to.
    pub fn limits(&self) -> Limits {
        let limits = self.max_pixels.map_or(Limits::new(), |pixels| Limits::new().pixels(pixels));
        self.max_bytes.map_or(limits, |bytes| limits.bytes(bytes))
    }

    /// Passes over the training images.
    pub fn epochs(&self) -> usize {
        self.epochs.unwrap_or(self.model.recipe().epochs)
    }
}
