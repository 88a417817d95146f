//! Data files that would take gigabytes, or never end: each is an error, in bounded memory and time.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anygpu::data::{ImageFolder, ImageSet, read_image};
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};

use crate::counting;

use crate::common::alone;

const MOST_MEMORY: usize = 64 << 20;
const MOST_TIME: Duration = Duration::from_secs(2);

/// The error of `f`, which must come in bounded memory and time.
#[track_caller]
fn refused<T>(f: impl FnOnce() -> anygpu::Result<T>) -> String {
    let (result, time, memory) = counting::measured(f);
    assert!(memory <= MOST_MEMORY, "{memory} bytes");
    assert!(time <= MOST_TIME, "{time:?}");
    result.map(drop).unwrap_err().to_string()
}

/// A segment of a JPEG file.
fn segment(marker: u8, body: &[u8]) -> Vec<u8> {
    [&[0xff, marker][..], &(body.len() as u16 + 2).to_be_bytes(), body].concat()
}

/// A progressive JPEG of these sizes with `data` zeros in its only scan.
fn jpeg(h: u16, w: u16, data: usize) -> Vec<u8> {
    let quantisation = [&[0][..], &[1; 64]].concat();
    let sizes = [&[8][..], &h.to_be_bytes(), &w.to_be_bytes(), &[3, 1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0]].concat();
    let codes = [&[0, 1, 1][..], &[0; 14], &[0, 1]].concat();
    let scan = [3, 1, 0, 2, 0, 3, 0, 0, 0, 0];
    [
        vec![0xff, 0xd8],
        segment(0xdb, &quantisation),
        segment(0xc2, &sizes),
        segment(0xc4, &codes),
        segment(0xda, &scan),
        vec![0; data],
        vec![0xff, 0xd9],
    ]
    .concat()
}

/// A PNG of one bit for each pixel, all black, with the first `lines` of its lines.
fn png(h: u32, w: u32, lines: u32) -> Vec<u8> {
    let chunk = |kind: &[u8], data: &[u8]| {
        let covered = [kind, data].concat();
        [&(data.len() as u32).to_be_bytes()[..], &covered, &crc32fast::hash(&covered).to_be_bytes()].concat()
    };
    let mut pixels = ZlibEncoder::new(Vec::new(), Compression::best());
    let line = vec![0; 1 + w.div_ceil(8) as usize];
    (0..lines).for_each(|_| pixels.write_all(&line).expect("memory"));
    let header = [&w.to_be_bytes()[..], &h.to_be_bytes(), &[1, 0, 0, 0, 0]].concat();
    let pixels = pixels.finish().expect("memory");
    [b"\x89PNG\r\n\x1a\n".to_vec(), chunk(b"IHDR", &header), chunk(b"IDAT", &pixels), chunk(b"IEND", b"")].concat()
}

/// Images of IDX, all black, compressed.
fn idx(n: u32, h: u32, w: u32) -> Vec<u8> {
    let mut file = GzEncoder::new(Vec::new(), Compression::best());
    file.write_all(&[&[0, 0, 8, 3][..], &n.to_be_bytes(), &h.to_be_bytes(), &w.to_be_bytes()].concat())
        .expect("memory");
    let image = vec![0; (h * w) as usize];
    (0..n).for_each(|_| file.write_all(&image).expect("memory"));
    file.finish().expect("memory")
}

