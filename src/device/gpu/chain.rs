//! Chains of elementwise kernels, which run as one kernel. A chain may begin with a product or a convolution: the
//! elementwise kernels then run as a part of it.
//!
//! An elementwise kernel is not recorded at once. It is kept as the last step of a chain, until a kernel or a transfer
//! comes that reads its results or writes what it reads, or that begins another chain. So is a product, as the first step.
//! Kernels that share a buffer which one of them writes run in the order of the calls; others may pass the chain. If the
//! same chain has come several times, its formulas become one kernel ([`Fused`]): a result that nobody holds any more, and
//! that only later steps read, is then neither written nor read. Otherwise its kernels run one by one.
//!
//! The chain does not own the results of its steps, so that their memory returns to the pool as if they had run.
//!
//! An error of the driver in a chain is returned by the call that ends the chain, not by the op.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, LazyLock};

use super::fused::{Fused, Place, Read, Value};
use super::pipeline::Key;
use super::pool::WeakBuffer;
use super::{Buffer, Gpu, Kernel, Pipeline};

/// An elementwise kernel of f32: all elements are next to one another, in vectors of four.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pointwise {
    /// A WGSL function from numbers to one, which may read `p.a` and `p.b`.
    pub formula: &'static str,
    /// The texts of the functions that it calls.
    pub functions: &'static [&'static str],
    /// The arguments of the function, in order.
    pub operands: [Option<Operand>; OPERANDS],
    /// The bits of `p.a` and `p.b`.
    pub args: [u32; 2],
    /// Elements of the result, and of each operand.
    pub count: usize,
}

/// The most arguments of a formula.
const OPERANDS: usize = 6;

/// Returns the arguments of a formula in an array.
pub(crate) fn operands(list: &[Operand]) -> [Option<Operand>; OPERANDS] {
    std::array::from_fn(|i| list.get(i).copied())
}

/// An argument of a formula.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operand {
    /// The element of this input of the kernel, which begins at this offset.
    Input(usize, usize),
    /// As an input, but this many of its elements, a multiple of four, are repeated.
    Row(usize, usize, usize),
    /// As an input, but each of its `channels` elements is repeated `span` times, a multiple of four, and all of this again.
    Channel { index: usize, offset: usize, channels: usize, span: usize },
    /// The number `p.a`.
    Number,
    /// Any number: the formula does not use it.
    Unused,
}

impl Operand {
    /// Returns the number of the kernel's input that it reads.
    fn input(&self) -> Option<usize> {
        match *self {
            Operand::Input(index, _) | Operand::Row(index, ..) | Operand::Channel { index, .. } => Some(index),
            Operand::Number | Operand::Unused => None,
        }
    }
}

/// What makes a kernel a step of a chain.
#[derive(Clone, Debug)]
pub(super) enum Link {
    /// It computes a formula of each element.
    Formula(Box<Pointwise>),
    /// It writes each of so many elements once by [`PUT`](super::PUT). It can only be the first step.
    Product { count: usize },
}

/// What a buffer of a step holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Source {
    /// One of [`Chain::inputs`].
    Input(usize),
    /// The result of an earlier step.
    Step(usize),
}

/// A kernel of a chain, without its buffers.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub kernel: Kernel,
    link: Link,
    pub inputs: Vec<Source>,
    pub output: WeakBuffer,
    pub words: usize,
    /// Whether a later step reads the result.
    pub read: bool,
}

/// The kernels that are not recorded yet.
#[derive(Debug, Default)]
pub(super) struct Chain {
    /// The buffers that are read and are not results of the chain, each once.
    pub inputs: Vec<Buffer>,
    pub steps: Vec<Step>,
    /// The numbers of the inputs that formulas read.
    read: Vec<usize>,
    /// The numbers of the steps whose results the one kernel writes, as far as is known. There can only be fewer
    /// later, since a result that nobody holds any more stays so.
    written: Vec<usize>,
    weight: usize,
}

/// The chain of a device, and its fused kernels.
#[derive(Debug, Default)]
pub(super) struct Chains {
    pub open: Chain,
    pub known: HashMap<Identity, Known>,
    /// The kernels of formulas that were compiled: they can be recorded while the lock is held.
    pub compiled_steps: BTreeSet<u64>,
    /// The number of compiled kernels: of chains, and of chains that begin with a product. The latter are many for
    /// images of many sizes.
    pub compiled: [usize; 2],
}

/// What chains have in common that share a kernel: the product that is their first step, and the formulas.
pub(super) type Identity = (Option<Key>, Vec<u64>);

