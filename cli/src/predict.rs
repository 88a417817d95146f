//! `anygpu predict`: classifies images with a trained net.

use std::path::{Path, PathBuf};

use anygpu::data::transforms::Transform;
use anygpu::data::{Array, Limits, Random, read_image_within};
use anygpu::nn::{Module, Sequential, StateDict};
use anygpu::{Device, Tensor, checkpoint};
use serde::Serialize;

use crate::failure::Failure;
use crate::net::{Card, Model};
use crate::values::{above_zero, at_least_one, number};
use crate::{devices, output};

/// Classifies images with a trained net.
///
/// A file that `anygpu train` wrote with --save or --checkpoint holds the classes, and the size and normalisation
/// of the images. For other files (including PyTorch's .pt), name the net with --model, and set --classes,
/// --resize, --mean and --std if the defaults do not fit.
#[derive(clap::Args, Debug)]
#[command(allow_negative_numbers = true)]
pub struct Args {
    /// The file of the trained net: .safetensors, or PyTorch's .pt, .pth or .bin
    net: PathBuf,
    /// PNG or JPEG files
    #[arg(required = true)]
    images: Vec<PathBuf>,
    /// The device to compute on, only one: auto is the first hardware GPU, else the CPU
    #[arg(long, alias = "device", default_value = "auto", value_name = "NAME")]
    devices: String,
    /// How many classes to print for each image
    #[arg(long, default_value_t = 5, value_name = "K", value_parser = at_least_one)]
    top: usize,
    /// Invert the pictures: for dark on bright pictures, if the net was trained on bright on dark ones, such as
    /// MNIST
    #[arg(long)]
    invert: bool,
    /// The net, if the file does not name it
    #[arg(long, value_enum)]
    model: Option<Model>,
    /// The names of the classes in order [default: their numbers]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    classes: Vec<String>,
    /// Height and width of the net's images [default: 28 for lenet; for resnet18, 224 with colours and 96 without]
    #[arg(long, value_name = "PIXELS", value_parser = at_least_one)]
    resize: Option<usize>,
    /// Length to which the shorter side of an image is resized before its middle is cropped [default: the value of
    /// --resize; without --resize, 256 if the size is 224, as torchvision's nets expect]
    #[arg(long, value_name = "PIXELS", value_parser = at_least_one)]
    shorter: Option<usize>,
    /// The largest image that is decoded, in pixels [default: 67108864]
    #[arg(long, value_name = "PIXELS", value_parser = at_least_one)]
    max_pixels: Option<usize>,
    /// Mean of each channel on the scale 0 to 1, which is subtracted [default: ImageNet's for colours, 0 for grey]
    #[arg(long, value_name = "LIST", value_delimiter = ',', allow_hyphen_values = true, value_parser = number)]
    mean: Vec<f32>,
    /// Standard deviation of each channel, by which it is divided [default: ImageNet's for colours, 1 for grey]
    #[arg(long, value_name = "LIST", value_delimiter = ',', allow_hyphen_values = true, value_parser = above_zero)]
    std: Vec<f32>,
}

/// The normalisation that torchvision's nets expect.
const IMAGENET_MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const IMAGENET_STD: [f32; 3] = [0.229, 0.224, 0.225];

/// The largest height and width of an image: larger activations would not fit into memory.
const LARGEST: usize = 4096;

/// One image, as `--json` prints it.
#[derive(Serialize)]
struct Prediction {
    file: String,
    /// In the order of probability.
    classes: Vec<Guess>,
}

#[derive(Serialize)]
struct Guess {
    class: String,
    probability: f32,
}

/// Runs the command. `as_json`: one object per image instead of one line.
///
/// # Errors
/// [`Failure::Usage`] if neither the file nor the options name the net; [`Failure::Run`] for a file that is damaged
/// or does not fit. The message names the file.
pub fn run(args: &Args, as_json: bool) -> Result<(), Failure> {
    let device = devices::one("predict", &args.devices)?;
    let (net, card) = load(args, &device)?;
    for path in &args.images {
        let prediction = predict(args, &net, &card, path, &device)?;
        if as_json {
            output::json(&prediction)?;
        } else {
            let guesses = prediction.classes.iter().map(|g| format!("{} {:.4}", g.class, g.probability));
            output::line(format!("{}: {}", prediction.file, guesses.collect::<Vec<_>>().join(", ")))?;
        }
    }
    Ok(())
}

/// The net on its device, and its card.
fn load(args: &Args, device: &Device) -> Result<(Sequential, Card), Failure> {
    let name = args.net.display();
    let (state, metadata) = checkpoint::load_with_metadata(&args.net, Device::cpu())?;
    // The prefixes of torch.compile and of replicas, in either order.
    let plain = |state: StateDict, prefix: &str| {
        let all = state.names().all(|name| name.starts_with(prefix));
        if all { state.strip_prefix(prefix) } else { Ok(state) }
    };
    let state = ["_orig_mod.", "module.", "_orig_mod."].into_iter().try_fold(state, plain)?;
    let own = Card::from_metadata(&metadata).map_err(|error| Failure::Run(format!("{name}: {error}")))?;
    let card = card(args, own, &state)?;
    if card.model == Model::Lenet && card.classes.len() != 10 {
        return Err(Failure::Run(format!("{name}: LeNet has ten classes, not {}", card.classes.len())));
    }
    let mut net = card.model.build(card.channels, card.classes.len())?;
    net.load_state_dict(&state, true).map_err(|error| Failure::Run(format!("{name}: {error}")))?;
    net.to_(device)?;
    net.eval();
    Ok((net, card))
}

