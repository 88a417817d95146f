//! The kernels that a program has used, for another run of it to compile ahead of their first use.

use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::pipeline::{Key, MAX_PIPELINES};
use super::queue::Dispatch;
use super::shader::ShaderText;
use super::{Buffer, Gpu, Pipeline};
use crate::error::Result;

/// The most kernels of a list that are compiled: a device keeps no more.
pub(crate) const MOST: usize = MAX_PIPELINES;

/// Returns a number for a header, which is the same in all builds of one version of Rust and of this crate.
fn number(header: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    header.hash(&mut hasher);
    hasher.finish()
}

/// Returns a line for a kernel: its shader and entry point, the number of its header, the numbers of its inputs and outputs, and the bits
/// of its constants.
fn line(key: &Key) -> String {
    let mut line = format!("{} {} {:x} {} {}", key.shader, key.entry, number(key.header), key.inputs, key.outputs);
    for (name, bits) in &key.constants {
        let _ = write!(line, " {name}={bits:x}"); // a String takes everything
    }
    line
}

/// The longest line, in bytes, and the most constants of a kernel: lines of this crate have some hundred bytes.
const LONGEST: usize = 4096;
const MOST_CONSTANTS: usize = 64;

/// Returns the kernel of a line, if this version of the crate has it. Only a kernel with more than `most` inputs and outputs, and a
/// line that is too long for any kernel, are errors: no version has such.
fn parse(line: &str, most: usize) -> Result<Option<(Key, &'static ShaderText)>, String> {
    if line.len() > LONGEST {
        return Err(format!("a line of {} bytes, and no kernel needs more than {LONGEST}", line.len()));
    }
    let Some((key, shader)) = kernel_of(line) else { return Ok(None) };
    match key.inputs.checked_add(key.outputs).filter(|&all| all <= most) {
        Some(_) if key.constants.len() <= MOST_CONSTANTS => Ok(Some((key, shader))),
        Some(_) => Err(format!("{} constants, and no kernel has more than {MOST_CONSTANTS}", key.constants.len())),
        None => Err(format!("{} inputs and {} outputs, and this device binds at most {most}", key.inputs, key.outputs)),
    }
}

fn kernel_of(line: &str) -> Option<(Key, &'static ShaderText)> {
    let mut words = line.split_ascii_whitespace();
    let mut next = || words.next();
    let (name, entry, header) = (next()?, next()?, u64::from_str_radix(next()?, 16).ok()?);
    let (inputs, outputs) = (next()?.parse().ok()?, next()?.parse().ok()?);
    let shader = ShaderText::all().find(|shader| shader.name == name)?;
    let header = (shader.headers)().into_iter().find(|text| number(text) == header)?;
    let constant = |word: &str| {
        let (name, bits) = word.split_once('=')?;
        Some((name.to_owned().into(), u64::from_str_radix(bits, 16).ok()?))
    };
    let constants = words.map(constant).collect::<Option<_>>()?;
    Some((Key { shader: shader.name, entry: entry.to_owned().into(), header, constants, inputs, outputs }, shader))
}

/// Returns a line for a message.
fn shortened(line: &str) -> String {
    line.chars().take(80).flat_map(char::escape_debug).collect()
}

/// Returns whether a device that binds `most` buffers would compile the kernel of a line.
pub(crate) fn fuzz(line: &str, most: usize) -> bool {
    match parse(line, most) {
        Ok(Some((key, _))) => {
            assert!(key.inputs + key.outputs <= most && key.constants.len() <= MOST_CONSTANTS);
            true
        }
        Ok(None) => false,
        Err(wrong) => wrong.is_empty(),
    }
}

impl Gpu {
    /// Returns a line for each kernel that the device keeps, in the order in which they were compiled. Kernels that were made at
    /// run time, and users' kernels, are not in it.
    pub(crate) fn kernel_lines(&self) -> Vec<String> {
        self.compiled_keys().iter().map(line).collect()
    }

    /// Compiles the kernel of a line. Returns whether the device has it now: a line of another version of the crate, or one that does
    /// not compile here, is left out.
    pub(crate) fn compile_line(&self, text: &str) -> bool {
        let (key, shader) = match parse(text, self.caps.max_storage_buffers as usize) {
            Ok(Some(kernel)) => kernel,
            Ok(None) => {
                log::debug!("{}: this version of the crate has no kernel {}", self.name, shortened(text));
                return false;
            }
            Err(wrong) => {
                log::warn!("{}: a line of a list of kernels is ignored: {wrong}: {}", self.name, shortened(text));
                return false;
            }
        };
        let words = shader.param_words();
        let compiled = self.compiled(key, shader, words).map_err(|message| self.error(message));
        // Mesa's software drivers make the code of a kernel when they first run it.
        let done =
            compiled.and_then(|pipeline| if self.caps.software { self.run_nothing(&pipeline, words) } else { Ok(()) });
        if let Err(error) = &done {
            log::debug!("{}: {error}", self.name);
        }
        done.is_ok()
    }

    /// Submits a kernel with no workgroup.
    fn run_nothing(&self, pipeline: &Pipeline, words: usize) -> Result<()> {
        let buffers = pipeline.signature.buffers.iter().map(|_| self.alloc(1)).collect::<Result<Vec<_>>>()?;
        let buffers: Vec<&Buffer> = buffers.iter().collect();
        self.record(&Dispatch {
            pipeline,
            params: &vec![0; words],
            buffers: &buffers,
            groups: [0, 1, 1],
            op: "".into(),
        })?;
        self.submit_recorded()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_were_written() {
        let shader = ShaderText::all().find(|shader| (shader.headers)().len() > 1).expect("a shader with headers");
        for header in (shader.headers)() {
            let constants = vec![("TILE".into(), 8f64.to_bits()), ("X".into(), 0.5f64.to_bits())];
            let key = Key { shader: shader.name, entry: "run".into(), header, constants, inputs: 2, outputs: 1 };
            assert_eq!(parse(&line(&key), 4).expect("a line").expect("a kernel").0, key);
            let constants = "X=0 ".repeat(65);
            for (counts, expected) in [
                ("0 1000000000000", "1000000000000 outputs"),
                ("0 18446744073709551615", "at most 4"),
                ("18446744073709551615 1", "18446744073709551615 inputs"),
                ("3 2", "3 inputs and 2 outputs"),
                (&*format!("1 1 {constants}"), "65 constants"),
                (&*format!("1 1 {}", constants.repeat(50)), "bytes"),
            ] {
                let line = format!("{} run {:x} {counts}", shader.name, number(header));
                let error = parse(&line, 4).expect_err("a count");
                assert!(error.contains(expected), "{error}");
            }
        }
        for text in ["", "nothing", "no_shader run 0 1 1", &format!("{} run 0 1", shader.name)] {
            assert!(parse(text, 4).is_ok_and(|kernel| kernel.is_none()), "{text:?}");
        }
        assert!(shortened(&"\u{1b}x".repeat(1000)).len() < 400);
    }
}
