//! A model of the time of a kernel on cards, from their peaks. It was never compared with a card.
//!
//! A kernel takes as long as the slowest of these. Memory works at its peak. The nearest caches give a line in a
//! clock cycle to each unit, and take half a line from the cache that all share. Operations of floats run at their
//! peak, as if each invocation of a subgroup did as many as the busiest one. The memory of workgroups serves a word
//! of each bank in a cycle. If a grid has fewer invocations than it takes to keep memory, or the units, busy, it
//! gets the part of the peak that it fills. Memory moves each sector once, if the card's last cache holds all of
//! them; else again for each workgroup, in proportion to what it cannot hold.

use crate::memory::{Figures, LINE, WIDTHS};

/// Invocations that keep a unit busy: two subgroups of 32 for each of four schedulers.
const LANES_OF_UNIT: f64 = 256.0;

/// Seconds that an access to memory takes.
const LATENCY: f64 = 600e-9;

/// Bytes that an invocation waits for at a time.
const IN_FLIGHT: f64 = 16.0;

/// The time that WebGPU takes for a dispatch on various systems, in seconds, as published: 24 to 71 µs.
pub const LAUNCH: [f64; 2] = [24e-6, 71e-6];

/// A card, by its peaks.
#[derive(Debug)]
pub struct Card {
    /// The name.
    pub name: &'static str,
    /// Bytes of memory in a second.
    memory: f64,
    /// Operations of f32 in a second, two for a multiply-add.
    flops: f64,
    /// Compute units: CUs, Xe cores, cores, or SMs.
    units: f64,
    /// Clock cycles in a second.
    clock: f64,
    /// Bytes of the last cache.
    cache: f64,
    /// The place of its subgroups in [`WIDTHS`]: AMD's compiler takes 64 invocations for kernels, see docs/amd-kernels.md.
    width: usize,
}

/// The cards. Reviews and lists of specifications give these peaks of the RX 7900 XTX, the RTX 4060 and the H100
/// SXM, and the units, the clock and the cache of the Arc A770; its memory is the memory of the 16 GB model. The
/// Radeon 780M and the M2 were not looked up.
pub const CARDS: [Card; 6] = [
    card("RX 7900 XTX", [960.0, 61.4, 96.0, 2.5, 96.0], 1),
    card("Radeon 780M", [120.0, 8.3, 12.0, 2.7, 2.0], 1),
    card("Arc A770", [560.0, 17.2, 32.0, 2.1, 16.0], 0),
    card("Apple M2", [100.0, 3.6, 10.0, 1.4, 8.0], 0),
    card("RTX 4060", [272.0, 15.1, 24.0, 2.46, 24.0], 0),
    card("H100 SXM", [3350.0, 66.9, 132.0, 1.98, 50.0], 0),
];

/// Returns a card of so many GB/s, TFLOP/s, units, GHz and MiB.
const fn card(name: &'static str, [memory, flops, units, clock, cache]: [f64; 5], width: usize) -> Card {
    Card { name, memory: memory * 1e9, flops: flops * 1e12, units, clock: clock * 1e9, cache: cache * 1048576.0, width }
}

/// What limits a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Memory.
    Memory,
    /// The nearest caches.
    Cache,
    /// Operations of floats.
    Flops,
    /// The memory of workgroups.
    Workgroup,
}

impl Limit {
    /// Returns the letter of the table.
    pub fn letter(self) -> char {
        match self {
            Limit::Memory => 'M',
            Limit::Cache => 'C',
            Limit::Flops => 'F',
            Limit::Workgroup => 'W',
        }
    }
}

/// What the model says of a kernel on a card.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Seconds, without the launch.
    pub seconds: f64,
    /// The share of the roofline: the least time, of the bytes that must move and the operations, divided by the
    /// model's time.
    pub share: f64,
    /// What limits it.
    pub limit: Limit,
    /// The part of the card that the grid keeps busy, in what limits it.
    pub fill: f64,
}

impl Card {
    /// Returns the peaks, for the table.
    pub fn peaks(&self) -> String {
        let Card { memory, flops, units, clock, cache, width, .. } = self;
        let [memory, flops, clock, cache] = [memory / 1e9, flops / 1e12, clock / 1e9, cache / 1048576.0];
        format!("{memory} GB/s, {flops} TFLOP/s, {units} units at {clock} GHz, {cache} MiB, {} lanes", WIDTHS[*width])
    }

    /// Returns the time of a kernel.
    pub fn predict(&self, figures: &Figures) -> Prediction {
        let requests = &figures.requests[self.width];
        let cycles = self.units * self.clock;
        let missing = if figures.once > 0.0 { 1.0 - (self.cache / figures.once).min(1.0) } else { 0.0 };
        let moved = figures.once + (figures.traffic - figures.once).max(0.0) * missing;
        let cache = requests.lines.max(figures.traffic / f64::from(LINE / 2)) / cycles;
        let part = |lanes: f64| (figures.lanes.max(1.0) / lanes).min(1.0);
        let (memory, units) = (part(self.memory * LATENCY / IN_FLIGHT), part(self.units * LANES_OF_UNIT));
        let times = [
            (moved / self.memory, memory, Limit::Memory),
            (cache, units, Limit::Cache),
            (requests.flops / self.flops, units, Limit::Flops),
            (figures.cycles / cycles, units, Limit::Workgroup),
        ];
        let times = times.map(|(time, fill, limit)| (time / fill, fill, limit));
        let slower = |a: (f64, f64, Limit), b: (f64, f64, Limit)| if b.0 > a.0 { b } else { a };
        let (seconds, fill, limit) = times.into_iter().fold((0.0, 1.0, Limit::Memory), slower);
        let least = (figures.least / self.memory).max(figures.flops / self.flops);
        let share = if seconds > 0.0 { least / seconds } else { 1.0 };
        Prediction { seconds, share, limit, fill }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Requests;

    #[test]
    fn a_copy_is_at_the_roofline_and_a_small_one_is_not() {
        let bytes = 960e6;
        let requests = Requests { used: bytes, sectors: bytes / 32.0, lines: bytes / 128.0, ..Requests::default() };
        let copy = Figures {
            requests: [requests; 2],
            traffic: bytes,
            once: bytes,
            least: bytes,
            lanes: 120e6,
            ..Figures::default()
        };
        let predicted = CARDS[0].predict(&copy);
        assert!((predicted.seconds - 1e-3).abs() < 1e-9 && (predicted.share - 1.0).abs() < 1e-9, "{predicted:?}");
        assert_eq!((predicted.limit, predicted.fill), (Limit::Memory, 1.0));
        let small = CARDS[0].predict(&Figures { lanes: 18e3, ..copy });
        assert!((small.share - 0.5).abs() < 1e-9, "{small:?}");
    }

    #[test]
    fn conflicts_of_banks_can_be_the_limit() {
        let figures = Figures { cycles: 96.0 * 2.5e9, lanes: 1e6, least: 1.0, once: 1.0, ..Figures::default() };
        let predicted = CARDS[0].predict(&figures);
        assert_eq!(predicted.limit, Limit::Workgroup);
        assert!((predicted.seconds - 1.0).abs() < 1e-9);
    }
}
