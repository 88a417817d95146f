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

    /// Returns the one kernel that writes the results of the steps for which `kept` is true.
    fn fused(&self, kept: &[bool]) -> Fused {
        let mut fused = Fused::new(self.steps[0].call.count);
        for (step, &kept) in self.steps.iter().zip(kept) {
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
            fused.push(&step.call, step.call.operands.map(|operand| operand.map(argument)), kept);
        }
        fused
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

    /// As `flush_chain`. The lock is held until all of it is recorded, so that no other thread's kernel comes before it.
    fn flush(&self, chains: &mut Chains) -> Result<()> {
        let chain = std::mem::take(&mut chains.open);
        if chain.steps.is_empty() {
            return Ok(());
        }
        // A result that no later step reads is computed even if nobody holds it, as if there were no chain.
        let mut outputs: Vec<Option<Buffer>> = chain.steps.iter().map(|step| step.output.upgrade()).collect();
        let kept: Vec<bool> =
            chain.steps.iter().zip(&outputs).map(|(step, output)| output.is_some() || !step.read).collect();
        for (step, (output, kept)) in chain.steps.iter().zip(outputs.iter_mut().zip(&kept)) {
            if *kept && output.is_none() {
                *output = Some(self.alloc_again(step.words)?);
            }
        }
        if chain.steps.len() > 1 {
            let fused = chain.fused(&kept);
            if let Some(pipeline) = self.fused_pipeline(chains, &fused) {
                let inputs = fused.inputs().iter().map(|&input| &chain.inputs[input]);
                let buffers: Vec<&Buffer> = inputs.chain(outputs.iter().flatten()).collect();
                let (params, groups) = fused.call(self);
                return self.record(&pipeline, &params, &buffers, groups);
            }
        }
        self.run_steps(chain, outputs, &kept)
    }

    /// Records the kernels of a chain one by one. `outputs` has the results that are `kept`.
    fn run_steps(&self, chain: Chain, mut outputs: Vec<Option<Buffer>>, kept: &[bool]) -> Result<()> {
        let is_read_after = |i: usize, result| chain.steps[i + 1..].iter().any(|step| step.inputs.contains(&result));
        let unused_after =
            |i: usize| (0..=i).filter(move |&earlier| !kept[earlier] && !is_read_after(i, Source::Step(earlier)));
        let unused: Vec<Vec<usize>> = (0..chain.steps.len()).map(|i| unused_after(i).collect()).collect();
        for (i, step) in chain.steps.into_iter().enumerate() {
            let Step { mut kernel, inputs, words, .. } = step;
            let output = outputs[i].take().map_or_else(|| self.alloc_again(words), Ok)?;
            outputs[i] = Some(output.clone());
            let buffer = |source: Source| match source {
                Source::Input(input) => chain.inputs.get(input).cloned(),
                Source::Step(earlier) => outputs[earlier].clone(),
            };
            kernel.inputs = inputs.into_iter().filter_map(buffer).collect();
            kernel.outputs = vec![output];
            self.run_now(&kernel)?;
            // Returns the memory of results that only the steps so far read.
            unused[i].iter().for_each(|&earlier| outputs[earlier] = None);
        }
        Ok(())
    }

    /// Returns the kernel of a chain that came often enough.
    fn fused_pipeline(&self, chains: &mut Chains, fused: &Fused) -> Option<Arc<Pipeline>> {
        let before = (*RUNS_BEFORE)?;
        if chains.known.len() >= MAX_KNOWN {
            chains.known.retain(|_, known| !matches!(known, Known::Seen(_)));
        }
        let room = chains.compiled < MAX_FUSED;
        let known = chains.known.entry(fused.key()).or_insert(Known::Seen(0));
        match known {
            Known::Fused(pipeline) => return Some(pipeline.clone()),
            Known::Failed => return None,
            Known::Seen(times) if *times < before || !room => {
                *times = times.saturating_add(1);
                return None;
            }
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
