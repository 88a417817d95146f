//! Convolutions of f16 and their gradients by cooperative matrices. The pixels under the windows are written in panels
//! of halves (`shaders/spatial/conv/conv_halves.wgsl`), some columns at a time, and multiplied as other products of f16
//! (`linalg/cooperative.rs`). For a kernel of one position, the panels are the same as for a product of the image.

use anygpu_host::conv::Sizes as ConvSizes;
use anygpu_host::window::{Window, WindowParams};

use super::geometry::{COLUMNS, Geometry, Pass};
use super::implicit_variants::{Computed, LONGEST, compare_with_host, examples};
use super::plan::MOST_PARTIAL;
use crate::device::gpu::{AnyFamily, Buffer, Family, Gpu, Kernel, params, shader};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::linalg::cooperative::{self, HALF_PANELS, HalfVariant, STEPS, WIDTH};
use crate::ops::linalg::matmul_variants::numbers;
use crate::ops::linalg::panels::{ALONE, IndexMap, MAX_DEPTH, PACK_RUN, Pack, Product, ProductParams, Target};
use crate::ops::linalg::plan::OFTEN;
use crate::ops::reduction::reduce::sum_parts;
use crate::ops::spatial::window::{WINDOW, constants};
use crate::ops::stored::Stored;
use crate::ops::tiling::Sizes;

params! {
    struct Params {
        count: usize,
        columns: usize,
        first: usize,
        steps: usize,
        offset: usize,
        channels: usize,
        depth: usize,
        height: usize,
        width: usize,
        out_y: usize,
        out_x: usize,
    }
}
shader!(SHADER: Params = "spatial/conv/conv_halves", after [WINDOW, COLUMNS, HALF_PANELS]);

/// The words that are in memory at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    panels: usize,
    /// Parts of sums.
    sums: usize,
}

/// As many panels as products always may have, and as many parts as the gradient of a weight has elsewhere.
pub(super) const ROOM: Room = Room { panels: OFTEN, sums: MOST_PARTIAL };

/// The variants of products, with a trial of their own that has the kernels of this file.
pub(super) static FAMILY: Family<ProductParams, cooperative::Way> =
    Family { name: "conv2d_cooperative", order: cooperative::order, attempt };
inventory::submit! { &FAMILY as &'static dyn AnyFamily }

/// Tries the product, then a convolution and its gradients.
fn attempt(gpu: &Gpu, variant: &'static HalfVariant) -> Result<Option<String>> {
    match variant.way {
        cooperative::Way::HalfPanels => {}
        cooperative::Way::Others => return Ok(None),
    }
    if let Some(wrong) = cooperative::attempt(gpu, variant)? {
        return Ok(Some(wrong));
    }
    for g in examples() {
        if let Some(wrong) = compare(gpu, variant, &g, (&numbers, ROOM))? {
            return Ok(Some(wrong));
        }
    }
    Ok(None)
}

/// Computes a convolution and its gradients with a variant, and compares them with the host. Cards
/// round their sums in ways of their own.
fn compare(
    gpu: &Gpu,
    variant: &HalfVariant,
    g: &Geometry,
    (numbers, room): (&dyn Fn(usize, u32) -> Vec<f32>, Room),
) -> Result<Option<String>> {
    compare_with_host(gpu, g, (numbers, DType::F16, 1e-3), &|what, [x, w, dy, bias], out| match what {
        Computed::Forward => g.weight_by_columns(gpu, variant, Weight::of(g, w), x, Some(bias), (room, out)).map(Some),
        Computed::InputGrad => {
            let kernels =
                |turned: Geometry| turned.weight_by_columns(gpu, variant, Weight::turned(g, w), dy, None, (room, out));
            g.turned().map(kernels).transpose()
        }
        Computed::WeightGrad => {
            let kernels = |parts| g.weight_grad_cooperative(gpu, variant, &parts, [dy, x], out);
            g.gradient_parts(LONGEST, room).map(kernels).transpose()
        }
    })
}

/// The weight of a convolution as the left operand of a product: its elements, the first group first.
struct Weight<'a> {
    stored: Stored<'a>,
    k: IndexMap,
    j: IndexMap,
}

