//! The nets of the command, and the card of a saved net.

use std::collections::BTreeMap;

use anygpu::Result;
use anygpu::data::transforms::{CenterCrop, Compose, Normalize, Resize};
use anygpu::nn::Sequential;
use anygpu::nn::models::{LENET_RECIPE, Recipe, lenet, resnet18};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The nets that can be trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Model {
    /// For grey images of 28 × 28 in ten classes: seconds
    Lenet,
    /// For images of any size, 96 × 96 by default: minutes, best on a GPU
    Resnet18,
}

/// Settings with which ResNet-18 learns within a few hundred steps.
const RESNET18_RECIPE: Recipe = Recipe { batch_size: 32, lr: 0.01, momentum: 0.9, epochs: 10 };

impl Model {
    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Model::Lenet => "lenet",
            Model::Resnet18 => "resnet18",
        }
    }

    /// Returns the default settings of a run.
    pub fn recipe(self) -> Recipe {
        match self {
            Model::Lenet => LENET_RECIPE,
            Model::Resnet18 => RESNET18_RECIPE,
        }
    }

    /// Returns the default height and width of the images.
    pub fn side(self) -> usize {
        match self {
            Model::Lenet => 28,
            Model::Resnet18 => 96,
        }
    }

    /// Returns whether the net has batch norm, which needs batches of more than a few images.
    pub fn has_batch_norm(self) -> bool {
        self == Model::Resnet18
    }

    /// Creates the net with its initial weights.
    ///
    /// # Errors
    /// The errors of its layers.
    pub fn build(self, channels: usize, classes: usize) -> Result<Sequential> {
        match self {
            Model::Lenet => lenet(),
            Model::Resnet18 => resnet18(channels, classes),
        }
    }
}

/// The description of a saved net in the metadata of its file: everything that is needed to classify an image with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Card {
    pub model: Model,
    /// The names of the classes, by number.
    pub classes: Vec<String>,
    /// 1 for grey images, 3 for red, green and blue.
    pub channels: usize,
    /// Height and width of the images.
    pub side: usize,
    /// The length to which the shorter side of an image is resized before the middle is cropped, if it is more than
    /// `side`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shorter: Option<usize>,
    /// The mean of each channel, which is subtracted, on the scale 0 to 1.
    pub mean: Vec<f32>,
    /// The standard deviation of each channel, by which it is divided after that.
    pub std: Vec<f32>,
}

/// The name of the card in a file's metadata.
const KEY: &str = "anygpu.card";

impl Card {
    /// Returns the card as named text.
    pub fn to_metadata(&self) -> BTreeMap<String, String> {
        let text = serde_json::to_string(self).unwrap_or_default(); // cannot fail: it consists of names, numbers and lists
        BTreeMap::from([(KEY.to_string(), text)])
    }

    /// Returns the card of a file, if it has one.
    ///
    /// # Errors
    /// A message, if the card cannot be parsed.
    pub fn from_metadata(metadata: &BTreeMap<String, String>) -> Result<Option<Card>, String> {
        let Some(text) = metadata.get(KEY) else { return Ok(None) };
        serde_json::from_str(text).map(Some).map_err(|error| format!("its {KEY} cannot be read: {error}"))
    }

    /// Returns the transform of images in 0 to 1, in training and in use.
    pub fn transform(&self) -> Compose {
        let shorter = self.shorter.unwrap_or(self.side);
        middle(shorter, self.side).add(Normalize::new(self.mean.clone(), self.std.clone()))
    }
}

/// Returns the transform to the largest square from the middle, as `side` × `side` pixels.
pub fn fitted(side: usize) -> Compose {
    middle(side, side)
}

/// Returns the transform that resizes the shorter side to `shorter` and crops `side` × `side` pixels from the middle.
fn middle(shorter: usize, side: usize) -> Compose {
    Compose::new().add(Resize::shorter(shorter)).add(CenterCrop::new([side, side]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_survives_its_file() {
        let (model, classes) = (Model::Resnet18, vec!["cat".to_string(), "größer \"dog\"".to_string()]);
        let card =
            Card { model, classes, channels: 3, side: 96, shorter: None, mean: vec![0.1, 0.2, 0.3], std: vec![1.0; 3] };
        let larger = Card { shorter: Some(110), ..card.clone() };
        assert_eq!(Card::from_metadata(&card.to_metadata()), Ok(Some(card)));
        assert_eq!(Card::from_metadata(&larger.to_metadata()), Ok(Some(larger)));
        assert_eq!(Card::from_metadata(&BTreeMap::new()), Ok(None));
        let bad = BTreeMap::from([(KEY.to_string(), "{}".to_string())]);
        assert!(Card::from_metadata(&bad).unwrap_err().contains("anygpu.card"));
    }
}
