//! `MatMulNBits` of ONNX Runtime, a product with a matrix of integers of 4 or 8 bits, compared with plain loops of f64.

use anygpu::nn::Module;
use anygpu::{DType, Tensor};

use super::common::devices_in_turn;
use super::models::{graph, node};
use super::proto::{Attribute, TensorProto};
use super::table::{Array, FLOAT, UINT8, absent, expect, info, int, model, refused, singles, whole};

/// A product `[rows, K] · [N, K]ᵀ`.
struct Product {
    bits: usize,
    block: usize,
    sizes: [usize; 3],
    zeros: Zeros,
}

#[derive(Clone, Copy, PartialEq)]
enum Zeros {
    Absent,
    Integers,
    Floats,
}

/// Whole numbers below `most`.
fn integers(count: usize, most: u32, seed: u32) -> Vec<u32> {
    (0..count as u32).map(|i| ((i + 97 * seed).wrapping_mul(2_654_435_761) >> 16) % most).collect()
}

/// The bytes of rows of integers, each row from a whole byte, the first of a byte in its lower half.
fn bytes(rows: &[u32], each: usize, bits: usize) -> Vec<i64> {
    let byte = |pair: &[u32]| pair.iter().rev().fold(0, |byte, v| byte << bits | i64::from(*v));
    rows.chunks(each).flat_map(|row| row.chunks(8 / bits).map(byte).collect::<Vec<_>>()).collect()
}

impl Product {
    fn attributes(&self) -> Vec<Attribute> {
        let [_, n, k] = self.sizes.map(|size| size as i64);
        vec![int("K", k), int("N", n), int("bits", self.bits as i64), int("block_size", self.block as i64)]
    }

    fn blocks(&self) -> usize {
        self.sizes[2].div_ceil(self.block)
    }

    fn integers(&self) -> Vec<u32> {
        integers(self.sizes[1] * self.blocks() * self.block, 1 << self.bits, 1)
    }

    fn scales(&self) -> Vec<f64> {
        integers(self.sizes[1] * self.blocks(), 50, 2).iter().map(|&v| (f64::from(v) - 20.0) / 256.0).collect()
    }

    fn zero_points(&self) -> Vec<u32> {
        integers(self.sizes[1] * self.blocks(), 1 << self.bits, 3)
    }

    fn x(&self) -> Vec<f64> {
        let [m, _, k] = self.sizes;
        integers(m * k, 64, 4).iter().map(|&v| (f64::from(v) - 31.0) / 32.0).collect()
    }

    fn weight(&self, row: usize, at: usize) -> f64 {
        let block = row * self.blocks() + at / self.block;
        let zero = match self.zeros {
            Zeros::Absent => f64::from(1 << (self.bits - 1)),
            Zeros::Integers => f64::from(self.zero_points()[block]),
            Zeros::Floats => f64::from(self.zero_points()[block]) + 0.25,
        };
        let integer = self.integers()[row * self.blocks() * self.block + at];
        (f64::from(integer) - zero) * self.scales()[block]
    }

    fn inputs(&self) -> Vec<Array> {
        let [m, n, k] = self.sizes;
        let row = self.blocks() * self.block;
        let packed = whole(UINT8, &bytes(&self.integers(), row, self.bits));
        let zeros = match self.zeros {
            Zeros::Absent => absent(),
            Zeros::Integers => whole(UINT8, &bytes(&self.zero_points(), self.blocks(), self.bits)),
            Zeros::Floats => singles(&self.zero_points().iter().map(|&v| f64::from(v) + 0.25).collect::<Vec<_>>()),
        };
        let packed = packed.shaped(&[n, self.blocks(), self.block * self.bits / 8]);
        vec![singles(&self.x()).shaped(&[1, m, k]), packed, singles(&self.scales()), zeros]
    }

    fn expected(&self) -> Vec<f64> {
        let ([m, n, k], x) = (self.sizes, self.x());
        let weights: Vec<Vec<f64>> = (0..n).map(|row| (0..k).map(|at| self.weight(row, at)).collect()).collect();
        let element = |i: usize, row: &[f64]| x[i * k..][..k].iter().zip(row).map(|(x, w)| x * w).sum::<f64>();
        (0..m).flat_map(|i| weights.iter().map(move |row| (i, row))).map(|(i, row)| element(i, row)).collect()
    }
}

