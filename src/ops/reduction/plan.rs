//! How many invocations of an adapter compute a row of a reduction, a softmax or a cross-entropy: [`way`], by the sizes of
//! `[A, R, B]`, of which R is reduced. [`Columns`] says it for reductions with B > 1, and [`by_chunks`] for the order and the running
//! results of rows.
//!
//! On hardware, neighbouring invocations must read neighbouring elements. Else each load of a subgroup moves as many sectors of 32 bytes
//! as it has invocations, and few rows leave most of a card without work. (The limits of size are estimates, and were never timed.)
//!
//! | rows | way |
//! |---|---|
//! | B > 1 | [`Way::Alone`]: neighbouring invocations have neighbours along B |
//! | reductions with B > 1 and fewer than [`LANES`] results | workgroups share [`Columns`] |
//! | sorting, and running results, of at least [`SHORTEST_CHUNK`] elements with B = 1 | a workgroup has a chunk of a row |
//! | shorter than [`SHORTEST`] loads | [`Way::Alone`]: the rows of a subgroup are a few sectors, all of which it uses |
//! | others | [`Way::Shared`] by an invocation for each [`LOADS`] loads, at least [`FEWEST`] and at most [`WIDE`] |
//! | so few that a large card would not have [`LANES`] invocations | by as many as there are loads, up to [`WIDE`], and then in parts |
//!
//! On software adapters each row is computed by one invocation: barriers are slow there. The kernels that share rows run there where the
//! op table asks for them.

use crate::device::gpu::{AnyFamily, Buffer, Caps, Family, Gpu, Grid, Kernel, Suits, Variant, params};
use crate::device::{Backend, Device};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::index::sort;
use crate::ops::inputs::rows_in_fours;
use crate::ops::linalg::matmul_variants::numbers;
use crate::ops::reduction::reduce::Reduction;
use crate::ops::reduction::softmax::{ALONE_SHADER, Params, SHARED_SHADER};
use crate::ops::reduction::{argmax, reduce, scan, softmax};
use crate::ops::variants::Adapter;

/// Invocations of the workgroups that share rows; `WIDE` in `shaders/common/lines.wgsl`.
pub(in crate::ops) const WIDE: usize = 256;

/// The loads of a row that each of the invocations that share it can keep; `KEPT` in `shaders/common/rows.wgsl`.
const KEPT: usize = 4;

/// Loads of the shortest row that invocations share.
const SHORTEST: usize = 4;

/// Loads of an invocation, and the fewest invocations of a row: eight that load f32 read a sector.
const LOADS: usize = 4;
const FEWEST: usize = 8;

/// Invocations that keep a large card busy.
const LANES: usize = 1 << 16;

/// The fewest loads of an invocation in a row, and in a column, that several workgroups have parts of. Parts cost a further launch.
const LOADS_OF_PART: usize = 8;
const LOADS_OF_COLUMN: usize = 16;

/// Elements of a line of a cache, and of what memory moves at once.
const LINE: usize = 32;
const SECTOR: usize = 8;

/// Who computes a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ops) enum Way {
    /// One invocation.
    Alone,
    /// So many neighbouring invocations of a workgroup, a power of two, each row or, where `parts` is not 1, each part of one.
    Shared { lanes: usize, parts: usize },
}

impl Way {
    /// Returns the number of workgroups for so many rows, or parts of rows.
    pub fn workgroups(lines: usize, lanes: usize) -> usize {
        lines.div_ceil(WIDE / lanes)
    }
}

/// The rows of `[A, R, B]`.
#[derive(Clone, Copy, Debug)]
pub(in crate::ops) struct Rows {
    pub sizes: [usize; 3],
    /// Elements that are read at once: 1 or 4.
    pub width: usize,
}

impl Rows {
    /// Returns the rows of a dense tensor from an offset on.
    pub fn new(sizes: [usize; 3], offset: usize) -> Rows {
        Rows { sizes, width: if rows_in_fours(sizes[2], sizes[1], offset) { 4 } else { 1 } }
    }

    /// Returns the loads of a row.
    pub fn loads(&self) -> usize {
        self.sizes[1] / self.width
    }

    /// Returns the loads of each of up to `most` parts of a row, and the number of parts, none of which is empty.
    pub fn parts(&self, most: usize) -> (usize, usize) {
        let span = self.loads().div_ceil(most);
        (span, self.loads().div_ceil(span))
    }

