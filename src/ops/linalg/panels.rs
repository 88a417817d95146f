//! Operands of a matrix product in panels, and the product of panels. [`matmul`](super::matmul) and convolution use
//! them on adapters.
//!
//! Packing handles strides, transposes, batches and edges, so that the inner loops of the product need no checks.

use std::ops::Range;

use crate::device::gpu::{Buffer, Gpu, Kernel, Variant, params, wgsl};
use crate::error::{Error, Result};
use crate::ops::linalg::cooperative::HalfVariant;
use crate::ops::linalg::matmul_tuning;
use crate::ops::linalg::matmul_variants::{FAMILY, Loads, PanelVariant, may_share_loads};
use crate::ops::linalg::pack_variants::{self, PackVariant, Packing};
use crate::ops::stored::Stored;
use crate::ops::variants::{self, Adapter};

params! {
    /// The parameters of `shaders/linalg/pack_operand.wgsl`.
    pub(super) struct PackParams {
        count: usize,
        depth: usize,
        panels: usize,
        width: usize,
        steps: usize,
        offset: usize,
        z_first: usize,
        z: [usize; 4],
        k: [usize; 4],
        j: [usize; 4],
    }
}
params! {
    /// The parameters of all variants of the product, see `shaders/linalg/matmul_product.wgsl`.
    pub(in crate::ops) struct ProductParams {
        m: usize,
        n: usize,
        k: usize,
        m_tiles: usize,
        n_tiles: usize,
        a_batch: usize,
        b_batch: usize,
        k_split: usize,
        splits: usize,
        offset: usize,
        batch: usize,
        row: usize,
        inner: usize,
        outer: usize,
        bias_offset: usize,
        z_count: usize,
    }
}
/// The text that precedes the shaders with parameters of [`IndexMap`].
pub(super) const INDEX_MAP: &str = wgsl!("linalg/index_map");

/// The text that precedes the shaders which put an operand into panels.
pub(super) const PACK_OPERAND: &str = wgsl!("linalg/pack_operand");

/// Rows of A in a panel, and of out in an invocation.
pub(in crate::ops) const A_WIDTH: usize = 8;
/// Columns of B in a panel, and of out in a workgroup.
pub(in crate::ops) const B_WIDTH: usize = 64;
/// Elements that one invocation packs, and elements that a workgroup packs; `RUN` and `TILE` in the shaders.
pub(in crate::ops) const PACK_RUN: usize = 8;
const TILE: usize = 2048;
/// The most products that one invocation adds up: some drivers end a loop after 65 535 iterations, without an error.
pub(in crate::ops) const MAX_DEPTH: usize = 32_768;
/// As [`MAX_DEPTH`], on software adapters. For kernels whose subgroups share loads, those drivers may count 17
/// iterations for four products, of loops over rows that they usually write out.
pub(in crate::ops) const MAX_SOFTWARE_DEPTH: usize = 12_288;
/// Rows of out in a tile of `ProductParams`. Its columns are the columns of a panel of B.
const TILE_M: usize = 64;

/// The position of an index i: `(i / inner) · outer + (i % inner) · step`.
#[derive(Clone, Copy, Debug)]
pub(in crate::ops) struct IndexMap {
    pub inner: usize,
    pub step: usize,
    pub outer: usize,
}

impl IndexMap {
    pub fn even(count: usize, step: usize) -> IndexMap {
        IndexMap { inner: count.max(1), step, outer: 0 }
    }

    /// Returns the numbers in the order of `shaders/linalg/index_map.wgsl`.
    pub fn param(self) -> [usize; 4] {
        [self.inner, self.step, self.outer, 0]
    }
}

/// The batch of a single operand.
pub(in crate::ops) const ALONE: (IndexMap, Range<usize>) = (IndexMap { inner: 1, step: 0, outer: 0 }, 0..1);