impl<'a> Weight<'a> {
    fn of(g: &Geometry, stored: Stored<'a>) -> Weight<'a> {
        let (depth, rows) = (g.depth(), g.group_out());
        Weight { stored, k: IndexMap::even(depth, 1), j: IndexMap::even(rows, depth) }
    }

    /// Returns the weight of the [turned](Geometry::turned) convolution: with its kernels turned by 180°, from the
    /// channels of the result to the channels of the image.
    fn turned(g: &Geometry, stored: Stored<'a>) -> Weight<'a> {
        let taps = g.window.taps();
        // From a position of a kernel to the one before, modulo 2³².
        let back = u32::MAX as usize;
        let k = IndexMap { inner: taps, step: back, outer: g.depth() };
        Weight { stored: stored.after(taps - 1), k, j: IndexMap::even(g.group_channels(), taps) }
    }
}

/// How the gradient of a weight is added up.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GradientParts {
    /// Each with the steps of a part of its sums, and the number of parts.
    passes: Vec<(Pass, [usize; 2])>,
    /// The parts that are in memory at a time.
    slots: usize,
    /// Whether there are more: their sum so far is the first of the next ones, in a second buffer.
    turns: bool,
}

impl Geometry {
    /// Returns whether columns are short enough for sums in one pass.
    pub fn columns_are_short(&self) -> bool {
        self.depth().next_multiple_of(STEPS) <= MAX_DEPTH
    }

    /// Returns the kernels of the convolution by cooperative matrices.
    pub fn forward_cooperative(
        &self,
        gpu: &Gpu,
        variant: &HalfVariant,
        [x, w]: [Stored; 2],
        bias: Option<Stored>,
        out: &Buffer,
    ) -> Result<Vec<Kernel>> {
        self.weight_by_columns(gpu, variant, Weight::of(self, w), x, bias, (ROOM, out))
    }

    /// Returns the same for the gradient of the image, by the [turned](Geometry::turned) convolution.
    pub fn input_grad_cooperative(
        &self,
        gpu: &Gpu,
        (variant, turned): (&HalfVariant, &Geometry),
        [dy, w]: [Stored; 2],
        out: &Buffer,
    ) -> Result<Vec<Kernel>> {
        turned.weight_by_columns(gpu, variant, Weight::turned(self, w), dy, None, (ROOM, out))
    }

    /// Returns the convolution of the gradient of the result whose result is the gradient of the image; `None` under a stride.
    pub fn turned(&self) -> Option<Geometry> {
        let Window { params, size, out } = self.window;
        // Less than 0, modulo 2³², where the image has more padding than the windows reach beyond a pixel.
        let padding = [0, 1].map(|d| (params.span(d) - 1).wrapping_sub(params.padding[d]) & u32::MAX as usize);
        let window = Window { params: WindowParams { padding, ..params }, size: out, out: size };
        let (channels, out_channels) = (self.out_channels, self.channels);
        (params.stride == [1, 1]).then(|| Geometry(ConvSizes { channels, out_channels, window, ..self.0.clone() }))
    }

    /// Returns the kernel that writes the columns of one group of a pass as an operand with so many steps of k: as the right one
    /// of a product by the weight or, turned, as the one of a product by the gradient of the result.
    fn half_columns(
        &self,
        turned: bool,
        (pass, group): (&Pass, usize),
        steps: usize,
        (from, to): (Stored, &Buffer),
    ) -> Kernel {
        let across = if turned { self.depth() } else { pass.columns() };
        let [height, width] = self.window.size;
        let [out_y, out_x] = self.window.out;
        let params = Params {
            count: Pack::size(WIDTH, steps, across) / PACK_RUN,
            columns: pass.columns(),
            first: pass.pixel,
            steps,
            offset: from.offset + pass.image * self.image() + group * self.group_image(),
            channels: self.channels,
            depth: self.group_channels(),
            height,
            width,
            out_y,
            out_x,
        };
        let entry = if turned { "im2col_halves_turned" } else { "im2col_halves" };
        let kernel = Kernel::build(SHADER, entry, params).constants(constants(&self.window.params));
        kernel.input(&from).output(to).each(params.count)
    }

    /// Returns the kernels that multiply the weight by the columns of x, which [are short](Geometry::columns_are_short). Each operand has
    /// at most about half of the room for panels.
    fn weight_by_columns(
        &self,
        gpu: &Gpu,
        variant: &HalfVariant,
        weight: Weight,
        x: Stored,
        bias: Option<Stored>,
        (room, out): (Room, &Buffer),
    ) -> Result<Vec<Kernel>> {
        let (rows, pixels, valid) = (self.group_out(), self.window.pixels(), self.depth());
        let steps = valid.next_multiple_of(STEPS);
        let most = (room.panels / steps / WIDTH * WIDTH).max(WIDTH);
        let (passes, widest) = self.passes_of(most);
        let block = most.min(rows);
        let [weights, cols] = [block, widest].map(|across| gpu.alloc(Pack::size(WIDTH, steps, across) / 2));
        let (weights, cols) = (weights?, cols?);
        let mut kernels = Vec::new();
        for group in 0..self.groups {
            for (number, pass) in passes.iter().enumerate() {
                let columns = pass.columns();
                kernels.push(self.half_columns(false, (pass, group), steps, (x, &cols)));
                for first in (0..rows).step_by(block) {
                    let across = block.min(rows - first);
                    // All passes read the same panels, unless those hold a part of the rows.
                    if number == 0 || block < rows {
                        let pack = Pack { width: WIDTH, depth: steps, across, k: weight.k, j: weight.j };
                        let from = weight.stored.after(group * self.group_weights() + first * weight.j.step);
                        kernels.push(cooperative::pack(&pack, valid, from, ALONE, &weights));
                    }
                    let product = Product { m: across, k: steps, n: columns, batch: 1, splits: 1, steps: [0, 0] };
                    let row = group * rows + first;
                    let offset = (pass.image * self.out_channels + row) * pixels + pass.pixel;
                    let to = Target { offset, batch: 0, row: pixels, inner: pixels, outer: self.out_image() };
                    let bias = bias.map(|bias| (bias.buffer, bias.offset + row));
                    kernels.push(product.of_halves(variant, [&weights, &cols], bias, out, to)?);
                }
            }
        }
        Ok(kernels)
    }

