//! `docs/cards.md`: what the model says of the kernels of `anygpu bench`, and the comparison with it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::collect::Kernel;
use crate::memory::{Figures, WIDTHS};
use crate::roofline::{CARDS, Card, LAUNCH, Prediction};

/// A figure may become worse by this part.
const ALLOWED: f64 = 0.1;

/// Rows with a smaller part of the time of their workload, in percent, are left out.
const LEAST_PART: f64 = 2.0;

/// A kernel that has no row in the file needs one from this part on: one may come and go at [`LEAST_PART`].
const NEEDED_PART: f64 = 5.0;

/// The card whose times choose the launch that stands for a kernel.
const REFERENCE: usize = 4;

const BEFORE: &str = "\
# What the kernels of `anygpu bench` would cost on six cards: a model

**This is a model. It was never compared with a card, because nothing has run on one.** It says how each kernel would use the
memory and the units of a card, and how long the kernel would take. It finds kernels that read memory badly or leave a card idle.

The page is written by `cargo run --release -p anygpu-cards -- --write`, which needs one software adapter of Vulkan. Without
`--write`, the command compares the kernels with this page, and fails if a figure of a kernel is worse by more than 10 %.

How it works: a copy of each kernel, which notes every access to memory, runs on the software adapter in up to 8 workgroups, which
are spread over the grid. These are the kernels that cards get, not the variants for software adapters. Neighbouring invocations
form a subgroup. Columns with two figures are for subgroups of 32 / of 64.

A row is a kernel in a workload. If a workload launches the kernel several times, the figures are those of the launch that loses the
most time compared with the roofline.

- **launches**: launches of the kernel in one run of the workload.
- **time %**: the part of the time of all kernels of the workload, on the RTX 4060. Kernels with less than 2 % have no row.
- **used %**: instructions access memory in sectors of 32 bytes. This is the part of the bytes of those sectors that the instruction
  uses: 12.5 % is one f32 in each sector. A value that all invocations read from one place counts once.
- **moved**: bytes that the workgroups move, each with a cache of 16 KiB, divided by the bytes that must be moved at least once.
- **again %**: the part of the moved bytes that other workgroups have moved too.
- **lanes %**: the part of a subgroup that takes part in an instruction that accesses memory.
- **banks**: cycles of an access to workgroup memory, of 32 banks, divided by the cycles that it takes without conflicts.
- **a card**: µs without the launch / % of the roofline, and a letter for the limit. The roofline is the least time that the
  bytes and the operations of the kernel take at the peaks of the card. Limits: M, memory; C, the nearest caches, which give each unit
  a line of 128 bytes in a cycle; F, floating-point operations; W, workgroup memory. A small letter says that the grid is too small to
  keep half of the card busy. A card is busy with 256 invocations for each unit or, where memory is the limit, with enough
  invocations to hide its latency: 16 bytes each for 600 ns.

The model has no integers, registers, special units, order of workgroups, or latencies within a workgroup.

";

/// What the model says of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Launches in one run of the workload.
    launches: u64,
    /// Their part of the time of the workload's kernels on the card of reference.
    part: f64,
    groups: String,
    used: [f64; 2],
    moved: f64,
    again: f64,
    lanes: [f64; 2],
    banks: f64,
    cards: Vec<Cell>,
}

/// What it says of a kernel on a card.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cell {
    micros: f64,
    share: f64,
    limit: char,
}

/// Returns a number with three digits.
fn short(v: f64) -> String {
    let digits = 2 - v.abs().max(1e-9).log10().floor() as i32;
    format!("{v:.0$}", digits.clamp(0, 2) as usize)
}

fn pair(values: [f64; 2]) -> String {
    values.map(short).join(" / ")
}

impl Cell {
    fn new(predicted: &Prediction) -> Cell {
        let letter = predicted.limit.letter();
        let limit = if predicted.fill < 0.5 { letter.to_ascii_lowercase() } else { letter };
        Cell { micros: predicted.seconds * 1e6, share: predicted.share * 100.0, limit }
    }

    fn parse(text: &str) -> Option<Cell> {
        let [micros, _, share, limit] = text.split(' ').collect::<Vec<_>>()[..] else { return None };
        Some(Cell { micros: micros.parse().ok()?, share: share.parse().ok()?, limit: limit.chars().next()? })
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} / {:.0} {}", short(self.micros), self.share, self.limit)
    }
}

