//! NumPy's `.npy` files, of the numbers that kernels take: f32, i32 and u32, little-endian, in rows.
//!
//! The format: <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>. The crates that read it bring a parser
//! of Python's literals; the header of an array of numbers has one form, which is all that is read here.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anygpu::checkpoint::write_atomically;
use anygpu::{DType, Device, Tensor};

use crate::failure::Failure;

const MAGIC: &[u8] = b"\x93NUMPY";

/// The longest header that is read: those of arrays of numbers have some hundred bytes.
const LONGEST_HEADER: usize = 4096;

/// Reads a file as a tensor of a device.
///
/// # Errors
/// [`Failure::Run`] for a file that cannot be read, is damaged, or has other numbers.
pub fn read(path: &Path, device: &Device) -> Result<Tensor, Failure> {
    let wrong = |detail: String| Failure::Run(format!("{}: {detail}", path.display()));
    let mut bytes = Vec::new();
    File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)).map_err(|error| wrong(error.to_string()))?;
    let (dtype, shape, data) = parse(&bytes).map_err(wrong)?;
    let words: Vec<u32> =
        data.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect();
    let tensor = match dtype {
        DType::F32 => Tensor::from_vec(words.into_iter().map(f32::from_bits).collect::<Vec<f32>>(), shape, device),
        DType::I32 => Tensor::from_vec(words.into_iter().map(u32::cast_signed).collect::<Vec<i32>>(), shape, device),
        _ => Tensor::from_vec(words, shape, device),
    };
    Ok(tensor?)
}

/// Returns the type, the shape and the elements of a file.
fn parse(bytes: &[u8]) -> Result<(DType, Vec<usize>, &[u8]), String> {
    let cut = || "it is cut off".to_string();
    let rest = bytes.strip_prefix(MAGIC).ok_or("it is no .npy file")?;
    let (length, rest) = match rest {
        [1, _, a, b, rest @ ..] => (usize::from(u16::from_le_bytes([*a, *b])), rest),
        [2 | 3, _, a, b, c, d, rest @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, rest),
        [version, ..] => return Err(format!("version {version} of the format is not known")),
        [] => return Err(cut()),
    };
    if length > LONGEST_HEADER {
        return Err(format!("its header has {length} bytes, which no array of numbers needs"));
    }
    let (header, data) = rest.split_at_checked(length).ok_or_else(cut)?;
    let header = std::str::from_utf8(header).map_err(|_| "its header is no text")?;
    let value = |key: &str| {
        let at = header.find(&format!("'{key}':"))?;
        Some(header[at + key.len() + 3..].trim_start())
    };
    let missing = |key: &str| format!("its header has no '{key}': {}", header.trim_end());
    let descr = value("descr").ok_or_else(|| missing("descr"))?;
    let descr = descr.strip_prefix('\'').and_then(|text| text.split_once('\'')).map_or(descr, |(name, _)| name);
    let dtype = match descr {
        "<f4" => DType::F32,
        "<i4" => DType::I32,
        "<u4" => DType::U32,
        other => {
            return Err(format!("it is of type {other}, and kernels take f32, i32 and u32: save x.astype('float32')"));
        }
    };
    if !value("fortran_order").ok_or_else(|| missing("fortran_order"))?.starts_with("False") {
        return Err("its elements are in columns: save numpy.ascontiguousarray(x)".to_string());
    }
    let shape = value("shape").and_then(|text| text.strip_prefix('(')).and_then(|text| text.split_once(')'));
    let sizes = shape.ok_or_else(|| missing("shape"))?.0.split(',').map(str::trim).filter(|size| !size.is_empty());
    let shape: Vec<usize> = sizes
        .map(str::parse)
        .collect::<Result<_, _>>()
        .map_err(|_| format!("its shape is no list of sizes: {}", header.trim_end()))?;
    let count = shape.iter().try_fold(4usize, |count, size| count.checked_mul(*size));
    if count != Some(data.len()) {
        return Err(format!("its shape {shape:?} does not fit its {} bytes of elements", data.len()));
    }
    Ok((dtype, shape, data))
}

