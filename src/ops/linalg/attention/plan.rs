//! Whether attention on an adapter is one pass over the keys ([`fused`](super::fused)) or a composition of products and a softmax
//! ([`composed`](super::composed)): [`fuses`]. And how many scores a composition has in memory: [`block`].
//!
//! One pass reads keys and values in registers of one invocation for each query, so that it needs no memory for scores. It is for
//! hardware, rows of at most [`WIDEST`] f32 in vectors of four, without a mask and without dropout, and for at least [`FEWEST`] queries
//! of all heads (an estimate, never timed): with fewer, most of a card would wait. A driver that ends long loops
//! ([`Caps::loop_budget`]) has compositions where the loops over the keys would be too long. On software adapters, products are fast and
//! registers few (for 4 heads of 1024 × 1024 × 64, one pass took 12 times as long on lavapipe of Mesa 25, 2.8 times on SwiftShader): there,
//! and for other sizes, attention is a composition.

use super::fused::Fused;
use super::gpu::{FORWARD, Operands, Params};
use crate::device::gpu::{AnyFamily, Buffer, Caps, Family, Gpu, Grid, Suits, Variant};
use crate::device::{Backend, Device, Storage};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::linalg::matmul_variants::numbers;
use crate::ops::variants::Adapter;
use crate::shape::Layout;
use crate::tensor::Tensor;

/// The most elements of a query, a key or a value; `MOST` vectors in `shaders/linalg/attention_places.wgsl`.
pub(super) const WIDEST: usize = 64;

/// Queries that keep a card busy.
const FEWEST: usize = 1 << 13;

/// The most scores that a composition has in memory at a time: 256 MiB. With more, it computes in blocks of 3 MiB of
/// scores, or 64 MiB on hardware. Smaller blocks have too few rows for the cores.
const MOST_SCORES: usize = 1 << 26;
const BLOCK: usize = 3 << 18;
const BLOCK_ON_HARDWARE: usize = 1 << 24;

/// How attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// In one pass, without scores in memory.
    Fused,
    /// No kernel: products and a softmax.
    Composed,
}

type AttentionVariant = Variant<Params, Way>;

const FUSED: AttentionVariant = Variant {
    name: "fused",
    way: Way::Fused,
    shader: FORWARD,
    entry: "attention",
    fits: |_| true,
    suits: Suits::Some(|p| p.heads * p.queries >= FEWEST),
    grid: Grid::Workgroups(|p| p.tiles(p.queries)),
};

const COMPOSED: AttentionVariant = Variant { name: "composed", way: Way::Composed, suits: Suits::All, ..FUSED };

static ON_HARDWARE: [&AttentionVariant; 2] = [&FUSED, &COMPOSED];
static ON_SOFTWARE: [&AttentionVariant; 2] = [&COMPOSED, &FUSED];

static FAMILY: Family<Params, Way> = Family { name: "attention", order, attempt };
inventory::submit! { &FAMILY as &'static dyn AnyFamily }

fn order(caps: &Caps) -> &'static [&'static AttentionVariant] {
    if caps.software { &ON_SOFTWARE } else { &ON_HARDWARE }
}

/// Returns whether attention of these queries, keys and values of one adapter is one pass.
///
/// # Errors
///
/// The errors of a trial of the kernels.
pub(super) fn fuses(op: Fused, inputs: [&Tensor; 3]) -> Result<bool> {
    let Backend::Gpu(gpu) = inputs[0].device().backend()? else { return Ok(false) };
    if inputs.iter().any(|x| x.dtype() != DType::F32) {
        return Ok(false);
    }
    let layouts = inputs.map(Tensor::layout);
    let Some(operands) = Operands::new(layouts)? else { return Ok(false) };
    let binds = |words: usize| words <= gpu.largest_binding();
    let bound = |x: &&Tensor| matches!(x.storage(), Storage::Gpu(buffer) if binds(buffer.len()));
    if !inputs.iter().all(bound) || !binds(operands.result()) || !binds(operands.gradients()) {
        return Ok(false);
    }
    if gpu.caps().loop_budget.is_some_and(|budget| operands.iterations() > budget as usize) {
        return Ok(false); // the driver would end the loops over the keys
    }
    Ok((**gpu).chosen(&FAMILY, &operands.params(op, 0))?.way == Way::Fused)
}

/// Returns the most scores of a block on a device, if a composition is to be of blocks.
pub(super) fn block(device: &Device, scores: usize) -> Result<Option<usize>> {
    let block = match device.backend()? {
        Backend::Gpu(gpu) if !gpu.caps().software => BLOCK_ON_HARDWARE,
        _ => BLOCK,
    };
    Ok((scores > MOST_SCORES).then_some(block))
}

/// Sizes of a trial: more than one workgroup of queries and of keys, in none of which all are there.
const HEADS: usize = 2;
const QUERIES: usize = 70;
const KEYS: usize = 67;
const WIDTH: usize = 8;
const OUT: usize = 12;

