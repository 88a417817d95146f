//! What a SIMT machine would do with the accesses of a trace.
//!
//! A subgroup is of 32 or of 64 neighbouring invocations. The `k`-th time that its invocations come to a site is one instruction,
//! whatever the invocations in between: so the invocations of a loop are taken to go through it together.

use std::collections::{HashMap, VecDeque};

use crate::instrument::{Kind, Place, Site};
use crate::trace::{Lane, Trace};

/// The sizes of subgroups.
pub const WIDTHS: [usize; 2] = [32, 64];

/// Bytes that memory moves at once.
pub const SECTOR: u32 = 32;

/// Bytes of a line of a cache.
pub const LINE: u32 = 128;

/// Sectors that a workgroup finds again in the nearest cache: 16 KiB.
const CACHED: usize = 512;

/// Banks of the memory of workgroups, of a word each.
const BANKS: u32 = 32;

/// What accesses do with sectors, for one size of subgroups.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Requests {
    /// Bytes that the instructions use. Bytes that several invocations use count once.
    pub used: f64,
    /// Sectors that they touch.
    pub sectors: f64,
    /// Lines that they touch.
    pub lines: f64,
    /// Instructions, including the ones with memory of workgroups.
    pub instructions: f64,
    /// Invocations that take part in them.
    pub active: f64,
    /// Operations of floats, as if all invocations of a subgroup did as many as the busiest one.
    pub flops: f64,
}

/// What a dispatch does, as far as the sample shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// For each of [`WIDTHS`].
    pub requests: [Requests; 2],
    /// Bytes that workgroups move between memory, or a cache that they share, and their own cache.
    pub traffic: f64,
    /// Bytes of sectors, each counted once for all workgroups that read it, and once more if they write it.
    pub once: f64,
    /// Bytes that are used, counted so: the least that any kernel with this result moves.
    pub least: f64,
    /// Operations of floats.
    pub flops: f64,
    /// Clock cycles of the memory of a workgroup.
    pub cycles: f64,
    /// Clock cycles without conflicts of banks.
    pub free_cycles: f64,
    /// Invocations of the grid.
    pub lanes: f64,
    /// Whether the trace has only a part of the accesses.
    pub cut: bool,
}

impl Requests {
    /// Returns the part of the bytes of sectors that the instructions use; 1 without accesses to buffers.
    pub fn efficiency(&self) -> f64 {
        if self.sectors > 0.0 { self.used / (self.sectors * f64::from(SECTOR)) } else { 1.0 }
    }

    /// Returns the part of the invocations of a subgroup that take part in an instruction; 1 without instructions.
    pub fn lanes(&self, width: usize) -> f64 {
        if self.instructions > 0.0 { self.active / (self.instructions * width as f64) } else { 1.0 }
    }
}

impl Figures {
    /// Returns the bytes that workgroups move for each that they must; 1 if there is none.
    pub fn excess(&self) -> f64 {
        if self.least > 0.0 { self.traffic / self.least } else { 1.0 }
    }

    /// Returns the cycles of an access to the memory of a workgroup, 1 without conflicts of banks.
    pub fn conflicts(&self) -> f64 {
        if self.free_cycles > 0.0 { self.cycles / self.free_cycles } else { 1.0 }
    }
}

/// The instructions of a subgroup.
struct Instructions {
    /// The site, the number of its execution, and the first place of it in the traces of invocations, in the order of the last.
    order: Vec<(u32, u32, u32)>,
    /// For each site, the bytes of each invocation in each execution; [`ABSENT`] for invocations that do not take
    /// part.
    places: Vec<Vec<u32>>,
    width: usize,
}

const ABSENT: u32 = u32::MAX;

impl Instructions {
    fn new(sites: usize, lanes: &[Lane], width: usize) -> Instructions {
        let mut places = vec![Vec::new(); sites];
        let mut firsts: Vec<Vec<u32>> = vec![Vec::new(); sites];
        let mut counts = vec![0usize; sites];
        for (at, lane) in lanes.iter().enumerate() {
            counts.fill(0);
            for (n, &(site, byte)) in lane.accesses.iter().enumerate() {
                let site = site as usize;
                let (Some(count), Some(places), Some(firsts)) =
                    (counts.get_mut(site), places.get_mut(site), firsts.get_mut(site))
                else {
                    continue;
                };
                if *count == firsts.len() {
                    firsts.push(n as u32);
                    places.resize(places.len() + width, ABSENT);
                }
                firsts[*count] = firsts[*count].min(n as u32);
                places[*count * width + at] = byte;
                *count += 1;
            }
        }
        let all = firsts.iter().enumerate();
        let all = all.flat_map(|(site, firsts)| {
            firsts.iter().enumerate().map(move |(k, first)| (site as u32, k as u32, *first))
        });
        let mut order: Vec<_> = all.collect();
        order.sort_unstable_by_key(|&(site, k, first)| (first, site, k));
        Instructions { order, places, width }
    }

