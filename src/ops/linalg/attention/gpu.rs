//! The kernels of attention in one pass over the keys.

use super::fused::{Fused, Sizes};
use super::plan::WIDEST;
use crate::device::gpu::{Buffer, Gpu, Kernel, KernelBuilder, Shader, Slots, params, shader, wgsl};
use crate::error::Result;
use crate::ops::inputs::{MAX_RANK, Walk};
use crate::ops::reduction::softmax::BY_FOUR;
use crate::shape::Layout;

params! {
    /// The parameters of `shaders/linalg/attention_places.wgsl`.
    pub(super) struct Params {
        heads: usize, queries: usize, keys: usize, rank: usize, rows: [usize; 4], offsets: [usize; 4], scale: f32, first: usize, dims: Slots,
    }
}
const PLACES: &str = wgsl!("linalg/attention_places");
shader!(pub(super) FORWARD: Params = "linalg/attention", after [BY_FOUR, PLACES]);
shader!(BACKWARD: Params = "linalg/attention_grad", after [BY_FOUR, PLACES]);

/// The most multiply-adds of one kernel: 0.1 s at 1.4 TFLOP/s.
const MOST_WORK: u64 = 1 << 36;

/// Invocations of a workgroup, each with a query or a key; `WG` in the shaders.
const TILE: usize = 64;

impl Params {
    /// Returns the workgroups for so many rows of each head.
    pub fn tiles(&self, rows: usize) -> usize {
        self.heads * rows.div_ceil(TILE)
    }
}

/// Where the queries, keys and values of all heads are, for kernels that read them in vectors of four.
pub(super) struct Operands {
    sizes: Sizes,
    /// Their params, for no op and no gradient.
    params: Params,
}

impl Operands {
    /// Returns `None` if the kernels cannot read these layouts.
    pub fn new(layouts: [&Layout; 3]) -> Result<Option<Operands>> {
        let sizes = Sizes::of(layouts.map(|layout| layout.shape.as_slice()))?;
        let Sizes { queries, keys, width, out, .. } = sizes;
        let last = [[queries, width], [keys, width], [keys, out]];
        let whole: [Layout; 3] = std::array::from_fn(|i| layouts[i].broadcast_to(&sizes.with(last[i])));
        let rank = sizes.batch.len();
        let in_vectors = |layout: &Layout| {
            let (element, others) = layout.strides.split_last().expect("at least two dimensions");
            let forward = |stride: &usize| stride.is_multiple_of(4) && isize::try_from(*stride).is_ok();
            *element == 1 && others.iter().chain([&layout.offset]).all(forward)
        };
        let fits = |n: usize| n.is_multiple_of(4) && (4..=WIDEST).contains(&n);
        if !fits(width) || !fits(out) || !whole.iter().all(in_vectors) {
            return Ok(None);
        }
        let of_heads = whole.each_ref().map(|layout| Layout {
            shape: sizes.batch.clone(),
            strides: layout.strides[..rank].to_vec(),
            offset: layout.offset,
        });
        let walk = Walk::new(of_heads.each_ref());
        if walk.dims.len() > MAX_RANK {
            return Ok(None);
        }
        let dims: Vec<[usize; 4]> = (0..walk.dims.len())
            .map(|d| [walk.strides[0][d] / 4, walk.strides[1][d] / 4, walk.strides[2][d] / 4, walk.dims[d]])
            .collect();
        let of_rows = |i: usize| whole[i].strides[rank] / 4;
        let [q, k, v] = walk.offsets.map(|offset| offset / 4);
        let params = Params {
            heads: sizes.heads(),
            queries,
            keys,
            rank: dims.len(),
            rows: [of_rows(0), of_rows(1), of_rows(2), 0],
            offsets: [q, k, v, 0],
            scale: 1.0,
            first: 0,
            dims: Slots::new(&dims),
        };
        Ok(Some(Operands { sizes, params }))
    }

    /// Returns the elements of the result.
    pub fn result(&self) -> usize {
        self.params.heads * self.sizes.queries * self.sizes.out
    }

    /// Returns the elements of the gradients of all operands.
    pub fn gradients(&self) -> usize {
        self.params.heads * self.sizes.gradients()
    }

    /// Returns the params of an op, with the offset of the gradient of its result.
    pub fn params(&self, op: Fused, offset: usize) -> Params {
        let [q, k, v, _] = self.params.offsets;
        Params { scale: op.scale, offsets: [q, k, v, offset / 4], ..self.params }
    }

    /// Returns the loop iterations of an invocation at most: of a query in the backward pass, or of a key.
    pub fn iterations(&self) -> usize {
        let Sizes { queries, keys, width, out, .. } = self.sizes;
        queries.max(keys).saturating_mul((3 * width + 2 * out) / 4 + 2)
    }

    /// Returns the kernels of an entry point for the rows of all heads, each of which reads `others` rows of its head: so many that none
    /// does more than [`MOST_WORK`]. A driver stops a kernel that takes seconds.
    fn kernels(
        &self,
        (shader, entry): (Shader<Params>, &'static str),
        op: Fused,
        [rows, others]: [usize; 2],
        offset: usize,
        bind: impl Fn(KernelBuilder) -> KernelBuilder,
    ) -> Vec<Kernel> {
        let Sizes { width, out, .. } = self.sizes;
        let tiles = self.params.tiles(rows);
        let work = ((TILE * (width + out)) as u64).saturating_mul(others as u64);
        let each = usize::try_from(MOST_WORK / work.max(1)).unwrap_or(usize::MAX).max(1);
        let part = |first: usize| {
            let kernel = Kernel::build(shader, entry, Params { first, ..self.params(op, offset) });
            let kernel =
                kernel.constant("CAUSAL", op.causal).constant("OF_KEY", width / 4).constant("OF_VALUE", out / 4);
            bind(kernel).workgroups(each.min(tiles - first))
        };
        (0..tiles).step_by(each).map(part).collect()
    }

    /// Returns the kernels that compute the result.
    pub fn forward(&self, op: Fused, [q, k, v]: [&Buffer; 3], out: &Buffer) -> Vec<Kernel> {
        let Sizes { queries, keys, .. } = self.sizes;
        let bind = |kernel: KernelBuilder| kernel.input(q).input(k).input(v).output(out);
        self.kernels((FORWARD, "attention"), op, [queries, keys], 0, bind)
    }

    /// Returns the kernels that compute the gradients of the operands, one after the other for each head. They read the
    /// result's gradient, which is dense from an offset of a buffer on.
    pub fn backward(
        &self,
        gpu: &Gpu,
        op: Fused,
        [q, k, v]: [&Buffer; 3],
        (g, offset): (&Buffer, usize),
        out: &Buffer,
    ) -> Result<Vec<Kernel>> {
        let Sizes { queries, keys, .. } = self.sizes;
        let found = gpu.alloc(2 * self.params.heads * queries)?;
        let inputs = |kernel: KernelBuilder| kernel.input(q).input(k).input(v).input(g);
        let first = |kernel| inputs(kernel).output(&found).output(out);
        let second = |kernel| inputs(kernel).input(&found).output(out);
        Ok([
            self.kernels((BACKWARD, "of_queries"), op, [queries, keys], offset, first),
            self.kernels((BACKWARD, "of_keys"), op, [keys, queries], offset, second),
            self.kernels((BACKWARD, "of_values"), op, [keys, queries], offset, second),
        ]
        .concat())
    }
}
