//! Which way computes a product with a packed matrix.
//!
//! | product | way |
//! |---|---|
//! | at most [`MOST_ON_HOST`] rows, on the host | `crates/host/src/packed.rs` |
//! | at most [`MOST_ROWS`] rows, on hardware | [`Way::Shared`]: neighbouring invocations read neighbouring words of a row |
//! | at most [`MOST_ROWS`] rows, on software adapters | [`Way::Alone`]: barriers are slow there |
//! | others, and loops that are too long for a driver ([`Caps::loop_budget`]) | products with parts of the matrix that are widened |
//!
//! (The limit for hardware is an estimate, and was never timed.)

use super::Form;
use super::gpu::{ALONE, Operands, Params, SHARED, product, widen};
use crate::device::gpu::{AnyFamily, Caps, Family, Gpu, Grid, Suits, Variant};
use crate::device::{Backend, Device};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::linalg::matmul_variants::numbers;
use crate::ops::stored::{Stored, words};
use crate::ops::variants::Adapter;

/// The most rows that an adapter multiplies from words.
pub(super) const MOST_ROWS: usize = 8;

/// The most rows that the host multiplies from words. With more, these rows are read from memory for every few rows of the matrix.
pub(super) const MOST_ON_HOST: usize = 64;

/// Who computes a product from words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// A workgroup four columns of the result, with all its invocations along K.
    Shared,
    /// An invocation a column.
    Alone,
}

impl Way {
    /// Returns the workgroups or the invocations.
    pub fn tasks(self, p: &Params) -> usize {
        let columns = if self == Way::Shared { p.n.div_ceil(4) } else { p.n };
        columns * p.passes()
    }

    /// Returns the loop iterations of an invocation at most.
    fn iterations(self, p: &Params) -> usize {
        let lanes = if self == Way::Shared { 64 } else { 1 };
        // A word has 8 integers at most.
        (p.blocks * p.block).div_ceil(lanes).saturating_mul(8 * (2 * p.few() + 2))
    }
}

type PackedVariant = Variant<Params, Way>;

static SHARED_BY_MANY: PackedVariant = Variant {
    name: "shared",
    way: Way::Shared,
    shader: SHARED,
    entry: "packed_shared",
    fits: |caps| caps.max_invocations >= 64 && caps.workgroup_memory >= 4096,
    suits: Suits::All,
    grid: Grid::Workgroups(|p| Way::Shared.tasks(p)),
};

static BY_ONE_EACH: PackedVariant = Variant {
    name: "alone",
    way: Way::Alone,
    shader: ALONE,
    entry: "packed_alone",
    fits: |_| true,
    suits: Suits::All,
    grid: Grid::Each(|p| Way::Alone.tasks(p)),
};

static ON_HARDWARE: [&PackedVariant; 2] = [&SHARED_BY_MANY, &BY_ONE_EACH];
static ON_SOFTWARE: [&PackedVariant; 2] = [&BY_ONE_EACH, &SHARED_BY_MANY];

pub(super) static FAMILY: Family<Params, Way> = Family { name: "packed_products", order, attempt };
inventory::submit! { &FAMILY as &'static dyn AnyFamily }

fn order(caps: &Caps) -> &'static [&'static PackedVariant] {
    if caps.software { &ON_SOFTWARE } else { &ON_HARDWARE }
}

/// Returns whether a product `[m, K] · [n, K]ᵀ` is computed from the words of the matrix.
///
/// # Errors
///
/// The errors of a trial of the kernels.
pub(super) fn multiplies_words(device: &Device, form: Form, sizes: [usize; 2]) -> Result<bool> {
    match device.backend()? {
        Backend::Cpu(_) => Ok(sizes[0] <= MOST_ON_HOST),
        Backend::Gpu(gpu) => suits(&**gpu, form, sizes),
    }
}

/// Returns whether an adapter computes a product with few rows from words.
fn suits(device: &impl Adapter, form: Form, sizes: [usize; 2]) -> Result<bool> {
    let params = Params::new(form, sizes);
    let Some(budget) = device.caps().loop_budget else { return Ok(sizes[0] <= MOST_ROWS) };
    let way = device.chosen(&FAMILY, &params)?.way;
    Ok(sizes[0] <= MOST_ROWS && way.iterations(&params) <= budget as usize)
}

/// The bits, the rows of X, the rows and columns of the matrix, the integers of a block, and the type of the zeros in a trial.
type Trial = (usize, usize, [usize; 2], usize, Option<DType>);

const TRIALS: [Trial; 4] = [
    (4, 1, [37, 1100], 32, None),
    (4, 3, [70, 69], 16, Some(DType::U8)),
    (8, 5, [9, 70], 16, Some(DType::U8)),
    (8, 2, [6, 132], 32, Some(DType::F32)),
];