/// Writes a tensor of f32, i32 or u32 to a file, whole or not at all.
///
/// # Errors
/// [`Failure::Run`] for another type, or if the file cannot be written.
pub fn write(tensor: &Tensor, path: &Path) -> Result<(), Failure> {
    let (descr, words): (&str, Vec<u32>) = match tensor.dtype() {
        DType::F32 => ("<f4", tensor.to_vec::<f32>()?.into_iter().map(f32::to_bits).collect()),
        DType::I32 => ("<i4", tensor.to_vec::<i32>()?.into_iter().map(i32::cast_unsigned).collect()),
        DType::U32 => ("<u4", tensor.to_vec()?),
        other => return Err(Failure::Run(format!("{}: numbers of {other} are not written", path.display()))),
    };
    let sizes: String = tensor.shape().iter().map(|size| format!("{size}, ")).collect();
    let shape =
        if tensor.rank() == 1 { sizes.trim_end().to_string() } else { sizes.trim_end_matches(", ").to_string() };
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
    // The elements begin at a multiple of 64 bytes, after a line feed.
    let before = MAGIC.len() + 4;
    header.push_str(&" ".repeat((before + header.len() + 1).next_multiple_of(64) - before - header.len() - 1));
    header.push('\n');
    let written = write_atomically(path, |file| {
        file.write_all(MAGIC)?;
        file.write_all(&[1, 0])?;
        file.write_all(&(header.len() as u16).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        words
            .chunks(1 << 14)
            .try_for_each(|part| file.write_all(&part.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>()))
    });
    written.map_err(|error| Failure::Run(format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let length = (header.len() as u16).to_le_bytes();
        [MAGIC, &[1, 0], &length, header.as_bytes(), data].concat()
    }

    #[test]
    fn what_is_written_is_read_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.npy");
        let cpu = Device::cpu();
        let check = |tensor: Tensor| {
            write(&tensor, &path).expect("it is written");
            assert_eq!(std::fs::read(&path).expect("a file").len() % 4, 0);
            let read = read(&path, &cpu).expect("it is read");
            assert_eq!((read.shape(), read.dtype()), (tensor.shape(), tensor.dtype()));
            assert_eq!(read.to_string(), tensor.to_string());
        };
        for shape in [vec![], vec![1], vec![3], vec![2, 3], vec![0, 4], vec![2, 1, 5]] {
            let count = shape.iter().product::<usize>();
            check(
                Tensor::from_vec((0..count).map(|i| i as f32 - 0.5).collect::<Vec<f32>>(), shape.clone(), &cpu)
                    .expect("f32"),
            );
            check(
                Tensor::from_vec((0..count).map(|i| -(i as i32)).collect::<Vec<i32>>(), shape.clone(), &cpu)
                    .expect("i32"),
            );
            check(
                Tensor::from_vec((0..count).map(|i| u32::MAX - i as u32).collect::<Vec<u32>>(), shape, &cpu)
                    .expect("u32"),
            );
        }
    }

    #[test]
    fn headers_of_numpy_are_read_and_others_refused() {
        let good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1), }          \n";
        let bytes = file(good, &[0; 8]);
        assert_eq!(parse(&bytes), Ok((DType::F32, vec![2, 1], &[0; 8][..])));
        let second = [MAGIC, &[2, 0], &(good.len() as u32).to_le_bytes(), good.as_bytes(), &[0; 8]].concat();
        assert_eq!(parse(&second).map(|(_, shape, _)| shape), Ok(vec![2, 1]));
        for cut in 0..bytes.len() {
            assert!(parse(&bytes[..cut]).is_err(), "{cut}");
        }
        for (header, expected) in [
            (good.replace("<f4", "<f8"), "type <f8"),
            (good.replace("<f4", ">f4"), "type >f4"),
            (good.replace("'<f4'", "[('a', '<f4')]"), "type [('a'"),
            (good.replace("False", "True"), "in columns"),
            (good.replace("(2, 1)", "(3, 1)"), "does not fit its 8 bytes"),
            (good.replace("(2, 1)", "(4611686018427387904, 8)"), "does not fit"),
            (good.replace("(2, 1)", "(2, x)"), "no list of sizes"),
            (good.replace("shape", "form"), "no 'shape'"),
            (good.replace("descr", "type"), "no 'descr'"),
            (" ".repeat(5000), "5000 bytes"),
        ] {
            let error = parse(&file(&header, &[0; 8])).unwrap_err();
            assert!(error.contains(expected), "{header}: {error}");
        }
        assert!(parse(b"PK\x03\x04").unwrap_err().contains("no .npy file"));
        assert!(parse(&[MAGIC, &[9, 0, 0, 0]].concat()).unwrap_err().contains("version 9"));
    }
}
