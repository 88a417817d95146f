//! Products with packed matrices of integers of 4 and 8 bits.

use super::prelude::*;
use crate::ops::{Form, Packed};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (bits, block, [m, n, k], zeros) in SIZES {
        let case = case(bits, block, [m, n, k], zeros, DType::F32);
        let name = format!("matmul_packed of {m} rows, {n} × {k}, {bits} bits by {block}, {zeros:?}");
        cases.push(case.named(name));
    }
    // More rows than any device multiplies from words.
    for (bits, block, zeros) in [(4, 32, Zeros::Integers), (8, 16, Zeros::Middle), (4, 16, Zeros::Floats)] {
        let name = format!("matmul_packed of many rows, {bits} bits by {block}, {zeros:?}");
        cases.push(case(bits, block, [67, 21, 70], zeros, DType::F32).named(name));
    }
    let x = |m: usize| signed(&[m, 44], 405);
    for (m, what, input) in
        [(5, "a transposed factor", transposed(x(5), 0, 1)), (10, "a narrowed factor", narrowed(x(10), 1))]
    {
        let mut case = case(4, 32, [m, 6, 44], Zeros::Integers, DType::F32);
        case.inputs = vec![input];
        cases.push(case.named(format!("matmul_packed {what}")));
    }
    for (dtype, tolerance) in [(DType::F16, 2e-2), (DType::BF16, 2e-1)] {
        for m in [3, 11] {
            let case = case(4, 16, [m, 18, 43], Zeros::Integers, dtype).within(tolerance, tolerance);
            cases.push(case.named(format!("matmul_packed of {m} rows, {dtype}")));
        }
    }
    for variant in ["alone", "shared"] {
        for (bits, block, [m, n, k], zeros) in SIZES {
            let case = case(bits, block, [m, n, k], zeros, DType::F32).variant("packed_products", variant);
            let name = format!("matmul_packed/{variant} {m} rows, {n} × {k}, {bits} bits by {block}, {zeros:?}");
            cases.push(case.named(name));
        }
    }
    cases
}

/// Where the zero points are from.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Zeros {
    Middle,
    Integers,
    Floats,
}

/// Bits, the integers of a block, the rows of X, the rows and columns of the matrix, and its zero points.
const SIZES: [(usize, usize, [usize; 3], Zeros); 14] = [
    (4, 16, [1, 1, 1], Zeros::Middle),
    (4, 32, [1, 17, 5], Zeros::Integers), // less than a block
    (4, 32, [1, 33, 96], Zeros::Floats),
    (4, 64, [2, 5, 200], Zeros::Integers),
    (4, 128, [3, 37, 130], Zeros::Integers),
    (4, 16, [4, 7, 1029], Zeros::Integers), // an odd number of blocks
    (4, 128, [8, 3, 384], Zeros::Middle),
    (4, 8, [1, 9, 70], Zeros::Middle), // a block of a word
    (8, 16, [1, 17, 70], Zeros::Integers),
    (8, 32, [5, 6, 31], Zeros::Floats),
    (8, 64, [1, 130, 64], Zeros::Middle),
    (8, 128, [7, 4, 260], Zeros::Integers),
    (8, 4, [2, 3, 11], Zeros::Integers),
    (4, 24, [6, 10, 50], Zeros::Floats),
];

/// A case whose matrix and scales are made anew for each device: only X has a gradient. Scales are halves if there are 8 bits.
fn case(bits: usize, block: usize, [m, n, k]: [usize; 3], zeros: Zeros, dtype: DType) -> Case {
    let form = Form { bits, block, k };
    let blocks = k.div_ceil(block);
    let integers = whole(&[n, blocks * block], 0, 1 << bits, 401);
    let scale_type = if bits == 8 { DType::F16 } else { DType::F32 };
    let scales = uniform(&[n, blocks], -0.1, 0.3, 402).rounded(scale_type);
    let points = match zeros {
        Zeros::Middle => Nd::from_fn(&[n, blocks], |_| (1 << (bits - 1)) as f64),
        Zeros::Integers => whole(&[n, blocks], 0, 1 << bits, 403),
        Zeros::Floats => uniform(&[n, blocks], 0.0, 9.0, 404).rounded(DType::F32),
    };
    let weights = Nd::from_fn(&[n, k], |i| {
        (integers.at(i) - points.at(&[i[0], i[1] / block])) * scales.at(&[i[0], i[1] / block])
    });
    let op = move |t: &[Tensor]| {
        let device = t[0].device();
        let bytes = |x: &Nd| {
            let bytes: Vec<u8> = x.data.chunks(x.shape[1]).flat_map(|row| packed(row, bits)).collect();
            Tensor::from_slice(&bytes, [bytes.len()], device)
        };
        let points = match zeros {
            Zeros::Middle => None,
            Zeros::Integers => Some(bytes(&points)?),
            Zeros::Floats => Some(points.tensor(DType::F32, device)?),
        };
        let packed = Packed::new(form, n, &bytes(&integers)?, &scales.tensor(scale_type, device)?, points.as_ref())?;
        t[0].matmul_packed(&packed)
    };
    let x = dense(signed(&[m, k], 405)).of(dtype);
    let most = 1e-5 * (1 << bits) as f64;
    Case::new("", [x], op, move |x| oracle::matmul(x[0], &oracle::transpose(&weights, 0, 1)))
        .result_dtype(dtype)
        .within(most, 1e-5)
        .operations(m * n * k)
}

/// Integers of a row as bytes, the first of a byte in its lower half.
fn packed(row: &[f64], bits: usize) -> Vec<u8> {
    let byte = |pair: &[f64]| pair.iter().rev().fold(0, |byte: u32, v| byte << bits | *v as u32) as u8;
    row.chunks(8 / bits).map(byte).collect()
}
