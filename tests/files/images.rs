//! Images: transforms compared with PyTorch and with this crate's ops, and the files of CIFAR-10 and of image folders.

use std::fs;
use std::path::Path;

use anygpu::data::transforms::{CenterCrop, Compose, Normalize, RandomCrop, RandomHorizontalFlip, Resize, Transform};
use anygpu::data::{self, Array, Dataset, Random};
use anygpu::{Interpolation, Result, Tensor};
use proptest::prelude::*;

fn random() -> Random {
    Random::of_sample(0, 0, 0)
}

fn apply(transform: impl Transform, image: &Array) -> Result<Array> {
    transform.apply(image.clone(), &mut random())
}

/// Numbers of a list of the references.
fn numbers(value: &serde_json::Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|v| v.as_f64().expect("a number")).collect()
}

#[test]
fn resizing_is_pytorchs_and_without_antialiasing_our_own_ops() -> Result<()> {
    let cases: Vec<serde_json::Value> = serde_json::from_str(include_str!("../data/resize.json")).expect("JSON");
    for case in &cases {
        let sizes = |key: &str| numbers(&case[key]).iter().map(|&v| v as usize).collect::<Vec<_>>();
        let (shape, target) = (sizes("shape"), sizes("target"));
        let antialias = case["antialias"] == true;
        let pixels = numbers(&case["bytes"]).iter().map(|&v| v as f32 / 255.0).collect();
        let image = Array::new(pixels, &shape)?;
        let target = [target[0], target[1]];
        let got = apply(Resize::new(target).antialias(antialias), &image)?;
        assert_eq!(got.shape(), [shape[0], target[0], target[1]]);
        let what = format!("{shape:?} to {target:?}, antialias {antialias}");
        let step = case["step"].as_u64().expect("a number") as usize;
        let some = got.as_slice::<f32>()?.iter().step_by(step);
        for (i, (got, expected)) in some.zip(numbers(&case["expected"])).enumerate() {
            // PyTorch's positions are products with a rounded scale, ours are not.
            assert!((f64::from(*got) - expected).abs() < 3e-6, "{what}: pixel {i} is {got}, expected {expected}");
        }
        if !antialias {
            let x = Tensor::from_slice(image.as_slice::<f32>()?, [&[1], &shape[..]].concat(), None)?;
            let ours = x.interpolate(target, Interpolation::Linear { align_corners: false })?.to_vec::<f32>()?;
            let apart = ours.iter().zip(got.as_slice::<f32>()?).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(apart < 1e-6, "{what}: {apart}");
        }
    }
    Ok(())
}

#[test]
fn shorter_sides_keep_proportions_and_impossible_sizes_are_refused() -> Result<()> {
    let image = |h: usize, w: usize| Array::new(vec![0.25f32; h * w], [1, h, w]);
    assert_eq!(apply(Resize::shorter(5), &image(10, 21)?)?.shape(), [1, 5, 10]);
    assert_eq!(apply(Resize::shorter(5), &image(21, 10)?)?.shape(), [1, 10, 5]);
    assert!(apply(Resize::new([0, 3]), &image(2, 2)?).is_err());
    assert!(apply(Resize::new([usize::MAX, 3]), &image(2, 2)?).is_err());
    let bytes = apply(Resize::new([3, 3]), &Array::new(vec![0u8; 4], [1, 2, 2])?).unwrap_err().to_string();
    assert!(bytes.contains("ToFloat"), "{bytes}");
    let flat = apply(Resize::new([3, 3]), &Array::new(vec![0f32; 4], [2, 2])?).unwrap_err().to_string();
    assert!(flat.contains("[C, H, W]"), "{flat}");
    Ok(())
}

#[test]
fn crops_are_where_torchvision_puts_them() -> Result<()> {
    // Image c, y, x has the value 100 c + 10 y + x.
    let of = |h: usize, w: usize| {
        let pixel = |c: usize, y: usize, x: usize| (100 * c + 10 * y + x) as f32;
        let all = (0..2).flat_map(move |c| (0..h).flat_map(move |y| (0..w).map(move |x| pixel(c, y, x))));
        Array::new(all.collect(), [2, h, w])
    };
    // (5 − 2) / 2 = 1.5 and (7 − 2) / 2 = 2.5 both round to 2.
    let crop = apply(CenterCrop::new([2, 2]), &of(5, 7)?)?;
    assert_eq!(crop.as_slice::<f32>()?, [22.0, 23.0, 32.0, 33.0, 122.0, 123.0, 132.0, 133.0]);
    let wide = apply(CenterCrop::new([1, 4]), &of(1, 1)?)?;
    assert_eq!(wide.as_slice::<f32>()?, [0.0, 0.0, 0.0, 0.0, 0.0, 100.0, 0.0, 0.0]);

    // Every place comes up, and the pixels are those of the place.
    let mut corners = std::collections::HashSet::new();
    for index in 0..200 {
        let crop = RandomCrop::new([2, 3]).apply(of(4, 4)?, &mut Random::of_sample(1, 0, index))?;
        let pixels = crop.as_slice::<f32>()?;
        let corner = pixels[0];
        assert_eq!(pixels[..6], [0.0, 1.0, 2.0, 10.0, 11.0, 12.0].map(|d| corner + d));
        assert_eq!(pixels[6], corner + 100.0);
        corners.insert(corner as u32);
    }
    assert_eq!(corners.len(), 3 * 2);
    Ok(())
}

