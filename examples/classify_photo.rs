//! Classifies a photo with a pretrained ONNX model, from the two files to the names of the likeliest classes:
//!
//!     cargo run --release --features image,onnx --example classify_photo -- model.onnx photo.jpg \
//!         [device=gpu:0] [size=48x192] [mean=0.485,0.456,0.406] [std=0.229,0.224,0.225] [classes=a,b,…]
//!
//! `size` is for models that leave height and width open; the default is 224x224. Mean and deviation must be the
//! ones that the model was trained with. The values above are ImageNet's; the default is 0.5.
//!
//! The package rapidocr-onnxruntime of PyPI has a model that tells whether a photo of a line of text is upside down
//! (scripts/onnx_models.py fetches it): `classify_photo models/rapidocr-classification/model.onnx line.png size=48x192
//! classes=upright,turned`.

use std::collections::HashMap;
use std::error::Error;

use anygpu::data::transforms::{Compose, Normalize, Resize, Transform};
use anygpu::data::{Array, Random, read_image};
use anygpu::nn::Module;
use anygpu::onnx::{self, Dimension, ValueInfo};
use anygpu::{Device, Tensor, no_grad, try_gpu};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The arguments after the files, by name.
type Settings = HashMap<String, String>;

fn numbers(settings: &Settings, name: &str, default: &str) -> Result<Vec<f32>> {
    let text = settings.get(name).map_or(default, String::as_str);
    let parse = |number: &str| number.parse().map_err(|_| format!("{name}={text}: '{number}' is not a number").into());
    text.split([',', 'x']).map(parse).collect()
}

/// Returns the height and width of images: from the model's input `[batch, 3, height, width]` if it declares them,
/// else from the setting.
fn image_size(input: &ValueInfo, settings: &Settings) -> Result<[usize; 2]> {
    let declared = match input.shape.as_deref() {
        Some([_, Dimension::Size(3), height, width]) => [height, width],
        _ => return Err(format!("input {input} takes no photo [batch, 3, height, width]").into()),
    };
    let given = numbers(settings, "size", "224x224")?;
    let [height, width] = given[..] else {
        return Err(format!("size={given:?}: give a height and a width").into());
    };
    let size =
        |declared: &Dimension, given: f32| if let Dimension::Size(size) = declared { *size } else { given as usize };
    Ok([size(declared[0], height), size(declared[1], width)])
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(model), Some(photo)) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: classify_photo model.onnx photo.jpg [device=NAME] [size=HxW] [mean=…] [std=…] [classes=…]");
        return Ok(());
    };
    let settings: Settings =
        arguments.filter_map(|a| a.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))).collect();
    let device = settings.get("device").map_or_else(|| Ok(try_gpu(0)), |name| Device::new(name))?;

    let model = onnx::load(&model)?.to(&device)?;
    let [input] = model.inputs() else {
        return Err(format!("the model has {} inputs, not one photo", model.inputs().len()).into());
    };
    let size = image_size(input, &settings)?;
    let prepare = Compose::new()
        .add(Resize::new(size))
        .add(Normalize::new(numbers(&settings, "mean", "0.5")?, numbers(&settings, "std", "0.5")?));
    let image: Array = prepare.apply(read_image(&photo, false)?, &mut Random::of_sample(0, 0, 0))?;
    let x = Tensor::from_slice(image.as_slice::<f32>()?, [1, 3, size[0], size[1]], &device)?;

    let scores = no_grad(|| model.forward(&x))?.flatten(0)?;
    let (best, places) = scores.topk(scores.elem_count().min(5), 0, true, true)?;
    let classes: Vec<&str> = settings.get("classes").map_or_else(Vec::new, |classes| classes.split(',').collect());
    for (score, class) in best.to_vec::<f32>()?.iter().zip(places.to_vec::<u32>()?) {
        println!(
            "{score:8.4}  {}",
            classes.get(class as usize).map_or_else(|| format!("class {class}"), |name| (*name).into())
        );
    }

    // The same on the host.
    let host = no_grad(|| model.to(Device::cpu())?.forward(&x.to(Device::cpu())?))?.flatten(0)?;
    let apart = scores.to(Device::cpu())?.sub(&host)?.abs()?.max_all()?.item::<f32>()?;
    assert!(apart <= 1e-3 * host.abs()?.max_all()?.item::<f32>()?, "{device} and cpu are {apart} apart");
    Ok(())
}
