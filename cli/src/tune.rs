//! `anygpu tune`: finds the fastest variants of kernels on this machine.

use anygpu::tune::{Choice, measure, store};
use serde::Serialize;

use crate::failure::Failure;
use crate::{devices, output, progress};

/// Measures the variants of the matrix product, and stores which is the fastest.
///
/// For each class of sizes, this prints the default variant, the fastest one, and how many times faster it is. The
/// choices are stored for the adapter, driver and version, in the user's cache folder, and used from then on. A
/// variant must still pass a trial before its first use. ANYGPU_TUNED=0 turns off the use of stored choices. It
/// takes some seconds on a GPU and up to a minute on a software adapter; nothing else should run meanwhile.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The devices: auto, all, or a list such as gpu:0,soft:1; may be given several times
    #[arg(long, alias = "device", default_value = "auto", value_name = "auto|all|LIST", value_delimiter = ',')]
    devices: Vec<String>,
    /// Measure and print, without storing anything
    #[arg(long)]
    dry_run: bool,
}

/// One class of sizes on one device, as `--json` prints it.
#[derive(Serialize)]
struct Line<'a> {
    device: &'a str,
    family: &'a str,
    class: &'a str,
    /// The sizes m, k and n.
    sizes: [usize; 3],
    default: &'a str,
    tuned: &'a str,
    default_seconds: f64,
    tuned_seconds: f64,
    /// How many times faster the tuned variant is.
    ratio: f64,
    /// Seconds of all variants.
    times: Vec<(&'a str, f64)>,
}

impl<'a> Line<'a> {
    fn new(device: &'a str, choice: &'a Choice) -> Self {
        let seconds = |name| choice.time(name).as_secs_f64();
        Line {
            device,
            family: choice.family,
            class: &choice.class,
            sizes: choice.sizes,
            default: choice.default,
            tuned: choice.tuned,
            default_seconds: seconds(choice.default),
            tuned_seconds: seconds(choice.tuned),
            ratio: choice.ratio(),
            times: choice.times.iter().map(|(name, time)| (*name, time.as_secs_f64())).collect(),
        }
    }
}

/// The last line of each device with `--json`.
#[derive(Serialize)]
struct Summary<'a> {
    device: &'a str,
    classes: usize,
    /// The largest `ratio`.
    largest_ratio: f64,
    /// The file that the choices are in; absent if nothing was stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
}

/// Runs the command. `as_json`: a line for each class, then a summary, for each device.
///
/// # Errors
/// [`Failure::Usage`] for an unknown device; [`Failure::Run`] if a device fails or its choices cannot be stored.
pub fn run(args: &Args, as_json: bool) -> Result<(), Failure> {
    for device in devices::select(&args.devices.join(","))? {
        let bar = progress::steps(device.name());
        let measured = measure(&device, |done, all| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
        });
        bar.finish_and_clear();
        let choices = measured?;
        let file = match args.dry_run || choices.is_empty() {
            true => None,
            false => Some(store(&device, &choices)?.display().to_string()),
        };
        let name = device.name();
        if as_json {
            choices.iter().try_for_each(|choice| output::json(&Line::new(name, choice)))?;
            let largest_ratio = choices.iter().map(Choice::ratio).fold(1.0, f64::max);
            output::json(&Summary { device: name, classes: choices.len(), largest_ratio, file })?;
        } else if choices.is_empty() {
            output::line(format!("{name}: it has no variants of kernels"))?;
        } else {
            let info = device.info();
            output::line(format!("{name} – {} through {}, {}", info.adapter, info.api, info.driver))?;
            output::line(table(&choices))?;
            output::line(match file {
                Some(file) => format!("stored in {file}\n"),
                None => "not stored: a dry run\n".to_string(),
            })?;
        }
    }
    Ok(())
}

fn table(choices: &[Choice]) -> comfy_table::Table {
    let mut table = output::table(&["class", "m × k × n", "default", "time", "tuned", "time", "ratio"]);
    for choice in choices {
        let time = |name| format!("{:.2} ms", 1e3 * choice.time(name).as_secs_f64());
        let [m, k, n] = choice.sizes;
        table.add_row([
            choice.class.clone(),
            format!("{m} × {k} × {n}"),
            choice.default.to_string(),
            time(choice.default),
            choice.tuned.to_string(),
            time(choice.tuned),
            format!("{:.2}", choice.ratio()),
        ]);
    }
    table
}
