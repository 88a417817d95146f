//! Files of data.

use std::fs;
use std::io::Write;

use anygpu::data::{Dataset, ImageSet, Limits, cifar10};
use anygpu::{Device, Tensor, npy};
use flate2::Compression;
use flate2::write::GzEncoder;

fn limits() -> Limits {
    Limits::new().pixels(1 << 20).bytes(8 << 20)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// A set's pixels are as many as its sizes say, and its samples can be read.
fn check(set: &ImageSet) {
    assert_eq!(set.images.len(), set.n * set.c * set.h * set.w);
    assert_eq!(set.labels.len(), set.n);
    let last = set.get(set.n - 1).expect("a sample of a set that was accepted");
    assert_eq!(last[0].shape(), [set.c, set.h, set.w]);
    assert_eq!(set.mean_std().0.len(), set.c);
}

/// IDX, as images and as labels, plain and compressed.
pub fn idx(bytes: &[u8]) {
    let one_image = [0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 255];
    let count = u32_at(bytes, 4).unwrap_or(1).min(1 << 16);
    let labels = [&[0, 0, 8, 1][..], &count.to_be_bytes(), &vec![3; count as usize]].concat();
    let parse = |bytes: &[u8]| {
        let _ = ImageSet::parse_within(("images", &one_image), ("labels", bytes), limits());
        ImageSet::parse_within(("images", bytes), ("labels", &labels), limits())
    };
    let plain = parse(bytes);
    if let Ok(set) = &plain {
        check(set);
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("memory");
    let compressed = parse(&encoder.finish().expect("memory"));
    // What is compressed already is read only once.
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        assert_eq!(plain.ok(), compressed.ok(), "compression changes what is read");
    }
}

/// The same bytes as each of the six files of CIFAR-10.
pub fn cifar(bytes: &[u8]) {
    let first = super::file("data_batch_1.bin", bytes);
    let folder = first.parent().expect("a file is in a folder");
    for name in (2..=5).map(|part| format!("data_batch_{part}.bin")).chain(["test_batch.bin".to_string()]) {
        // Links, made once: to write the first file is to write all.
        if !folder.join(&name).exists() {
            fs::hard_link(&first, folder.join(&name)).expect("our folder");
        }
    }
    if let Ok(sets) = cifar10(folder) {
        check(&sets.train);
        check(&sets.test);
    }
}

/// A PNG whose checksums are right: a changed chunk is read instead of being refused for its checksum.
fn repaired(png: &[u8]) -> Vec<u8> {
    let (mut png, mut at) = (png.to_vec(), 8);
    while let Some(length) = u32_at(&png, at) {
        let data = at + 4..(at + 8).saturating_add(length as usize);
        let Some(covered) = png.get(data.clone()) else { break };
        let sum = crc32fast::hash(covered).to_be_bytes();
        let Some(place) = png.get_mut(data.end..data.end + 4) else { break };
        place.copy_from_slice(&sum);
        at = data.end + 4;
    }
    png
}

/// A PNG or JPEG file, in colours and grey.
pub fn image(bytes: &[u8]) {
    let read = |bytes: &[u8]| {
        let path = super::file("image", bytes);
        for (grey, channels) in [(false, 3), (true, 1)] {
            if let Ok(image) = anygpu::data::read_image_within(&path, grey, limits()) {
                assert_eq!(image.shape()[0], channels);
                assert!(image.as_slice::<f32>().expect("f32").iter().all(|v| (0.0..=1.0).contains(v)));
            }
        }
    };
    read(bytes);
    if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
        read(&repaired(bytes));
    }
}

/// A `.npy` file and a `.npz` archive.
pub fn npy(bytes: &[u8]) {
    if let Ok(tensor) = Tensor::from_npy(super::file("x.npy", bytes), Device::cpu()) {
        let path = super::file("again.npy", b"");
        tensor.save_npy(&path).expect("our folder");
        let again = Tensor::from_npy(&path, Device::cpu()).expect("what was written");
        assert_eq!((again.shape(), again.dtype()), (tensor.shape(), tensor.dtype()));
        assert!(tensor.elem_count() <= bytes.len());
    }
    if let Ok(arrays) = npy::load_npz(super::file("x.npz", bytes), Device::cpu()) {
        assert!(arrays.iter().map(|(_, tensor)| tensor.elem_count()).sum::<usize>() <= bytes.len());
    }
}
