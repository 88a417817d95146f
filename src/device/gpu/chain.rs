//! Chains of elementwise kernels, which run as one kernel.
//!
//! An elementwise kernel is not recorded at once. It is kept as the last step of a chain, until a kernel or a transfer
//! comes that does not continue the chain. Nothing else is delayed, so the order of the work is that of the calls. If the
//! same chain has come several times, its formulas become one kernel ([`Fused`]): a result that nobody holds any more, and
//! that only later steps read, is then neither written nor read. Otherwise its kernels run one by one.
//!
//! The chain does not own the results of its steps, so that their memory returns to the pool as if they had run.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use super::fused::{Fused, Read, Value};
use super::pool::WeakBuffer;
use super::{Buffer, Gpu, Kernel, Pipeline};
use crate::error::Result;
use crate::sync;

/// An elementwise kernel of f32: all elements are next to one another, in vectors of four.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pointwise {
    /// A WGSL function from up to three numbers to one, which may read `p.a` and `p.b`.
    pub formula: &'static str,
    /// The texts of the functions that it calls.
    pub functions: &'static [&'static str],
    /// The arguments of the function, in order.
    pub operands: [Option<Operand>; 3],
    /// The bits of `p.a` and `p.b`.
    pub args: [u32; 2],
    /// Elements of the result, and of each operand.
    pub count: usize,
}

/// An argument of a formula.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operand {
    /// The element of this input of the kernel, which begins at this offset.
    Input(usize, usize),
    /// As an input, but its so many elements, a multiple of four, are repeated.
    Row(usize, usize, usize),
    /// The number `p.a`.
    Number,
    /// Any number: the formula does not use it.
    Unused,
}

/// What a buffer of a step holds.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Source {
    /// One of [`Chain::inputs`].
    Input(usize),
    /// The result of an earlier step.
    Step(usize),
}

/// A kernel of a chain, without its buffers.
#[derive(Debug)]
struct Step {
    kernel: Kernel,
    call: Pointwise,
    inputs: Vec<Source>,
    output: WeakBuffer,
    words: usize,
    /// Whether a later step reads the result.
    read: bool,
}

/// The kernels that are not recorded yet.
#[derive(Debug, Default)]
struct Chain {
    /// The buffers that are read and no results of the chain, each once.
    inputs: Vec<Buffer>,
    steps: Vec<Step>,
    weight: usize,
}

/// The chain of a device, and its fused kernels.
#[derive(Debug, Default)]
pub(super) struct Chains {
    open: Chain,
    known: HashMap<Vec<u64>, Known>,
    compiled: usize,
}

/// A chain that came before.
#[derive(Debug)]
enum Known {
    /// So many times.
    Seen(u32),
    Fused(Arc<Pipeline>),
    /// Its kernel does not compile.
    Failed,
}

/// The total weight of the steps of a chain. Most formulas weigh 1.
const MAX_WEIGHT: usize = 32;
/// The weight of a formula that calls functions of the crate, which take long to compile.
const HEAVY: usize = 8;
/// The most fused kernels of a device, and the most chains whose number is counted.
const MAX_FUSED: usize = 256;
const MAX_KNOWN: usize = 4096;

/// How often a chain runs before it is fused: `ANYGPU_FUSION=off` and `ANYGPU_FUSION=always` are for comparisons.
static RUNS_BEFORE: LazyLock<Option<u32>> = LazyLock::new(|| match std::env::var("ANYGPU_FUSION").as_deref() {
    Ok("off") => None,
    Ok("always") => Some(0),
    _ => Some(2),
});

impl Pointwise {
    fn weight(&self) -> usize {
        // The names of the crate's own functions have an underscore, WGSL's do not.
        if self.formula.contains('_') { HEAVY } else { 1 }
    }
}

impl Chain {
    /// Returns what a buffer holds, if the chain knows it.
    fn source(&self, buffer: &Buffer) -> Option<Source> {
        let step = self.steps.iter().position(|step| step.output.is(buffer)).map(Source::Step);
        step.or_else(|| self.inputs.iter().position(|input| input.id() == buffer.id()).map(Source::Input))
    }