impl Row {
    /// Returns the row of a launch.
    pub fn new(groups: [u32; 3], figures: &Figures) -> Row {
        let [x, y, z] = groups;
        let requests = figures.requests.iter().zip(WIDTHS);
        let both = |f: fn(&crate::memory::Requests, usize) -> f64| {
            let found: Vec<f64> = requests.clone().map(|(requests, width)| 100.0 * f(requests, width)).collect();
            [found[0], found[1]]
        };
        let again = if figures.traffic > 0.0 { (1.0 - figures.once / figures.traffic).max(0.0) } else { 0.0 };
        Row {
            launches: 1,
            part: 100.0,
            groups: if z > 1 {
                format!("{x} x {y} x {z}")
            } else if y > 1 {
                format!("{x} x {y}")
            } else {
                x.to_string()
            },
            used: both(|requests, _| requests.efficiency()),
            moved: figures.excess(),
            again: 100.0 * again,
            lanes: both(crate::memory::Requests::lanes),
            banks: figures.conflicts(),
            cards: CARDS.iter().map(|card| Cell::new(&card.predict(figures))).collect(),
        }
    }

    /// Returns the cells, without the names of the kernel and the workload.
    pub fn cells(&self) -> Vec<String> {
        let Row { launches, part, groups, used, moved, again, lanes, banks, cards } = self;
        let mut cells = vec![launches.to_string(), short(*part), groups.clone()];
        cells.extend([pair(*used), short(*moved), short(*again)]);
        cells.extend([pair(*lanes), short(*banks)]);
        cells.extend(cards.iter().map(Cell::to_string));
        cells
    }

    fn parse(cells: &[&str]) -> Option<Row> {
        let [launches, part, groups, used, moved, again, lanes, banks, cards @ ..] = cells else { return None };
        let pair = |text: &str| {
            let (a, b) = text.split_once(" / ")?;
            Some([a.parse().ok()?, b.parse().ok()?])
        };
        let cards: Vec<Cell> = cards.iter().map(|text| Cell::parse(text)).collect::<Option<_>>()?;
        (cards.len() == CARDS.len()).then_some(())?;
        Some(Row {
            launches: launches.parse().ok()?,
            part: part.parse().ok()?,
            groups: (*groups).to_owned(),
            used: pair(used)?,
            moved: moved.parse().ok()?,
            again: again.parse().ok()?,
            lanes: pair(lanes)?,
            banks: banks.parse().ok()?,
            cards,
        })
    }

    /// Returns the figures that must not become worse: the name, whether more is better, and the value.
    fn metrics(&self) -> Vec<(String, bool, f64)> {
        let mut all = vec![
            ("% of sectors used".to_owned(), true, self.used[0]),
            ("% of sectors used by subgroups of 64".to_owned(), true, self.used[1]),
            ("bytes moved for each that must be".to_owned(), false, self.moved),
            ("% of lanes".to_owned(), true, self.lanes[0]),
            ("cycles of banks".to_owned(), false, self.banks),
        ];
        let times = CARDS.iter().zip(&self.cards);
        all.extend(times.map(|(card, cell)| (format!("µs on {}", card.name), false, cell.micros)));
        all
    }
}

/// What the model says of all kernels.
#[derive(Default)]
pub struct Table {
    /// By the workload and the kernel.
    rows: BTreeMap<(String, String), Row>,
    /// The kernels that ran.
    kernels: BTreeSet<String>,
    /// A line for each kernel that cannot be traced.
    untraced: BTreeSet<String>,
    /// A line for each workload.
    workloads: Vec<String>,
}

/// Returns the seconds of launches on the card of reference.
fn time(launches: &[(&Kernel, u64)]) -> f64 {
    let traced = launches.iter().filter_map(|(kernel, count)| Some((kernel.figures.as_ref().ok()?, *count as f64)));
    traced.map(|(figures, count)| CARDS[REFERENCE].predict(figures).seconds * count).sum()
}

/// Returns the seconds that a launch takes beside the roofline, on the card of reference.
fn lost(figures: &Figures) -> f64 {
    let predicted = CARDS[REFERENCE].predict(figures);
    predicted.seconds * (1.0 - predicted.share)
}