/// Constants stay packed, also where they are inputs of the graph; blocks that are no whole words are widened.
#[test]
fn products_with_packed_matrices_are_those_of_plain_loops() {
    for (bits, block, sizes, zeros) in [
        (4, 16, [1, 9, 33], Zeros::Absent),
        (4, 32, [3, 17, 70], Zeros::Integers),
        (4, 32, [12, 5, 96], Zeros::Integers), // more rows than are multiplied from words
        (4, 128, [2, 6, 40], Zeros::Floats),   // less than a block
        (8, 16, [2, 7, 50], Zeros::Integers),
        (8, 64, [1, 3, 130], Zeros::Absent),
        (4, 4, [2, 5, 11], Zeros::Integers), // half a word
    ] {
        let product = Product { bits, block, sizes, zeros };
        let [m, n, _] = sizes;
        let expected = [singles(&product.expected()).shaped(&[1, m, n]).near(2e-5)];
        for given in [1, 4] {
            expect(":MatMulNBits", &product.attributes(), &product.inputs(), given, &expected);
        }
    }
}

#[test]
fn sizes_of_packed_matrices_that_do_not_fit_are_errors() {
    let product = Product { bits: 4, block: 32, sizes: [1, 4, 64], zeros: Zeros::Absent };
    let (attributes, inputs) = (product.attributes(), product.inputs());
    let refuse = |place: usize, with: Array, words: &[&str]| {
        let mut inputs = inputs.clone();
        inputs[place] = with;
        refused(":MatMulNBits", &attributes, &inputs, 1, words);
    };
    refuse(0, singles(&[1.0; 60]).shaped(&[1, 60]), &["MatMulNBits", "64 columns"]);
    refuse(1, whole(UINT8, &[7; 96]), &["MatMulNBits", "96 bytes", "4 rows of 2 blocks of 32"]);
    refuse(2, singles(&[1.0; 6]), &["MatMulNBits", "6 scales"]);
    refuse(3, whole(UINT8, &[7; 3]), &["MatMulNBits", "3 bytes of zero points"]);
}

/// The matrix is a buffer of bytes, which moves with the model, and x has a gradient.
#[test]
fn a_packed_matrix_stays_bytes_and_x_has_a_gradient() -> anygpu::Result<()> {
    for m in [2, 11] {
        let product = Product { bits: 4, block: 32, sizes: [m, 20, 70], zeros: Zeros::Integers };
        let [_, n, k] = product.sizes;
        let raw = |values: Vec<i64>| values.into_iter().map(|v| v as u8).collect::<Vec<u8>>();
        let tensor = |name: &str, dims: &[i64], kind: i32, bytes: Vec<u8>| TensorProto {
            name: name.into(),
            dims: dims.into(),
            data_type: kind,
            raw_data: bytes.into(),
            ..TensorProto::default()
        };
        let row = product.blocks() * product.block;
        let integers = tensor("w", &[20, 3, 16], UINT8, raw(bytes(&product.integers(), row, 4)));
        let scales = product.scales().iter().flat_map(|&v| (v as f32).to_le_bytes()).collect();
        let scales = tensor("scales", &[60], FLOAT, scales);
        let zeros = tensor("zeros", &[40], UINT8, raw(bytes(&product.zero_points(), product.blocks(), 4)));
        let mut one = node("MatMulNBits", &["x", "w", "scales", "zeros"], &["y"], product.attributes());
        one.domain = "com.microsoft".into();
        let constants = vec![integers, scales, zeros];
        let model = model(graph(vec![one], constants, vec![info("x", FLOAT)], vec![info("y", FLOAT)]), 19);
        let (name, packed) = &model.named_buffers()[0];
        assert_eq!((name.as_str(), packed.dtype(), packed.elem_count()), ("w", DType::U8, 20 * 48));
        for device in devices_in_turn() {
            let model = model.clone().to(&device)?;
            let x: Vec<f32> = product.x().iter().map(|&v| v as f32).collect();
            let x = Tensor::from_vec(x, [m, k], &device)?.requires_grad();
            let slopes: Vec<f32> = (0..m * n).map(|i| (i % 5) as f32 - 2.0).collect();
            model.forward(&x)?.mul(&Tensor::from_vec(slopes.clone(), [m, n], &device)?)?.sum_all()?.backward()?;
            let got = x.grad().expect("a gradient").to_vec::<f32>()?;
            for (at, got) in got.iter().enumerate() {
                let (i, column) = (at / k, at % k);
                let terms = (0..n).map(|row| f64::from(slopes[i * n + row]) * product.weight(row, column));
                let expected: f64 = terms.sum();
                assert!((f64::from(*got) - expected).abs() < 1e-4, "{device}: gradient {at}: {got}, not {expected}");
            }
        }
    }
    Ok(())
}