    /// Returns the bytes of the invocations that take part.
    fn places(&self, (site, k, _): (u32, u32, u32)) -> impl Iterator<Item = u32> {
        let first = k as usize * self.width;
        self.places[site as usize][first..first + self.width].iter().copied().filter(|byte| *byte != ABSENT)
    }
}

/// Sorts ranges of bytes, and joins ranges that overlap or meet.
fn join(ranges: &mut Vec<(u32, u32)>) {
    ranges.sort_unstable();
    let mut kept = 0;
    for at in 0..ranges.len() {
        let (start, end) = ranges[at];
        if kept > 0 && start <= ranges[kept - 1].1 {
            ranges[kept - 1].1 = ranges[kept - 1].1.max(end);
        } else {
            ranges[kept] = (start, end);
            kept += 1;
        }
    }
    ranges.truncate(kept);
}

fn bytes(ranges: &[(u32, u32)]) -> f64 {
    ranges.iter().map(|(start, end)| f64::from(end - start)).sum()
}

/// Calls a function for each block of `size` bytes that joined ranges touch.
fn each_block(ranges: &[(u32, u32)], size: u32, mut f: impl FnMut(u32)) {
    let mut next = 0;
    for &(start, end) in ranges {
        let first = (start / size).max(next);
        next = end.div_ceil(size).max(next);
        (first..next).for_each(&mut f);
    }
}

fn blocks(ranges: &[(u32, u32)], size: u32) -> f64 {
    let mut count = 0.0;
    each_block(ranges, size, |_| count += 1.0);
    count
}

/// The sectors that a workgroup touched last.
#[derive(Default)]
struct Cache {
    /// By binding and number: when it was touched last, and whether it was written.
    sectors: HashMap<(u32, u32), (u64, bool)>,
    touched: VecDeque<((u32, u32), u64)>,
    now: u64,
    /// Sectors that were moved.
    moved: f64,
}

impl Cache {
    fn touch(&mut self, sector: (u32, u32), kind: Kind) {
        self.now += 1;
        let now = self.now;
        self.touched.push_back((sector, now));
        let (read, written) = (kind != Kind::Store, kind != Kind::Load);
        match self.sectors.get_mut(&sector) {
            Some((last, dirty)) => {
                *last = now;
                *dirty |= written;
            }
            None => {
                self.moved += f64::from(u8::from(read));
                self.sectors.insert(sector, (now, written));
            }
        }
        while self.sectors.len() > CACHED {
            let Some((oldest, when)) = self.touched.pop_front() else { break };
            if self.sectors.get(&oldest).is_some_and(|(last, _)| *last == when) {
                let dirty = self.sectors.remove(&oldest).is_some_and(|(_, dirty)| dirty);
                self.moved += f64::from(u8::from(dirty));
            }
        }
    }

    /// Returns the number of moved sectors, including the sectors that are still to be written.
    fn end(self) -> f64 {
        self.moved + self.sectors.values().filter(|(_, dirty)| *dirty).count() as f64
    }
}

/// Returns the cycles of an access to the memory of a workgroup by up to 32 invocations, and the cycles without
/// conflicts. Accesses of two or four words take the invocations in two or four parts, as machines do.
fn bank_cycles(places: &[u32], size: u32) -> (f64, f64) {
    let words = size.div_ceil(4).max(1);
    let (mut cycles, mut free) = (0, 0);
    for part in (0..words).step_by(4) {
        let words = (words - part).min(4);
        for phase in places.chunks((BANKS / words.next_power_of_two()) as usize) {
            let mut touched: Vec<u32> =
                phase.iter().flat_map(|at| (0..words).map(move |word| at / 4 + part + word)).collect();
            touched.sort_unstable();
            touched.dedup();
            let mut banks = [0u32; BANKS as usize];
            touched.iter().for_each(|word| banks[(word % BANKS) as usize] += 1);
            cycles += banks.into_iter().max().unwrap_or(0);
            free += 1;
        }
    }
    (f64::from(cycles), f64::from(free))
}

/// What the sampled workgroups touch of a binding, as if no two workgroups touched the same.
#[derive(Default)]
struct Touched {
    /// Bytes, and bytes of sectors.
    used: f64,
    sectors: f64,
    /// The first and the last range of each workgroup.
    ends: Vec<(u32, u32)>,
    /// Whether the last workgroup touches it.
    at_ends: bool,
}

