//! `anygpu`: list this machine's devices, check and measure them, train on any mix of them.
//!
//! One file or folder per command: `devices`, `check`, `train`, `predict`, `run`, `bench`, `tune`, `kernel`, `top`. Results go to standard output
//! (`output`), progress and logs to standard error (`progress`); `failure` has the exit statuses, `values` the parsers of
//! options.

mod bench;
mod check;
mod devices;
mod download;
mod failure;
mod kernel;
mod net;
mod output;
mod predict;
mod progress;
mod run;
mod top;
mod train;
mod tune;
mod values;

use std::process::ExitCode;

use anygpu::watch::StatusFile;
use clap::{Parser, Subcommand};

/// Tensors and training on any mix of GPUs of any vendor, software adapters and the CPU.
///
/// Exit status: 0 on success, 1 when the work failed, 2 for a wrong command line, 130 after Ctrl-C.
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
    Run(run::Args),
    Bench(bench::Args),
    Check(check::Args),
    Tune(tune::Args),
    Kernel(kernel::Args),
    Top(top::Args),
}

impl Command {
    /// Returns whether the command computes for long enough that `anygpu top` shows it.
    fn is_work(&self) -> bool {
        !matches!(self, Command::Devices(_) | Command::Top(_))
    }
}

fn main() -> ExitCode {
    silence_wayland();
    let cli = Cli::parse();
    // wgpu and naga log warnings that do not concern users, such as a missing windowing system. The library warns
    // of loops in WGSL kernels. The loops of `bench` are short, and their results are checked.
    let kernels = if matches!(cli.command, Command::Bench(_)) { "error" } else { "warn" };
    let quiet = format!("warn,anygpu::kernel={kernels},wgpu_core=error,wgpu_hal=error,naga=error");
    let log = env_logger::Env::default().default_filter_or(quiet);
    env_logger::Builder::from_env(log).init();
    let status = cli.command.is_work().then(|| StatusFile::publish(&title()));
    let result = match &cli.command {
        Command::Devices(args) => devices::run(args, cli.json),
        Command::Train(args) => train::run(args, cli.json),
        Command::Predict(args) => predict::run(args, cli.json),
        Command::Run(args) => run::run(args, cli.json),
        Command::Bench(args) => bench::run(args, cli.json),
        Command::Check(args) => check::run(args, cli.json),
        Command::Tune(args) => tune::run(args, cli.json),
        Command::Kernel(args) => kernel::run(args, cli.json),
        Command::Top(args) => top::run(args, cli.json),
    };
    drop(status);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Returns the command line, for `anygpu top`.
fn title() -> String {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    ["anygpu".to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}

/// Prevents two lines about XDG_RUNTIME_DIR on standard error.
///
/// Mesa's Vulkan layer `VK_LAYER_MESA_device_select` asks a Wayland server which card is the default one.
/// `libwayland-client` prints an error if XDG_RUNTIME_DIR is not an absolute path, as on most servers, and is silent if
/// no socket is there. No socket can lie below /dev/null, so nothing but the message changes.
fn silence_wayland() {
    let absolute = |name| std::env::var_os(name).is_some_and(|path| path.as_encoded_bytes().starts_with(b"/"));
    if cfg!(unix) && !absolute("XDG_RUNTIME_DIR") && !absolute("WAYLAND_DISPLAY") {
        #[expect(unsafe_code, reason = "the safe way is to start the program a second time with another environment")]
        // SAFETY: this is the first call of `main`: no other thread is there to read the environment.
        unsafe {
            std::env::set_var("XDG_RUNTIME_DIR", "/dev/null");
        }
    }
}
