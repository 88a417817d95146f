//! Pictures as inputs: resized, normalised and in the model's order of dimensions.

use std::path::{Path, PathBuf};

use anygpu::Tensor;
use anygpu::data::transforms::{Resize, Transform};
use anygpu::data::{Random, read_image};
use anygpu::onnx::{Dimension, ValueInfo};
use clap::ValueEnum;

use super::Args;
use super::inputs::of_numbers;
use super::sizes::Sizes;
use crate::failure::Failure;

/// The order of the dimensions of images.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Channels before height and width
    Nchw,
    /// Channels last
    Nhwc,
}

impl Layout {
    /// The channels, the height and the width in the last three dimensions.
    fn places(self) -> [usize; 3] {
        match self {
            Layout::Nchw => [0, 1, 2],
            Layout::Nhwc => [2, 0, 1],
        }
    }
}

/// Refuses options for images if no input is an image.
///
/// # Errors
/// [`Failure::Usage`] naming the option.
pub fn check(args: &Args, has_images: bool) -> Result<(), Failure> {
    let given = [
        ("--mean", !args.mean.is_empty()),
        ("--std", !args.std.is_empty()),
        ("--scale", args.scale.is_some()),
        ("--layout", args.layout.is_some()),
        ("--bgr", args.bgr),
    ];
    match given.iter().find(|(_, is_given)| *is_given && !has_images) {
        Some((option, _)) => Err(Failure::Usage(format!("{option} is for images, and no --input is one"))),
        None => Ok(()),
    }
}

/// An image for an input.
pub struct Picture<'a> {
    args: &'a Args,
    info: &'a ValueInfo,
    path: PathBuf,
    /// Whether the input has a dimension for the batch.
    is_batch: bool,
    layout: Layout,
}

impl<'a> Picture<'a> {
    /// Finds out how the input takes images.
    ///
    /// # Errors
    /// [`Failure::Usage`] if it cannot be an image.
    pub fn new(args: &'a Args, info: &'a ValueInfo, path: &Path) -> Result<Picture<'a>, Failure> {
        let rank = info.shape.as_ref().map_or(4, Vec::len);
        if !(3..=4).contains(&rank) {
            let file = path.display();
            let detail = "an image has channels, height and width, and before them the batch";
            return Err(Failure::Usage(format!("input {info} takes no image such as {file}: {detail}")));
        }
        let channels = |at: usize| {
            let dimension = info.shape.as_ref().map(|shape| &shape[at]);
            matches!(dimension, Some(Dimension::Size(1 | 3 | 4)))
        };
        let layout = args.layout.unwrap_or(match channels(rank - 1) && !channels(rank - 3) {
            true => Layout::Nhwc,
            false => Layout::Nchw,
        });
        Ok(Picture { args, info, path: path.into(), is_batch: rank == 4, layout })
    }

    /// Reads the file and returns the input.
    ///
    /// # Errors
    /// [`Failure::Run`] for a file that is damaged; [`Failure::Usage`] for options that do not fit.
    pub fn tensor(&self, sizes: &Sizes) -> Result<Tensor, Failure> {
        let info = self.info;
        let first = usize::from(self.is_batch);
        let [c, h, w] = self.layout.places().map(|place| sizes.of(info, first + place));
        let channels = c.unwrap_or(3);
        if ![1, 3, 4].contains(&channels) {
            let detail = "images have 1, 3 or 4: is --layout right?";
            return Err(Failure::Usage(format!("input {info} has {channels} channels, and {detail}")));
        }
        let image = read_image(&self.path, channels == 1)?;
        let own = [image.shape()[1], image.shape()[2]];
        let mut size = [0; 2];
        for (at, (name, declared)) in [("height", h), ("width", w)].into_iter().enumerate() {
            let given = sizes.get(name);
            if let (Some(given), Some(declared)) = (given, declared)
                && given != declared
            {
                return Err(Failure::Usage(format!("--size {name}={given}: input {info} has the {name} {declared}")));
            }
            size[at] = given.or(declared).unwrap_or(own[at]);
        }
        let image = match size == own {
            true => image,
            false => Resize::new(size).apply(image, &mut Random::of_sample(0, 0, 0))?,
        };
        let planes = self.normalised(image.as_slice::<f32>()?, channels)?;
        let [height, width] = size;
        let name = self.path.display().to_string();
        let mut tensor = of_numbers(info, &planes, vec![channels, height, width], &name)?;
        if self.layout == Layout::Nhwc {
            tensor = tensor.permute([1, 2, 0])?.contiguous()?;
        }
        Ok(if self.is_batch { tensor.unsqueeze(0)? } else { tensor })
    }

    /// Returns the planes of an image of one or three colours, normalised and in the model's order. A fourth
    /// channel of the model is the opacity of the picture, which is full.
    fn normalised(&self, image: &[f32], channels: usize) -> Result<Vec<f64>, Failure> {
        let colours = channels.min(3);
        for (option, given) in [("--mean", &self.args.mean), ("--std", &self.args.std)] {
            if given.len() > 1 && given.len() != colours {
                let count = given.len();
                return Err(Failure::Usage(format!(
                    "{option} has {count} numbers, and images have {colours} channels"
                )));
            }
        }
        let is_float = self.info.element_type.dtype().is_float();
        let scale = f64::from(self.args.scale.unwrap_or(if is_float { 1.0 } else { 255.0 }));
        let of = |numbers: &[f32], colour: usize, default: f32| {
            f64::from(numbers.get(colour).or(numbers.first()).copied().unwrap_or(default))
        };
        let plane = image.len() / colours.max(1);
        let order: &[usize] = if self.args.bgr && colours == 3 { &[2, 1, 0] } else { &[0, 1, 2][..colours] };
        let mut all = Vec::with_capacity(plane * channels);
        for &colour in order {
            let (mean, std) = (of(&self.args.mean, colour, 0.0), of(&self.args.std, colour, 1.0));
            let pixels = image[colour * plane..(colour + 1) * plane].iter();
            all.extend(pixels.map(|value| (f64::from(*value) - mean) / std * scale));
        }
        all.resize(plane * channels, scale);
        if !is_float {
            all.iter_mut().for_each(|value| *value = value.round());
        }
        Ok(all)
    }
}