    /// Returns the entry point that reads the row once, if the registers of the invocations that share it keep all of it, or else twice.
    pub fn entry(&self, lanes: usize) -> &'static str {
        if self.loads() <= KEPT * lanes { "kept" } else { "streamed" }
    }
}

/// Returns who computes the rows.
///
/// # Errors
///
/// The errors of a trial of the variants.
pub(in crate::ops) fn way(device: &impl Adapter, rows: Rows) -> Result<Way> {
    let [outer, _, inner] = rows.sizes;
    let loads = rows.loads();
    if inner != 1 || loads < SHORTEST || outer == 0 {
        return Ok(Way::Alone);
    }
    if sharing(device, rows.sizes)? == Sharing::Alone {
        return Ok(Way::Alone);
    }
    let most = loads.next_power_of_two().clamp(FEWEST, WIDE);
    let enough = LANES.div_ceil(outer).next_power_of_two().min(most);
    let lanes = loads.div_ceil(LOADS).next_power_of_two().clamp(FEWEST, WIDE).max(enough);
    let parts =
        if lanes == WIDE { (LANES / WIDE).div_ceil(outer).min(loads / (WIDE * LOADS_OF_PART)).max(1) } else { 1 };
    Ok(Way::Shared { lanes, parts })
}

/// The columns of `[A, R, B]`, which are reduced along R, with B > 1: neighbouring invocations read neighbours along B.
#[derive(Clone, Copy, Debug)]
pub(super) struct Columns {
    pub sizes: [usize; 3],
    /// Elements of neighbouring columns that are read at once: 1 or 4.
    pub width: usize,
}

impl Columns {
    /// Returns the columns of a dense tensor from an offset on.
    pub fn new(sizes: [usize; 3], offset: usize) -> Columns {
        Columns { sizes, width: if sizes[2].is_multiple_of(4) && offset.is_multiple_of(4) { 4 } else { 1 } }
    }

    /// Returns the params of workgroups that share columns, unless there are so many columns that an invocation each keeps a large card
    /// busy, or so few elements of each that nothing is gained. A workgroup reads a line of a cache of each row, or less of it, but not
    /// less than a sector, if there are few workgroups; and more if a column has fewer elements than there are invocations.
    ///
    /// # Errors
    ///
    /// The errors of a trial of the variants.
    pub fn shared(&self, device: &impl Adapter, offset: usize) -> Result<Option<ColumnParams>> {
        let [outer, reduced, inner] = self.sizes;
        if inner < 2 || reduced < SHORTEST || outer == 0 || outer * inner >= LANES {
            return Ok(None);
        }
        if sharing(device, self.sizes)? == Sharing::Alone {
            return Ok(None);
        }
        let loads = inner / self.width;
        let most = loads.next_power_of_two().min(WIDE);
        let fewest = (SECTOR / self.width).max(WIDE / reduced.next_power_of_two().min(WIDE)).min(most);
        let mut lanes = (LINE / self.width).clamp(fewest, most);
        while lanes > fewest && outer * loads.div_ceil(lanes) * WIDE < LANES {
            lanes /= 2;
        }
        let groups = outer * loads.div_ceil(lanes);
        let parts = (LANES / WIDE).div_ceil(groups).min(reduced / (WIDE / lanes * LOADS_OF_COLUMN)).max(1);
        Ok(Some(self.params(offset, lanes, parts)))
    }

    /// Returns the params of workgroups of which `lanes` neighbouring invocations have neighbours along B, for up to `parts` parts of R.
    pub fn params(&self, offset: usize, lanes: usize, parts: usize) -> ColumnParams {
        let [outer, reduced, inner] = self.sizes;
        let (span, inner) = (reduced.div_ceil(parts), inner / self.width);
        let (parts, across) = (reduced.div_ceil(span), inner.div_ceil(lanes));
        let count = outer * parts * across;
        ColumnParams { offset: offset / self.width, count, reduced, inner, across, parts, span, lanes }
    }
}

params! {
    /// The parameters of `shaders/reduction/reduce_columns.wgsl`.
    #[derive(PartialEq, Eq)]
    pub(super) struct ColumnParams {
        offset: usize, count: usize, reduced: usize, inner: usize, across: usize, parts: usize, span: usize, lanes: usize,
    }
}