/// A chain that came before.
#[derive(Debug)]
pub(super) enum Known {
    /// So many times.
    Seen(u32),
    /// A thread compiles its kernel.
    Compiling,
    Fused(Arc<Pipeline>),
    /// Its kernel does not compile.
    Failed,
}

/// The total weight of the steps of a chain. Most formulas weigh 1.
const MAX_WEIGHT: usize = 128;
/// The same for a chain after a product, whose kernel has the formulas once for each element of a tile. Less than
/// `HEAVY`, since its kernel does not have the texts of the crate's functions.
const MAX_WEIGHT_OF_PRODUCT: usize = 6;
const _: () = assert!(MAX_WEIGHT_OF_PRODUCT < HEAVY);
/// The weight of a formula that calls functions of the crate, which take long to compile.
const HEAVY: usize = 32;
/// The most fused kernels of a device of either kind, and the most chains whose number is counted.
pub(super) const MAX_FUSED: usize = 256;
pub(super) const MAX_KNOWN: usize = 4096;

/// How many times more often a chain with a product runs on a software adapter, which takes up to a second to compile it.
const SLOW_TO_COMPILE: u32 = 32;

/// How often a chain runs before it is fused: `ANYGPU_FUSION=off` and `ANYGPU_FUSION=always` are for comparisons.
pub(super) static RUNS_BEFORE: LazyLock<Option<u32>> =
    LazyLock::new(|| match std::env::var("ANYGPU_FUSION").as_deref() {
        Ok("off") => None,
        Ok("always") => Some(0),
        _ => Some(2),
    });

impl Pointwise {
    /// Returns the numbers of the kernel's inputs that the formula reads.
    fn inputs(&self) -> impl Iterator<Item = usize> + '_ {
        self.operands.iter().flatten().filter_map(Operand::input)
    }

    fn weight(&self) -> usize {
        // The names of the crate's own functions have an underscore, WGSL's do not.
        if self.formula.contains('_') { HEAVY } else { 1 }
    }
}

impl Link {
    fn count(&self) -> usize {
        match self {
            Link::Formula(call) => call.count,
            Link::Product { count } => *count,
        }
    }

    /// Returns the most weight of a chain that begins with this step.
    fn max_weight(&self) -> usize {
        match self {
            Link::Formula(_) => MAX_WEIGHT,
            Link::Product { .. } => MAX_WEIGHT_OF_PRODUCT,
        }
    }
}

impl Step {
    /// Returns how many inputs the kernel has besides the inputs of formulas.
    fn own_bindings(&self) -> usize {
        match self.link {
            Link::Formula(_) => 0,
            Link::Product { .. } => self.inputs.len(),
        }
    }

    /// Returns what an input is in a fused kernel.
    fn value(&self, index: usize, offset: usize, place: Place) -> Value {
        match self.inputs[index] {
            Source::Step(earlier) => Value::Step(earlier),
            Source::Input(input) => Value::Input(Read { input, offset, place }),
        }
    }
}

impl Chain {
    /// Returns the names of the ops of the steps, for profiles.
    pub fn ops(&self) -> String {
        const MOST: usize = 8;
        let mut names: Vec<&str> = self.steps.iter().take(MOST).map(|step| step.kernel.op).collect();
        if self.steps.len() > MOST {
            names.push("…");
        }
        names.join("+")
    }

    /// Returns what a buffer holds, if the chain knows it.
    fn source(&self, buffer: &Buffer) -> Option<Source> {
        let input = self.inputs.iter().position(|input| input.id() == buffer.id()).map(Source::Input);
        // Mostly the result of the last step.
        input.or_else(|| self.steps.iter().rposition(|step| step.output.is(buffer)).map(Source::Step))
    }

    /// Returns whether a buffer is the result of a step.
    fn computes(&self, buffer: &Buffer) -> bool {
        matches!(self.source(buffer), Some(Source::Step(_)))
    }

    /// Returns whether a kernel can become the next step: it reads a result of the chain, and there are bindings enough.
    pub fn takes(&mut self, gpu: &Gpu, kernel: &Kernel, link: &Link) -> bool {
        let (Some(first), Link::Formula(call)) = (self.steps.first(), link) else { return false };
        let mut reads_result = false;
        for operand in call.operands.iter().flatten() {
            let Some(index) = operand.input() else { continue };
            if self.computes(&kernel.inputs[index]) {
                reads_result = true;
                // A part of a result, or one that is repeated, is no element at the same place.
                if !matches!(operand, Operand::Input(_, 0)) {
                    return false;
                }
            }
        }
        reads_result
            && first.link.count() == call.count
            && self.weight + call.weight() <= first.link.max_weight()
            && self.bindings(kernel, call) <= gpu.caps.max_storage_buffers as usize
    }