    /// Returns how the gradient of the weight is added up, in sums of at most about `run` output pixels and in the room that there is
    /// for them; `None` if there is no room for panels of all rows, or for the parts of the sums.
    pub fn gradient_parts(&self, run: usize, room: Room) -> Option<GradientParts> {
        let (rows, depth) = (self.group_out(), self.depth());
        let len = self.groups * self.group_weights();
        let column = rows.next_multiple_of(WIDTH) + depth.next_multiple_of(WIDTH);
        let most = 2 * room.panels / column / WIDTH * WIDTH;
        if most == 0 || self.images * self.window.pixels() == 0 {
            return None;
        }
        let (passes, _) = self.passes_of(most);
        // Few tiles have more parts, as long as those are in memory.
        let affordable = room.sums / (len * passes.len()).max(1);
        let parts = |pass: Pass| {
            let columns = pass.columns();
            let wanted = Sizes { m: rows, n: depth, batch: 1 }.parts(columns).min(affordable);
            let part = columns.div_ceil(wanted.max(columns.div_ceil(run))).next_multiple_of(STEPS);
            (pass, [part, columns.div_ceil(part)])
        };
        let passes: Vec<_> = passes.into_iter().map(parts).collect();
        let splits = passes.iter().map(|&(_, [_, splits])| splits);
        let (all, largest): (usize, usize) = (splits.clone().sum(), splits.max().unwrap_or(0));
        let turns = all > 1 && all * len > room.sums;
        let slots = if turns { (room.sums / 2 / len).max(largest + 1) } else { all };
        let tenth = (self.images * (self.image() + self.out_image()) / 2 + len) / 10;
        let fits = !turns || 2 * slots * len <= room.sums.max(tenth);
        fits.then_some(GradientParts { passes, slots, turns })
    }