/// Returns whether invocations of a device share the rows, so that they may have any length.
pub(in crate::ops) fn are_shared(device: &Device, rows: Rows) -> Result<bool> {
    match device.backend()? {
        Backend::Cpu(_) => Ok(false),
        Backend::Gpu(gpu) => Ok(way(&**gpu, rows)? != Way::Alone),
    }
}

/// The fewest elements of a row of which workgroups have chunks: with fewer, most invocations would have none.
const SHORTEST_CHUNK: usize = 256;

/// Returns who sorts chunks of rows along R, or computes their running results: workgroups, which read neighbouring elements, or an
/// invocation each.
///
/// # Errors
///
/// The errors of a trial of the variants.
pub(in crate::ops) fn by_chunks(device: &impl Adapter, sizes: [usize; 3]) -> Result<Sharing> {
    let [outer, reduced, inner] = sizes;
    if inner != 1 || reduced < SHORTEST_CHUNK || outer == 0 { Ok(Sharing::Alone) } else { sharing(device, sizes) }
}

/// Returns the variant for `[A, R, B]`.
fn sharing(device: &impl Adapter, [outer, reduced, inner]: [usize; 3]) -> Result<Sharing> {
    let params = Params { offset: 0, outer, reduced, inner, parts: 1, span: reduced, lanes: 1 };
    Ok(device.chosen(&FAMILY, &params)?.way)
}

params! {
    /// The parameters of `shaders/reduction/row_parts.wgsl`.
    pub(super) struct PartParams { offset: usize, lines: usize, reduced: usize, parts: usize, span: usize, lanes: usize }
}

impl PartParams {
    /// Returns the params of up to `parts` parts of each row, from an offset on.
    pub fn new(rows: Rows, offset: usize, lanes: usize, parts: usize) -> PartParams {
        let (span, parts) = rows.parts(parts);
        let lines = rows.sizes[0] * parts;
        PartParams { offset: offset / rows.width, lines, reduced: rows.loads(), parts, span, lanes }
    }

    /// Returns the workgroups for all parts.
    pub fn workgroups(&self) -> usize {
        Way::workgroups(self.lines, self.lanes)
    }
}

/// What a variant does with rows of neighbouring elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ops) enum Sharing {
    Alone,
    Shared,
}

type RowVariant = Variant<Params, Sharing>;

static SHARED: RowVariant = Variant {
    name: "shared",
    way: Sharing::Shared,
    shader: SHARED_SHADER,
    entry: "kept",
    fits: |caps| caps.max_invocations as usize >= WIDE && caps.workgroup_memory >= 9472,
    suits: Suits::All,
    grid: Grid::Workgroups(|p| Way::workgroups(p.outer, WIDE)),
};

static ALONE: RowVariant = Variant {
    name: "alone",
    way: Sharing::Alone,
    shader: ALONE_SHADER,
    entry: "softmax",
    fits: |_| true,
    suits: Suits::All,
    grid: Grid::Each(|p| p.outer * p.inner),
};

/// All kernels that share rows, of whatever op: the trial has softmax, sums, running sums, the order and positions of the largest.
pub(in crate::ops) static FAMILY: Family<Params, Sharing> = Family { name: "rows", order, attempt };
inventory::submit! { &FAMILY as &'static dyn AnyFamily }

static ON_SOFTWARE: [&RowVariant; 2] = [&ALONE, &SHARED];
static ON_HARDWARE: [&RowVariant; 2] = [&SHARED, &ALONE];

fn order(caps: &Caps) -> &'static [&'static RowVariant] {
    if caps.software { &ON_SOFTWARE } else { &ON_HARDWARE }
}

/// The rows of a trial, their elements, and who shares them: rows that stay in registers, in one and in four elements, rows that are read
/// twice, and parts of rows.
const TRIALS: [(usize, usize, Way); 4] = [
    (37, 37, Way::Shared { lanes: 16, parts: 1 }),
    (70, 64, Way::Shared { lanes: 8, parts: 1 }),
    (3, 1301, Way::Shared { lanes: 256, parts: 1 }),
    (2, 4804, Way::Shared { lanes: 256, parts: 3 }),
];

