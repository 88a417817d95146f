//! `anygpu kernel`: runs a WGSL kernel of a file once, on arrays of files.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anygpu::kernel::{Output, WgslKernel};
use anygpu::{DType, Device, Tensor, narrow_64_bits};
use serde::Serialize;

use crate::failure::Failure;
use crate::{devices, output, values};

/// Runs a WGSL kernel on arrays of .npy files.
///
/// Bindings, params and overrides are named as in the source. Inputs are the bindings var<storage, read>, and
/// outputs the bindings var<storage, read_write>. Prints the outputs, and writes the outputs of --save.
///
/// Example: anygpu kernel saxpy.wgsl --in x.npy --inout y.npy --set a=2.5 --save y=sum.npy
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The file with the WGSL source
    file: PathBuf,
    /// The compute entry point, if the source has several
    #[arg(long, value_name = "NAME")]
    entry: Option<String>,
    /// The elements of an input: a .npy file of float32, int32 or uint32 (float64 and int64 are converted). Without
    /// a name, the input has the name of the file. May be given several times
    #[arg(long = "in", value_name = "[NAME=]FILE")]
    inputs: Vec<String>,
    /// An output that starts as zeros: its name, type (f32, i32 or u32) and sizes, such as y:f32:1024 or
    /// m:f32:16x16; may be given several times
    #[arg(long = "out", value_name = "NAME:TYPE:SIZES")]
    outputs: Vec<String>,
    /// An output that starts with the elements of a .npy file, for kernels that read what they write; may be given several times
    #[arg(long = "inout", value_name = "[NAME=]FILE")]
    in_outs: Vec<String>,
    /// The file to which an output is written. Without a name, the output has the name of the file. May be given
    /// several times
    #[arg(long, value_name = "[NAME=]FILE")]
    save: Vec<String>,
    /// A member of the uniform: a number, or comma-separated numbers for vectors, arrays and matrices; may be given
    /// several times
    #[arg(long, value_name = "NAME=NUMBERS")]
    set: Vec<String>,
    /// The value of an override; may be given several times
    #[arg(long = "override", value_name = "NAME=NUMBER")]
    overrides: Vec<String>,
    /// Number of invocations in x, or in x, y and z with commas, rounded up to whole workgroups [default: one for
    /// each number of the first output]
    #[arg(long, value_name = "X[,Y[,Z]]", value_delimiter = ',', conflicts_with = "workgroups")]
    dispatch: Vec<usize>,
    /// Spread the invocations over y, for a kernel that computes its place from x and y together, id.x + id.y *
    /// count.x * SIZE, where count is num_workgroups: most adapters take at most 65535 workgroups in x
    #[arg(long, conflicts_with = "workgroups")]
    folded: bool,
    /// Number of workgroups in x, y and z, instead of --dispatch
    #[arg(long, value_name = "X[,Y[,Z]]", value_delimiter = ',')]
    workgroups: Vec<u32>,
    /// End the command with an error if it takes longer than this many seconds: a kernel may run for ever
    #[arg(long, value_name = "SECONDS", value_parser = values::seconds)]
    timeout: Option<Duration>,
    /// Set when the command starts itself, to be ended in time
    #[arg(long, hide = true)]
    timed: bool,
    /// The device, only one: auto is the first hardware GPU. On a machine without one, name a software adapter,
    /// such as soft:0
    #[arg(long, alias = "device", default_value = "auto", value_name = "NAME")]
    devices: String,
}

/// The longest source that is read.
const MOST_BYTES: u64 = 16 << 20;

/// An output, as `--json` prints it.
#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    dtype: String,
    shape: &'a [usize],
    /// The file that it was written to.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
}

