//! Products of f16 by cooperative matrices: units of a card that multiply fragments of 16 × 16 or 8 × 8 halves, with sums of f32
//! (`shaders/linalg/matmul_cooperative.wgsl`). Plain f32 never comes here.
//!
//! No adapter that this was tested on has cooperative matrices: the kernel is compiled for navi31, and tested with fragments in plain WGSL.
//! bf16 does not take them, since wgpu has none of bf16.

use std::ops::Range;

use crate::device::gpu::{AnyFamily, Buffer, Caps, Family, Gpu, Grid, Kernel, PUT, Suits, Variant, shader, wgsl};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::linalg::matmul_variants::{self, PLACES, PRODUCT, UNTOUCHED, numbers};
use crate::ops::linalg::panels::{
    INDEX_MAP, IndexMap, PACK_OPERAND, PACK_RUN, Pack, PackParams, Product, ProductParams, Target,
};
use crate::ops::stored::{Stored, words};
use crate::ops::variants::{self, Adapter};

/// Rows of A, and columns of B, in a panel.
pub(in crate::ops) const WIDTH: usize = 64;
/// The steps of k in a panel are a multiple of this: the steps of the largest fragment.
pub(in crate::ops) const STEPS: usize = 16;

/// The text that precedes the shaders which write panels of halves.
pub(in crate::ops) const HALF_PANELS: &str = wgsl!("linalg/half_panels");

shader!(PACK: PackParams = "linalg/pack_halves", after [INDEX_MAP, PACK_OPERAND, HALF_PANELS]);

/// Returns the kernel that writes the panels of some batch elements of f16 side by side, see `shaders/linalg/pack_halves.wgsl`. The
/// width is [`WIDTH`], the depth a multiple of [`STEPS`], and steps of k from `steps` on are 0.
pub(in crate::ops) fn pack(
    pack: &Pack,
    steps: usize,
    src: Stored,
    batch: (IndexMap, Range<usize>),
    dst: &Buffer,
) -> Kernel {
    let params = pack.params(steps, src.offset, batch);
    Kernel::build(PACK, "pack_halves", params).input(&src).output(dst).each(params.count / PACK_RUN)
}

const FRAGMENTS: &str = wgsl!("linalg/cooperative");

macro_rules! header {
    ($size:literal) => {
        concat!(
            "enable f16;\nenable wgpu_cooperative_matrix;\nconst S = ",
            $size,
            "u;\nalias Left = coop_mat",
            $size,
            "x",
            $size,
            "<f16, A>;\nalias Right = coop_mat",
            $size,
            "x",
            $size,
            "<f16, B>;\nalias Sums = coop_mat",
            $size,
            "x",
            $size,
            "<f32, C>;\n"
        )
    };
}

shader!(SHADER_16: ProductParams = "linalg/matmul_cooperative" named "matmul_cooperative_16", after [PLACES, PRODUCT, PUT, FRAGMENTS], headers || vec![header!(16)]);
shader!(SHADER_8: ProductParams = "linalg/matmul_cooperative" named "matmul_cooperative_8", after [PLACES, PRODUCT, PUT, FRAGMENTS], headers || vec![header!(8)]);

/// Whether a variant has a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ops) enum Way {
    /// It multiplies panels of halves.
    HalfPanels,
    /// No kernel: the product reads its halves as products of other types read their elements.
    Others,
}

/// A variant of the product by cooperative matrices.
pub(in crate::ops) type HalfVariant = Variant<ProductParams, Way>;

/// Fragments of 16 × 16, in tiles of 64 × 64.
const COOPERATIVE_16: HalfVariant = Variant {
    name: "cooperative_16",
    way: Way::HalfPanels,
    shader: SHADER_16,
    entry: "matmul_cooperative",
    fits: |caps| caps.cooperative == Some(16),
    suits: Suits::Some(|p| p.sizes().suit_cooperative(p.k)),
    grid: Grid::Workgroups(|p| p.sizes().tiles(64, 64)),
};

/// Fragments of 8 × 8, in tiles of 32 × 32.
const COOPERATIVE_8: HalfVariant = Variant {
    name: "cooperative_8",
    shader: SHADER_8,
    fits: |caps| caps.cooperative == Some(8),
    grid: Grid::Workgroups(|p| p.sizes().tiles(32, 32)),
    ..COOPERATIVE_16
};

/// What is left for other sizes.
const OTHERS: HalfVariant =
    Variant { name: "others", way: Way::Others, fits: |_| true, suits: Suits::All, ..COOPERATIVE_16 };

pub(super) static FAMILY: Family<ProductParams, Way> = Family { name: "matmul_cooperative", order, attempt };
inventory::submit! { &FAMILY as &'static dyn AnyFamily }

pub(in crate::ops) fn order(_: &Caps) -> &'static [&'static HalfVariant] {
    static ORDER: [&HalfVariant; 3] = [&COOPERATIVE_16, &COOPERATIVE_8, &OTHERS];
    &ORDER
}

