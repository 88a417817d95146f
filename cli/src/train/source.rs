//! `--data`: the images, and whether they fit the net.

use std::path::Path;
use std::sync::Arc;

use anygpu::data::transforms::Transform;
use anygpu::data::{
    self, CIFAR10_CLASSES, Dataset, FASHION_MNIST_CLASSES, ImageFolder, Random, Splits, Subset, random_split,
};

use super::Args;
use crate::download;
use crate::failure::Failure;
use crate::net::{Card, Model, fitted};

/// The images of a run.
pub struct Source {
    pub train: Arc<dyn Dataset>,
    pub test: Arc<dyn Dataset>,
    pub card: Card,
    /// Whether loading a sample is slow, because a file is decoded.
    pub slow: bool,
}

/// The number of images for the mean and deviation of a folder; more would hardly change them.
const SAMPLED: usize = 256;

/// What a folder can have.
const KINDS: &str = "it needs the four IDX files of MNIST (train-images-idx3-ubyte and so on, also as .gz), the binary \
                     files of CIFAR-10 (data_batch_1.bin and so on), or a folder of PNG or JPEG images for each class";

/// The possible names of the folder of test images.
const TESTS: [&str; 4] = ["test", "val", "valid", "validation"];

/// Loads the images that `--data` names, and checks that they fit the net.
///
/// # Errors
/// [`Failure::Usage`] for an unknown name; [`Failure::Run`] for damaged files, and for images that the net does not
/// take.
pub fn load(args: &Args) -> Result<Source, Failure> {
    let side = args.side();
    let source = match args.data.as_str() {
        "mnist-5k" => in_memory(args.model, side, data::mnist_5k()?, digits()),
        "fashion-mnist" => in_memory(
            args.model,
            side,
            data::from_dir_within(download::fashion_mnist()?, args.limits())?,
            names(&FASHION_MNIST_CLASSES),
        ),
        dir if Path::new(dir).is_dir() => from_dir(args, side, Path::new(dir))?,
        other => {
            let what = if Path::new(other).exists() { "this is a file" } else { "no such folder" };
            return Err(Failure::Usage(format!(
                "--data {other}: {what}: write mnist-5k, fashion-mnist, or a folder: {KINDS}"
            )));
        }
    };
    fits(args, &source)?;
    let Some(limit) = args.limit else { return Ok(source) };
    if !source.slow {
        let first = |set: Arc<dyn Dataset>| Arc::new(Subset::first(set, limit)) as Arc<dyn Dataset>;
        return Ok(Source { train: first(source.train), test: first(source.test), ..source });
    }
    // The files of folders are sorted by class: the first ones would be of one class.
    let some = |set: Arc<dyn Dataset>| drawn(set, limit, args.seed);
    Ok(Source { train: some(source.train)?, test: some(source.test)?, ..source })
}

/// At most `count` samples, chosen by the seed.
fn drawn(set: Arc<dyn Dataset>, count: usize, seed: u64) -> Result<Arc<dyn Dataset>, Failure> {
    let count = count.min(set.len());
    let lengths = [count, set.len() - count];
    Ok(Arc::new(random_split(set, &lengths, seed)?.swap_remove(0)))
}

