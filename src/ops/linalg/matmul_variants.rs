//! The variants of the matrix product, and how one is tried before its first use on a device.

use crate::device::gpu::{Caps, Family, Gpu, Shader, Variant};
use crate::error::Result;
use crate::ops::dispatch::{fold, grid};
use crate::ops::linalg::matmul::{Product, SHADER, Target};
use crate::ops::shader;
use crate::ops::variants::as_variant;

pub(in crate::ops) const TILES_SHADER: Shader = shader!("matmul_tiles");
pub(in crate::ops) const PLAIN_SHADER: Shader = shader!("matmul_plain");

/// Registers only: what software adapters like best.
static PANELS: Variant =
    Variant { name: "panels", shader: SHADER, entry: "matmul", fits: |_| true, groups: workgroup_tiles };

/// Workgroup memory: for hardware.
static TILES: Variant = Variant {
    name: "tiles",
    shader: TILES_SHADER,
    entry: "matmul_tiles",
    fits: |caps| caps.max_invocations >= 256 && caps.workgroup_memory >= 8704,
    groups: workgroup_tiles,
};

/// One element an invocation.
pub(in crate::ops) static PLAIN: Variant =
    Variant { name: "plain", shader: PLAIN_SHADER, entry: "matmul_plain", fits: |_| true, groups: elements };

pub(in crate::ops) static FAMILY: Family = Family { name: SHADER.name, order, attempt };

pub(in crate::ops) fn order(caps: &Caps) -> &'static [&'static Variant] {
    static ON_SOFTWARE: [&Variant; 3] = [&PANELS, &TILES, &PLAIN];
    static ON_HARDWARE: [&Variant; 3] = [&TILES, &PANELS, &PLAIN];
    if caps.software { &ON_SOFTWARE } else { &ON_HARDWARE }
}

/// A workgroup for each 64 × 64 elements. The params are those of `Product::kernel`.
fn workgroup_tiles(params: &[u32]) -> [u32; 3] {
    let [m_tiles, n_tiles, count] = [params[3], params[4], params[15]].map(|n| n as usize);
    fold(m_tiles * n_tiles * count)
}

/// An invocation for each element.
fn elements(params: &[u32]) -> [u32; 3] {
    let [m, n, count] = [params[0], params[1], params[15]].map(|n| n as usize);
    grid(m * n * count)
}

/// Sizes with edges in every direction: of panels, of tiles, of the parts of k.
const M: usize = 70;
const K: usize = 37;
const N: usize = 67;
const BATCH: usize = 2;
const SPLITS: usize = 2;
/// What stands where a product must not write.
const UNTOUCHED: f32 = -77.0;

/// Multiplies a batch of two with a variant and compares with the host; says what is wrong, if anything is.
pub(in crate::ops) fn attempt(gpu: &Gpu, variant: &'static Variant) -> Result<Option<String>> {
    let (a, b, bias) = (numbers(BATCH * M * K, 1), numbers(BATCH * K * N, 2), numbers(M + 1, 3));
    let a_panels = panels(&a, [M, K], 8, |matrix, j, k| matrix[j * K + k]);
    let b_panels = panels(&b, [N, K], 64, |matrix, j, k| matrix[k * N + j]);
    let steps = [a_panels.len() / BATCH, b_panels.len() / BATCH];
    let upload = |x: &[f32]| gpu.upload(bytemuck::cast_slice(x));
    let (left, right, summand) = (upload(&a_panels)?, upload(&b_panels)?, upload(&bias)?);
    // Rows with gaps, after an offset.
    let to = Target { offset: 3, batch: M * (N + 2), row: N + 2, inner: N, outer: 0 };
    let mut expected = vec![UNTOUCHED; to.offset + BATCH * SPLITS * to.batch];
    let out = upload(&expected)?;
    let product = Product { m: M, k: K, n: N, batch: BATCH, splits: SPLITS, steps };
    let kernel = product.kernel([&left, &right], Some((&summand, 1)), &out, to)?;
    gpu.run(as_variant(kernel, variant))?;
    let got = gpu.download(&out, 0, expected.len())?;
    for (z, m) in (0..BATCH * SPLITS).flat_map(|z| (0..M).map(move |m| (z, m))) {
        let (batch, part) = (z / SPLITS, z % SPLITS);
        let range = part * K.div_ceil(SPLITS)..((part + 1) * K.div_ceil(SPLITS)).min(K);
        for n in 0..N {
            let terms = range.clone().map(|k| a[(batch * M + m) * K + k] * b[(batch * K + k) * N + n]);
            expected[to.offset + z * to.batch + m * to.row + n] = terms.sum::<f32>() + bias[m + 1];
        }
    }
    let close = |got: u32, expected: f32| (f32::from_bits(got) - expected).abs() <= 1e-4; // NaN is not
    let wrong = got.iter().zip(&expected).position(|(&got, &expected)| !close(got, expected));
    Ok(wrong.map(|i| {
        let (got, expected) = (f32::from_bits(got[i]), expected[i]);
        let at = i.saturating_sub(to.offset);
        let index = [at / to.batch, at % to.batch / to.row, at % to.row];
        format!("element {index:?} of [{BATCH}·{SPLITS}, {M}, {N}], k = {K}: got {got}, expected {expected}")
    }))
}

/// Numbers between −1 and 1 in no order, always the same.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    (0..count as u32).map(|i| ((i + 1000 * seed).wrapping_mul(2_654_435_761) >> 16) as f32 / 32768.0 - 1.0).collect()
}

/// A batch of operands as `shaders/pack.wgsl` lays them out: panels of `width` indices j, k by k, padded with zeros.
fn panels(x: &[f32], [count, depth]: [usize; 2], width: usize, at: impl Fn(&[f32], usize, usize) -> f32) -> Vec<f32> {
    let mut all = Vec::new();
    for matrix in x.chunks(count * depth) {
        for panel in 0..count.div_ceil(width) {
            for (k, j) in (0..depth).flat_map(|k| (0..width).map(move |j| (k, panel * width + j))) {
                all.push(if j < count { at(matrix, j, k) } else { 0.0 });
            }
        }
    }
    all
}
