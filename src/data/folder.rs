//! Folders of image files, a folder for each class (feature `image`).

use std::collections::HashMap;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use image::{ImageDecoder, ImageFormat, ImageReader};

use super::dataset::within;
use super::limits::{Limits, damaged, open};
use super::transforms::unit;
use super::{Array, Dataset, Sample};
use crate::device::cpu::with_room;
use crate::error::Result;
use crate::util::regular_file;

/// PNG and JPEG files in a folder for each class, `dir/cat/1.png`, `dir/dog/photos/2.jpg`, like torchvision's
/// `ImageFolder`.
///
/// Classes are numbered in the order of their names. A folder's own files come before the files of its subfolders, each
/// in the order of their names. Links to files and to folders are followed.
///
/// Sample i is an image `[3, H, W]` of f32 in 0 to 1 (with [`grey`](ImageFolder::grey), `[1, H, W]`), and the number of
/// its class, a u32. Images are decoded when they are requested. Images of several sizes need a
/// [`Resize`](super::transforms::Resize) or a crop before they can form a batch.
///
/// ```
/// use anygpu::data::{DataLoader, Dataset, ImageFolder, transforms::Resize};
///
/// # let dir = tempfile::tempdir().expect("a folder");
/// # let dir = dir.path();
/// for (class, side) in [("dark", 4), ("bright", 6)] {
///     std::fs::create_dir(dir.join(class)).expect("a folder");
///     image::RgbImage::from_pixel(side, side, image::Rgb([255; 3])).save(dir.join(class).join("a.png")).expect("a file");
/// }
/// let set = ImageFolder::new(dir)?;
/// assert_eq!((set.classes(), set.len()), (&["bright".to_string(), "dark".to_string()][..], 2));
/// let (images, labels) = DataLoader::new(set, 2)?.transform(Resize::new([5, 5])).epoch(0).next().expect("a batch")?;
/// assert_eq!((images.shape(), labels.to_vec::<u32>()?), (&[2, 3, 5, 5][..], vec![0, 1]));
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ImageFolder {
    classes: Vec<String>,
    files: Vec<(PathBuf, u32)>,
    grey: bool,
    limits: Limits,
}

impl ImageFolder {
    /// Lists the files of a folder, without reading them.
    ///
    /// # Errors
    /// [`Error::Data`](crate::Error::Data):
    ///
    /// - if a folder cannot be read, if `dir` has no folder, or if a class's folder has no image;
    /// - if links lead to a class's folder twice, for example in a circle;
    /// - if a file with the name of an image is a pipe or a device.
    pub fn new(dir: impl AsRef<Path>) -> Result<ImageFolder> {
        let dir = dir.as_ref();
        let folders: Vec<PathBuf> = entries(dir)?.into_iter().filter(|path| path.is_dir()).collect();
        if folders.is_empty() {
            return Err(damaged(&shown(dir), "there is no folder in it: each class needs one, with its images"));
        }
        let mut set = ImageFolder { classes: Vec::new(), files: Vec::new(), grey: false, limits: Limits::new() };
        for (class, folder) in folders.iter().enumerate() {
            let before = set.files.len();
            list(folder, class as u32, &mut set.files, &mut HashMap::new())?;
            if set.files.len() == before {
                return Err(damaged(&shown(folder), "there is no .png, .jpg or .jpeg file in this class's folder"));
            }
            set.classes.push(folder.file_name().unwrap_or_default().to_string_lossy().into_owned());
        }
        Ok(set)
    }

    /// Converts all images to grey, with one channel.
    #[must_use]
    pub fn grey(mut self) -> ImageFolder {
        self.grey = true;
        self
    }

    /// Sets the limits of images that are decoded. A larger image is an error when its sample is requested.
    ///
    /// ```
    /// use anygpu::data::{Dataset, ImageFolder, Limits};
    ///
    /// # let dir = tempfile::tempdir().expect("a folder");
    /// # let dir = dir.path();
    /// std::fs::create_dir(dir.join("cat")).expect("a folder");
    /// image::RgbImage::new(30, 20).save(dir.join("cat/a.png")).expect("a file");
    /// let set = ImageFolder::new(dir)?.limits(Limits::new().pixels(500));
    /// let error = set.get(0).unwrap_err().to_string();
    /// assert!(error.contains("a.png: an image of 20 × 30 pixels, and the limit is 500 pixels"), "{error}");
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> ImageFolder {
        self.limits = limits;
        self
    }