impl Touched {
    /// Returns the bytes from the first one that is touched to the last: the bound part of a buffer may be much larger. `None` if the last
    /// workgroup, which may have no work, touches nothing: then the ends are not in the sample.
    fn extent(&self) -> Option<f64> {
        let first = self.ends.iter().map(|(start, _)| *start).min()?;
        let last = self.ends.iter().map(|(_, end)| *end).max()?;
        self.at_ends.then(|| f64::from(last - first))
    }
}

/// Returns what a dispatch does.
pub fn figures(trace: &Trace) -> Figures {
    let mut figures = Figures::default();
    let mut touched: HashMap<(u32, bool), Touched> = HashMap::new();
    for (number, (lanes, weight)) in trace.groups.iter().zip(&trace.weights).enumerate() {
        let (all, traced) = lanes
            .iter()
            .fold((0.0, 0.0), |(all, traced), lane| (all + f64::from(lane.all), traced + lane.accesses.len() as f64));
        figures.cut |= traced < all;
        let scale = weight * if traced > 0.0 { all / traced } else { 1.0 };
        for ((at, width), sum) in WIDTHS.into_iter().enumerate().zip(&mut figures.requests) {
            let subgroups: Vec<_> =
                lanes.chunks(width).map(|lanes| Instructions::new(trace.sites.len(), lanes, width)).collect();
            let of_group = requests(&trace.sites, &subgroups);
            let busiest = lanes.chunks(width).map(|lanes| lanes.iter().map(|lane| lane.flops).max().unwrap_or(0));
            let flops: f64 = busiest.map(|flops| f64::from(flops) * width as f64).sum();
            sum.used += of_group.used * scale;
            sum.sectors += of_group.sectors * scale;
            sum.lines += of_group.lines * scale;
            sum.instructions += of_group.instructions * scale;
            sum.active += of_group.active * scale;
            sum.flops += flops * weight;
            if at == 0 {
                figures.traffic += moved(&trace.sites, &subgroups) * f64::from(SECTOR) * scale;
                let (cycles, free) = banks(&trace.sites, &subgroups);
                figures.cycles += cycles * scale;
                figures.free_cycles += free * scale;
            }
        }
        for (key, ranges) in ranges(&trace.sites, lanes) {
            let sum = touched.entry(key).or_default();
            sum.used += bytes(&ranges) * scale;
            sum.sectors += blocks(&ranges, SECTOR) * f64::from(SECTOR) * scale;
            sum.ends.extend(ranges.first().into_iter().chain(ranges.last()));
            sum.at_ends |= number + 1 == trace.groups.len();
        }
        figures.flops += lanes.iter().map(|lane| f64::from(lane.flops)).sum::<f64>() * weight;
        figures.lanes += lanes.len() as f64 * weight;
    }
    for ((binding, _), touched) in touched {
        let bound = trace.bound.iter().find(|(other, _)| *other == binding).map_or(0, |(_, bytes)| *bytes) as f64;
        let extent = touched.extent().filter(|extent| *extent < bound).unwrap_or(bound);
        figures.least += touched.used.min(extent);
        figures.once += touched.sectors.min((extent / f64::from(SECTOR)).ceil() * f64::from(SECTOR));
    }
    figures
}

fn requests(sites: &[Site], subgroups: &[Instructions]) -> Requests {
    let mut sum = Requests::default();
    let mut ranges = Vec::new();
    for subgroup in subgroups {
        for &instruction in &subgroup.order {
            let site = &sites[instruction.0 as usize];
            ranges.clear();
            ranges.extend(subgroup.places(instruction).map(|at| (at, at.saturating_add(site.bytes))));
            sum.instructions += 1.0;
            sum.active += ranges.len() as f64;
            if site.place != Place::Workgroup {
                join(&mut ranges);
                sum.used += bytes(&ranges);
                sum.sectors += blocks(&ranges, SECTOR);
                sum.lines += blocks(&ranges, LINE);
            }
        }
    }
    sum
}

/// Returns the sectors that a workgroup moves, whose subgroups take turns, an instruction each.
fn moved(sites: &[Site], subgroups: &[Instructions]) -> f64 {
    let mut cache = Cache::default();
    let mut ranges = Vec::new();
    let longest = subgroups.iter().map(|subgroup| subgroup.order.len()).max().unwrap_or(0);
    for turn in 0..longest {
        for subgroup in subgroups {
            let Some(&instruction) = subgroup.order.get(turn) else { continue };
            let site = &sites[instruction.0 as usize];
            let Place::Storage(binding) = site.place else { continue };
            ranges.clear();
            ranges.extend(subgroup.places(instruction).map(|at| (at, at.saturating_add(site.bytes))));
            join(&mut ranges);
            each_block(&ranges, SECTOR, |sector| cache.touch((binding, sector), site.kind));
        }
    }
    cache.end()
}