/// The columns of a trial, and the invocations and the parts that share them: in one element and in four, with more invocations than
/// elements, and in parts.
const COLUMN_TRIALS: [([usize; 3], usize, usize); 4] =
    [([2, 70, 37], 32, 1), ([3, 5, 12], 64, 1), ([1, 301, 8], 2, 1), ([2, 201, 36], 8, 3)];

/// Computes rows and columns with a variant and compares the results with the host. Describes the first wrong element.
fn attempt(gpu: &Gpu, variant: &'static RowVariant) -> Result<Option<String>> {
    if variant.way == Sharing::Shared
        && let Some(wrong) = attempt_columns(gpu)?
    {
        return Ok(Some(wrong));
    }
    for (count, length, shared) in TRIALS {
        let way = if variant.way == Sharing::Shared { shared } else { Way::Alone };
        let sizes = [count, length, 1];
        let x = numbers(count * length, 7);
        let input = gpu.upload(bytemuck::cast_slice(&x))?;
        let elements = (&input, 0, DType::F32);
        // One result after the other: a trial may fall into a step whose memory is measured.
        let computed = |count: usize, kernels: &dyn Fn(&Buffer) -> Result<Vec<Kernel>>| {
            let out = gpu.alloc(count)?;
            kernels(&out)?.into_iter().try_for_each(|kernel| gpu.run(kernel))?;
            gpu.download(&out, 0, count)
        };
        let all = count * length;
        let softmax = computed(all, &|out| softmax::kernels(gpu, (&input, 0), sizes, false, way, out))?;
        let sum = computed(count, &|out| reduce::kernels(gpu, elements, Reduction::Sum, sizes, Some(way), out))?;
        let place = computed(count, &|out| argmax::kernels(gpu, elements, false, sizes, Some(way), out))?;
        let sharing = Some(variant.way);
        let running = computed(all, &|out| scan::kernels(gpu, elements, Reduction::Sum, sizes, sharing, out))?;
        // Sorting needs several buffers: all rows of the small trial, one of the others.
        let rows = if all < 2048 { count } else { 1 };
        let sorted = match length {
            0..2048 => {
                computed(rows * length, &|out| Ok(sort::order(gpu, elements, [rows, length], false, sharing, out)?.0))?
            }
            _ => Vec::new(),
        };
        for (i, row) in x.chunks(length).enumerate() {
            let describe = |what: &str, got: f64, expected: f64| {
                Some(format!("{what} of row {i} of [{count}, {length}]: got {got}, expected {expected}"))
            };
            let close = |got: f64, expected: f64, by: f64| (got - expected).abs() <= by; // false for NaN
            let total: f64 = row.iter().map(|&v| f64::from(v)).sum();
            if !close(f32::from_bits(sum[i]).into(), total, 1e-3) {
                return Ok(describe("sum", f32::from_bits(sum[i]).into(), total));
            }
            let first = (1..length).fold(0, |best, r| if row[r] > row[best] { r } else { best });
            if place[i] as usize != first {
                return Ok(describe("place of the largest", place[i].into(), first as f64));
            }
            let mut places: Vec<usize> = (0..length).collect();
            places.sort_by(|&a, &b| row[a].total_cmp(&row[b])); // stable, and there is no −0
            let of_row = sorted.chunks(length).nth(i).unwrap_or_default();
            if let Some((got, &place)) = of_row.iter().zip(&places).find(|&(&got, &place)| got as usize != place) {
                return Ok(describe("place in order", (*got).into(), place as f64));
            }
            let mut total = 0.0;
            for (r, &v) in row.iter().enumerate() {
                total += f64::from(v);
                let got = f32::from_bits(running[i * length + r]);
                if !close(got.into(), total, 1e-3) {
                    return Ok(describe("running sum", got.into(), total));
                }
            }
            let exponentials: f64 = row.iter().map(|&v| f64::from(v).exp()).sum();
            for (r, &v) in row.iter().enumerate() {
                let (got, expected) = (f32::from_bits(softmax[i * length + r]), f64::from(v).exp() / exponentials);
                if !close(got.into(), expected, 1e-5 * expected) {
                    return Ok(describe("softmax", got.into(), expected));
                }
            }
        }
    }
    Ok(None)
}