    /// Returns the names of the classes, by number.
    #[must_use]
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Returns the path of sample `index`.
    #[must_use]
    pub fn path(&self, index: usize) -> Option<&Path> {
        self.files.get(index).map(|(path, _)| path.as_path())
    }
}

impl Dataset for ImageFolder {
    fn len(&self) -> usize {
        self.files.len()
    }

    fn get(&self, index: usize) -> Result<Sample> {
        within("ImageFolder", index, self.files.len())?;
        let (path, class) = &self.files[index];
        Ok(vec![read_image_within(path, self.grey, self.limits)?, Array::scalar(*class)])
    }
}

/// Reads a PNG or JPEG file as an image `[3, H, W]`, or grey `[1, H, W]`, of f32 in 0 to 1.
///
/// The format is recognised by the first bytes of the file; transparency is ignored.
///
/// # Errors
/// [`Error::Data`](crate::Error::Data) that names the file if it cannot be read, is damaged or of another format, or
/// has more pixels than the default [`Limits`] allow.
pub fn read_image(path: impl AsRef<Path>, grey: bool) -> Result<Array> {
    read_image_within(path, grey, Limits::new())
}

/// Reads an image like [`read_image`], with other limits.
///
/// # Errors
/// The errors of [`read_image`].
pub fn read_image_within(path: impl AsRef<Path>, grey: bool, limits: Limits) -> Result<Array> {
    let name = shown(path.as_ref());
    let failed = |error: image::ImageError| damaged(&name, error.to_string());
    let (file, bytes) = open(path.as_ref())?;
    if bytes > limits.image_bytes() {
        let most = limits.image_bytes();
        return Err(damaged(
            &name,
            format!("{bytes} bytes, and an image within the limit of pixels has at most {most}"),
        ));
    }
    let reader = ImageReader::new(BufReader::new(file)).with_guessed_format();
    let mut reader = reader.map_err(|error| damaged(&name, error.to_string()))?;
    let Some(format @ (ImageFormat::Png | ImageFormat::Jpeg)) = reader.format() else {
        return Err(damaged(&name, "it is neither a PNG nor a JPEG file"));
    };
    // For the data that a decoder reads before the sizes are known: one line of pixels, and profiles, which may be
    // compressed.
    let mut header = image::Limits::no_limits();
    header.max_alloc = Some(64 << 20);
    reader.limits(header);
    let decoder = reader.into_decoder().map_err(failed)?;
    let (w, h) = decoder.dimensions();
    let (h, w) = (h as usize, w as usize);
    limits.check_pixels(&name, h, w)?;
    // Each block of 64 pixels takes at least one bit. Otherwise, the decoder would fill in missing data, and make a
    // gigabyte of grey pixels from a header.
    if format == ImageFormat::Jpeg && (h * w) as u64 > bytes.saturating_mul(8 * 64) {
        return Err(damaged(&name, format!("{bytes} bytes are only a part of an image of {h} × {w} pixels")));
    }
    let color = decoder.color_type();
    let mut pixels = with_room(h * w * usize::from(color.bytes_per_pixel()))?;
    pixels.resize(pixels.capacity(), 0);
    decoder.read_image(&mut pixels).map_err(failed)?;
    Array::new(planes(&pixels, color, grey)?, [if grey { 1 } else { 3 }, h, w])
}

/// Returns the planes of red, green and blue, or of grey, in 0 to 1, from pixels as a decoder returns them.
fn planes(pixels: &[u8], color: image::ColorType, grey: bool) -> Result<Vec<f32>> {
    let size = usize::from(color.bytes_per_pixel());
    let deep = size == 2 * usize::from(color.channel_count());
    let last = if color.has_color() { 2 } else { 0 };
    // 16-bit pixels are rounded like in the `image` crate.
    let byte = |pixel: &[u8], channel: usize| match (deep, channel.min(last)) {
        (false, channel) => pixel[channel],
        (true, channel) => {
            ((u32::from(u16::from_ne_bytes([pixel[2 * channel], pixel[2 * channel + 1]])) + 128) / 257) as u8
        }
    };
    let each = pixels.chunks_exact(size);
    let mut out = with_room(each.len() * if grey { 1 } else { 3 })?;
    if grey {
        out.extend(each.map(|pixel| unit(luma(&[0, 1, 2].map(|channel| byte(pixel, channel))))));
        return Ok(out);
    }
    for channel in 0..3 {
        out.extend(each.clone().map(|pixel| unit(byte(pixel, channel))));
    }
    Ok(out)
}