fn bombs(dir: &Path) {
    let write = |name: &str, bytes: Vec<u8>| {
        assert!(bytes.len() < 1 << 20, "{name}: {} bytes", bytes.len());
        fs::write(dir.join(name), bytes).expect("our folder");
        dir.join(name)
    };
    let header = write("header.jpg", jpeg(13_000, 13_000, 400));
    let error = refused(|| read_image(&header, false));
    assert!(error.contains("header.jpg: an image of 13000 × 13000 pixels, and the limit is 67108864"), "{error}");
    assert!(error.contains("Limits::pixels") && error.contains("--max-pixels"), "{error}");
    let part = write("part.jpg", jpeg(8000, 8000, 400));
    assert!(refused(|| read_image(&part, false)).contains("only a part of an image of 8000 × 8000 pixels"));
    let wide = write("wide.png", png(23_000, 23_000, 23_000));
    let error = refused(|| read_image(&wide, true));
    assert!(error.contains("wide.png: an image of 23000 × 23000 pixels, and the limit is 67108864"), "{error}");
    let line = write("line.png", png(1, 0x7fff_ffff, 0));
    assert!(refused(|| read_image(&line, false)).contains("line.png"));
    let other = write("other.png", b"GIF89a".to_vec());
    assert!(refused(|| read_image(&other, false)).contains("neither a PNG nor a JPEG"));

    let labels = write("labels", [&[0, 0, 8, 1][..], &[0, 0, 3, 232], &[0; 1000]].concat());
    let images = write("images.gz", idx(1000, 1000, 1000));
    let error = refused(|| ImageSet::read(&images, &labels));
    assert!(error.contains("images.gz: it decodes to 1000000000 bytes, and the limit is 805306368"), "{error}");
    assert!(error.contains("Limits::bytes") && error.contains("--max-bytes"), "{error}");
    let one = write("one.gz", idx(1, 9000, 9000));
    assert!(refused(|| ImageSet::read(&one, &labels)).contains("an image of 9000 × 9000 pixels"));
    // A file that ends long before its header says takes the memory of what is there.
    let mut short = vec![0, 0, 8, 3, 0, 0, 2, 88, 0, 0, 4, 0, 0, 0, 4, 0];
    short.extend([0; 1000]);
    let short = write("short", short);
    assert!(refused(|| ImageSet::read(&short, &labels)).contains("the data ends after 1000 of 629145600 bytes"));
}

/// A folder with a class, `cat`, of one image.
fn class(dir: &Path, name: &str) -> PathBuf {
    let class = dir.join(name).join("cat");
    fs::create_dir_all(&class).expect("our folder");
    image::RgbImage::new(2, 2).save(class.join("a.png")).expect("our folder");
    class
}

#[cfg(unix)]
fn links_and_pipes(dir: &Path) {
    use std::os::unix::fs::symlink;

    let circle = class(dir, "circle");
    symlink("..", circle.join("up")).expect("our folder");
    let error = refused(|| ImageFolder::new(dir.join("circle")));
    assert!(error.contains("cat/up/cat: a link leads to a folder that was listed already, as "), "{error}");

    // 2³⁰ paths to 30 folders.
    let doubled = class(dir, "doubled");
    let mut folder = doubled.clone();
    for _ in 0..30 {
        fs::create_dir(folder.join("x")).expect("our folder");
        symlink("x", folder.join("y")).expect("our folder");
        folder.push("x");
    }
    assert!(refused(|| ImageFolder::new(dir.join("doubled"))).contains("/y: a link leads to a folder"));

    // Links that lead elsewhere are followed.
    let linked = class(dir, "linked");
    symlink(class(dir, "target"), linked.join("more")).expect("our folder");
    let (set, ..) = counting::measured(|| ImageFolder::new(dir.join("linked")).expect("a folder of images"));
    assert_eq!(set.path(1).map(|path| path.ends_with("cat/more/a.png")), Some(true));

    let pipe = class(dir, "pipe").join("b.png");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    for error in [refused(|| ImageFolder::new(dir.join("pipe"))), refused(|| read_image(&pipe, false))] {
        assert!(error.contains("b.png: it is a named pipe, not a regular file"), "{error}");
    }
    assert!(refused(|| ImageSet::read(&pipe, &pipe)).contains("not a regular file"));
    assert!(refused(|| read_image("/dev/zero", false)).contains("not a regular file"));
}

/// One test, so that nothing else allocates meanwhile.
#[test]
fn hostile_files_are_errors_in_bounded_memory_and_time() {
    let _alone = alone();
    let dir = tempfile::tempdir().expect("a folder");
    bombs(dir.path());
    #[cfg(unix)]
    links_and_pipes(dir.path());
    // A thousand honest pixels are still read.
    let honest = class(dir.path(), "honest").join("a.png");
    assert_eq!(read_image(honest, false).expect("an image").shape(), [3, 2, 2]);
}