/// The card of the file, or a card from the shapes of its weights; the values of the options replace its own.
fn card(args: &Args, own: Option<Card>, state: &StateDict) -> Result<Card, Failure> {
    let mut card = match (own, args.model) {
        (Some(card), Some(model)) if card.model != model => {
            let (name, own, given) = (args.net.display(), card.model.name(), model.name());
            return Err(Failure::Usage(format!("--model {given}: {name} says that it is a {own}: leave --model out")));
        }
        (Some(card), _) => card,
        (None, Some(model)) => {
            let card = foreign(args, model, state)?;
            if args.mean.is_empty() || args.std.is_empty() {
                log::warn!(
                    "{} does not say how its images are normalised: the defaults are a mean of {:?} and a deviation of \
                     {:?}; set others with --mean and --std",
                    args.net.display(),
                    card.mean,
                    card.std
                );
            }
            card
        }
        (None, None) => {
            let name = args.net.display();
            return Err(Failure::Usage(format!(
                "{name} does not say what net it is: add --model lenet or --model resnet18"
            )));
        }
    };
    if !args.classes.is_empty() {
        if args.classes.len() != card.classes.len() {
            let (given, needed) = (args.classes.len(), card.classes.len());
            return Err(Failure::Usage(format!("--classes names {given} classes, but the net has {needed}")));
        }
        card.classes.clone_from(&args.classes);
    }
    size(args, &mut card)?;
    for (option, given, own) in [("--mean", &args.mean, &mut card.mean), ("--std", &args.std, &mut card.std)] {
        if given.len() > 1 && given.len() != card.channels {
            let (given, channels) = (given.len(), card.channels);
            return Err(Failure::Usage(format!("{option} has {given} numbers, but images have {channels} channels")));
        }
        if !given.is_empty() {
            own.clone_from(given);
        }
    }
    if let Some(std) = card.std.iter().find(|std| std.is_nan() || **std <= 0.0) {
        return Err(Failure::Usage(format!("--std {std}: a deviation must be above 0")));
    }
    Ok(card)
}

/// Sets the size of the images from the options.
fn size(args: &Args, card: &mut Card) -> Result<(), Failure> {
    if let Some(side) = args.resize {
        (card.side, card.shorter) = (side, None);
    }
    card.shorter = args.shorter.or(card.shorter);
    let shorter = card.shorter.unwrap_or(card.side);
    for side in [card.side, shorter] {
        if !(1..=LARGEST).contains(&side) {
            return Err(Failure::Run(format!("images of {side} pixels: they can have 1 to {LARGEST}")));
        }
    }
    if shorter < card.side {
        return Err(Failure::Usage(format!("--shorter {shorter}: the net's images have {0} × {0} pixels", card.side)));
    }
    if card.model == Model::Lenet && card.side != Model::Lenet.side() {
        return Err(Failure::Usage(format!("--resize {}: LeNet takes images of 28 × 28 only", card.side)));
    }
    Ok(())
}

/// A card for a file that has none, from the shapes of its first and last weight.
fn foreign(args: &Args, model: Model, state: &StateDict) -> Result<Card, Failure> {
    let last = match model {
        Model::Lenet => "fc2.weight",
        Model::Resnet18 => "fc.weight",
    };
    let side = |name: &str, dim: usize| {
        let shape = state.get(name).map(Tensor::shape).unwrap_or_default();
        shape.get(dim).copied().ok_or_else(|| {
            let file = args.net.display();
            Failure::Run(format!("{file} is not a {}: it has no tensor {name} of the right shape", model.name()))
        })
    };
    let (channels, classes) = (side("conv1.weight", 1)?, side(last, 0)?);
    if channels != 1 && channels != 3 {
        let file = args.net.display();
        return Err(Failure::Run(format!("{file}: its images have {channels} channels, but pictures have 1 or 3")));
    }
    let photos = channels == 3;
    let torchvision = photos && model == Model::Resnet18;
    Ok(Card {
        model,
        classes: (0..classes).map(|class| class.to_string()).collect(),
        channels,
        side: if torchvision { 224 } else { model.side() },
        shorter: torchvision.then_some(256),
        mean: if photos { IMAGENET_MEAN.to_vec() } else { vec![0.0] },
        std: if photos { IMAGENET_STD.to_vec() } else { vec![1.0] },
    })
}

fn predict(args: &Args, net: &Sequential, card: &Card, path: &Path, device: &Device) -> Result<Prediction, Failure> {
    let limits = args.max_pixels.map_or(Limits::new(), |pixels| Limits::new().pixels(pixels));
    let mut image: Array = read_image_within(path, card.channels == 1, limits)?;
    if args.invert {
        image.as_mut_slice::<f32>()?.iter_mut().for_each(|value| *value = 1.0 - *value);
    }
    let image = card.transform().apply(image, &mut Random::of_sample(0, 0, 0))?;
    let x = Tensor::from_slice(image.as_slice::<f32>()?, [&[1], image.shape()].concat(), device)?;
    let probabilities = anygpu::no_grad(|| net.forward(&x)?.softmax(1)?.to_vec::<f32>())?;
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    order.sort_by(|&a, &b| probabilities[b].total_cmp(&probabilities[a]));
    let guess = |&class: &usize| Guess { class: card.classes[class].clone(), probability: probabilities[class] };
    Ok(Prediction { file: path.display().to_string(), classes: order.iter().take(args.top).map(guess).collect() })
}