/// Returns the variant of a family in this [`order`] for a product of f16, if the adapter has one, it is right there, and the
/// sizes suit it.
pub(in crate::ops) fn chosen(
    device: &impl Adapter,
    family: &Family<ProductParams, Way>,
    sizes: [usize; 3],
) -> Result<Option<&'static HalfVariant>> {
    if device.caps().cooperative.is_none() || variants::asked_for(&matmul_variants::FAMILY) {
        return Ok(None);
    }
    let variant = device.chosen(family, &params(sizes)?)?;
    Ok(match variant.way {
        Way::HalfPanels => Some(variant),
        Way::Others => None,
    })
}

/// Returns the params of a product `[m, k] · [k, n]`, as far as a variant is chosen by them.
pub(in crate::ops) fn params([m, k, n]: [usize; 3]) -> Result<ProductParams> {
    let to = Target { offset: 0, batch: 0, row: n, inner: n, outer: 0 };
    Ok(ProductParams { k, ..Product { m, k: 1, n, batch: 1, splits: 1, steps: [0; 2] }.sized(to)? })
}

/// Sizes that are no multiples of fragments, tiles or panels, and more than one of each; sums of many fragments, in two parts.
const M: usize = 130;
const K: usize = 300;
const N: usize = 131;
const BATCH: usize = 2;
const SPLITS: usize = 2;
const PART: usize = K.div_ceil(SPLITS).next_multiple_of(STEPS);
/// The place of the first operand's first element, in the middle of a word.
const BEFORE: usize = 1;

/// Multiplies a batch of two with a variant and compares the result with the host. Describes the first wrong element. Sums that
/// a driver loses, or adds twice, from one fragment to the next are far from the host's.
pub(in crate::ops) fn attempt(gpu: &Gpu, variant: &'static HalfVariant) -> Result<Option<String>> {
    match variant.way {
        Way::HalfPanels => {}
        Way::Others => return Ok(None),
    }
    let (mut a, mut b) = (numbers(BEFORE + BATCH * M * K, 1), numbers(BATCH * K * N, 2));
    let (left, right) = (gpu.upload(&words(&mut a, DType::F16))?, gpu.upload(&words(&mut b, DType::F16))?);
    let sizes = [M, N].map(|across| Pack::size(WIDTH, PART * SPLITS, across));
    let panels = [gpu.alloc(BATCH * sizes[0] / 2)?, gpu.alloc(BATCH * sizes[1] / 2)?];
    let sides = |across, k, j| Pack {
        width: WIDTH,
        depth: PART * SPLITS,
        across,
        k: IndexMap::even(K, k),
        j: IndexMap::even(across, j),
    };
    let stored = |buffer, offset| Stored { buffer, offset, dtype: DType::F16 };
    let z = |matrix| (IndexMap::even(BATCH, matrix), 0..BATCH);
    gpu.run(pack(&sides(M, 1, K), K, stored(&left, BEFORE), z(M * K), &panels[0]))?;
    gpu.run(pack(&sides(N, N, 1), K, stored(&right, 0), z(K * N), &panels[1]))?;
    // Rows with gaps, after an offset.
    let to = Target { offset: 3, batch: M * (N + 2), row: N + 2, inner: N, outer: 0 };
    let mut expected = vec![UNTOUCHED; to.offset + BATCH * SPLITS * to.batch];
    let out = gpu.upload(bytemuck::cast_slice(&expected))?;
    let product =
        Product { m: M, k: PART * SPLITS, n: N, batch: BATCH, splits: SPLITS, steps: sizes.map(|size| size / 2) };
    gpu.run(product.of_halves(variant, panels.each_ref(), None, &out, to)?)?;
    let got = gpu.download(&out, 0, expected.len())?;
    for (z, m) in (0..BATCH * SPLITS).flat_map(|z| (0..M).map(move |m| (z, m))) {
        let (batch, range) = (z / SPLITS, z % SPLITS * PART..K.min((z % SPLITS + 1) * PART));
        for n in 0..N {
            let terms = range.clone().map(|k| a[BEFORE + (batch * M + m) * K + k] * b[(batch * K + k) * N + n]);
            expected[to.offset + z * to.batch + m * to.row + n] = terms.sum();
        }
    }
    // Cards round their sums in ways of their own. The comparison is false for NaN.
    let close = |got: u32, expected: f32| (f32::from_bits(got) - expected).abs() <= 1e-3;
    let wrong = got.iter().zip(&expected).position(|(&got, &expected)| !close(got, expected));
    Ok(wrong.map(|i| {
        let (got, expected) = (f32::from_bits(got[i]), expected[i]);
        format!("word {i} of the result of [{BATCH}, {M}, {K}, {N}]: got {got}, expected {expected}")
    }))
}

