//! `cards`: reports what a SIMT machine would do with kernels, and how long it would take by a model, without a
//! card.
//!
//! ```sh
//! eval "$(scripts/software-adapters.sh)"                      # lavapipe, where the kernels run
//! cargo run --release -p anygpu-cards                         # compares the kernels of `anygpu bench` with docs/cards.md
//! cargo run --release -p anygpu-cards -- --write              # writes the table
//! cargo run --release -p anygpu-cards -- --times              # prints the times as JSON, for scripts/on-a-gpu.sh
//! cargo run --release -p anygpu-cards -- --launches           # prints what runs: with the same lines, the table is the same
//! cargo run --release -p anygpu-cards -- --workload softmax   # prints the kernels of a workload, with each of their launches
//! cargo run --release -p anygpu-cards -- --kernel saxpy.wgsl --groups 1024 --buffers 262144,262144
//! ```
//!
//! Exit status: 0 if no kernel of the table is worse by more than 10 %; also 0, with a line that says SKIPPED, if
//! there is no software adapter of Vulkan. 1 otherwise, 2 for a wrong command line.
//!
//! `collect` runs the workloads, and the library tells it of their kernels. `instrument` makes a copy of a kernel
//! that notes its accesses, and `trace` runs it. `memory` computes what a machine would do with the accesses.
//! `roofline` has the cards and the model of the time, `table` the file, `user` the kernel of a file, and `known`
//! tests with kernels whose figures are known.

mod bench;
mod collect;
mod instrument;
#[cfg(test)]
mod known;
mod memory;
mod roofline;
mod table;
mod trace;
mod user;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anygpu::Device;
use clap::Parser;

use bench::Workload;
use collect::Kernel;
use roofline::CARDS;
use table::{Row, Table};

/// Reports what a SIMT machine would do with kernels, and how long it would take by a model, without a card.
///
/// Without options, compares the kernels of `anygpu bench` with docs/cards.md.
#[derive(Parser, Debug)]
struct Args {
    /// Write docs/cards.md
    #[arg(long, conflicts_with_all = ["workload", "kernel"])]
    write: bool,
    /// Print a line of JSON for each kernel of each workload: its launches, and their µs on each card
    #[arg(long, conflicts_with_all = ["write", "workload", "kernel"])]
    times: bool,
    /// Print a line for each kernel of each workload: its launches, and a number for its text, its params and its grid
    #[arg(long, conflicts_with_all = ["write", "times", "workload", "kernel"])]
    launches: bool,
    /// Print the kernels of these workloads, each with its launches; a list
    #[arg(long, value_enum, value_delimiter = ',', conflicts_with = "kernel")]
    workload: Vec<Workload>,
    /// Print what the kernel in this file does
    #[arg(long, value_name = "FILE", requires_all = ["groups", "buffers"])]
    kernel: Option<PathBuf>,
    /// The compute entry point of --kernel, if there are several
    #[arg(long, requires = "kernel")]
    entry: Option<String>,
    /// The workgroups of --kernel in x, or in x, y and z
    #[arg(long, requires = "kernel", value_name = "X[,Y[,Z]]", value_delimiter = ',')]
    groups: Vec<u32>,
    /// The sizes in bytes of the storage buffers of --kernel, in the order of their bindings. They are filled with
    /// zeros
    #[arg(long, requires = "kernel", value_name = "BYTES,…", value_delimiter = ',')]
    buffers: Vec<u64>,
    /// The words of the uniform of --kernel
    #[arg(long, requires = "kernel", value_name = "WORD,…", value_delimiter = ',')]
    params: Vec<u32>,
    /// The value of an override of --kernel; may be given several times
    #[arg(long = "override", requires = "kernel", value_name = "NAME=NUMBER", value_parser = user::constant)]
    overrides: Vec<(String, f64)>,
    /// The Vulkan adapter on which the copies of the kernels run (default: SwiftShader, which compiles them the
    /// fastest, or soft:0)
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
}

