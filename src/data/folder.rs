//! Folders of image files, a folder for each class (feature `image`).

use std::path::{Path, PathBuf};

use super::dataset::within;
use super::idx::damaged;
use super::transforms::unit_scale;
use super::{Array, Dataset, Sample};
use crate::error::Result;

/// PNG and JPEG files in a folder for each class, `dir/cat/1.png`, `dir/dog/photos/2.jpg`, as torchvision's
/// `ImageFolder`: classes are numbered by name, a folder's own files come before those of the folders
/// in it, each in the order of their names.
///
/// Sample i is an image `[3, H, W]` of f32 in 0 to 1, decoded when it is requested (with [`grey`](ImageFolder::grey),
/// `[1, H, W]`), and the number of its class, a u32. Images of several sizes need a
/// [`Resize`](super::transforms::Resize) or a crop before they make a batch.
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
}

impl ImageFolder {
    /// Lists the files of a folder, without reading them.
    ///
    /// # Errors
    /// [`Error::Data`](crate::Error::Data) when a folder cannot be read, when there is no folder in `dir`, or no image
    /// in one of them.
    pub fn new(dir: impl AsRef<Path>) -> Result<ImageFolder> {
        let dir = dir.as_ref();
        let folders: Vec<PathBuf> = entries(dir)?.into_iter().filter(|path| path.is_dir()).collect();
        if folders.is_empty() {
            return Err(damaged(&shown(dir), "there is no folder in it: each class needs one, with its images"));
        }
        let mut set = ImageFolder { classes: Vec::new(), files: Vec::new(), grey: false };
        for (class, folder) in folders.iter().enumerate() {
            let before = set.files.len();
            list(folder, class as u32, &mut set.files)?;
            if set.files.len() == before {
                return Err(damaged(&shown(folder), "there is no .png, .jpg or .jpeg file in this class's folder"));
            }
            set.classes.push(folder.file_name().unwrap_or_default().to_string_lossy().into_owned());
        }
        Ok(set)
    }

    /// Converts all images to grey, with one channel.
    pub fn grey(mut self) -> ImageFolder {
        self.grey = true;
        self
    }

    /// Returns the names of the classes, by number.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Returns the file of sample `index`.
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
        Ok(vec![read_image(path, self.grey)?, Array::scalar(*class)])
    }
}

/// Reads a PNG or JPEG file as an image `[3, H, W]`, or grey `[1, H, W]`, of f32 in 0 to 1. The format is
/// recognised by the first bytes of the file; transparency is ignored.
///
/// # Errors
/// [`Error::Data`](crate::Error::Data) naming the file when it cannot be read or is damaged, or is larger than the
/// `image` crate's limits allow.
pub fn read_image(path: impl AsRef<Path>, grey: bool) -> Result<Array> {
    let path = path.as_ref();
    let open = || -> Result<_, image::ImageError> { image::ImageReader::open(path)?.with_guessed_format()?.decode() };
    let image = open().map_err(|error| damaged(&shown(path), error.to_string()))?;
    let (h, w) = (image.height() as usize, image.width() as usize);
    let pixels = image.to_rgb8();
    if grey {
        let grey: Vec<u8> = pixels.as_raw().chunks_exact(3).map(luma).collect();
        return Array::new(unit_scale(&grey), [1, h, w]);
    }
    let mut planes = Vec::with_capacity(3 * h * w);
    for channel in 0..3 {
        planes.extend(pixels.as_raw().iter().skip(channel).step_by(3).copied());
    }
    Array::new(unit_scale(&planes), [3, h, w])
}

/// The brightness of a pixel as Pillow's `convert("L")` computes it, which torchvision's `Grayscale` uses: ITU-R 601-2
/// with weights of 16 bits, rounded (Pillow's `Convert.c`).
fn luma(pixel: &[u8]) -> u8 {
    let [r, g, b] = [0, 1, 2].map(|channel| u32::from(pixel[channel]));
    ((r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16) as u8 // the weights add up to 2¹⁶
}

/// Appends the images of a folder, then those of the folders in it.
fn list(folder: &Path, class: u32, files: &mut Vec<(PathBuf, u32)>) -> Result<()> {
    let image = |kind: &std::ffi::OsStr| ["png", "jpg", "jpeg"].iter().any(|known| kind.eq_ignore_ascii_case(known));
    let (folders, own): (Vec<PathBuf>, Vec<PathBuf>) = entries(folder)?.into_iter().partition(|path| path.is_dir());
    files.extend(own.into_iter().filter(|path| path.extension().is_some_and(image)).map(|path| (path, class)));
    folders.iter().try_for_each(|folder| list(folder, class, files))
}

/// The entries of a folder, sorted by name.
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