/// The conversion of an operand `[across, depth]` to panels, see `shaders/linalg/pack.wgsl`: a left operand to panels of
/// `A_WIDTH`; a right operand, the transpose of `[depth, across]`, to panels of `B_WIDTH`.
pub(in crate::ops) struct Pack {
    pub width: usize,
    pub depth: usize,
    pub across: usize,
    pub k: IndexMap,
    pub j: IndexMap,
}

impl Pack {
    /// Returns the number of elements of the panels of one operand.
    pub fn size(width: usize, depth: usize, across: usize) -> usize {
        across.div_ceil(width) * width * depth
    }

    /// Returns the kernel that packs the operands of some batch elements side by side.
    ///
    /// # Errors
    ///
    /// The errors of a trial of its variants.
    pub fn batch(&self, gpu: &Gpu, src: Stored, batch: (IndexMap, Range<usize>), dst: &Buffer) -> Result<Kernel> {
        let params = self.params(self.depth, src.offset, batch);
        Ok(self.by(variants::chosen(gpu, &pack_variants::FAMILY, &params)?, params, src, dst))
    }

    /// Returns the kernel of a variant.
    pub(super) fn by(&self, variant: &PackVariant, params: PackParams, src: Stored, dst: &Buffer) -> Kernel {
        let Pack { width, depth, k, j, .. } = *self;
        let kernel = Kernel::build(variant.shader, variant.entry, params);
        let kernel = kernel.constant("W", width).constant("X_HALVES", src.halves()).input(&src).output(dst);
        match variant.way {
            Packing::Runs => kernel.each(params.count / PACK_RUN),
            Packing::Tiles => {
                let steps = TILE / width;
                let taps = depth / k.inner;
                let taps = if k.outer == 1 && depth == taps * k.inner && taps <= steps { taps } else { 1 };
                let parts = (depth / taps).div_ceil(steps / taps);
                let kernel = kernel.constant("ALONG_K", k.step < j.step).constant("TAPS", taps);
                kernel.workgroups(params.count / (width * depth) * parts)
            }
        }
    }

    /// Returns the params for some batch elements of an operand at an offset, of which so many steps of k are valid.
    pub(super) fn params(&self, steps: usize, offset: usize, (z, range): (IndexMap, Range<usize>)) -> PackParams {
        let Pack { width, depth, across, k, j } = *self;
        PackParams {
            count: Pack::size(width, depth, across) * range.len(),
            depth,
            panels: across.div_ceil(width),
            width: across,
            steps,
            offset,
            z_first: range.start,
            z: z.param(),
            k: k.param(),
            j: j.param(),
        }
    }
}

/// A product of panels.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Product {
    pub m: usize,
    pub k: usize,
    pub n: usize,
    pub batch: usize,
    /// The number of parts into which k is split; part s of batch element z is written as element `z · splits + s`.
    pub splits: usize,
    /// The distance from the panels of one batch element to the next, in elements, for A and B.
    pub steps: [usize; 2],
}

/// Positions of the results: (z, m, n) is at `offset + z · batch + m · row + (n / inner) · outer + n % inner`.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Target {
    pub offset: usize,
    pub batch: usize,
    pub row: usize,
    pub inner: usize,
    pub outer: usize,
}

/// The most panels of the left operand that one subgroup multiplies.
pub(super) const MOST_PANELS: usize = 4;

/// Returns how many panels of `rows` rows a subgroup multiplies where subgroups share loads, and how many subgroups that
/// takes. One more panel costs about as much as the loads that all panels of a subgroup share.
pub(in crate::ops) fn row_tiles(rows: usize) -> (usize, usize) {
    let all = (1..=MOST_PANELS).map(|panels| (panels, rows.div_ceil(A_WIDTH * panels)));
    all.min_by_key(|(panels, tiles)| tiles.saturating_mul(panels + 1)).unwrap_or((1, rows.div_ceil(A_WIDTH)))
}