    /// Returns whether a kernel can become the next step: it reads a result of the chain, and there are bindings enough.
    fn takes(&self, gpu: &Gpu, kernel: &Kernel, call: &Pointwise) -> bool {
        let mut reads_result = false;
        for operand in call.operands.iter().flatten() {
            let (&Operand::Input(index, _) | &Operand::Row(index, ..)) = operand else { continue };
            if let Some(Source::Step(_)) = self.source(&kernel.inputs[index]) {
                reads_result = true;
                // A part of a result, or one that is repeated, is no element at the same place.
                if !matches!(operand, Operand::Input(_, 0)) {
                    return false;
                }
            }
        }
        let written = self.steps.iter().filter(|step| step.output.is_alive() || !step.read).count();
        let bindings = self.inputs.len() + kernel.inputs.len() + written + 1;
        reads_result
            && self.steps[0].call.count == call.count
            && self.weight + call.weight() <= MAX_WEIGHT
            && bindings <= gpu.caps.max_storage_buffers as usize
    }

    fn push(&mut self, mut kernel: Kernel, call: Pointwise) {
        let Some(output) = kernel.outputs.pop() else { return };
        let mut inputs = Vec::with_capacity(kernel.inputs.len());
        for buffer in std::mem::take(&mut kernel.inputs) {
            let source = self.source(&buffer).unwrap_or_else(|| {
                self.inputs.push(buffer);
                Source::Input(self.inputs.len() - 1)
            });
            if let Source::Step(earlier) = source {
                self.steps[earlier].read = true;
            }
            inputs.push(source);
        }
        self.weight += call.weight();
        let (output, words) = (output.downgrade(), output.len());
        self.steps.push(Step { kernel, call, inputs, output, words, read: false });
    }

    /// Returns the one kernel that writes the results for which there are `outputs`.
    fn fused(&self, outputs: &[Option<Buffer>]) -> Fused {
        let mut fused = Fused::new(self.steps[0].call.count);
        for (step, output) in self.steps.iter().zip(outputs) {
            let argument = |operand: Operand| match operand {
                Operand::Number => Value::Number,
                Operand::Unused => Value::Unused,
                Operand::Input(index, offset) => match step.inputs[index] {
                    Source::Step(earlier) => Value::Step(earlier),
                    Source::Input(input) => Value::Input(Read { input, offset, length: None }),
                },
                Operand::Row(index, offset, length) => match step.inputs[index] {
                    Source::Step(earlier) => Value::Step(earlier),
                    Source::Input(input) => Value::Input(Read { input, offset, length: Some(length) }),
                },
            };
            fused.push(&step.call, step.call.operands.map(|operand| operand.map(argument)), output.is_some());
        }
        fused
    }
}

impl Chains {
    /// Counts a chain, and returns whether it came often enough before to be worth a kernel of its own.
    fn is_frequent(&mut self, fused: &Fused) -> bool {
        let Some(before) = *RUNS_BEFORE else { return false };
        if self.known.len() >= MAX_KNOWN {
            self.known.retain(|_, known| !matches!(known, Known::Seen(_)));
        }
        match self.known.entry(fused.key()).or_insert(Known::Seen(0)) {
            Known::Seen(times) => {
                *times = times.saturating_add(1);
                *times > before
            }
            Known::Fused(_) => true,
            Known::Failed => false,
        }
    }
}

impl Gpu {
    /// Records a kernel, after the open chain; or keeps it as the next step of a chain.
    pub(super) fn chain_or_run(&self, kernel: Kernel) -> Result<()> {
        let mut chains = sync::lock(&self.chains);
        let Some(call) = kernel.pointwise.filter(|_| RUNS_BEFORE.is_some()) else {
            self.flush(&mut chains)?;
            drop(chains);
            return self.run_now(&kernel);
        };
        if !chains.open.steps.is_empty() && !chains.open.takes(self, &kernel, &call) {
            self.flush(&mut chains)?;
        }
        self.check()?;
        chains.open.push(kernel, call);
        Ok(())
    }

    /// Records the open chain.
    pub(super) fn flush_chain(&self) -> Result<()> {
        self.flush(&mut sync::lock(&self.chains))
    }

    /// Records the open chain before a buffer of `words` words is allocated, if that may return memory to the pool: the
    /// chain holds its inputs, of which nobody else may need some. A result of another size does not continue the chain.
    pub(super) fn release_inputs(&self, words: usize) -> Result<()> {
        let mut chains = sync::lock(&self.chains);
        match chains.open.steps.first() {
            Some(step) if step.words != words || !self.has_page(words) => self.flush(&mut chains),
            _ => Ok(()),
        }
    }

