//! `amd-kernels`: compiles every kernel of the crate with AMD's shader compiler (RADV's ACO), which needs no GPU,
//! and compares the result with `docs/amd-kernels.md`.
//!
//! ```sh
//! eval "$(scripts/software-adapters.sh)"                      # unpacks the driver, and sets ANYGPU_RADV
//! cargo run --release -p anygpu-amd                           # compares
//! cargo run --release -p anygpu-amd -- --write                # writes the table
//! cargo run --release -p anygpu-amd -- --show matmul_blocks   # machine code of the kernels with this in their names
//! ```
//!
//! Exit status: 0 if every kernel compiles without spilled registers and scratch memory, and no kernel of the table
//! is worse by more than 10 %; also 0, with a line that says SKIPPED, without the driver or with another version of
//! it than the table's. 1 otherwise, 2 for a wrong command line.
//!
//! `catalogue` has the kernels in SPIR-V, `radv` the driver, `assembly` reads machine code, `worker` runs the driver in
//! processes that may end at any kernel, and `table` is the file.

mod assembly;
mod catalogue;
mod compiled;
mod radv;
mod table;
mod worker;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use catalogue::Module;
use table::Table;
use worker::{NO_MATRICES, Results, Worker};

/// The chips: RDNA 3, RDNA 2 and GCN, in the order of the table's figures.
const CHIPS: [&str; 3] = ["navi31", "navi21", "vega20"];

/// Families of kernels that the table has; the others only have to compile without spills.
const IN_TABLE: [&str; 6] = ["matmul", "conv", "winograd", "reduce", "argmax", "softmax"];

enum Mode {
    Compare,
    Write,
    Show(String),
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mode = match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Mode::Compare,
        ["--write"] => Mode::Write,
        ["--show", name] => Mode::Show((*name).to_owned()),
        [worker::ARGUMENT] => return exit(worker::serve().map(|()| true)),
        _ => {
            eprintln!("usage: amd-kernels [--write | --show NAME]");
            return ExitCode::from(2);
        }
    };
    exit(run(&mode))
}

fn exit(result: Result<bool, Box<dyn Error>>) -> ExitCode {
    match result {
        Ok(good) => ExitCode::from(u8::from(!good)),
        Err(error) => {
            eprintln!("amd-kernels: {error}");
            ExitCode::FAILURE
        }
    }
}

fn is_in_table(module: &Module) -> bool {
    IN_TABLE.iter().any(|family| module.kernel.starts_with(family))
}

/// Returns whether all is well.
fn run(mode: &Mode) -> Result<bool, Box<dyn Error>> {
    let Some(manifest) = std::env::var_os("ANYGPU_RADV").filter(|path| !path.is_empty()).map(PathBuf::from) else {
        let why = "there is no RADV: ANYGPU_RADV, which scripts/software-adapters.sh prints, is not set";
        if !matches!(mode, Mode::Compare) {
            return Err(why.into());
        }
        println!("SKIPPED: {why}");
        return Ok(true);
    };
    let modules = catalogue::modules()?;
    if let Mode::Show(name) = mode {
        return show(&manifest, &modules, name);
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/amd-kernels.md");
    let driver = Worker::start(&manifest, CHIPS[0])?.driver.clone();
    let committed = match mode {
        Mode::Write => None,
        _ => Some(Table::parse(&std::fs::read_to_string(&path)?)?),
    };
    if let Some(table) = committed.as_ref().filter(|table| table.driver != driver) {
        println!("SKIPPED: the driver here is {driver}, and docs/amd-kernels.md was written with {}", table.driver);
        return Ok(true);
    }
    let results = worker::compile_all(&manifest, &CHIPS, &modules)?;
    let mut wrong = faults(&modules, &results);
    let new = Table::new(driver, &modules, &results, is_in_table);
    match committed {
        None if wrong.is_empty() => std::fs::write(&path, new.to_string())?,
        None => {}
        Some(old) => wrong.extend(old.worse(&new)),
    }
    println!("{} kernels, each for {}: {}", modules.len(), CHIPS.join(", "), new.driver);
    wrong.iter().for_each(|line| println!("{line}"));
    Ok(wrong.is_empty())
}

/// Returns a line for each kernel that does not compile, or does not fit in the registers of a chip.
fn faults(modules: &[Module], results: &Results) -> Vec<String> {
    let mut lines = Vec::new();
    for (chip, results) in CHIPS.iter().zip(results) {
        for (module, result) in modules.iter().zip(results) {
            match result {
                Ok(compiled) if compiled.spilled == 0 && compiled.scratch == 0 => {}
                Err(why) if why == NO_MATRICES => {}
                Ok(compiled) => lines.push(format!(
                    "{}, {chip}: {} registers spilled, {} bytes of scratch memory",
                    module.kernel, compiled.spilled, compiled.scratch
                )),
                Err(why) => lines.push(format!("{}, {chip}: does not compile: {why}", module.kernel)),
            }
        }
    }
    lines
}

/// Prints the machine code of the kernels with `name` in their names.
fn show(manifest: &Path, modules: &[Module], name: &str) -> Result<bool, Box<dyn Error>> {
    for chip in CHIPS {
        let mut worker = Worker::start(manifest, chip)?;
        for module in modules.iter().filter(|module| module.kernel.contains(name)) {
            println!("\n## {}, {chip}\n{}", module.kernel, worker.assembly(module)?);
        }
    }
    Ok(true)
}