/// Returns the brightness of a pixel like Pillow's `convert("L")`, which torchvision's `Grayscale` uses: ITU-R 601-2
/// with 16-bit weights, rounded (Pillow's `Convert.c`).
fn luma(pixel: &[u8]) -> u8 {
    let [r, g, b] = [0, 1, 2].map(|channel| u32::from(pixel[channel]));
    ((r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16) as u8 // the weights add up to 2¹⁶
}

/// Appends the images of a folder, then the images of its subfolders. `seen` has the folders that were listed, by their
/// real location, with the paths that led there. Without it, links in a circle would never end, and a few links to the
/// same folders would make millions of paths.
fn list(
    folder: &Path,
    class: u32,
    files: &mut Vec<(PathBuf, u32)>,
    seen: &mut HashMap<PathBuf, PathBuf>,
) -> Result<()> {
    let failed = |path: &Path, error: std::io::Error| damaged(&shown(path), error.to_string());
    let place = folder.canonicalize().map_err(|error| failed(folder, error))?;
    if let Some(before) = seen.insert(place, folder.to_path_buf()) {
        let detail = format!("a link leads to a folder that was listed already, as {}", before.display());
        return Err(damaged(&shown(folder), detail));
    }
    let is_image = |kind: &std::ffi::OsStr| ["png", "jpg", "jpeg"].iter().any(|known| kind.eq_ignore_ascii_case(known));
    let mut folders = Vec::new();
    for path in entries(folder)? {
        if path.is_dir() {
            folders.push(path);
        } else if path.extension().is_some_and(is_image) {
            path.metadata().and_then(|about| regular_file::check(&about)).map_err(|error| failed(&path, error))?;
            files.push((path, class));
        }
    }
    folders.iter().try_for_each(|folder| list(folder, class, files, seen))
}

/// Returns the entries of a folder, sorted by name.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = || -> std::io::Result<Vec<PathBuf>> {
        std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect()
    };
    let mut paths = read().map_err(|error| damaged(&shown(folder), error.to_string()))?;
    paths.sort();
    Ok(paths)
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of `Image.new("RGB", (1, 1), pixel).convert("L").getpixel((0, 0))`, Pillow 13.0.0.
    #[test]
    fn grey_is_pillows() {
        let expected: [([u8; 3], u8); 8] = [
            ([255, 255, 255], 255),
            ([255, 0, 0], 76),
            ([0, 255, 0], 150),
            ([0, 0, 255], 29),
            ([1, 2, 3], 2),
            ([100, 150, 200], 141),
            ([13, 87, 251], 84),
            ([0, 0, 4], 0),
        ];
        for (pixel, grey) in expected {
            assert_eq!(luma(&pixel), grey, "{pixel:?}");
        }
    }

    /// Of every kind of pixels that PNG and JPEG have, the bytes are those of the `image` crate.
    #[test]
    fn colours_are_the_image_crates() {
        use image::{DynamicImage, ImageBuffer, Rgba};

        let mut random = crate::data::Random::of_sample(0, 0, 0);
        let any =
            DynamicImage::from(ImageBuffer::from_fn(16, 16, |_, _| Rgba([0; 4].map(|_| random.next_u32() as u16))));
        let kinds: [DynamicImage; 8] = [
            any.to_luma8().into(),
            any.to_luma_alpha8().into(),
            any.to_rgb8().into(),
            any.to_rgba8().into(),
            any.to_luma16().into(),
            any.to_luma_alpha16().into(),
            any.to_rgb16().into(),
            any,
        ];
        for image in kinds {
            let ours = planes(image.as_bytes(), image.color(), false).unwrap();
            let grey = planes(image.as_bytes(), image.color(), true).unwrap();
            for (i, pixel) in image.to_rgb8().pixels().enumerate() {
                assert_eq!([ours[i], ours[256 + i], ours[512 + i]], pixel.0.map(unit), "{:?}, {i}", image.color());
                assert_eq!(grey[i], unit(luma(&pixel.0)), "{:?}, {i}", image.color());
            }
        }
    }

    #[test]
    fn a_folders_own_files_come_first() {
        let dir = tempfile::tempdir().unwrap();
        let class = dir.path().join("cat");
        std::fs::create_dir_all(class.join("a")).unwrap();
        for name in ["a/1.png", "b.png", "0.JPG", "notes.txt"] {
            std::fs::write(class.join(name), "").unwrap();
        }
        let set = ImageFolder::new(dir.path()).unwrap();
        let names: Vec<_> = (0..3).filter_map(|i| set.path(i)?.strip_prefix(&class).ok()).collect();
        assert_eq!(names, ["0.JPG", "b.png", "a/1.png"].map(Path::new));
    }
}