impl Table {
    /// Returns the table of kernels.
    pub fn new(kernels: &[Kernel]) -> Table {
        let mut table = Table { workloads: workloads(kernels), ..Table::default() };
        let mut rows: BTreeMap<(&str, &str), Vec<(&Kernel, u64)>> = BTreeMap::new();
        for kernel in kernels {
            table.kernels.insert(kernel.name.clone());
            if let Err(why) = &kernel.figures {
                let why = why.lines().next().unwrap_or_default();
                table.untraced.insert(format!("- `{}`: {why}", kernel.name));
            }
            for (case, count) in &kernel.launches {
                let workload = case.split([' ', ',']).next().unwrap_or_default();
                rows.entry((workload, &kernel.name)).or_default().push((kernel, *count));
            }
        }
        let mut whole: BTreeMap<&str, f64> = BTreeMap::new();
        for ((workload, _), launches) in &rows {
            *whole.entry(workload).or_default() += time(launches);
        }
        for ((workload, name), launches) in &rows {
            let traced =
                launches.iter().filter_map(|(kernel, n)| Some((kernel.groups, kernel.figures.as_ref().ok()?, n)));
            let worst = traced.max_by(|(_, a, n), (_, b, m)| (lost(a) * **n as f64).total_cmp(&(lost(b) * **m as f64)));
            let part = 100.0 * time(launches) / whole.get(workload).copied().unwrap_or(1.0).max(1e-12);
            if let Some((groups, figures, _)) = worst.filter(|_| part >= LEAST_PART) {
                let launches = launches.iter().map(|(_, count)| count).sum();
                let row = Row { launches, part, ..Row::new(groups, figures) };
                table.rows.insert(((*workload).to_owned(), (*name).to_owned()), row);
            }
        }
        table
    }

    /// Reads the rows of the file.
    ///
    /// # Errors
    ///
    /// A message with the line that is not a row.
    pub fn parse(text: &str) -> Result<Table, String> {
        let mut table = Table::default();
        for line in text.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let wrong = || format!("docs/cards.md: not the figures of a kernel: {line}");
            let [kernel, workload, cells @ ..] = &cells[..] else { return Err(wrong()) };
            let row = Row::parse(cells).ok_or_else(wrong)?;
            table.rows.insert(((*workload).to_owned(), kernel.trim_matches('`').to_owned()), row);
        }
        Ok(table)
    }

    /// Returns the number of kernels.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns a line for each kernel that is worse in `new`, and for each that is not in both.
    pub fn worse(&self, new: &Table) -> Vec<String> {
        let mut lines = Vec::new();
        for (key, was) in &self.rows {
            let (workload, kernel) = key;
            let Some(is) = new.rows.get(key) else {
                if !new.kernels.contains(kernel) {
                    lines.push(format!("{kernel}: it is in docs/cards.md, and no workload runs it: run with --write"));
                }
                continue;
            };
            for ((metric, more_is_better, was), (_, _, is)) in was.metrics().into_iter().zip(is.metrics()) {
                // What the file has is rounded.
                let (is, rounding) = (short(is).parse().unwrap_or(is), 0.011);
                let worse = match more_is_better {
                    true => is < was * (1.0 - ALLOWED) - rounding,
                    false => is > was * (1.0 + ALLOWED) + rounding,
                };
                if worse {
                    let (was, is) = (short(was), short(is));
                    lines.push(format!("{kernel} in {workload}: {metric} was {was}, is {is}: worse by more than 10 %"));
                }
            }
        }
        let missing = new.rows.iter().filter(|(key, row)| !self.rows.contains_key(*key) && row.part >= NEEDED_PART);
        lines.extend(missing.map(|((workload, kernel), row)| {
            let part = short(row.part);
            format!("{kernel} in {workload}: it takes {part} % of it, and is not in docs/cards.md: run with --write")
        }));
        lines
    }
}