/// Multiplies with a variant, and compares with the host. Describes the first wrong element.
fn attempt(gpu: &Gpu, variant: &'static PackedVariant) -> Result<Option<String>> {
    for (bits, m, [n, k], block, kind) in TRIALS {
        let form = Form { bits, block, k };
        let (blocks, each) = (form.blocks(), 32 / bits);
        let row = blocks * form.words();
        let matrix: Vec<u32> = (1..=n * row).map(|i| (i as u32).wrapping_mul(2_654_435_761)).collect();
        let (x, mut scales) = (numbers(m * k, 5), numbers(n * blocks, 6));
        let of_zeros = (blocks * bits).div_ceil(8); // bytes of a row
        let zero_words: Vec<u32> = match kind {
            Some(DType::F32) => numbers(n * blocks, 7).iter().map(|v| v.to_bits()).collect(),
            _ => (1..=(n * of_zeros).div_ceil(4) as u32).map(|i| i.wrapping_mul(2_246_822_519)).collect(),
        };
        let zero = |row: usize, block: usize| match kind {
            None => (1 << (bits - 1)) as f32,
            Some(DType::F32) => f32::from_bits(zero_words[row * blocks + block]),
            Some(_) => {
                let (byte, bit) = (row * of_zeros + block * bits / 8, block * bits % 8);
                (zero_words[byte / 4] >> (byte % 4 * 8 + bit) & ((1 << bits) - 1)) as f32
            }
        };
        let scale_type = if bits == 4 { DType::F32 } else { DType::F16 };
        let scale_words = words(&mut scales, scale_type);
        let (integers, scale_buffer) = (gpu.upload(&matrix)?, gpu.upload(&scale_words)?);
        let (zero_buffer, input) = (gpu.upload(&zero_words)?, gpu.upload(bytemuck::cast_slice(&x))?);
        let (out, wide) = (gpu.alloc(m * n)?, gpu.alloc(n * k)?);
        let stored = |buffer, dtype| Stored { buffer, offset: 0, dtype };
        let of_row = if kind == Some(DType::U8) { of_zeros } else { blocks };
        let zeros = kind.map(|kind| (stored(&zero_buffer, kind), of_row));
        let both = [stored(&integers, DType::U8), stored(&scale_buffer, scale_type)];
        let operands = Operands::new(form, n, both, zeros);
        gpu.run(product(variant.way, &operands, operands.params(m, 0), &input, &out))?;
        gpu.run(widen(gpu, &operands, &wide))?;
        let (out, wide) = (gpu.download(&out, 0, m * n)?, gpu.download(&wide, 0, n * k)?);
        let weight = |row_of: usize, k: usize| {
            let (at, shift) = (k / each, k % each * bits);
            let integer = matrix[row_of * row + at] >> shift & ((1 << bits) - 1);
            let block = k / block;
            f64::from(integer as f32 - zero(row_of, block)) * f64::from(scales[row_of * blocks + block])
        };
        let wrong = |what: &str, at: usize, got: u32, expected: f64, by: f64| {
            let got = f32::from_bits(got);
            let close = (f64::from(got) - expected).abs() <= by; // false for NaN
            (!close)
                .then(|| format!("element {at} of the {what}, {bits} bits, [{n}, {k}]: got {got}, expected {expected}"))
        };
        for (at, &got) in wide.iter().enumerate() {
            let expected = weight(at / k, at % k);
            if let Some(wrong) = wrong("matrix", at, got, expected, 1e-5 * expected.abs() + 1e-6) {
                return Ok(Some(wrong));
            }
        }
        for (at, &got) in out.iter().enumerate() {
            let terms = (0..k).map(|t| f64::from(x[at / n * k + t]) * weight(at % n, t));
            let size: f64 = terms.clone().map(f64::abs).sum();
            if let Some(wrong) = wrong("product", at, got, terms.sum(), 1e-5 * size + 1e-6) {
                return Ok(Some(wrong));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::variants::classes::{HARDWARE, LAVAPIPE};

    #[test]
    fn the_sizes_choose_how_packed_matrices_are_multiplied() -> Result<()> {
        let form = Form { bits: 4, block: 32, k: 4096 };
        for (device, expected) in [(HARDWARE, Way::Shared), (LAVAPIPE, Way::Alone)] {
            for (m, from_words) in [(1, true), (8, true), (9, false), (512, false)] {
                assert_eq!(suits(&device, form, [m, 4096])?, from_words, "{m} rows");
                assert_eq!(device.chosen(&FAMILY, &Params::new(form, [m, 4096]))?.way, expected);
            }
        }
        for (m, from_words) in [(1, true), (64, true), (65, false)] {
            assert_eq!(multiplies_words(&Device::cpu(), form, [m, 4096])?, from_words, "{m} rows on the host");
        }
        let short = Caps { loop_budget: Some(60_000), ..LAVAPIPE };
        assert!(suits(&short, form, [1, 4096])?);
        assert!(!suits(&short, Form { k: 1 << 16, ..form }, [1, 4096])?, "more than the loops of a driver");
        for (m, few) in [(1, 1), (4, 4), (5, 3), (8, 4)] {
            assert_eq!(Params::new(form, [m, 10]).few(), few);
        }
        Ok(())
    }
}
