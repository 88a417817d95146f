//! Processes that run the driver. If the compiler cannot compile a kernel, it ends its process. That kernel is
//! reported, and the next one gets a new process.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::assembly::hottest_block;
use crate::catalogue::Module;
use crate::compiled::Compiled;
use crate::radv::Radv;

/// The argument with which this program is a worker.
pub const ARGUMENT: &str = "--worker";

/// The kernels that one process compiles.
const SHARE: usize = 100;

/// The text in place of the figures of a kernel with cooperative matrices that the chip does not have. The compiler
/// would end.
pub const NO_MATRICES: &str = "the chip has no such cooperative matrices";

/// The results for each chip, in the order of the kernels.
pub type Results = Vec<Vec<Result<Compiled, String>>>;

/// Compiles kernels from standard input until it ends. A request is a line (entry point, bindings, size of cooperative matrices,
/// number of words) and the words; the answer is a line with the figures or with what is wrong, the length of the machine code, and the code.
pub fn serve() -> Result<(), Box<dyn Error>> {
    let radv = Radv::open()?;
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    writeln!(output, "{}", radv.driver)?;
    output.flush()?;
    let mut line = String::new();
    while input.read_line(&mut line)? > 0 {
        let request: Vec<&str> = line.split_whitespace().collect();
        let [entry, bindings, matrices, count] = request[..] else { return Err("no request".into()) };
        let (mut bytes, mut pairs) = (vec![0; count.parse::<usize>()? * 4], Vec::new());
        input.read_exact(&mut bytes)?;
        let words: Vec<u32> = bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        for binding in bindings.split(',') {
            let number = binding.trim_end_matches('u');
            pairs.push((number.parse()?, number != binding));
        }
        let matrices: u32 = matrices.parse()?;
        if matrices != 0 && !radv.matrices.contains(&matrices) {
            write!(output, "{NO_MATRICES}\n0\n")?;
            output.flush()?;
            line.clear();
            continue;
        }
        match radv.compile(&words, entry, &pairs) {
            Ok((mut compiled, assembly)) => {
                compiled.hottest = hottest_block(&assembly);
                let numbers = compiled.numbers().map(|number| number.to_string()).join(" ");
                write!(output, "{numbers}\n{}\n{assembly}", assembly.len())?;
            }
            Err(error) => writeln!(output, "refused: {error}\n0")?,
        }
        output.flush()?;
        line.clear();
    }
    // The driver's teardown without hardware is not worth trusting.
    std::process::exit(0)
}

/// A process that compiles for one chip.
pub struct Worker {
    /// The name and the version of the driver.
    pub driver: String,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Worker {
    pub fn start(manifest: &Path, chip: &str) -> Result<Worker, Box<dyn Error>> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(ARGUMENT)
            .env("VK_DRIVER_FILES", manifest)
            .env("RADV_FORCE_FAMILY", chip)
            .env("MESA_SHADER_CACHE_DISABLE", "true")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a process without pipes".into());
        };
        let mut worker = Worker { driver: String::new(), child, input, output: BufReader::new(output) };
        worker.driver = worker.line().map_err(|why| format!("{chip}: {why}"))?;
        Ok(worker)
    }

    /// Returns a line of the process; what it said at last, if it has ended.
    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        if self.output.read_line(&mut line).map_err(|error| error.to_string())? > 0 {
            return Ok(line.trim_end().to_owned());
        }
        let mut said = String::new();
        if let Some(mut errors) = self.child.stderr.take() {
            errors.read_to_string(&mut said).map_err(|error| error.to_string())?;
        }
        let status = self.child.wait().map_err(|error| error.to_string())?;
        let said = said.lines().next_back().unwrap_or_default();
        Err(format!("the compiler ended with {status}: {said}"))
    }

    fn request(&mut self, module: &Module) -> Result<(String, String), String> {
        let mark = |uniform: bool| if uniform { "u" } else { "" };
        let bindings: Vec<String> =
            module.bindings.iter().map(|&(n, uniform)| format!("{n}{}", mark(uniform))).collect();
        let mut bytes = format!("{} {} {} {}\n", module.entry, bindings.join(","), module.matrices, module.words.len())
            .into_bytes();
        bytes.extend(module.words.iter().flat_map(|word| word.to_le_bytes()));
        // If the process has ended, its last answer says so.
        let _ = self.input.write_all(&bytes).and_then(|()| self.input.flush());
        let answer = self.line()?;
        let length = self.line()?.parse::<usize>().map_err(|error| error.to_string())?;
        let mut assembly = vec![0; length];
        self.output.read_exact(&mut assembly).map_err(|error| error.to_string())?;
        Ok((answer, String::from_utf8_lossy(&assembly).into_owned()))
    }

    fn compile(&mut self, module: &Module) -> Result<Compiled, String> {
        let (answer, _) = self.request(module)?;
        let numbers: Vec<u64> = answer.split(' ').filter_map(|number| number.parse().ok()).collect();
        numbers.try_into().map(Compiled::of_numbers).map_err(|_| answer)
    }

    /// Returns the machine code of a kernel.
    pub fn assembly(&mut self, module: &Module) -> Result<String, String> {
        Ok(self.request(module)?.1)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Nothing is left to say if it has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Compiles all kernels for all chips, with a process for each core.
pub fn compile_all(manifest: &Path, chips: &[&str], modules: &[Module]) -> Result<Results, Box<dyn Error>> {
    let tasks: Vec<(&str, &[Module])> =
        chips.iter().flat_map(|chip| modules.chunks(SHARE).map(move |share| (*chip, share))).collect();
    let (next, done) = (AtomicUsize::new(0), Mutex::new(vec![Vec::new(); tasks.len()]));
    let threads = std::thread::available_parallelism()?.get();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((at, (chip, share))) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| tasks.get(at).map(|task| (at, task)))
                {
                    let results = compile_share(manifest, chip, share);
                    done.lock().unwrap_or_else(|poisoned| poisoned.into_inner())[at] = results;
                }
            });
        }
    });
    let done = done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    let shares = modules.len().div_ceil(SHARE).max(1);
    Ok(done.chunks(shares).map(|shares| shares.concat()).collect())
}

fn compile_share(manifest: &Path, chip: &str, share: &[Module]) -> Vec<Result<Compiled, String>> {
    let mut worker = None;
    let mut results = Vec::new();
    for module in share {
        let mut current = match worker.take() {
            Some(current) => current,
            None => match Worker::start(manifest, chip) {
                Ok(started) => started,
                Err(error) => {
                    results.push(Err(error.to_string()));
                    continue;
                }
            },
        };
        let result = current.compile(module);
        if result.as_ref().err().is_none_or(|why| why == NO_MATRICES) {
            worker = Some(current);
        }
        results.push(result);
    }
    results
}