    /// Returns how many buffers the one kernel of the chain with this step binds: the product's buffers, the
    /// buffers that formulas read, and the results that are written.
    fn bindings(&mut self, kernel: &Kernel, call: &Pointwise) -> usize {
        let steps = &self.steps;
        self.written.retain(|&i| !steps[i].read || steps[i].output.is_alive());
        let of_product = self.steps.first().map_or(0, |step| step.own_bindings());
        let mut new: Vec<usize> = Vec::new();
        for buffer in call.inputs().map(|index| &kernel.inputs[index]) {
            let known = match self.source(buffer) {
                Some(Source::Step(_)) => true,
                Some(Source::Input(input)) => self.read.contains(&input),
                None => false,
            };
            if !known && !new.contains(&buffer.id()) {
                new.push(buffer.id());
            }
        }
        of_product + self.read.len() + new.len() + self.written.len() + 1
    }

    /// Returns whether a kernel reads a result of the chain, or writes what the chain reads or writes.
    pub fn meets(&self, kernel: &Kernel) -> bool {
        kernel.inputs.iter().any(|buffer| self.computes(buffer))
            || kernel.outputs.iter().any(|buffer| self.source(buffer).is_some())
    }

    pub fn push(&mut self, mut kernel: Kernel, link: Link) {
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
        if let Link::Formula(call) = &link {
            self.weight += call.weight();
            for index in call.inputs() {
                match inputs[index] {
                    Source::Input(input) if !self.read.contains(&input) => self.read.push(input),
                    _ => {}
                }
            }
        }
        let (output, words) = (output.downgrade(), output.len());
        self.written.push(self.steps.len());
        self.steps.push(Step { kernel, link, inputs, output, words, read: false });
    }

    /// Returns the steps after a product, which is recorded and has this result.
    pub fn after_product(&self, result: Buffer) -> Chain {
        let source = |source: &Source| match *source {
            Source::Step(0) => Source::Input(self.inputs.len()),
            Source::Step(earlier) => Source::Step(earlier - 1),
            input @ Source::Input(_) => input,
        };
        let steps = self.steps.iter().skip(1).cloned();
        Chain {
            inputs: self.inputs.iter().cloned().chain([result]).collect(),
            steps: steps.map(|step| Step { inputs: step.inputs.iter().map(source).collect(), ..step }).collect(),
            read: self.read.iter().copied().chain([self.inputs.len()]).collect(),
            written: (0..self.steps.len().saturating_sub(1)).collect(),
            weight: self.weight,
        }
    }

    /// Removes all steps. The next chain uses the memory of their lists.
    pub fn clear(&mut self) {
        let Chain { inputs, steps, read, written, weight } = self;
        inputs.clear();
        steps.clear();
        read.clear();
        written.clear();
        *weight = 0;
    }

    /// Returns the one kernel that writes the results for which there are `outputs`.
    pub fn fused(&self, outputs: &[Option<Buffer>]) -> Fused<'_> {
        let mut fused = Fused::of(self.steps.first().map_or(0, |step| step.link.count()), self.steps.len());
        for (step, output) in self.steps.iter().zip(outputs) {
            let Link::Formula(call) = &step.link else {
                fused.begin(Some((&step.kernel, step.inputs.len())), output.is_some());
                continue;
            };
            let argument = |operand: Operand| match operand {
                Operand::Number => Value::Number,
                Operand::Unused => Value::Unused,
                Operand::Input(index, offset) => step.value(index, offset, Place::Element),
                Operand::Row(index, offset, length) => step.value(index, offset, Place::Row(length)),
                Operand::Channel { index, offset, channels, span } => {
                    step.value(index, offset, Place::Channel { channels, span })
                }
            };
            fused.push(call, call.operands.iter().flatten().map(|operand| argument(*operand)), output.is_some());
        }
        fused
    }
}

impl Chains {
    /// Counts a chain, and returns whether it came often enough before to be worth a kernel of its own.
    pub fn is_frequent(&mut self, gpu: &Gpu, fused: &Fused, identity: &Identity) -> bool {
        let Some(before) = *RUNS_BEFORE else { return false };
        let before = if gpu.caps.software && fused.is_epilogue() { before * SLOW_TO_COMPILE } else { before };
        if self.known.len() >= MAX_KNOWN {
            self.known.retain(|_, known| !matches!(known, Known::Seen(_)));
        }
        match self.known.get_mut(identity) {
            Some(Known::Seen(times)) => {
                *times = times.saturating_add(1);
                *times > before
            }
            Some(Known::Fused(_)) => true,
            Some(Known::Compiling | Known::Failed) => false,
            None => {
                self.known.insert(identity.clone(), Known::Seen(1));
                before == 0
            }
        }
    }
}