fn names(all: &[&str]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

fn digits() -> Vec<String> {
    (0..data::CLASSES).map(|digit| digit.to_string()).collect()
}

fn in_memory(model: Model, side: usize, sets: Splits, classes: Vec<String>) -> Source {
    let (mean, std) = sets.train.mean_std();
    let card = Card { model, classes, channels: sets.train.c, side, shorter: None, mean, std };
    Source { train: sets.train, test: sets.test, card, slow: false }
}

/// A folder with files of MNIST or CIFAR-10, or else with folders of images.
fn from_dir(args: &Args, side: usize, dir: &Path) -> Result<Source, Failure> {
    if has_folders(dir) && !has_known_file(dir) {
        return images(args, side, dir);
    }
    if !has_known_file(dir) {
        let empty = std::fs::read_dir(dir).is_ok_and(|mut all| all.next().is_none());
        let what = if empty { "the folder is empty" } else { "the folder has no data that is known" };
        return Err(Failure::Run(format!("--data {}: {what}: {KINDS}", dir.display())));
    }
    match data::from_dir_within(dir, args.limits()) {
        Ok(sets) if sets.train.c == 3 => Ok(in_memory(args.model, side, sets, names(&CIFAR10_CLASSES))),
        Ok(sets) => Ok(in_memory(args.model, side, sets, digits())),
        Err(error) => Err(error.into()),
    }
}

fn has_folders(dir: &Path) -> bool {
    std::fs::read_dir(dir).is_ok_and(|all| all.flatten().any(|entry| entry.path().is_dir()))
}

/// Whether the folder has any file of MNIST or CIFAR-10, also a damaged one.
fn has_known_file(dir: &Path) -> bool {
    let known = |name: &str| {
        let name = name.strip_suffix(".gz").unwrap_or(name);
        name.ends_with("-idx3-ubyte")
            || name.ends_with("-idx1-ubyte")
            || name.ends_with("_batch.bin")
            || name.starts_with("data_batch_")
    };
    std::fs::read_dir(dir).is_ok_and(|all| all.flatten().any(|entry| entry.file_name().to_str().is_some_and(known)))
}

/// `dir/train` and `dir/test` (or another of [`TESTS`]); without a folder of test images, a fifth of the training
/// images, chosen by the seed, is for the test. Without `dir/train`, all images of `dir` are training images.
fn images(args: &Args, side: usize, dir: &Path) -> Result<Source, Failure> {
    let open = |dir: &Path| {
        let set = ImageFolder::new(dir)?.limits(args.limits());
        Ok::<_, Failure>(if args.model == Model::Lenet { set.grey() } else { set })
    };
    let split = has_folders(&dir.join("train"));
    let all = open(&if split { dir.join("train") } else { dir.to_path_buf() })?;
    let classes = all.classes().to_vec();
    let wrong = |what: String| Err(Failure::Run(format!("--data {}: {what}", dir.display())));
    if classes.len() < 2 {
        return wrong(format!("one class only, {classes:?}: each class needs a folder with its images"));
    }
    let (train, test): (Arc<dyn Dataset>, Arc<dyn Dataset>) =
        match TESTS.map(|name| dir.join(name)).into_iter().find(|dir| split && dir.is_dir()) {
            Some(test) => {
                let test = open(&test)?;
                if classes != test.classes() {
                    return wrong(format!("classes {classes:?} to train on, but {:?} to test on", test.classes()));
                }
                (Arc::new(all), Arc::new(test))
            }
            None => {
                let held_out = (all.len() / 5).max(1);
                let lengths = [all.len() - held_out, held_out];
                let mut parts = random_split(all, &lengths, args.seed)?.into_iter();
                match (parts.next(), parts.next()) {
                    (Some(train), Some(test)) => (Arc::new(train), Arc::new(test)),
                    _ => return wrong("no images to train on".to_string()),
                }
            }
        };
    let channels = if args.model == Model::Lenet { 1 } else { 3 };
    let (mean, std) = statistics(&train, channels, side).map_err(|error| match error {
        error @ anygpu::Error::Data { .. } => unreadable(&args.data, &error),
        error => error.into(),
    })?;
    let card = Card { model: args.model, classes, channels, side, shorter: None, mean, std };
    Ok(Source { train, test, card, slow: true })
}

/// The failure of an image of the folder that cannot be used, with what can be done.
pub fn unreadable(folder: &str, error: &anygpu::Error) -> Failure {
    Failure::Run(format!("--data {folder}: {error}; replace that file, or take it out of the folder"))
}

/// Mean and deviation of each channel over some images, in the size of the inputs of the net.
fn statistics(set: &Arc<dyn Dataset>, channels: usize, side: usize) -> anygpu::Result<(Vec<f32>, Vec<f32>)> {
    let mut sums = vec![(0f64, 0f64); channels];
    let some = set.len().min(SAMPLED);
    let transform = fitted(side);
    for i in 0..some {
        let image = set.get(i * set.len() / some)?.remove(0);
        let image = transform.apply(image, &mut Random::of_sample(0, 0, i))?;
        for (plane, sums) in image.as_slice::<f32>()?.chunks(side * side).zip(&mut sums) {
            plane.iter().map(|&v| f64::from(v)).for_each(|v| *sums = (sums.0 + v, sums.1 + v * v));
        }
    }
    let count = (some * side * side).max(1) as f64;
    let of = |(sum, squares): (f64, f64)| {
        let mean = sum / count;
        (mean as f32, (squares / count - mean * mean).max(0.0).sqrt() as f32)
    };
    Ok(sums.into_iter().map(of).unzip())
}

/// An error unless the net takes such images.
fn fits(args: &Args, source: &Source) -> Result<(), Failure> {
    let Card { model, classes, channels, side, .. } = &source.card;
    let wrong = |what: String| Err(Failure::Run(format!("--data {}: {what}: try resnet18", args.data)));
    match model {
        Model::Lenet if *side != Model::Lenet.side() => {
            Err(Failure::Usage(format!("--resize {side}: LeNet takes images of 28 × 28 only; resnet18 takes any size")))
        }
        Model::Lenet if *channels != 1 => wrong("LeNet takes grey images, these have colours".to_string()),
        Model::Lenet if classes.len() != 10 => wrong(format!("LeNet has ten classes, here are {}", classes.len())),
        _ if source.train.is_empty() || source.test.is_empty() => {
            Err(Failure::Run(format!("--data {}: too few images to train and to test", args.data)))
        }
        _ => Ok(()),
    }
}