    /// As `flush_chain`. The lock is held until all of it is recorded, so that no other thread's kernel comes before it. On
    /// an error the chain stays open: nobody can read results that were not computed, and the next call tries again.
    fn flush(&self, chains: &mut Chains) -> Result<()> {
        let chain = std::mem::take(&mut chains.open);
        let done = if chain.steps.is_empty() { Ok(()) } else { self.record_chain(chains, &chain) };
        if done.is_err() {
            chains.open = chain;
        }
        done
    }

    fn record_chain(&self, chains: &mut Chains, chain: &Chain) -> Result<()> {
        let mut outputs: Vec<Option<Buffer>> = chain.steps.iter().map(|step| step.output.upgrade()).collect();
        for (step, output) in chain.steps.iter().zip(&mut outputs) {
            // A result that no later step reads is computed even if nobody holds it, as if there were no chain; but it needs
            // no memory that there is not.
            if !step.read && output.is_none() {
                *output = self.alloc_again(step.words).ok();
            }
        }
        if outputs.iter().all(Option::is_none) {
            return Ok(());
        }
        if chain.steps.len() > 1 {
            let fused = chain.fused(&outputs);
            if chains.is_frequent(&fused)
                && let Some(done) = self.record_fused(chains, chain, &fused, &outputs)
            {
                return done;
            }
        }
        match self.record_steps(chain, &mut outputs.clone()) {
            // The fused kernel needs no memory for results that only its steps read.
            Err(error) if error.is_out_of_memory() => {
                self.record_fused(chains, chain, &chain.fused(&outputs), &outputs).unwrap_or(Err(error))
            }
            done => done,
        }
    }

    /// Records the one kernel of a chain; `None` if it does not compile.
    fn record_fused(
        &self,
        chains: &mut Chains,
        chain: &Chain,
        fused: &Fused,
        outputs: &[Option<Buffer>],
    ) -> Option<Result<()>> {
        let pipeline = self.fused_pipeline(chains, fused)?;
        let inputs = fused.inputs().iter().map(|&input| &chain.inputs[input]);
        let buffers: Vec<&Buffer> = inputs.chain(outputs.iter().flatten()).collect();
        let (params, groups) = fused.call(self);
        Some(self.record(&pipeline, &params, &buffers, groups))
    }

    /// Records the kernels of a chain one by one. `outputs` has the results that somebody holds.
    fn record_steps(&self, chain: &Chain, outputs: &mut [Option<Buffer>]) -> Result<()> {
        let held: Vec<bool> = outputs.iter().map(Option::is_some).collect();
        for (i, step) in chain.steps.iter().enumerate() {
            if !held[i] && !step.read {
                continue;
            }
            let output = outputs[i].take().map_or_else(|| self.alloc_again(step.words), Ok)?;
            outputs[i] = Some(output.clone());
            let buffer = |source: &Source| match *source {
                Source::Input(input) => chain.inputs.get(input).cloned(),
                Source::Step(earlier) => outputs[earlier].clone(),
            };
            let mut kernel = step.kernel.clone();
            kernel.inputs = step.inputs.iter().filter_map(buffer).collect();
            kernel.outputs = vec![output];
            self.run_now(&kernel)?;
            // Returns the memory of results that only the steps so far read.
            let later = &chain.steps[i + 1..];
            for (earlier, output) in outputs.iter_mut().enumerate().take(i) {
                if !held[earlier] && !later.iter().any(|step| step.inputs.contains(&Source::Step(earlier))) {
                    *output = None;
                }
            }
        }
        Ok(())
    }

    /// Returns the kernel of a chain; `None` if there are too many, or it does not compile.
    fn fused_pipeline(&self, chains: &mut Chains, fused: &Fused) -> Option<Arc<Pipeline>> {
        let room = chains.compiled < MAX_FUSED;
        let known = chains.known.entry(fused.key()).or_insert(Known::Seen(0));
        match known {
            Known::Fused(pipeline) => return Some(pipeline.clone()),
            Known::Failed => return None,
            Known::Seen(_) if !room => return None,
            Known::Seen(_) => {}
        }
        chains.compiled += 1;
        match self.compile_fused(fused) {
            Ok(pipeline) => {
                let pipeline = Arc::new(pipeline);
                *known = Known::Fused(pipeline.clone());
                Some(pipeline)
            }
            Err(message) => {
                log::warn!("{}: a fused kernel does not compile, its steps run one by one: {message}", self.name);
                *known = Known::Failed;
                None
            }
        }
    }
}