/// Returns the cycles of the memory of a workgroup, and the cycles without conflicts.
fn banks(sites: &[Site], subgroups: &[Instructions]) -> (f64, f64) {
    let (mut cycles, mut free) = (0.0, 0.0);
    for subgroup in subgroups {
        for &instruction in &subgroup.order {
            let site = &sites[instruction.0 as usize];
            if site.place == Place::Workgroup {
                let places: Vec<u32> = subgroup.places(instruction).collect();
                let (these, those) = bank_cycles(&places, site.bytes);
                cycles += these;
                free += those;
            }
        }
    }
    (cycles, free)
}

/// Returns each site that was accessed, by subgroups of 32, with the cycles of an access to workgroup memory for each without conflicts.
pub fn sites(trace: &Trace) -> Vec<(&Site, Requests, Option<f64>)> {
    let width = WIDTHS[0];
    let each = trace.sites.iter().enumerate().map(|(number, site)| {
        let (mut sum, mut cycles, mut free) = (Requests::default(), 0.0, 0.0);
        for group in &trace.groups {
            let mut subgroups: Vec<_> =
                group.chunks(width).map(|lanes| Instructions::new(trace.sites.len(), lanes, width)).collect();
            subgroups.iter_mut().for_each(|subgroup| subgroup.order.retain(|(site, ..)| *site as usize == number));
            let (these, those) = banks(&trace.sites, &subgroups);
            let requests = requests(&trace.sites, &subgroups);
            (cycles, free) = (cycles + these, free + those);
            sum.used += requests.used;
            sum.sectors += requests.sectors;
            sum.instructions += requests.instructions;
            sum.active += requests.active;
        }
        (site, sum, (site.place == Place::Workgroup).then(|| cycles / f64::max(free, 1.0)))
    });
    each.filter(|(_, sum, _)| sum.instructions > 0.0).collect()
}

/// Returns the bytes of buffers that a workgroup touches, by binding and whether it writes them.
fn ranges(sites: &[Site], lanes: &[Lane]) -> HashMap<(u32, bool), Vec<(u32, u32)>> {
    let mut all: HashMap<(u32, bool), Vec<(u32, u32)>> = HashMap::new();
    for &(site, at) in lanes.iter().flat_map(|lane| &lane.accesses) {
        let Some(site) = sites.get(site as usize) else { continue };
        let Place::Storage(binding) = site.place else { continue };
        let range = (at, at.saturating_add(site.bytes));
        for written in [false, true] {
            let is = if written { site.kind != Kind::Load } else { site.kind != Kind::Store };
            if is {
                all.entry((binding, written)).or_default().push(range);
            }
        }
    }
    all.values_mut().for_each(join);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_joined_and_counted_in_blocks() {
        let mut ranges = vec![(40, 44), (0, 4), (4, 8), (2, 6), (200, 204)];
        join(&mut ranges);
        assert_eq!(ranges, [(0, 8), (40, 44), (200, 204)]);
        assert_eq!((bytes(&ranges), blocks(&ranges, 32), blocks(&ranges, 128)), (16.0, 3.0, 2.0));
    }

    #[test]
    fn banks_serve_a_word_each() {
        let strided = |stride: u32| (0..32).map(|lane| lane * stride * 4).collect::<Vec<_>>();
        assert_eq!(bank_cycles(&strided(1), 4), (1.0, 1.0));
        assert_eq!(bank_cycles(&strided(2), 4), (2.0, 1.0));
        assert_eq!(bank_cycles(&strided(32), 4), (32.0, 1.0));
        assert_eq!(bank_cycles(&strided(33), 4), (1.0, 1.0));
        assert_eq!(bank_cycles(&strided(0), 4), (1.0, 1.0), "all read the same word");
        assert_eq!(bank_cycles(&strided(4), 16), (4.0, 4.0), "vectors of four words, one after the other");
    }

    #[test]
    fn a_cache_keeps_what_was_touched_last() {
        let mut cache = Cache::default();
        (0..CACHED as u32).for_each(|sector| cache.touch((0, sector), Kind::Load));
        cache.touch((0, 0), Kind::Load);
        assert_eq!(cache.moved, CACHED as f64);
        cache.touch((0, 9999), Kind::Store); // in the place of sector 1
        cache.touch((0, 0), Kind::Load);
        cache.touch((0, 1), Kind::Load);
        assert_eq!(cache.moved, CACHED as f64 + 1.0);
        assert_eq!(cache.end(), CACHED as f64 + 2.0);
    }
}
