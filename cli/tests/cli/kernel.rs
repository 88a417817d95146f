//! `anygpu kernel`: WGSL files on arrays of .npy files.

use std::path::Path;

use anygpu::testing::{adapter, adapters};

use crate::common::{anygpu, fails, json_lines, stderr, stdout};

const SOURCE: &str = "
override SIZE: u32 = 64;
struct Params { alpha: f32, shift: vec2<u32> }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@group(0) @binding(3) var<storage, read_write> count: atomic<u32>;

@compute @workgroup_size(SIZE)
fn saxpy(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= arrayLength(&y) { return; }
    y[id.x] = params.alpha * x[(id.x + params.shift.y) % arrayLength(&x)] + y[id.x];
    atomicAdd(&count, 1u);
}
";

/// Returns a .npy file of f32, as NumPy writes it.
fn npy(values: &[f32]) -> Vec<u8> {
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({},), }}", values.len());
    header.push_str(&" ".repeat(117 - header.len()));
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    bytes
}

/// Runs the command in a folder with the source and the arrays.
fn run(folder: &Path, args: &[&str]) -> std::process::Output {
    anygpu(args).current_dir(folder).output().expect("it starts")
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).expect("a file");
    write("saxpy.wgsl", SOURCE.as_bytes());
    write("x.npy", &npy(&[1.0, 2.0, 3.0]));
    write("start.npy", &npy(&[10.0, 20.0, 30.0]));
    folder
}

#[test]
fn a_file_runs_on_arrays_of_files() {
    let folder = folder();
    for device in adapters() {
        let mut args =
            vec!["kernel", "saxpy.wgsl", "--device", device.name(), "--in", "x.npy", "--inout", "y=start.npy"];
        args.extend(["--out", "count:u32:1", "--set", "alpha=2.5", "--set", "shift=0,1"]);
        args.extend(["--override", "SIZE=32", "--save", "y=sums.npy"]);
        let result = run(folder.path(), &args);
        assert!(result.status.success(), "{device}: {}", stderr(&result));
        assert!(stdout(&result).starts_with("y = tensor([15.0000, 27.5000, 32.5000]"), "{device}: {}", stdout(&result));
        assert!(stdout(&result).contains("count = tensor([3]"), "{device}: {}", stdout(&result));
        let written = std::fs::read(folder.path().join("sums.npy")).expect("the file");
        assert_eq!(written, npy(&[15.0, 27.5, 32.5]), "{device}");
        args.push("--json");
        let lines = json_lines(&run(folder.path(), &args));
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert_eq!((&lines[0]["name"], &lines[0]["dtype"]), (&"y".into(), &"f32".into()));
        assert_eq!(lines[0]["shape"], serde_json::json!([3]));
    }
}

#[test]
fn what_does_not_fit_is_an_error() {
    let folder = folder();
    let source = "@group(0) @binding(0) var<storage, read_write> y: array<f32>;
        @compute @workgroup_size(1) fn first() { y[0] = 1.0; }
        @compute @workgroup_size(1) fn second() { y[0] = 2.0; }";
    std::fs::write(folder.path().join("two.wgsl"), source).expect("a file");
    std::fs::write(folder.path().join("wrong.wgsl"), "\nfn f( {").expect("a file");
    std::fs::write(folder.path().join("wrong.npy"), b"no array").expect("a file");
    let check = |args: &[&str], status: i32, words: &[&str]| fails(&run(folder.path(), args), status, words);
    check(&["kernel", "two.wgsl", "--device", "cpu"], 2, &["need an adapter"]);
    let Some(device) = adapter() else { return };
    let on = |args: &[&'static str]| -> Vec<String> {
        ["kernel", "--device", device.name()].into_iter().chain(args.iter().copied()).map(str::to_owned).collect()
    };
    for (args, status, words) in [
        (on(&["two.wgsl", "--out", "y:f32:4"]), 2, &["[first, second]", "--entry"][..]),
        (on(&["two.wgsl", "--out", "y:f32:4", "--entry", "third"]), 1, &["third", "no such"]),
        (on(&["two.wgsl", "--out", "y:f64:4", "--entry", "first"]), 2, &["y:f64:4", "f32, i32 or u32"]),
        (on(&["two.wgsl", "--out", "y:f32:4x", "--entry", "first"]), 2, &["whole numbers with x"]),
        (on(&["two.wgsl", "--out", "z:f32:4", "--entry", "first"]), 1, &["'z'", "[y]"]),
        (on(&["two.wgsl", "--out", "y:f32:4", "--entry", "first", "--save", "z=z.npy"]), 2, &["--save z", "[y]"]),
        (on(&["two.wgsl", "--out", "y:f32:4", "--entry", "first", "--save", "y=y.txt"]), 2, &[".npy"]),
        (on(&["two.wgsl", "--out", "y:f32:4", "--entry", "first", "--set", "a=1"]), 1, &["no param 'a'"]),
        (on(&["two.wgsl", "--out", "y:f32:4", "--entry", "first", "--set", "a"]), 2, &["NAME=NUMBER"]),
        (on(&["two.wgsl", "--out", "y:f32:4", "--entry", "first", "--override", "N=2"]), 1, &["no override 'N'"]),
        (on(&["two.wgsl", "--inout", "y=wrong.npy", "--entry", "first"]), 1, &["wrong.npy", "not a .npy file"]),
        (on(&["two.wgsl", "--inout", "y=none.npy", "--entry", "first"]), 1, &["none.npy"]),
        (on(&["two.wgsl", "--out", "y:f32:4", "--entry", "first", "--dispatch", "1,1,1,1"]), 2, &["at most three"]),
        (on(&["saxpy.wgsl", "--in", "x.npy", "--inout", "y=x.npy", "--set", "alpha=1"]), 2, &["--set shift="]),
        (on(&["two.wgsl", "--out", "y:f32:4", "--entry", "first", "--folded"]), 1, &["num_workgroups"]),
        (
            on(&["two.wgsl", "--out", "y:f32:4", "--entry", "first", "--save", "y=a.npy", "--save", "y=b.npy"]),
            2,
            &["one file"],
        ),
        (on(&["saxpy.wgsl", "--set", "alpha=1", "--set", "alpha=2"]), 2, &["set twice"]),
        (on(&["two.wgsl", "--entry", "first"]), 2, &["the output 'y' is missing", "--out y:TYPE:SIZES"]),
        (on(&["saxpy.wgsl", "--in", "x.npy", "--set", "alpha=1", "--set", "shift=0,0"]), 2, &["is missing", "--out"]),
        (
            on(&["saxpy.wgsl", "--inout", "y=x.npy", "--out", "count:u32:1", "--set", "alpha=1", "--set", "shift=0,0"]),
            2,
            &["--in x=FILE"],
        ),
        (on(&["wrong.wgsl"]), 1, &["wrong.wgsl", "line 2"]),
        (on(&["none.wgsl"]), 1, &["none.wgsl"]),
    ] {
        check(&args.iter().map(|arg| &**arg).collect::<Vec<_>>(), status, words);
    }
}

