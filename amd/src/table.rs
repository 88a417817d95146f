//! `docs/amd-kernels.md`: the compiler's figures for each kernel that matters most, and the comparison with it.

use std::collections::BTreeMap;
use std::fmt;

use crate::CHIPS;
use crate::catalogue::Module;
use crate::compiled::{Compiled, Mix};
use crate::worker::{NO_MATRICES, Results};

/// A figure may become worse by this part.
const ALLOWED: f64 = 0.1;

const BEFORE: &str = "\
# The kernels as compiled for AMD's chips

This page has the figures of the machine code that Mesa's compiler for AMD, ACO, makes of the kernels. It is written by
`cargo run --release -p anygpu-amd -- --write`, which needs no GPU. Nothing has run on these chips. `.ci/run` compiles all kernels
again, and fails if a kernel spills registers or if a figure of this page is worse by more than 10 %.

The figures of a cell are for ";
const COLUMNS: &str = "
- **kernel**: its name, entry point, element type and constants.
- **lanes**: invocations of a subgroup.
- **subgroups**: how many of them a SIMD runs at the same time, as the driver counts them. On navi31 and navi21 a subgroup of 64
  lanes counts as two.
- **hottest block**: instructions of the basic block that has the most multiply-adds within the innermost loops. The columns after it
  are for this block: multiply-adds, and their part of its instructions in %; loads from workgroup memory (LDS) and stores to it;
  loads of any size from buffers.

Kernels with one figure in a cell use cooperative matrices, which only the first chip has. An instruction that multiplies matrices
(`v_wmma`) counts as one multiply-add there.

| kernel | lanes | VGPRs | subgroups | instructions | hottest block | multiply-adds | % | LDS loads | multiply-adds per LDS load | LDS stores | memory loads |
|---|---|---|---|---|---|---|---|---|---|---|---|
";
const DRIVER: &str = "The driver: `";
const BETWEEN: &str = " / ";

/// What the compiler made of kernels.
pub struct Table {
    pub driver: String,
    rows: BTreeMap<String, Vec<Compiled>>,
}

impl Table {
    /// Returns the table of the kernels that are `wanted` and compile for every chip. Kernels with cooperative
    /// matrices are for the first chips only.
    pub fn new(driver: String, modules: &[Module], results: &Results, wanted: impl Fn(&Module) -> bool) -> Table {
        let mut rows = BTreeMap::new();
        for (at, module) in modules.iter().enumerate().filter(|(_, module)| wanted(module)) {
            let has =
                |chip: &&Vec<Result<Compiled, String>>| !matches!(chip.get(at), Some(Err(why)) if why == NO_MATRICES);
            let figures = |chip: &Vec<Result<Compiled, String>>| chip.get(at)?.as_ref().ok().copied();
            let chips: Option<Vec<Compiled>> = results.iter().take_while(has).map(figures).collect();
            rows.extend(chips.filter(|chips| !chips.is_empty()).map(|chips| (module.kernel.clone(), chips)));
        }
        Table { driver, rows }
    }

    /// Reads the file.
    pub fn parse(text: &str) -> Result<Table, String> {
        let (_, rest) = text.split_once(DRIVER).ok_or("docs/amd-kernels.md does not name its driver")?;
        let (driver, rest) = rest.split_once('`').ok_or("the driver's name does not end")?;
        let mut rows = BTreeMap::new();
        for line in rest.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<&str> =
                line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect();
            let [kernel, figures @ ..] = &cells[..] else { return Err(format!("no kernel: {line}")) };
            rows.insert(
                (*kernel).to_owned(),
                chips(figures).ok_or_else(|| format!("not the figures of a kernel: {line}"))?,
            );
        }
        Ok(Table { driver: driver.to_owned(), rows })
    }

    /// Returns a line for each kernel that is worse in `new`, and for each that is not in both.
    pub fn worse(&self, new: &Table) -> Vec<String> {
        let mut lines = Vec::new();
        for (kernel, was) in &self.rows {
            let Some(is) = new.rows.get(kernel) else {
                lines.push(format!("{kernel}: it is in docs/amd-kernels.md, and is no kernel: run with --write"));
                continue;
            };
            for ((chip, was), is) in CHIPS.iter().zip(was).zip(is) {
                for ((metric, more_is_better, was), (_, _, is)) in metrics(was).into_iter().zip(metrics(is)) {
                    let worse = if more_is_better { is < was * (1.0 - ALLOWED) } else { is > was * (1.0 + ALLOWED) };
                    if worse {
                        lines.push(format!(
                            "{kernel}, {chip}: {metric} was {}, is {}: worse by more than 10 %",
                            rounded(was),
                            rounded(is)
                        ));
                    }
                }
            }
        }
        let missing = new.rows.keys().filter(|kernel| !self.rows.contains_key(*kernel));
        lines.extend(missing.map(|kernel| format!("{kernel}: it is not in docs/amd-kernels.md: run with --write")));
        lines
    }
}

