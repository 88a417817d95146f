//! The fuzz targets on a stable toolchain: for some seconds, each target runs on the committed corpus and on mutations of it
//! (`fuzz/README.md`). A target must not panic, and its memory and time are bounded for every input.
//!
//! - `ANYGPU_FUZZ_SECONDS`: how long, over all targets; the default is 5, or any time if there is a count.
//! - `ANYGPU_FUZZ_COUNT`: a target ends after so many inputs, if there is time for them.
//! - `ANYGPU_FUZZ_SEED`: which mutations. Input i of a target depends on the seed, the target and i alone.
//! - `ANYGPU_FUZZ_TARGET`: one target only.
//! - `ANYGPU_FUZZ_INPUT`: a file to run instead, in the target that its name begins with.

#[path = "../common/counting.rs"]
mod counting;
mod mutate;
mod targets;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use mutate::Mutator;
use targets::{TARGETS, Target};

/// Beyond this, an input is a failure. Machines that run tests are busy.
const MOST_TIME: Duration = Duration::from_secs(10);

/// Beyond this, the process is ended, since an input hangs.
const HANGING: Duration = Duration::from_secs(120);

/// The input that runs, and since when.
static RUNNING: Mutex<Option<(PathBuf, Instant)>> = Mutex::new(None);

fn running(now: Option<(PathBuf, Instant)>) {
    *RUNNING.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = now;
}

fn variable<T: std::str::FromStr>(name: &str, default: T) -> T {
    match std::env::var(name) {
        Ok(text) => text.trim().parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}

/// Ends the process where an input hangs, and says which: the panic of another thread would not.
fn watch() {
    std::thread::spawn(|| {
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let running = RUNNING.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
            if let Some((path, since)) = running
                && since.elapsed() > HANGING
            {
                eprintln!("{} has been running for {:?}: it hangs", path.display(), since.elapsed());
                std::process::abort();
            }
        }
    });
}

/// What is wrong with how a target runs on an input.
fn fault(target: &Target, input: &[u8]) -> Option<String> {
    let run = || catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    let (result, time, memory) = counting::measured(|| counting::with_host(target.host, run));
    if let Err(panic) = result {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        return Some(text.to_string());
    }
    let most = target.memory + 16 * input.len();
    if memory > most {
        return Some(format!("{memory} bytes of memory, {most} allowed"));
    }
    (time > MOST_TIME).then(|| format!("{time:?}, {MOST_TIME:?} allowed"))
}

fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz");
    fs::create_dir_all(&folder).expect("the folder of the build's temporary files");
    folder
}

/// The committed inputs of a target, in the order of their names.
fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target.name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    let corpus: Vec<_> = paths.iter().map(|path| fs::read(path).expect("a file")).collect();
    assert!(!corpus.is_empty(), "{} is empty", folder.display());
    corpus
}

/// Runs a target for a while. Returns what is wrong with the inputs that fail, and where they were written.
fn run(target: &Target, seed: u64, time: Duration) -> (usize, Vec<String>) {
    let corpus = corpus(target);
    let current = folder().join(format!("{}-running", target.name));
    let most = variable("ANYGPU_FUZZ_COUNT", usize::MAX);
    let (start, mut count, mut faults) = (Instant::now(), 0, Vec::<String>::new());
    // The corpus is run whole, however little time there is.
    while count < corpus.len() || (count < most && start.elapsed() < time && faults.len() < 10) {
        let input = match corpus.get(count) {
            Some(input) => input.clone(),
            None => Mutator::new(seed, target.name, count).input(&corpus, target.longest),
        };
        // Where the process is ended by a signal, this is the input.
        targets::write(&current, &input);
        running(Some((current.clone(), Instant::now())));
        let fault = fault(target, &input);
        running(None);
        if let Some(fault) = fault {
            let path = folder().join(format!("{}-{seed}-{count}", target.name));
            fs::write(&path, &input).expect("a file");
            faults.push(format!("{}: {fault}", path.display()));
        }
        count += 1;
    }
    let _ = fs::remove_file(current);
    (count, faults)
}

/// Faults are seen: a panic, memory, and none where there is none.
fn check_the_driver() {
    let of = |run: fn(&[u8])| Target {
        name: "driver",
        run,
        prepare: || (),
        memory: 1 << 20,
        host: 8 << 20,
        longest: 16,
        share: 1,
    };
    assert_eq!(fault(&of(|_| ()), b"x"), None);
    let panic = fault(&of(|input| assert_eq!(input, b"y", "not y")), b"x");
    assert!(panic.is_some_and(|text| text.contains("not y")));
    let memory = fault(&of(|input| drop(std::hint::black_box(vec![input[0]; 3 << 20]))), b"x");
    // The test's own threads may allocate meanwhile, so the number is not known to the byte.
    assert!(memory.is_some_and(|text| text.contains(" bytes of memory, 1048592 allowed")));
    assert_eq!(fault(&of(|_| assert!(Vec::<u8>::new().try_reserve(16 << 20).is_err())), b"x"), None);
    assert!(Vec::<u8>::new().try_reserve(16 << 20).is_ok());
}

/// Gives panics all memory: a backtrace may take more than the host of a target has.
fn panics_have_room() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        counting::set_host(usize::MAX);
        hook(panic);
    }));
}

#[test]
fn no_input_panics_or_takes_too_much() {
    watch();
    panics_have_room();
    check_the_driver();
    if let Ok(path) = std::env::var("ANYGPU_FUZZ_INPUT") {
        let path = Path::new(&path);
        let name = path.file_name().expect("a file").to_string_lossy();
        let parent = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
        let target = TARGETS.iter().find(|target| {
            name.strip_prefix(target.name).is_some_and(|rest| rest.starts_with('-')) || parent == target.name
        });
        let target = target.expect("the name of the file, or its folder's, is that of a target");
        (target.prepare)();
        assert_eq!(fault(target, &fs::read(path).expect("a file")), None);
        return;
    }
    let seed = variable("ANYGPU_FUZZ_SEED", 0u64);
    let counted = std::env::var_os("ANYGPU_FUZZ_COUNT").is_some();
    let seconds = variable("ANYGPU_FUZZ_SECONDS", if counted { 1e9 } else { 5f64 });
    let only = std::env::var("ANYGPU_FUZZ_TARGET").ok();
    let targets: Vec<&Target> =
        TARGETS.iter().filter(|target| only.as_ref().is_none_or(|only| only == target.name)).collect();
    assert!(!targets.is_empty(), "there is no target {only:?}");
    let shares: u32 = targets.iter().map(|target| target.share).sum();
    let mut faults = Vec::new();
    for target in targets {
        (target.prepare)();
        let (begin, before) = (Instant::now(), counting::live());
        let (count, found) =
            run(target, seed, Duration::from_secs_f64(seconds * f64::from(target.share) / f64::from(shares)));
        let (took, faults_found) = (begin.elapsed().as_secs(), found.len());
        let kept = counting::live() as i64 - before as i64;
        println!(
            "{}: {count} inputs with seed {seed} in {took} s, {faults_found} faults, {} KiB more are allocated",
            target.name,
            kept >> 10
        );
        faults.extend(found);
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}