#[cfg(test)]
pub(in crate::ops) mod tests {
    use super::*;
    use crate::device::gpu::Shader;
    use crate::device::{Backend, Device};
    use crate::ops::linalg::batched::tests::compare_cooperative;

    /// Fragments in plain WGSL, for adapters that have no cooperative matrices: the text that stands for `cooperative.wgsl`.
    /// A subgroup has LANES invocations, each with EACH neighbouring elements of a fragment of sums.
    const PLAIN: &str = "
        alias Left = u32;
        alias Right = u32;
        const EACH = S * S / LANES;
        alias Sums = array<f32, EACH>;
        @group(0) @binding(1) var<storage, read> a: array<u32>;
        @group(0) @binding(2) var<storage, read> b: array<u32>;
        var<private> me: u32;
        fn left_at(i: u32) -> Left { return i; }
        fn right_at(i: u32) -> Right { return i; }
        fn multiplied(left: Left, right: Right, sums: Sums) -> Sums {
            var result = sums;
            for (var e = 0u; e < EACH; e++) {
                let at_a = left + (me * EACH + e) / S * DEPTH;
                let at_b = right + (me * EACH + e) % S * DEPTH;
                // The smaller of the two is S, which compilers do not know: they would write all rounds out.
                for (var k = 0u; k < min(S, p.k); k += 2u) {
                    result[e] += dot(unpack2x16float(a[(at_a + k) / 2u]), unpack2x16float(b[(at_b + k) / 2u]));
                }
            }
            return result;
        }
        fn put_sums(sums: Sums, to: u32) {
            for (var e = 0u; e < EACH; e++) {
                scratch[to + me * EACH + e] = sums[e];
            }
        }
        @compute @workgroup_size(WG)
        fn matmul_cooperative(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
            me = local % LANES;
            multiply(group_number(group), Team(local / LANES, WG / LANES, me, LANES));
        }";
    const FILES: &[&str] = &[PLACES, PRODUCT, PUT, PLAIN, wgsl!("linalg/matmul_cooperative")];
    pub(in crate::ops) static PLAIN_16: HalfVariant = Variant {
        name: "plain_16",
        shader: Shader::new("cooperative_plain_16", FILES, || vec!["const S = 16u;\nconst LANES = 64u;\n"]),
        ..COOPERATIVE_16
    };
    pub(in crate::ops) static PLAIN_8: HalfVariant = Variant {
        name: "plain_8",
        shader: Shader::new("cooperative_plain_8", FILES, || vec!["const S = 8u;\nconst LANES = 32u;\n"]),
        ..COOPERATIVE_8
    };

    fn adapters() -> impl Iterator<Item = Device> {
        Device::all().into_iter().filter(|device| !device.is_cpu())
    }

    /// The whole kernel except the fragments: tiles, parts, batches, tails, blocks and the packing.
    #[test]
    fn the_product_is_right_with_fragments_in_plain_wgsl() -> Result<()> {
        // Compiling takes the most time: the adapters take turns with the sizes of fragments.
        for (device, variant) in adapters().zip([&PLAIN_16, &PLAIN_8].into_iter().cycle()) {
            let Backend::Gpu(gpu) = device.backend()? else { continue };
            assert_eq!(attempt(gpu, variant)?, None, "{} on {device}", variant.name);
            for sizes in [[1, 1, 1], [65, 17, 129], [33, 200, 70]] {
                assert_eq!(compare_cooperative(gpu, variant, sizes)?, None, "{} on {device}", variant.name);
            }
        }
        Ok(())
    }

    /// A driver once added every product twice, as sums went from one round of a loop to the next.
    #[test]
    fn the_trial_finds_products_that_are_added_twice() -> Result<()> {
        let twice =
            PLAIN.replace("var result = sums;", "var result = sums; if sums[0] != 0.0 { result[0] += sums[0]; }");
        assert_ne!(twice, PLAIN);
        let text: &'static str = Box::leak(twice.into_boxed_str());
        let files: Box<[&'static str]> = Box::new([PLACES, PRODUCT, PUT, text, wgsl!("linalg/matmul_cooperative")]);
        let shader =
            Shader::new("cooperative_twice", Box::leak(files), || vec!["const S = 16u;\nconst LANES = 64u;\n"]);
        let variant: &'static HalfVariant = Box::leak(Box::new(Variant { name: "twice", shader, ..COOPERATIVE_16 }));
        if let Some(device) = adapters().next() {
            let Backend::Gpu(gpu) = device.backend()? else { return Ok(()) };
            assert!(attempt(gpu, variant)?.is_some_and(|wrong| wrong.contains("expected")), "{device}");
        }
        Ok(())
    }
}