/// Computes attention and its gradients with a variant, and compares them with the host. Describes the first wrong element.
fn attempt(gpu: &Gpu, variant: &'static AttentionVariant) -> Result<Option<String>> {
    if variant.way == Way::Composed {
        return Ok(None); // its products and its softmax have trials of their own
    }
    let operand = |rows: usize, width: usize, seed: u32| {
        let layout = Layout::contiguous(&[HEADS, rows, width]);
        (numbers(HEADS * rows * width, seed), layout)
    };
    let [q, k, v] = [operand(QUERIES, WIDTH, 1), operand(KEYS, WIDTH, 2), operand(KEYS, OUT, 3)];
    let (g, _) = operand(QUERIES, OUT, 4);
    let Some(operands) = Operands::new([&q.1, &k.1, &v.1])? else { return Ok(None) };
    let upload = |x: &[f32]| gpu.upload(bytemuck::cast_slice(x));
    let buffers = [upload(&q.0)?, upload(&k.0)?, upload(&v.0)?];
    let (slopes, out, gradients) = (upload(&g)?, gpu.alloc(operands.result())?, gpu.alloc(operands.gradients())?);
    let buffers: [&Buffer; 3] = buffers.each_ref();
    for causal in [false, true] {
        let op = Fused { scale: 0.7, causal };
        let backward = operands.backward(gpu, op, buffers, (&slopes, 0), &gradients)?;
        for kernel in operands.forward(op, buffers, &out).into_iter().chain(backward) {
            gpu.run(kernel)?;
        }
        let expected = expected(op, [&q.0, &k.0, &v.0, &g]);
        for (what, buffer, expected) in [("result", &out, &expected[0]), ("gradient", &gradients, &expected[1])] {
            let got = gpu.download(buffer, 0, expected.len())?;
            let close = |got: u32, expected: f64| (f64::from(f32::from_bits(got)) - expected).abs() <= 1e-4; // false for NaN
            if let Some(i) = got.iter().zip(expected).position(|(&got, &expected)| !close(got, expected)) {
                let (got, expected) = (f32::from_bits(got[i]), expected[i]);
                return Ok(Some(format!(
                    "element {i} of the {what}, causal: {causal}: got {got}, expected {expected}"
                )));
            }
        }
    }
    Ok(None)
}

/// Returns the result, and the gradients one after the other for each head.
fn expected(op: Fused, [q, k, v, g]: [&[f32]; 4]) -> [Vec<f64>; 2] {
    let (mut results, mut gradients) = (Vec::new(), Vec::new());
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
    for head in 0..HEADS {
        let row = |x: &'_ [f32], rows: usize, width: usize, i: usize| x[(head * rows + i) * width..][..width].to_vec();
        let (mut dq, mut dk, mut dv) = (vec![0.0; QUERIES * WIDTH], vec![0.0; KEYS * WIDTH], vec![0.0; KEYS * OUT]);
        for i in 0..QUERIES {
            let (query, slope) = (row(q, QUERIES, WIDTH, i), row(g, QUERIES, OUT, i));
            let seen = if op.causal { (i + 1).min(KEYS) } else { KEYS };
            let exps: Vec<f64> =
                (0..seen).map(|j| (f64::from(op.scale) * dot(&query, &row(k, KEYS, WIDTH, j))).exp()).collect();
            let total: f64 = exps.iter().sum();
            let weights: Vec<f64> = exps.iter().map(|e| e / total).collect();
            let products: Vec<f64> = (0..seen).map(|j| dot(&slope, &row(v, KEYS, OUT, j))).collect();
            let mean: f64 = weights.iter().zip(&products).map(|(w, p)| w * p).sum();
            let mut result = vec![0.0; OUT];
            for j in 0..seen {
                let (key, value) = (row(k, KEYS, WIDTH, j), row(v, KEYS, OUT, j));
                result.iter_mut().zip(&value).for_each(|(sum, v)| *sum += weights[j] * f64::from(*v));
                dv[j * OUT..][..OUT].iter_mut().zip(&slope).for_each(|(sum, g)| *sum += weights[j] * f64::from(*g));
                let by_score = f64::from(op.scale) * weights[j] * (products[j] - mean);
                dq[i * WIDTH..][..WIDTH].iter_mut().zip(&key).for_each(|(sum, k)| *sum += by_score * f64::from(*k));
                dk[j * WIDTH..][..WIDTH].iter_mut().zip(&query).for_each(|(sum, q)| *sum += by_score * f64::from(*q));
            }
            results.extend(result);
        }
        gradients.extend([dq, dk, dv].concat());
    }
    [results, gradients]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::variants::classes::{HARDWARE, LAVAPIPE};

    #[test]
    fn the_sizes_choose_how_attention_is_computed() -> Result<()> {
        let op = Fused { scale: 1.0, causal: true };
        for (heads, rows, width, on_hardware, on_software) in [
            (64, 256, 64, Way::Fused, Way::Composed),  // enough queries
            (8, 8192, 64, Way::Fused, Way::Composed),  // 2 GiB of scores, in blocks where it is a composition
            (8, 64, 64, Way::Composed, Way::Composed), // few queries
        ] {
            let layout = Layout::contiguous(&[heads, rows, width]);
            let params = Operands::new([&layout; 3])?.expect("vectors of four").params(op, 0);
            assert_eq!(HARDWARE.chosen(&FAMILY, &params)?.way, on_hardware, "{heads}, {rows}");
            assert_eq!(LAVAPIPE.chosen(&FAMILY, &params)?.way, on_software, "{heads}, {rows}");
        }
        for (shape, strides, offset) in [
            ([2, 5, 72], [360, 72, 1], 0),                   // wider than registers
            ([2, 5, 6], [30, 6, 1], 0),                      // no vectors of four
            ([2, 5, 8], [40, 8, 1], 2),                      // from an odd place on
            ([2, 5, 8], [40, 8usize.wrapping_neg(), 1], 32), // in reverse
        ] {
            let layout = Layout { shape: shape.to_vec(), strides: strides.to_vec(), offset };
            assert!(Operands::new([&layout; 3])?.is_none(), "{shape:?} {strides:?} {offset}");
        }
        Ok(())
    }
}