/// Runs the command. `as_json`: a line for each output, without its elements.
///
/// # Errors
/// [`Failure::Usage`] for options that do not have their form; [`Failure::Run`] for a source, arrays or a dispatch
/// that do not fit. The message names them.
pub fn run(args: &Args, as_json: bool) -> Result<(), Failure> {
    if let Some(limit) = args.timeout.filter(|_| !args.timed) {
        return run_within(limit);
    }
    let inputs = files("--in", &args.inputs)?;
    let in_outs = files("--inout", &args.in_outs)?;
    let outputs: Vec<Empty> = args.outputs.iter().map(|text| Empty::parse(text)).collect::<Result<_, _>>()?;
    let saved = files("--save", &args.save)?;
    let sets = args.set.iter().map(|text| numbers("--set", text)).collect::<Result<Vec<_>, _>>()?;
    let overrides = args.overrides.iter().map(|text| one_number("--override", text)).collect::<Result<Vec<_>, _>>()?;
    let made: Vec<&str> =
        in_outs.iter().map(|(name, _)| *name).chain(outputs.iter().map(|output| output.name)).collect();
    let mut targets: Vec<(&str, PathBuf)> = Vec::new();
    for (name, path) in &saved {
        if !made.contains(name) {
            let known = made.join(", ");
            return Err(Failure::Usage(format!("--save {name}: there is no such output, they are [{known}]")));
        }
        let path = output::writable("--save", path, &["npy"])?;
        if targets.iter().any(|(other, file)| other == name || *file == path) {
            return Err(Failure::Usage(format!("--save {name}: each output has one file, and each file one output")));
        }
        targets.push((*name, path));
    }
    for (i, (name, _)) in sets.iter().enumerate() {
        if sets[..i].iter().any(|(other, _)| other == name) {
            return Err(Failure::Usage(format!("--set {name}: it is set twice")));
        }
    }
    let device = device(&args.devices)?;

    let path = args.file.display();
    let source = anygpu::read_text(&args.file, MOST_BYTES).map_err(|error| Failure::Run(format!("{path}: {error}")))?;
    let entry = match &args.entry {
        Some(entry) => entry.clone(),
        None => only_entry(&source, &args.file)?,
    };
    let kernel = WgslKernel::with_overrides(&source, &entry, &overrides)?;
    if let Some(name) = kernel.params().iter().find(|name| !sets.iter().any(|(set, _)| set == *name)) {
        return Err(Failure::Usage(format!("the param '{name}' has no value: use --set {name}=…")));
    }
    let read = |files: &[(&str, PathBuf)]| {
        let read = |(_, path): &(&str, PathBuf)| narrow_64_bits(|| Tensor::from_npy(path, &device));
        files.iter().map(read).collect::<anygpu::Result<Vec<Tensor>>>()
    };
    let (read_only, started) = (read(&inputs)?, read(&in_outs)?);
    // The launch tells of other names that are wrong.
    if made.iter().all(|name| kernel.outputs().contains(name))
        && let Some(name) = kernel.outputs().into_iter().find(|name| !made.contains(name))
    {
        let message = format!("the output '{name}' is missing: use --out {name}:TYPE:SIZES or --inout {name}=FILE");
        return Err(Failure::Usage(message));
    }
    let given: Vec<&str> = inputs.iter().map(|(name, _)| *name).collect();
    if given.iter().all(|name| kernel.inputs().contains(name))
        && let Some(name) = kernel.inputs().into_iter().find(|name| !given.contains(name))
    {
        return Err(Failure::Usage(format!("the input '{name}' is missing: use --in {name}=FILE")));
    }
    let mut launch = kernel.on(&device);
    for ((name, _), tensor) in inputs.iter().zip(&read_only) {
        launch = launch.input(name, tensor);
    }
    for ((name, _), tensor) in in_outs.iter().zip(&started) {
        launch = launch.output(name, Output::copy_of(tensor));
    }
    for output in &outputs {
        launch = launch.output(output.name, Output::zeros(output.shape.clone(), output.dtype));
    }
    for (name, values) in &sets {
        launch = match values {
            Numbers::Whole(values) => launch.set(name, &values[..]),
            Numbers::Float(values) => launch.set(name, &values[..]),
        };
    }
    let order = kernel.outputs();
    let results = if args.workgroups.is_empty() {
        let first = started.first().map(Tensor::elem_count).or(outputs.first().map(Empty::elem_count));
        let all = if args.dispatch.is_empty() { vec![first.unwrap_or(1)] } else { args.dispatch.clone() };
        match (args.folded, &all[..]) {
            (true, [n]) => launch.dispatch_folded(*n)?,
            (true, _) => return Err(Failure::Usage("--folded: give --dispatch one number".to_string())),
            (false, all) => launch.dispatch(three("--dispatch", all)?)?,
        }
    } else {
        launch.workgroups(three("--workgroups", &args.workgroups)?)?
    };
    for (name, tensor) in order.iter().zip(&results) {
        let target = targets.iter().find(|(saved, _)| saved == name).map(|(_, path)| path);
        if let Some(path) = target {
            tensor.save_npy(path)?;
        }
        let file = target.map(|path| path.display().to_string());
        if as_json {
            output::json(&Line { name, dtype: tensor.dtype().to_string(), shape: tensor.shape(), file })?;
        } else {
            output::line(format!("{name} = {tensor}"))?;
        }
    }
    Ok(())
}

/// Runs the command in a process of its own, which is ended if it takes too long. No driver ends a running kernel,
/// and a process with a running kernel does not end by itself.
fn run_within(limit: Duration) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::Run(format!("--timeout: the command cannot be started: {error}"));
    let begin = Instant::now();
    let mut child = Command::new(std::env::current_exe().map_err(failed)?)
        .args(std::env::args_os().skip(1))
        .arg("--timed")
        .spawn()
        .map_err(failed)?;
    loop {
        match child.try_wait().map_err(failed)? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => {
                // It has said why, unless a signal ended it.
                let code = status.code().and_then(|code| u8::try_from(code).ok());
                let ended = || Failure::Run(format!("the process of the kernel ended: {status}"));
                return Err(code.map_or_else(ended, Failure::Quiet));
            }
            None if begin.elapsed() < limit => std::thread::sleep(Duration::from_millis(5)),
            None => {
                let _ = (child.kill(), child.wait());
                let seconds = limit.as_secs_f64();
                return Err(Failure::Run(format!("it took longer than {seconds} s (--timeout), and was ended")));
            }
        }
    }
}