/// An image whose pixels are all different, and not 0.
fn distinct(shape: [usize; 3]) -> Array {
    Array::new((1..=shape.iter().product::<usize>() as u32).collect(), shape).expect("as many as that")
}

/// The pixels of a window that begins at `[top, left]`, which may be outside of the image, in a slow and plain way.
fn window(image: &Array, [top, left]: [isize; 2], size: [usize; 2]) -> Vec<u32> {
    let (pixels, shape) = (image.as_slice::<u32>().expect("u32"), image.shape());
    let at = |channel: usize, y: isize, x: isize| match (usize::try_from(y), usize::try_from(x)) {
        (Ok(y), Ok(x)) if y < shape[1] && x < shape[2] => pixels[(channel * shape[1] + y) * shape[2] + x],
        _ => 0,
    };
    let [rows, columns] = size.map(|size| size as isize);
    let row = |channel: usize, y: isize| (left..left + columns).map(move |x| at(channel, y, x));
    (0..shape[0]).flat_map(|channel| (top..top + rows).flat_map(move |y| row(channel, y))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1000, ..ProptestConfig::default() })]

    /// Of every size and padding, a random crop is a window of the padded image, a crop of the middle the one there, and
    /// nothing panics.
    #[test]
    fn transforms_take_every_size(
        shape in [1..3usize, 1..9, 1..9], size in [0..12usize, 0..12], padding in 0..12usize, index in 0..1000usize,
    ) {
        let (image, [_, h, w]) = (distinct(shape), shape);
        let mut random = Random::of_sample(5, 0, index);
        let crop = RandomCrop::new(size).padding(padding).apply(image.clone(), &mut random);
        let room = |len: usize, size: usize| (size > 0).then(|| (len + 2 * padding).checked_sub(size)).flatten();
        match (room(h, size[0]), room(w, size[1])) {
            (Some(down), Some(right)) => {
                let crop = crop.expect("it fits");
                let start = |at: usize| at as isize - padding as isize;
                let mut places = (0..=down).flat_map(|top| (0..=right).map(move |left| [start(top), start(left)]));
                prop_assert!(places.any(|place| window(&image, place, size) == crop.as_slice::<u32>().expect("u32")));
            }
            _ => prop_assert!(crop.is_err()),
        }
        let middle = CenterCrop::new(size).apply(image.clone(), &mut random);
        prop_assert_eq!(middle.is_err(), size.contains(&0));
        if let Ok(middle) = middle {
            let start = |len: usize, size: usize| match size <= len {
                true => ((len - size) as f64 / 2.0).round_ties_even() as isize,
                false => -(((size - len) / 2) as isize),
            };
            let expected = window(&image, [start(h, size[0]), start(w, size[1])], size);
            prop_assert_eq!(middle.as_slice::<u32>().expect("u32"), expected);
        }
        let floats = Array::new(vec![0.5f32; shape.iter().product()], shape).expect("as many");
        for resize in [Resize::new(size), Resize::new(size).antialias(false), Resize::shorter(size[0])] {
            if let Ok(resized) = resize.apply(floats.clone(), &mut random) {
                prop_assert!(resized.as_slice::<f32>().expect("f32").iter().all(|v| (v - 0.5).abs() < 1e-6));
            }
        }
        prop_assert!(RandomHorizontalFlip::new(0.5).apply(image, &mut random).is_ok());
    }
}

#[test]
fn sizes_that_no_memory_holds_are_errors() -> Result<()> {
    let image = Array::new(vec![0.5f32; 4], [1, 2, 2])?;
    for size in [[1, 1 << 58], [1 << 58, 1], [1, 1 << 60], [1 << 30, 1 << 30]] {
        for antialias in [false, true] {
            assert!(apply(Resize::new(size).antialias(antialias), &image).is_err(), "{size:?}");
        }
    }
    Ok(())
}

#[test]
fn normalising_needs_one_value_or_one_for_each_channel() -> Result<()> {
    let image = Array::new(vec![1.0f32; 6], [3, 1, 2])?;
    let each = Compose::new().add(Normalize::new([0.0, 1.0, 0.5], [1.0, 0.0, 0.25]));
    assert_eq!(apply(each, &image)?.as_slice::<f32>()?, [1.0, 1.0, 0.0, 0.0, 2.0, 2.0]);
    assert_eq!(apply(Normalize::new([0.5], [0.5]), &image)?.as_slice::<f32>()?, [1.0; 6]);
    let error = apply(Normalize::new([0.5; 2], [0.5]), &image).unwrap_err().to_string();
    assert!(error.contains("2 means") && error.contains("3 channels"), "{error}");
    Ok(())
}