/// Returns a line of JSON for each kernel of each workload: its launches in one run, and their µs on each card,
/// without the time of launching. Launches that are not known count like the others of the kernel.
pub fn times(kernels: &[Kernel]) -> Vec<String> {
    let mut rows: BTreeMap<(&str, &str), Vec<(&Kernel, u64)>> = BTreeMap::new();
    for kernel in kernels {
        for (workload, count) in &kernel.launches {
            rows.entry((workload, &kernel.name)).or_default().push((kernel, *count));
        }
    }
    let line = |((workload, kernel), launches): ((&str, &str), Vec<(&Kernel, u64)>)| {
        let all: u64 = launches.iter().map(|(_, count)| count).sum();
        let known = launches.iter().filter_map(|(kernel, count)| Some((kernel.figures.as_ref().ok()?, *count)));
        let traced: u64 = known.clone().map(|(_, count)| count).sum();
        let micros = |card: &Card| {
            known.clone().map(|(figures, count)| card.predict(figures).seconds * 1e6 * count as f64).sum::<f64>()
                * all as f64
                / traced as f64
        };
        let cards = CARDS.iter().map(|card| format!(",\"{}\":{:.3}", card.name, micros(card))).collect::<String>();
        let names = format!("\"workload\":\"{workload}\",\"kernel\":\"{kernel}\"");
        (traced > 0).then(|| format!("{{{names},\"launches\":{all}{cards}}}"))
    };
    rows.into_iter().filter_map(line).collect()
}

/// Returns a line for each workload: launches, their time, and the time of its kernels on each card.
fn workloads(kernels: &[Kernel]) -> Vec<String> {
    let mut order: Vec<&str> = Vec::new();
    for name in kernels.iter().flat_map(|kernel| kernel.launches.keys()) {
        if !order.contains(&name.as_str()) {
            order.push(name);
        }
    }
    let line = |name: &&str| {
        let of = kernels.iter().filter_map(|kernel| Some((kernel, *kernel.launches.get(*name)? as f64)));
        let launches: f64 = of.clone().map(|(_, count)| count).sum();
        let [least, most] = LAUNCH.map(|seconds| short(launches * seconds * 1e3));
        let times = CARDS.iter().map(|card| {
            // Launches that are not known count like the others of their name.
            let traced = |name: &str| {
                let same = of.clone().filter(move |(kernel, _)| kernel.name == name);
                let known = same.filter_map(|(kernel, count)| Some((kernel.figures.as_ref().ok()?, count)));
                known.fold((0.0, 0.0), |(sum, all), (figures, count)| {
                    (sum + card.predict(figures).seconds * count, all + count)
                })
            };
            let time = |(kernel, count): (&Kernel, f64)| match &kernel.figures {
                Ok(figures) => card.predict(figures).seconds * count,
                Err(_) => {
                    let (sum, all) = traced(&kernel.name);
                    if all > 0.0 { sum / all * count } else { 0.0 }
                }
            };
            short(of.clone().map(time).sum::<f64>() * 1e3)
        });
        let times: Vec<String> = times.collect();
        format!("| {name} | {launches} | {least} to {most} | {} |", times.join(" | "))
    };
    order.iter().map(line).collect()
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cards: Vec<&str> = CARDS.iter().map(|card| card.name).collect();
        let rule = |columns: usize| format!("|{}", "---|".repeat(columns));
        f.write_str(BEFORE)?;
        let peaks: Vec<String> = CARDS.iter().map(|card| format!("{}: {}", card.name, card.peaks())).collect();
        writeln!(f, "The peaks, with the last cache and the subgroup: {}.\n", peaks.join("; "))?;
        writeln!(
            f,
            "| kernel | of | launches | time % | workgroups | used % | moved | again % | lanes % | banks | {} |",
            cards.join(" | ")
        )?;
        writeln!(f, "{}", rule(10 + cards.len()))?;
        for ((workload, kernel), row) in &self.rows {
            writeln!(f, "| `{kernel}` | {workload} | {} |", row.cells().join(" | "))?;
        }
        let [least, most] = LAUNCH.map(|seconds| seconds * 1e6);
        writeln!(f, "\n## Workloads\n")?;
        writeln!(
            f,
            "Milliseconds of one run: its launches, at the {least:.0} to {most:.0} µs per launch that were published for WebGPU, and its kernels,"
        )?;
        writeln!(f, "by the model. Launches and kernels overlap: a run takes the longer of the two.\n")?;
        writeln!(f, "| workload | launches | ms of launches | {} |\n{}", cards.join(" | "), rule(3 + cards.len()))?;
        self.workloads.iter().try_for_each(|line| writeln!(f, "{line}"))?;
        f.write_str(BELOW)?;
        if !self.untraced.is_empty() {
            writeln!(f, "\n## Not traced\n")?;
            self.untraced.iter().try_for_each(|line| writeln!(f, "{line}"))?;
        }
        Ok(())
    }
}

/// What limits the kernels that are below the aims.
const BELOW: &str = "
## Below the aims