/// An output that starts as zeros.
struct Empty<'a> {
    name: &'a str,
    dtype: DType,
    shape: Vec<usize>,
}

impl<'a> Empty<'a> {
    fn parse(text: &'a str) -> Result<Empty<'a>, Failure> {
        let wrong = |detail: &str| Failure::Usage(format!("--out {text}: {detail}, as y:f32:1024 or m:u32:16x16"));
        let [name, dtype, sizes] = text.split(':').collect::<Vec<_>>()[..] else {
            return Err(wrong("write name, type and sizes with colons"));
        };
        let dtype = match dtype {
            "f32" => DType::F32,
            "i32" => DType::I32,
            "u32" => DType::U32,
            _ => return Err(wrong("the type is f32, i32 or u32")),
        };
        let shape = sizes
            .split('x')
            .map(str::parse)
            .collect::<Result<_, _>>()
            .map_err(|_| wrong("sizes are whole numbers with x"))?;
        Ok(Empty { name, dtype, shape })
    }

    fn elem_count(&self) -> usize {
        self.shape.iter().fold(1, |count, size| count.saturating_mul(*size))
    }
}

/// Returns the names and the files of an option. Without a name, the file's name is used.
fn files<'a>(option: &str, all: &'a [String]) -> Result<Vec<(&'a str, PathBuf)>, Failure> {
    let one = |text: &'a String| match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => Ok((name, PathBuf::from(path))),
        Some(_) => Err(Failure::Usage(format!("{option} {text}: write NAME=FILE"))),
        None => match Path::new(text).file_stem().and_then(|stem| stem.to_str()) {
            Some(stem) => Ok((stem, PathBuf::from(text))),
            None => Err(Failure::Usage(format!("{option} {text}: write NAME=FILE"))),
        },
    };
    all.iter().map(one).collect()
}

/// The numbers of a member of the uniform.
enum Numbers {
    Whole(Vec<i64>),
    Float(Vec<f64>),
}

fn numbers<'a>(option: &str, text: &'a str) -> Result<(&'a str, Numbers), Failure> {
    let wrong = || Failure::Usage(format!("{option} {text}: write NAME=NUMBER, or NAME=NUMBER,NUMBER,…"));
    let (name, values) = text.split_once('=').ok_or_else(wrong)?;
    let values: Vec<&str> = values.split(',').map(str::trim).collect();
    if let Ok(whole) = values.iter().map(|value| value.parse()).collect() {
        return Ok((name, Numbers::Whole(whole)));
    }
    let floats = values.iter().map(|value| value.parse()).collect::<Result<_, _>>().map_err(|_| wrong())?;
    Ok((name, Numbers::Float(floats)))
}

fn one_number<'a>(option: &str, text: &'a str) -> Result<(&'a str, f64), Failure> {
    let wrong = || Failure::Usage(format!("{option} {text}: write NAME=NUMBER"));
    let (name, value) = text.split_once('=').ok_or_else(wrong)?;
    let value = match value {
        "true" => 1.0,
        "false" => 0.0,
        number => number.parse().map_err(|_| wrong())?,
    };
    Ok((name, value))
}

/// Returns up to three sizes as three, filled up with 1.
fn three<T: Copy + From<u8>>(option: &str, sizes: &[T]) -> Result<[T; 3], Failure> {
    if sizes.len() > 3 {
        return Err(Failure::Usage(format!("{option}: at most three sizes, x, y and z")));
    }
    Ok([0, 1, 2].map(|i| sizes.get(i).copied().unwrap_or(T::from(1))))
}

/// Returns the entry point of a source that has one.
fn only_entry(source: &str, path: &Path) -> Result<String, Failure> {
    let points =
        WgslKernel::entry_points(source).map_err(|error| Failure::Run(format!("{}: {error}", path.display())))?;
    match &points[..] {
        [entry] => Ok(entry.clone()),
        [] => Err(Failure::Run(format!("{}: it has no @compute entry point", path.display()))),
        several => Err(Failure::Usage(format!(
            "{}: it has the entry points [{}]: name one with --entry",
            path.display(),
            several.join(", ")
        ))),
    }
}

/// Returns the adapter that a `--devices` value names.
fn device(spec: &str) -> Result<Device, Failure> {
    let selected = devices::select(spec)?;
    let adapters = || Device::all().iter().filter(|device| !device.is_cpu()).cloned().collect::<Vec<_>>();
    match &selected[..] {
        [device, others @ ..] if !device.is_cpu() && (others.is_empty() || spec.trim() == "auto") => Ok(device.clone()),
        [_] => {
            let all = adapters();
            let advice = match &all[..] {
                [] => "this machine has none".to_string(),
                _ => format!("name one with --devices: {}", devices::names(&all)),
            };
            Err(Failure::Usage(format!("WGSL kernels need an adapter, and cpu is not one: {advice}")))
        }
        _ => Err(Failure::Usage(format!("--devices {spec}: a kernel runs on one device: name one"))),
    }
}
