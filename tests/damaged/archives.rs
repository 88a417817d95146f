//! Zip archives that differ from those that PyTorch writes.

use std::io::{Cursor, Write};

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::pickles::{good, pickle};
use super::{Case, case};

fn zip(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, data) in entries {
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        writer.start_file(*name, options).expect("an entry");
        writer.write_all(data).expect("its data");
    }
    writer.finish().expect("an archive").into_inner()
}

/// As torch.save writes it, with a pickle and storages.
pub fn archive(pickle: &[u8], storages: &[(&str, &[u8])]) -> Vec<u8> {
    let names: Vec<String> = storages.iter().map(|(name, _)| format!("x/{name}")).collect();
    let mut entries = vec![("x/data.pkl", pickle), ("x/byteorder", b"little")];
    entries.extend(names.iter().map(String::as_str).zip(storages.iter().map(|(_, data)| *data)));
    zip(&entries)
}

/// Where the `n`th occurrence of `what` is.
fn find(bytes: &[u8], what: &[u8], n: usize) -> usize {
    let places = bytes.windows(what.len()).enumerate().filter(|(_, window)| *window == what).map(|(at, _)| at);
    places.into_iter().nth(n).expect("it is there")
}

/// The good file with bytes replaced.
fn patched(at: impl Fn(&[u8]) -> usize, new: &[u8]) -> Vec<u8> {
    let mut bytes = good();
    let at = at(&bytes);
    bytes[at..at + new.len()].copy_from_slice(new);
    bytes
}

/// The place of a field in the central header of the entry `n`: 10 is the method, 16 the checksum, 20 and 24 the sizes, 42 the
/// place.
fn central(n: usize, field: usize) -> impl Fn(&[u8]) -> usize {
    move |bytes| find(bytes, b"PK\x01\x02", n) + field
}

fn end(field: usize) -> impl Fn(&[u8]) -> usize {
    move |bytes| find(bytes, b"PK\x05\x06", 0) + field
}

/// An entry that says deflated, as does its central header: a thousand bytes that would become a gigabyte.
fn deflated() -> Vec<u8> {
    let mut bytes = archive(&pickle(b"N".to_vec()), &[("data/0", &[0; 1000])]);
    for (at, method, size) in [(find(&bytes, b"PK\x03\x04", 2), 8, 22), (find(&bytes, b"PK\x01\x02", 2), 10, 24)] {
        bytes[at + method] = 8;
        bytes[at + size..at + size + 4].copy_from_slice(&(1u32 << 30).to_le_bytes());
    }
    bytes
}

fn renamed() -> Vec<u8> {
    let mut bytes = zip(&[("x/data.pkl", b"N."), ("x/data/0", b"1234"), ("x/data/1", b"5678")]);
    while let Some(at) = bytes.windows(8).position(|window| window == b"x/data/1") {
        bytes[at + 7] = b'0';
    }
    bytes
}

pub fn all() -> Vec<Case> {
    let le = |value: u32| value.to_le_bytes();
    let files = [
        ("no archive at all", b"<html>404 Not Found</html>".to_vec(), "neither as a zip"),
        ("an empty archive", zip(&[]), ""),
        ("no pickle", zip(&[("x/data/0", b"1234")]), "without one data.pkl"),
        ("two pickles", zip(&[("x/data.pkl", b"N."), ("y/data.pkl", b"N.")]), "without one data.pkl"),
        (
            "TorchScript",
            zip(&[("x/data.pkl", b"N."), ("x/constants.pkl", b"N."), ("x/code/a.py", b"")]),
            "torch.save(model",
        ),
        ("an entry twice", renamed(), "one name"),
        ("big-endian", zip(&[("x/data.pkl", b"N."), ("x/byteorder", b"big")]), "torch.save(torch.load(path)"),
        ("no byte order", zip(&[("x/data.pkl", b"N."), ("x/byteorder", b"?")]), "byte order"),
        ("deflated", deflated(), ""),
        ("deflated by the central header", patched(central(2, 10), &[8, 0]), ""),
        ("an unknown method", patched(central(0, 10), &[99, 0]), ""),
        ("encrypted", patched(central(0, 8), &[1, 0]), ""),
        ("another checksum", patched(central(2, 16), &le(7)), "x/data/0"),
        ("a larger size", patched(central(2, 24), &le(1 << 30)), ""),
        ("larger sizes", patched(central(2, 20), &[le(1 << 30), le(1 << 30)].concat()), ""),
        ("the largest sizes", patched(central(2, 20), &[le(u32::MAX), le(u32::MAX)].concat()), ""),
        ("smaller sizes", patched(central(2, 20), &[le(4), le(4)].concat()), ""),
        ("one entry at the place of another", patched(central(2, 42), &le(0)), ""),
        ("an entry outside", patched(central(2, 42), &le(1 << 30)), ""),
        ("no entry there", patched(central(2, 42), &le(5)), ""),
        ("the directory elsewhere", patched(end(16), &le(3)), ""),
        ("the directory outside", patched(end(16), &le(1 << 30)), ""),
        ("more entries than there are", patched(end(8), &[60, 0, 60, 0]), ""),
        ("fewer entries than there are", patched(end(8), &[2, 0, 2, 0]), "is missing"),
        ("the most entries", patched(end(8), &[255, 255, 255, 255]), ""),
        ("a comment that is cut", patched(end(20), &[200, 0]), ""),
        ("no signature of an entry", patched(|bytes| find(bytes, b"PK\x03\x04", 2), b"XX"), ""),
    ];
    files.into_iter().map(|(name, bytes, says)| case(name, "pth", bytes, says)).collect()
}
