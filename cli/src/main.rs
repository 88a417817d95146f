//! `anygpu`: list this machine's devices, check and measure them, train on any mix of them.
//!
//! One file or folder per command: `devices`, `check`, `train`, `predict`, `bench`. Results go to standard output
//! (`output`), progress and logs to standard error (`progress`); `failure` has the exit statuses.

mod bench;
mod check;
mod devices;
mod download;
mod failure;
mod net;
mod output;
mod predict;
mod progress;
mod train;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Tensors and training on any mix of GPUs of any vendor, software adapters and the CPU.
///
/// Exit status: 0 on success, 1 when the work failed, 2 for a wrong command line.
/// RUST_LOG sets what is logged to standard error, for instance RUST_LOG=anygpu=debug.
/// ANYGPU_VISIBLE_DEVICES=gpu:1,cpu hides all other devices.
#[derive(Parser, Debug)]
#[command(name = "anygpu", version)]
struct Cli {
    /// Write JSON lines to standard output, for scripts
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Devices(devices::Args),
    Train(train::Args),
    Predict(predict::Args),
    Bench(bench::Args),
    Check(check::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    // wgpu and naga log warnings that do not concern users, such as a missing windowing system.
    let log = env_logger::Env::default().default_filter_or("warn,wgpu_core=error,wgpu_hal=error,naga=error");
    env_logger::Builder::from_env(log).init();
    let result = match &cli.command {
        Command::Devices(args) => devices::run(args, cli.json),
        Command::Train(args) => train::run(args, cli.json),
        Command::Predict(args) => predict::run(args, cli.json),
        Command::Bench(args) => bench::run(args, cli.json),
        Command::Check(args) => check::run(args, cli.json),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
