//! Safetensors files with false headers.

use super::{Case, case};

fn file(header: &[u8], data: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header, &vec![0; data]].concat()
}

fn tensor(dtype: &str, shape: &str, start: &str, end: &str) -> String {
    format!("{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":[{start},{end}]}}")
}

fn one(dtype: &str, shape: &str, start: &str, end: &str) -> Vec<u8> {
    file(format!("{{\"x\":{}}}", tensor(dtype, shape, start, end)).as_bytes(), 8)
}

fn two(first: (&str, &str), second: (&str, &str), data: usize) -> Vec<u8> {
    let [a, b] = [first, second].map(|(start, end)| tensor("F32", "[1]", start, end));
    file(format!("{{\"a\":{a},\"b\":{b}}}").as_bytes(), data)
}

fn length(length: u64) -> Vec<u8> {
    [length.to_le_bytes().as_slice(), b"{}      "].concat()
}

pub fn good() -> Vec<u8> {
    one("F32", "[2]", "0", "8")
}

/// A tensor without elements, whose other sizes are huge.
pub fn nothing() -> Vec<u8> {
    let shape = "[0,4611686018427387904,4611686018427387904]";
    file(format!("{{\"x\":{}}}", tensor("F32", shape, "0", "0")).as_bytes(), 0)
}

/// Places whose sum overflows: eight times 2⁶¹ bytes.
fn overflowing() -> Vec<u8> {
    let part = |i: u128| {
        let [start, end] = [i << 61, ((i + 1) << 61).min(u128::from(u64::MAX))].map(|at| at.to_string());
        format!("\"x{i}\":{}", tensor("F64", "[288230376151711744]", &start, &end))
    };
    file(format!("{{{}}}", (0..8).map(part).collect::<Vec<_>>().join(",")).as_bytes(), 8)
}

pub fn all() -> Vec<Case> {
    let whole = "not a whole safetensors file";
    let text = |header: &str| file(header.as_bytes(), 8);
    let marked =
        |crc: &str| format!("{{\"__metadata__\":{{\"anygpu\":\"1\"{crc}}},\"x\":{}}}", tensor("F32", "[2]", "0", "8"));
    let deep = format!("{{\"x\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let files = [
        ("empty", Vec::new(), "too few"),
        ("seven bytes", vec![0; 7], "too few"),
        ("a header of 2^60 bytes", length(1 << 60), "1152921504606846976"),
        ("a header of all bytes there are", length(u64::MAX), whole),
        ("a header longer than the file", length(9), whole),
        ("no header", length(0), whole),
        ("a header that is not UTF-8", file(b"{\"\xff\xfe\":1}", 8), whole),
        ("a header that is no JSON", text("hello"), whole),
        ("a header that is a list", text("[]"), whole),
        ("a header in a header", text(&deep), whole),
        ("data after the last tensor", text("{}"), whole),
        ("a tensor that is a number", text("{\"x\":1}"), whole),
        ("no type", text("{\"x\":{\"shape\":[2],\"data_offsets\":[0,8]}}"), whole),
        ("no shape", text("{\"x\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}"), whole),
        ("no place", text("{\"x\":{\"dtype\":\"F32\",\"shape\":[2]}}"), whole),
        ("an unknown type", one("F33", "[2]", "0", "8"), whole),
        ("a type that is not read", one("F8_E5M2", "[8]", "0", "8"), "'x': elements of F8_E5M2"),
        ("another shape", one("F32", "[3]", "0", "8"), whole),
        ("a huge shape", one("F32", "[4611686018427387904,4]", "0", "8"), "impossibly large"),
        ("a shape that overflows", one("F32", "[4294967296,4294967296,4294967296]", "0", "8"), whole),
        ("a negative size", one("F32", "[-2]", "0", "8"), whole),
        ("a size with a point", one("F32", "[2.0]", "0", "8"), whole),
        ("a size of 1e30", one("F32", "[1e30]", "0", "8"), whole),
        ("a size that no integer holds", one("F32", "[99999999999999999999999999]", "0", "8"), "impossibly large"),
        ("a place beyond the data", one("F32", "[4]", "0", "16"), whole),
        ("a place after a gap", one("F32", "[1]", "4", "8"), whole),
        ("a place backwards", one("F32", "[2]", "8", "0"), whole),
        ("a huge place", one("F32", "[2]", "18446744073709551608", "18446744073709551615"), "impossibly large"),
        ("places that overflow", overflowing(), "impossibly large"),
        ("places over each other", two(("0", "4"), ("0", "4"), 4), whole),
        ("places that overlap", two(("0", "4"), ("2", "6"), 6), whole),
        ("a gap between places", two(("0", "4"), ("8", "12"), 12), whole),
        ("metadata that is a number", text("{\"__metadata__\":7}"), whole),
        ("metadata of numbers", text("{\"__metadata__\":{\"a\":7}}"), whole),
        ("a mark without a checksum", text(&marked("")), "is missing from its metadata"),
        ("another checksum", text(&marked(",\"anygpu.crc32\":\"00000000\"")), "its CRC-32"),
    ];
    files.into_iter().map(|(name, bytes, says)| case(name, "safetensors", bytes, says)).collect()
}