/// Adds up the parts of columns and compares the results with the host. Describes the first wrong element.
fn attempt_columns(gpu: &Gpu) -> Result<Option<String>> {
    for (sizes, lanes, parts) in COLUMN_TRIALS {
        let [outer, reduced, inner] = sizes;
        let x = numbers(outer * reduced * inner, 8);
        let columns = Columns::new(sizes, 0);
        let params = columns.params(0, lanes, parts);
        let (input, out) = (gpu.upload(bytemuck::cast_slice(&x))?, gpu.alloc(outer * params.parts * inner)?);
        gpu.run(reduce::columns_kernel((&input, DType::F32), Reduction::Sum, columns, params, &out))?;
        for (i, got) in gpu.download(&out, 0, outer * params.parts * inner)?.into_iter().map(f32::from_bits).enumerate()
        {
            let (b, part, a) = (i % inner, i / inner % params.parts, i / inner / params.parts);
            let of_part = part * params.span..reduced.min((part + 1) * params.span);
            let expected: f32 = of_part.map(|r| x[(a * reduced + r) * inner + b]).sum();
            // False for NaN.
            let close = (got - expected).abs() <= 1e-4;
            if !close {
                let index = [a, part, b];
                return Ok(Some(format!("sum {index:?} of columns of {sizes:?}: got {got}, expected {expected}")));
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
    fn few_columns_are_shared() -> Result<()> {
        // Invocations along B, and parts of R.
        let shared = |device: &Caps, sizes: [usize; 3]| -> Result<Option<(usize, usize)>> {
            let params = Columns::new(sizes, 0).shared(device, 0)?;
            Ok(params.map(|params| (params.lanes, params.parts)))
        };
        for (sizes, expected) in [
            ([1, 1024, 1024], Some((2, 1))), // the gradient of a bias of a transformer
            ([1, 256, 10], Some((8, 1))),    // and of LeNet's last layer
            ([1, 18_432, 64], Some((2, 9))),
            ([1, 4096, 60_000], Some((8, 1))),
            ([1, 8, 512], Some((32, 1))), // few elements: more columns in a workgroup
            ([32, 4, 49], Some((64, 1))),
            ([1, 3, 512], None),
            ([32, 64, 3136], None), // enough columns
            ([1, 4096, 1], None),
        ] {
            assert_eq!(shared(&HARDWARE, sizes)?, expected, "{sizes:?}");
            assert_eq!(shared(&LAVAPIPE, sizes)?, None, "{sizes:?}");
        }
        Ok(())
    }

    #[test]
    fn the_sizes_choose_who_computes_a_row() -> Result<()> {
        let shared = |lanes, parts| Way::Shared { lanes, parts };
        for (sizes, expected) in [
            ([64, 10, 1], shared(16, 1)),    // the classes of LeNet
            ([60_000, 10, 1], shared(8, 1)), // enough rows: fewer invocations for each
            ([60_000, 3, 1], Way::Alone),    // 96 bytes for eight rows
            ([60_000, 12, 1], Way::Alone),   // three vectors of four
            ([4096, 64, 1], shared(16, 1)),
            ([2048, 512, 1], shared(32, 1)), // layers of a transformer
            ([1024, 1024, 1], shared(64, 1)),
            ([65_536, 1024, 1], shared(64, 1)),
            ([512, 50_257, 1], shared(256, 1)), // a vocabulary
            ([4, 50_257, 1], shared(256, 24)),
            ([1, 1_000_000, 1], shared(256, 122)),
            ([1, 64 << 20, 1], shared(256, 256)), // the sum of all elements
            ([1, 100, 1], shared(32, 1)),
            ([32, 10, 784], Way::Alone),
            ([1, 4096, 2], Way::Alone),
            ([0, 10, 1], Way::Alone),
        ] {
            assert_eq!(way(&HARDWARE, Rows::new(sizes, 0))?, expected, "{sizes:?}");
            assert_eq!(way(&LAVAPIPE, Rows::new(sizes, 0))?, Way::Alone, "{sizes:?}");
        }
        assert_eq!(way(&HARDWARE, Rows::new([60_000, 12, 1], 1))?, shared(8, 1), "no vectors from this offset on");
        let narrow = Caps { max_invocations: 128, ..HARDWARE };
        assert_eq!(way(&narrow, Rows::new([2048, 512, 1], 0))?, Way::Alone);
        Ok(())
    }
}
