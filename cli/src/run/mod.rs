//! `anygpu run`: runs an ONNX file, a model of another framework.

mod compare;
mod generate;
mod images;
mod inputs;
mod measure;
mod outputs;
mod sizes;

use std::path::PathBuf;

use anygpu::nn::Module;
use anygpu::onnx::{self, Dimension, Model, Outputs, ValueInfo};
use anygpu::{Device, manual_seed, no_grad};
use serde_json::json;

use crate::failure::Failure;
use crate::values::{above_zero, at_least_one, number, whole};
use crate::{devices, output};
use generate::Decoder;
use images::Layout;
use inputs::Input;
use outputs::Report;

/// Runs an ONNX file, a model of another framework.
///
/// For each output, this prints its type, its shape, its least, mean and largest element, and the first elements.
///
/// An input is a .npy file, an image (PNG or JPEG), a list of numbers, or one number, which fills the shape that
/// the model declares. It is converted to the type that the model declares if no integer changes. Floats are
/// rounded to narrower floats.
///
/// Examples: anygpu run model.onnx --describe; anygpu run model.onnx --input x=data.npy --output scores=scores.npy;
/// anygpu run classifier.onnx --input photo.png --top 5 --labels names.txt; anygpu run model.onnx --random --size batch=8 --bench;
/// anygpu run decoder.onnx --input input_ids=[1,2,3] --generate 64
#[derive(clap::Args, Debug)]
#[command(allow_negative_numbers = true)]
pub struct Args {
    /// The model, an ONNX file
    file: PathBuf,
    /// An input: NAME=data.npy, NAME=photo.png, NAME=1.5 or NAME=[1,2,3]. The name may be left out if the model has
    /// one input. May be given several times
    #[arg(long = "input", value_name = "[NAME=]VALUE")]
    inputs: Vec<String>,
    /// Fill the inputs that are not given with random numbers: floats from 0 to 1, bytes from 0 to 255, other
    /// integers 0 or 1
    #[arg(long)]
    random: bool,
    /// The seed of random numbers
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = whole)]
    seed: u64,
    /// The size of an open dimension, by the model's name for it, or as INPUT.NUMBER if it has no name; for images
    /// also height and width; may be given several times [default: 1; for images, their own size]
    #[arg(long = "size", value_name = "NAME=N", value_parser = sizes::size)]
    sizes: Vec<(String, usize)>,
    /// The device, only one: auto is the first hardware GPU, else the CPU
    #[arg(long, alias = "device", default_value = "auto", value_name = "NAME")]
    devices: String,
    /// Print the inputs, the outputs and the operators of the model, and do not run it
    #[arg(long, conflicts_with_all = ["inputs", "random", "sizes", "outputs", "top", "bench", "profile", "compare", "generate"])]
    describe: bool,
    /// Generate N tokens with a decoder of a language model, always the most likely one, after the tokens of
    /// --input input_ids=[1,2,3]. Its inputs and outputs must be named as by Optimum or ONNX Runtime's model
    /// builder (past_key_values.0.key, present.0.key, logits). With --bench N, the times are measured over N
    /// further runs; with --profile, over one more token
    #[arg(long, value_name = "N", value_parser = at_least_one, conflicts_with_all = ["random", "sizes", "outputs", "top", "compare"])]
    generate: Option<usize>,
    /// Write an output to a .npy file. The name may be left out if the model has one output. May be given several
    /// times
    #[arg(long = "output", value_name = "[NAME=]FILE")]
    outputs: Vec<String>,
    /// Print the largest scores of each row of outputs of the shape [rows, classes], without softmax
    #[arg(long, value_name = "K", value_parser = at_least_one)]
    top: Option<usize>,
    /// A file with the names of the classes, one a line, for --top
    #[arg(long, value_name = "FILE", requires = "top")]
    labels: Option<PathBuf>,
    /// Mean of each channel of images, red first, on the scale 0 to 1, which is subtracted [default: 0]
    #[arg(long, value_name = "LIST", value_delimiter = ',', allow_hyphen_values = true, value_parser = number)]
    mean: Vec<f32>,
    /// Standard deviation of each channel of images, by which it is divided after that [default: 1]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = above_zero)]
    std: Vec<f32>,
    /// Factor by which images are multiplied at the end: 255 for a model of pixels from 0 to 255 [default: 1; 255
    /// for inputs of integers]
    #[arg(long, value_name = "FACTOR", value_parser = above_zero)]
    scale: Option<f32>,
    /// Order of the dimensions of images [default: by the dimension with 1, 3 or 4 channels]
    #[arg(long, value_enum)]
    layout: Option<Layout>,
    /// Use the channel order blue, green, red for images
    #[arg(long)]
    bgr: bool,
    /// Measure N runs after the first one, each until its outputs are ready on the device [default: 20]
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "20", value_parser = at_least_one)]
    bench: Option<usize>,
    /// Print the time of each op and kernel in one more run
    #[arg(long)]
    profile: bool,
    /// Run on cpu too, and compare: exit status 1 if an output differs by more than --tolerance
    #[arg(long)]
    compare: bool,
    /// The largest difference from cpu that --compare accepts, as a share of the output's largest element
    #[arg(long, default_value_t = 1e-3, value_name = "SHARE", value_parser = above_zero, requires = "compare")]
    tolerance: f32,
}