    /// Returns the kernels of the gradient of the weight: dy multiplied by the columns of x.
    pub fn weight_grad_cooperative(
        &self,
        gpu: &Gpu,
        variant: &HalfVariant,
        parts: &GradientParts,
        [dy, x]: [Stored; 2],
        out: &Buffer,
    ) -> Result<Vec<Kernel>> {
        let &GradientParts { ref passes, slots, turns } = parts;
        let (rows, pixels, depth) = (self.group_out(), self.window.pixels(), self.depth());
        let len = self.groups * self.group_weights();
        let steps = passes.iter().map(|&(_, [part, splits])| part * splits).max().unwrap_or(0);
        let one = !turns && slots == 1;
        let [grads, cols] = [rows, depth].map(|across| gpu.alloc(Pack::size(WIDTH, steps, across) / 2));
        let (grads, cols) = (grads?, cols?);
        let mut partial = if one { out.clone() } else { gpu.alloc(slots * len)? };
        let mut other = if turns { gpu.alloc(slots * len)? } else { partial.clone() };
        let (mut kernels, mut done) = (Vec::new(), 0);
        for &(ref pass, [part, splits]) in passes {
            if done + splits > slots {
                kernels.extend(sum_parts(gpu, &partial, [1, done, len], &other)?);
                std::mem::swap(&mut partial, &mut other);
                done = 1;
            }
            let (columns, steps) = (pass.columns(), part * splits);
            for group in 0..self.groups {
                let k = IndexMap { inner: pass.pixels, step: 1, outer: self.out_image() };
                let left = Pack { width: WIDTH, depth: steps, across: rows, k, j: IndexMap::even(rows, pixels) };
                let from = dy.after((pass.image * self.out_channels + group * rows) * pixels + pass.pixel);
                kernels.push(cooperative::pack(&left, columns, from, ALONE, &grads));
                kernels.push(self.half_columns(true, (pass, group), steps, (x, &cols)));
                let product = Product { m: rows, k: steps, n: depth, batch: 1, splits, steps: [0, 0] };
                let offset = done * len + group * self.group_weights();
                let to = Target { offset, batch: len, row: depth, inner: depth, outer: 0 };
                kernels.push(product.of_halves(variant, [&grads, &cols], None, &partial, to)?);
            }
            done += splits;
        }
        if !one {
            kernels.extend(sum_parts(gpu, &partial, [1, done, len], out)?);
        }
        Ok(kernels)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::device::{Backend, Device};
    use crate::ops::linalg::cooperative::tests::{PLAIN_8, PLAIN_16};
    use crate::ops::spatial::conv::Conv;
    use crate::ops::spatial::conv::implicit_variants::tests::extremes;

    /// Channels and rows of several panels, groups of them under a stride, and images of one and of several panels. The
    /// sums are short enough for Mesa 22, which counts the rounds of all loops together: fragments have many rounds.
    fn more() -> Vec<Geometry> {
        let conv = Conv::<2>::new;
        let all = [
            ([2, 33, 7, 9], [36, 33, 5, 5], conv().padding(2)),
            ([3, 80, 9, 7], [132, 40, 3, 3], conv().groups(2).stride(2).padding(1)),
            ([3, 33, 11, 10], [65, 33, 1, 1], conv()),
            ([2, 6, 19, 13], [130, 3, 3, 3], conv().groups(2).padding([1, 2]).dilation([2, 1])),
        ];
        all.iter().map(|(x, w, conv)| conv.geometry(x, w).expect("a convolution")).collect()
    }

    /// Layers with far more columns, weights or parts of sums than have room.
    #[test]
    fn temporaries_are_small() -> Result<()> {
        let conv = Conv::<2>::new().padding(1);
        for device in Device::all().into_iter().filter(|device| !device.is_cpu()).take(1) {
            let Backend::Gpu(gpu) = device.backend()? else { continue };
            let [any, out] = [gpu.alloc(4)?, gpu.alloc(4)?];
            let x = Stored { buffer: &any, offset: 0, dtype: DType::F16 };
            for (image, weight) in [
                ([64, 256, 56, 56], [256, 256, 3, 3]),
                ([256, 512, 7, 7], [512, 512, 3, 3]),
                ([20, 3500, 9, 9], [3500, 3500, 3, 3]),
                ([1, 64, 2048, 2048], [64, 64, 3, 3]),
            ] {
                let g = conv.geometry(&image, &weight)?;
                let (turned, to) = (g.turned().expect("no stride"), (ROOM, &out));
                let mut all = vec![
                    (g.weight_by_columns(gpu, &PLAIN_16, Weight::of(&g, x), x, None, to)?, 0),
                    (turned.weight_by_columns(gpu, &PLAIN_16, Weight::turned(&g, x), x, None, to)?, 0),
                ];
                let parts = g.gradient_parts(MAX_DEPTH, ROOM);
                assert_eq!(parts.is_none(), weight[0] == 3500, "{image:?}"); // parts of 110 M elements
                if let Some(parts) = parts {
                    all.push((g.weight_grad_cooperative(gpu, &PLAIN_16, &parts, [x, x], &out)?, ROOM.sums));
                }
                for (i, (kernels, sums)) in all.into_iter().enumerate() {
                    let written = kernels.iter().flat_map(Kernel::written).filter(|to| to.id() != out.id());
                    let sizes: HashMap<usize, usize> = written.map(|to| (to.id(), to.len())).collect();
                    let words: usize = sizes.values().sum();
                    // The parts of a sum are padded to whole fragments.
                    assert!(words <= ROOM.panels / 16 * 17 + sums, "{words} words for {image:?}, {i}");
                }
            }
        }
        Ok(())
    }

    /// The whole kernels except the fragments, in one pass and in passes of 64 columns, with a variant for each
    /// adapter.
    #[test]
    fn convolutions_are_right_with_fragments_in_plain_wgsl() -> Result<()> {
        let adapters: Vec<Device> = Device::all().into_iter().filter(|device| !device.is_cpu()).collect();
        for ((at, device), variant) in adapters.iter().enumerate().zip([&PLAIN_16, &PLAIN_8].into_iter().cycle()) {
            let Backend::Gpu(gpu) = device.backend()? else { continue };
            assert_eq!(attempt(gpu, variant)?, None, "{} on {device}", variant.name);
            // Compiling takes the most time: each adapter has a part of them, and all adapters together have all.
            for g in more().into_iter().chain(extremes()).skip(at).step_by(adapters.len()) {
                let panels = g.group_out().next_multiple_of(WIDTH) + g.depth().next_multiple_of(WIDTH);
                let small = Room { panels: panels * WIDTH / 2, sums: 4 * g.groups * g.group_weights() };
                for room in [ROOM, small] {
                    let wrong = compare(gpu, variant, &g, (&numbers, room))?;
                    assert_eq!(wrong, None, "{} on {device}, {room:?}", variant.name);
                }
            }
        }
        Ok(())
    }
}