fn main() -> ExitCode {
    // Before anything opens a device.
    anygpu::interop::launches::choose_kernels_as_on_hardware();
    match run(&Args::parse()) {
        Ok(good) => ExitCode::from(u8::from(!good)),
        Err(error) => {
            eprintln!("cards: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the name of the default adapter: each copy runs once, so most of the time goes into compiling them.
fn default_adapter() -> String {
    let is_swiftshader =
        |device: &&Device| device.info().api == "Vulkan" && device.info().adapter.contains("SwiftShader");
    Device::all().iter().find(is_swiftshader).map_or("soft:0".to_owned(), Device::to_string)
}

/// Returns why the device cannot be used.
fn unsuitable(name: &str) -> Option<String> {
    match Device::new(name) {
        Ok(device) if device.info().api != "Vulkan" => Some(format!("{name} is no adapter of Vulkan")),
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    }
}

/// Returns whether all is well.
fn run(args: &Args) -> Result<bool, Box<dyn Error>> {
    let device = &args.device.clone().unwrap_or_else(default_adapter);
    if let Some(file) = &args.kernel {
        let lines = user::report(file, args, device)?;
        lines.iter().for_each(|line| println!("{line}"));
        return Ok(true);
    }
    if let Some(why) = unsuitable(device) {
        if args.write || args.times || args.launches || !args.workload.is_empty() {
            return Err(why.into());
        }
        println!("SKIPPED: {why}");
        return Ok(true);
    }
    if args.times {
        table::times(&collect::kernels(device, &[Workload::All], true)?).iter().for_each(|line| println!("{line}"));
        return Ok(true);
    }
    if args.launches {
        for kernel in collect::kernels(device, &[Workload::All], false)? {
            for (workload, launches) in &kernel.launches {
                println!("{workload}: {launches} × {} {:?} {:016x}", kernel.name, kernel.groups, kernel.identity);
            }
        }
        return Ok(true);
    }
    if !args.workload.is_empty() {
        collect::kernels(device, &args.workload, true)?.iter().for_each(print);
        return Ok(true);
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cards.md");
    let committed = if args.write { None } else { Some(Table::parse(&std::fs::read_to_string(&path)?)?) };
    let new = Table::new(&collect::kernels(device, &[Workload::All], true)?);
    let wrong = match committed {
        None => {
            std::fs::write(&path, new.to_string())?;
            Vec::new()
        }
        Some(old) => old.worse(&new),
    };
    println!("{} kernels, by {device}", new.len());
    wrong.iter().for_each(|line| println!("{line}"));
    Ok(wrong.is_empty())
}

/// Prints a launch of a kernel.
fn print(kernel: &Kernel) {
    let constants: Vec<String> = kernel.constants.iter().map(|(name, value)| format!(" {name}={value}")).collect();
    println!("{} ({}){}", kernel.name, kernel.op, constants.concat());
    for (workload, launches) in &kernel.launches {
        println!("    {launches} × in {workload}");
    }
    match &kernel.figures {
        Ok(figures) => explain(kernel.groups, figures).iter().for_each(|line| println!("{line}")),
        Err(why) => println!("    not traced: {why}"),
    }
}

/// Returns lines with all figures.
fn explain(groups: [u32; 3], figures: &memory::Figures) -> Vec<String> {
    let cells = Row::new(groups, figures).cells();
    let [_, _, groups, used, moved, again, lanes, banks, cards @ ..] = &cells[..] else { return Vec::new() };
    let bytes = |v: f64| if v < 1e6 { format!("{v:.0} bytes") } else { format!("{:.1} MB", v / 1e6) };
    let mut lines = vec![
        format!("    {groups} workgroups, {:.0} invocations, {:.3} GFLOP", figures.lanes, figures.flops / 1e9),
        format!("    of each sector that an instruction touches, it uses {used} % (subgroups of 32 / of 64)"),
        format!(
            "    must move {}, sectors {}, all workgroups {}: {moved} times as much, {again} % of it again",
            bytes(figures.least),
            bytes(figures.once),
            bytes(figures.traffic)
        ),
        format!("    lanes {lanes} %; {banks} cycles of banks for each without conflicts"),
    ];
    if figures.cut {
        lines.push("    the trace has a part of the accesses only".to_owned());
    }
    let times = CARDS.iter().zip(cards).map(|(card, cell)| format!("    {}: {cell}", card.name));
    lines.extend(times);
    lines
}