/// Runs the command. `as_json`: one object for each output, and one for each of `--bench`, `--profile` and the
/// outputs of `--compare`. With `--generate`, one object takes the place of the objects for outputs and `--bench`.
///
/// # Errors
/// [`Failure::Usage`] for options that do not fit the model; [`Failure::Run`] for files that cannot be read or written, a model
/// that fails, and outputs that differ.
pub fn run(args: &Args, as_json: bool) -> Result<(), Failure> {
    let model = onnx::load(&args.file)?;
    if args.describe {
        return describe(&model, as_json);
    }
    let device = devices::one("run", &args.devices)?;
    if let Some(count) = args.generate {
        generate::check(&model)?;
        let inputs = inputs::all(args, &model, &device)?;
        let decoder = Decoder::new(model.to(&device)?, inputs, device)?;
        return decoder.run(count, args.bench, args.profile, as_json);
    }
    let report = Report::new(args, &model)?;
    manual_seed(args.seed);
    let inputs = inputs::all(args, &model, &device)?;
    let runs = Runs { model: model.to(&device)?, inputs, device, seed: args.seed };
    let (outputs, first) = measure::timed(&runs)?;
    report.show(&runs.model, &outputs, as_json)?;
    drop(outputs);
    if let Some(count) = args.bench {
        measure::bench(&runs, first, count, as_json)?;
    }
    if args.profile {
        measure::profile(&runs, as_json)?;
    }
    if args.compare { compare::with_cpu(&runs, args.tolerance, as_json) } else { Ok(()) }
}

/// A model on its device, with its inputs.
struct Runs {
    model: Model,
    inputs: Vec<Input>,
    device: Device,
    seed: u64,
}

impl Runs {
    /// Runs the model. Operators with random numbers draw the same numbers in each run and on each device.
    fn run(&self) -> anygpu::Result<Outputs> {
        manual_seed(self.seed);
        let inputs: Vec<_> = self.inputs.iter().map(|input| (input.name.as_str(), &input.tensor)).collect();
        no_grad(|| self.model.run(&inputs))
    }
}

fn describe(model: &Model, as_json: bool) -> Result<(), Failure> {
    if !as_json {
        return output::line(model);
    }
    let dimension = |dimension: &Dimension| match dimension {
        Dimension::Size(size) => json!(size),
        Dimension::Symbol(name) => json!(name),
        _ => json!(null),
    };
    let value = |info: &ValueInfo| {
        let shape = info.shape.as_ref().map(|shape| shape.iter().map(dimension).collect::<Vec<_>>());
        json!({ "name": info.name, "type": info.element_type.to_string(), "shape": shape })
    };
    let values = |infos: &[ValueInfo]| infos.iter().map(value).collect::<Vec<_>>();
    output::json(&json!({
        "inputs": values(model.inputs()),
        "outputs": values(model.outputs()),
        "parameters": model.num_parameters(),
    }))
}

/// Returns the name and the value of an option `[NAME=]VALUE`. The name is one of these, and may be left out if
/// there is only one.
fn named<'a, 'b>(
    option: &str,
    text: &'b str,
    kind: &str,
    infos: &'a [ValueInfo],
) -> Result<(&'a ValueInfo, &'b str), Failure> {
    let found = text.split_once('=').and_then(|(name, value)| {
        let info = infos.iter().find(|info| info.name == name)?;
        Some((info, value))
    });
    match (found, infos) {
        (Some(found), _) => Ok(found),
        (None, [only]) if !text.contains('=') => Ok((only, text)),
        _ => {
            let known: Vec<String> = infos.iter().map(|info| format!("\n  {info}")).collect();
            let known = known.concat();
            Err(Failure::Usage(format!("{option} {text}: write NAME=VALUE with the name of an {kind}:{known}")))
        }
    }
}