The aims are *moved* of at most 1.25, *lanes* of at least 75 %, and 60 % of the roofline on each card. These kernels are below:

- Products, convolutions and attention, in tiles: *moved* is 1.4 to 24, because workgroups read data that other workgroups have read.
  Most of it comes from the last cache. Where the grid is large enough, workgroup memory (W) is the limit: 16 multiply-adds per load.
- Large products and convolutions on the Radeon 780M: its last cache of 2 MiB does not hold their panels. Tiles of 128 x 128 would
  halve the traffic. They are used for grids that fill a large card, and WebGPU does not say how many units a card has.
- Grids that are too small for the card (a small letter): gradients of small weights, the last layers of LeNet, and products of 1024
  tokens on an H100. They would need sums in parts and one more launch, which takes longer than it would save by this model.
- *lanes* of `softmax_rows` with rows of 1000: 250 vectors keep 64 invocations busy for four turns, the last of them in part, and few
  invocations take part in the sums over the workgroup. Memory is the limit.
- *lanes* of `norm_merge`, `reduce_rows` and `fused`: they work on a few numbers, and their launch takes longer than they do.
- `pack` of small operands, `copy.strided`, and `reduce` of a few workgroups: less than 3 µs each; a launch takes longer.
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Requests;

    fn table(sectors: f64) -> Table {
        Table::new(&[kernel(sectors)])
    }

    fn kernel(sectors: f64) -> Kernel {
        let requests = Requests { used: 3.2e7, sectors, lines: sectors, instructions: 1e6, active: 3.2e7, flops: 0.0 };
        let bytes = sectors * 32.0;
        let figures = Figures {
            requests: [requests; 2],
            traffic: bytes,
            once: bytes,
            least: 3.2e7,
            lanes: 1e7,
            ..Figures::default()
        };
        let launches = [("copy 4x4".to_owned(), 2)].into();
        let (name, op, groups) = ("k.copy".to_owned(), "copy".to_owned(), [7, 2, 1]);
        Kernel { name, op, constants: Vec::new(), groups, identity: 0, launches, figures: Ok(figures) }
    }

    #[test]
    fn the_file_is_read_as_it_was_written() {
        let text = table(1e6).to_string();
        let read = Table::parse(&text).expect("a table");
        assert_eq!(read.rows.keys().collect::<Vec<_>>(), [&("copy".to_owned(), "k.copy".to_owned())]);
        assert!(
            text.contains("| `k.copy` | copy | 2 | 100 | 7 x 2 | 100 / 100 | 1.00 | 0.00 | 100 / 50.0 | 1.00 | "),
            "{text}"
        );
        assert_eq!(read.worse(&table(1e6)), Vec::<String>::new());
        assert!(Table::parse("| `k` | 1 |").is_err());
    }

    #[test]
    fn times_are_those_of_all_launches() {
        let further = Kernel { figures: Err("further".to_owned()), ..kernel(1e6) };
        let lines = times(&[kernel(1e6), further.clone()]);
        // 32 MB at 272 GB/s, four times, of which two are not known.
        let expected = r#"{"workload":"copy 4x4","kernel":"k.copy","launches":4,"#;
        assert!(lines[0].starts_with(expected) && lines[0].contains(r#","RTX 4060":470.588,"#), "{lines:?}");
        assert_eq!((lines.len(), times(&[further])), (1, Vec::new()));
    }

    #[test]
    fn what_is_worse_by_more_than_a_tenth_is_told() {
        assert_eq!(table(1e6).worse(&table(1.09e6)), Vec::<String>::new());
        let lines = table(1e6).worse(&table(1.2e6));
        assert!(
            lines
                .iter()
                .any(|line| line.starts_with("k.copy in copy: bytes moved for each that must be was 1.00, is 1.20"))
        );
        assert!(lines.iter().any(|line| line.contains("µs on Apple M2")), "{lines:?}");
        assert_eq!(table(1.2e6).worse(&table(1e6)), Vec::<String>::new());
        assert_eq!((Table::default().worse(&table(1.0)).len(), table(1.0).worse(&Table::default()).len()), (1, 1));
    }

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!(
            [0.0, 0.012, 1.0, 12.345, 99.96, 1234.0].map(short),
            ["0.00", "0.01", "1.00", "12.3", "100.0", "1234"]
        );
    }
}