/// A file that does not end is refused before it is read.
#[cfg(unix)]
#[test]
fn what_is_no_regular_file_is_refused() {
    let folder = folder();
    let pipe = folder.path().join("pipe.wgsl");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
    assert!(made.success());
    std::os::unix::fs::symlink("/dev/zero", folder.path().join("zero.npy")).expect("a link");
    let Some(device) = adapter() else { return };
    let kernel = |args: &[&str]| run(folder.path(), &[&["kernel", "--device", device.name()], args].concat());
    fails(&kernel(&["pipe.wgsl"]), 1, &["pipe.wgsl", "a named pipe"]);
    fails(&kernel(&["/dev/zero"]), 1, &["/dev/zero", "a device"]);
    fails(&kernel(&["."]), 1, &["a folder"]);
    fails(&kernel(&["saxpy.wgsl", "--in", "x=zero.npy", "--set", "alpha=1", "--set", "shift=0,0"]), 1, &["a device"]);
    let large = std::fs::File::create(folder.path().join("large.wgsl")).expect("a file");
    large.set_len(1 << 30).expect("a sparse file");
    fails(&kernel(&["large.wgsl"]), 1, &["large.wgsl", "longer than"]);
}

fn leaves_loops(device: &anygpu::Device) -> bool {
    let quirks = device.quirks().expect("a device that opens");
    quirks.iter().any(|quirk| matches!(quirk, anygpu::device::Quirk::LoopBudget { .. }))
}

#[test]
fn a_kernel_that_takes_too_long_is_ended() {
    let folder = folder();
    let endless = "@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@compute @workgroup_size(1)
fn spin() {
    // Some drivers leave a loop after 65535 iterations.
    for (var a = 0u; a < 65000u; a++) {
        for (var b = 0u; b < 65000u; b++) {
            for (var c = 0u; c < 65000u; c++) { y[0] = y[0] * 1664525u + 1013904223u + a + b; }
        }
    }
}";
    std::fs::write(folder.path().join("spin.wgsl"), endless).expect("a file");
    let spin = |device: &anygpu::Device, limit: &str| {
        let args = ["kernel", "spin.wgsl", "--out", "y:u32:2", "--device", device.name(), "--timeout", limit];
        run(folder.path(), &args)
    };
    // A driver that leaves loops early soon ends this one, with a warning.
    let (early, whole): (Vec<_>, Vec<_>) = adapters().into_iter().partition(leaves_loops);
    if let Some(device) = early.first() {
        let result = spin(device, "60");
        assert!(result.status.success(), "{}", stderr(&result));
        assert!(stderr(&result).contains("kernel spin: it has a loop"), "{}", stderr(&result));
    }
    let Some(device) = whole.first() else { return };
    let begin = std::time::Instant::now();
    let result = spin(device, "4");
    assert!(begin.elapsed().as_secs() < 60, "it was not ended");
    fails(&result, 1, &["--timeout", "4 s"]);
    fails(&spin(device, "0"), 2, &["--timeout", "seconds"]);
    let mut args = vec!["kernel", "saxpy.wgsl", "--device", device.name(), "--in", "x.npy", "--inout", "y=start.npy"];
    args.extend(["--out", "count:u32:1", "--set", "alpha=2.5", "--set", "shift=0,1", "--timeout", "300"]);
    let result = run(folder.path(), &args);
    assert!(result.status.success() && stdout(&result).contains("y = "), "{}", stderr(&result));
    args.push("--nothing");
    fails(&run(folder.path(), &args), 2, &["--nothing"]);
}