/// The figures that must not become worse: the name, whether more of it is better, and the value.
fn metrics(compiled: &Compiled) -> [(&'static str, bool, f64); 5] {
    [
        ("VGPRs", false, compiled.vgprs as f64),
        ("subgroups", true, compiled.subgroups as f64),
        ("instructions", false, compiled.instructions as f64),
        ("share of multiply-adds", true, compiled.hottest.share()),
        ("multiply-adds per LDS load", true, compiled.hottest.reuse()),
    ]
}

/// Returns a figure with at most three decimals.
fn rounded(figure: f64) -> f64 {
    (figure * 1000.0).round() / 1000.0
}

/// Returns the cells of a chip, in the order of the columns.
fn cells(compiled: &Compiled) -> [String; 11] {
    let Compiled { lanes, vgprs, subgroups, instructions, hottest, .. } = *compiled;
    let whole = [lanes, vgprs, subgroups, instructions].map(|number| number.to_string());
    let Mix { instructions: block, multiply_adds, lds_loads, lds_stores, memory_loads } = hottest;
    let [lanes, vgprs, subgroups, instructions] = whole;
    let share = format!("{:.0}", hottest.share() * 100.0);
    let reuse = Some(hottest.reuse()).filter(|reuse| *reuse > 0.0 && reuse.is_finite());
    let reuse = reuse.map_or("–".to_owned(), |reuse| format!("{reuse:.1}"));
    let [block, adds, loads, stores, memory] =
        [block, multiply_adds, lds_loads, lds_stores, memory_loads].map(|number| number.to_string());
    [lanes, vgprs, subgroups, instructions, block, adds, share, loads, reuse, stores, memory]
}

/// Reads the cells of a kernel. The share and the multiply-adds per load are computed again.
fn chips(figures: &[&str]) -> Option<Vec<Compiled>> {
    let columns: Vec<Vec<&str>> = figures.iter().map(|cell| cell.split(BETWEEN).collect()).collect();
    let chip = |at: usize| {
        let number = |column: usize| columns.get(column)?.get(at)?.parse().ok();
        let hottest = Mix {
            instructions: number(4)?,
            multiply_adds: number(5)?,
            lds_loads: number(7)?,
            lds_stores: number(9)?,
            memory_loads: number(10)?,
        };
        let (lanes, vgprs, subgroups, instructions) = (number(0)?, number(1)?, number(2)?, number(3)?);
        Some(Compiled { lanes, vgprs, subgroups, instructions, hottest, ..Compiled::default() })
    };
    (0..columns.first()?.len()).map(chip).collect()
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{BEFORE}{}. {DRIVER}{}`.\n{COLUMNS}", CHIPS.join(BETWEEN), self.driver)?;
        for (kernel, chips) in &self.rows {
            let chips: Vec<[String; 11]> = chips.iter().map(cells).collect();
            write!(f, "| `{kernel}` |")?;
            for column in 0..11 {
                let figures: Vec<&str> = chips.iter().map(|cells| cells[column].as_str()).collect();
                write!(f, " {} |", figures.join(BETWEEN))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(vgprs: u64, lds_loads: u64) -> Table {
        let hottest = Mix { instructions: 100, multiply_adds: 64, lds_loads, lds_stores: 1, memory_loads: 2 };
        let compiled = Compiled { lanes: 64, vgprs, subgroups: 8, instructions: 500, hottest, ..Compiled::default() };
        Table { driver: "radv Mesa 1".to_owned(), rows: [("k A=1".to_owned(), vec![compiled; 3])].into() }
    }

    #[test]
    fn the_file_is_read_as_it_was_written() {
        let read = Table::parse(&table(100, 4).to_string()).expect("a table");
        assert_eq!(read.driver, "radv Mesa 1");
        assert_eq!(read.rows, table(100, 4).rows);
        assert!(Table::parse("nothing").is_err());
    }

    #[test]
    fn what_is_worse_by_more_than_a_tenth_is_told() {
        let old = table(100, 4);
        assert_eq!(old.worse(&table(110, 4)), Vec::<String>::new());
        let lines = old.worse(&table(111, 4));
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[1].starts_with("k A=1, navi21: VGPRs was 100, is 111:"), "{lines:?}");
        assert!(old.worse(&table(90, 5))[0].contains("multiply-adds per LDS load was 16"));
        // A load where there was none.
        assert_eq!(table(100, 0).worse(&old).len(), 3);
        let none = Table { driver: String::new(), rows: BTreeMap::new() };
        assert_eq!((old.worse(&none).len(), none.worse(&old).len()), (1, 1));
    }
}