/// A folder with the six files of CIFAR-10, two records each.
fn cifar(dir: &Path) {
    let record = |label: u8| [vec![label], vec![10; 1024], vec![20; 1024], vec![255; 1024]].concat();
    let names = (1..=5).map(|i| format!("data_batch_{i}.bin")).chain(["test_batch.bin".to_string()]);
    for (i, name) in names.enumerate() {
        fs::write(dir.join(name), [record(i as u8), record(9)].concat()).expect("our folder");
    }
}

#[test]
fn cifar10_is_read_and_checked() -> Result<()> {
    let dir = tempfile::tempdir().expect("a folder");
    cifar(dir.path());
    let sets = data::from_dir(dir.path())?;
    assert_eq!((sets.train.n, sets.train.c, sets.train.h, sets.train.w, sets.test.n), (10, 3, 32, 32, 2));
    assert_eq!(sets.train.labels, [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]);
    let sample = sets.train.get(2)?;
    assert_eq!(sample[0].shape(), [3, 32, 32]);
    assert_eq!(sample[0].as_slice::<f32>()?[1024], 20.0 / 255.0);
    let (images, _) = sets.loaders(4, 0)?.1.epoch(0).next().expect("a batch")?;
    assert_eq!(images.shape(), [2, 3, 32, 32]);

    let damaged = |change: fn(&Path)| {
        cifar(dir.path());
        change(dir.path());
        data::from_dir(dir.path()).unwrap_err().to_string()
    };
    let cut = damaged(|dir| fs::write(dir.join("data_batch_3.bin"), [0; 100]).expect("our folder"));
    assert!(cut.contains("data_batch_3.bin: 100 bytes are not records of 3073"), "{cut}");
    let label = damaged(|dir| fs::write(dir.join("test_batch.bin"), [10; 3073]).expect("our folder"));
    assert!(label.contains("test_batch.bin: label 0 is 10"), "{label}");
    let missing = damaged(|dir| fs::remove_file(dir.join("data_batch_2.bin")).expect("our file"));
    assert!(missing.contains("data_batch_2.bin"), "{missing}");
    Ok(())
}

#[cfg(feature = "image")]
#[test]
fn folders_of_images_are_classes_and_broken_ones_are_named() -> Result<()> {
    use anygpu::data::{DataLoader, ImageFolder};
    use image::{GrayImage, Luma, Rgb, RgbImage};

    let dir = tempfile::tempdir().expect("a folder");
    let folder = |name: &str| {
        let folder = dir.path().join(name);
        fs::create_dir_all(&folder).expect("our folder");
        folder
    };
    RgbImage::from_pixel(3, 2, Rgb([255, 0, 51])).save(folder("red").join("b.png")).expect("a file");
    GrayImage::from_pixel(4, 4, Luma([102])).save(folder("grey/more").join("a.jpg")).expect("a file");
    fs::write(folder("grey").join("notes.txt"), "no image").expect("a file");
    let set = ImageFolder::new(dir.path())?;
    assert_eq!((set.classes(), set.len()), (&["grey".to_string(), "red".to_string()][..], 2));
    let red = set.get(1)?;
    assert_eq!((red[0].shape(), red[1].as_slice::<u32>()?), (&[3, 2, 3][..], &[1][..]));
    assert_eq!(red[0].as_slice::<f32>()?[..], [[1.0; 6], [0.0; 6], [0.2; 6]].concat());
    let grey = ImageFolder::new(dir.path())?.grey().get(0)?;
    assert_eq!(grey[0].shape(), [1, 4, 4]);
    assert!(grey[0].as_slice::<f32>()?.iter().all(|v| (v - 0.4).abs() < 0.01));

    let sizes = DataLoader::new(ImageFolder::new(dir.path())?, 2)?.epoch(0).next().expect("a batch").map(drop);
    assert!(sizes.unwrap_err().to_string().contains("resize"));
    let whole = fs::read(dir.path().join("red/b.png")).expect("our file");
    fs::write(dir.path().join("red/b.png"), &whole[..whole.len() / 2]).expect("our file");
    let broken = set.get(1).unwrap_err().to_string();
    assert!(broken.contains("red") && broken.contains("b.png"), "{broken}");
    folder("zebra");
    let empty = ImageFolder::new(dir.path()).unwrap_err().to_string();
    assert!(empty.contains("zebra") && empty.contains("no .png"), "{empty}");
    assert!(ImageFolder::new(dir.path().join("zebra")).unwrap_err().to_string().contains("each class"));
    Ok(())
}