impl Product {
    /// Returns the kernel of the variant that the device uses for these sizes, [chosen](variants::chosen_of_class) by a measurement or by
    /// the sizes.
    pub fn kernel(
        self,
        gpu: &Gpu,
        panels: [&Buffer; 2],
        bias: Option<(&Buffer, usize)>,
        out: &Buffer,
        to: Target,
    ) -> Result<Kernel> {
        let params = self.params(bias, to)?;
        let variant = variants::chosen_of_class(gpu, &FAMILY, &params, || matmul_tuning::class(&params))?;
        Ok(Product::bound(variant, variant.way, params, panels, bias, out))
    }

    /// Returns the params without a bias, by which a variant is chosen.
    pub fn sized(self, to: Target) -> Result<ProductParams> {
        self.params(None, to)
    }

    /// Returns whether products on a device share loads within subgroups, for kernels that do so with other operands.
    pub fn shares_loads(device: &impl Adapter) -> Result<bool> {
        let one = Product { m: 1, k: 1, n: 1, batch: 1, splits: 1, steps: [0; 2] };
        let to = Target { offset: 0, batch: 1, row: 1, inner: 1, outer: 0 };
        Ok(may_share_loads(device.caps()) && device.chosen(&FAMILY, &one.params(None, to)?)?.way == Loads::Shared)
    }

    /// Returns the kernel of a variant.
    pub fn variant(
        self,
        variant: &PanelVariant,
        panels: [&Buffer; 2],
        bias: Option<(&Buffer, usize)>,
        out: &Buffer,
        to: Target,
    ) -> Result<Kernel> {
        Ok(Product::bound(variant, variant.way, self.params(bias, to)?, panels, bias, out))
    }

    /// Returns the kernel of a variant of cooperative matrices, for panels of halves: `steps` are words, and parts of k have whole
    /// fragments.
    pub fn of_halves(
        self,
        variant: &HalfVariant,
        panels: [&Buffer; 2],
        bias: Option<(&Buffer, usize)>,
        out: &Buffer,
        to: Target,
    ) -> Result<Kernel> {
        Ok(Product::bound(variant, Loads::Own, self.params(bias, to)?, panels, bias, out))
    }

    fn params(self, bias: Option<(&Buffer, usize)>, to: Target) -> Result<ProductParams> {
        let Product { m, k, n, batch, splits, steps } = self;
        if k.div_ceil(splits) > MAX_DEPTH {
            let detail = format!("sums of {k} products are longer than the {MAX_DEPTH} that one pass adds up");
            return Err(Error::argument("matmul", detail));
        }
        Ok(ProductParams {
            m,
            n,
            k,
            m_tiles: m.div_ceil(TILE_M),
            n_tiles: n.div_ceil(B_WIDTH),
            a_batch: steps[0] / 4,
            b_batch: steps[1] / 4,
            k_split: k.div_ceil(splits),
            splits,
            offset: to.offset,
            batch: to.batch,
            row: to.row,
            inner: to.inner.max(1),
            outer: to.outer,
            bias_offset: bias.map_or(0, |(_, offset)| offset),
            z_count: batch * splits,
        })
    }

    fn bound<W>(
        variant: &Variant<ProductParams, W>,
        loads: Loads,
        params: ProductParams,
        [a, b]: [&Buffer; 2],
        bias: Option<(&Buffer, usize)>,
        out: &Buffer,
    ) -> Kernel {
        let summand = bias.map_or(a, |(buffer, _)| buffer);
        let header = (variant.shader.text.headers)().first().copied().unwrap_or_default();
        let (panels, _) = row_tiles(params.m);
        variant.kernel(params, |kernel| {
            let kernel = kernel.header(header);
            let kernel = match loads {
                Loads::Own => kernel,
                Loads::Shared => kernel.constant("PANELS", panels),
            };
            kernel.constant("HAS_BIAS", bias.is_some()).input(a).input(b).input(summand).output(out)
        })
    }
}
