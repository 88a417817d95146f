//! Records the steps of a [chain](super::chain): as one kernel, or one by one.
//!
//! A thread that compiles a kernel delays only those that need it. The kernel of one step of a chain is compiled before the lock of the
//! open chain is taken; if it was dropped from the cache since, it is compiled again while the lock is held.

use std::borrow::Cow;
use std::sync::{Arc, MutexGuard};

use super::chain::{Chain, Chains, Identity, Known, Link, MAX_FUSED, MAX_KNOWN, RUNS_BEFORE, Source};
use super::fused::Fused;
use super::pipeline::{Generated, Key};
use super::queue::Dispatch;
use super::{Buffer, Gpu, Kernel, Pipeline};
use crate::error::Result;
use crate::util::sync;

/// The words of a buffer for which a chain goes on.
const SMALL: usize = 8192;

/// The kernel of a chain that is to be compiled before the chain is recorded.
struct Uncompiled {
    identity: Identity,
    kernel: Generated,
    /// What is left of the chain, if its product is recorded.
    rest: Option<Chain>,
}

/// The kernel of a chain.
enum FusedKernel {
    Compiled(Arc<Pipeline>),
    New(Box<Uncompiled>),
}

impl Gpu {
    /// Records a kernel, after the open chain if the two share a buffer that one of them writes; or keeps it as the next step of
    /// a chain.
    pub(super) fn chain_or_run(&self, mut kernel: Kernel) -> Result<()> {
        // Two parts of a buffer have one identity, and a chain would take them for the same elements.
        let whole = kernel.inputs.iter().chain(&kernel.outputs).all(|buffer| !buffer.is_part());
        let link = kernel.link.take().filter(|_| whole && RUNS_BEFORE.is_some());
        // Compiled before the lock is taken, which other threads need for kernels that are compiled already.
        let (pipeline, mut chains) = match link {
            Some(Link::Formula(_)) => (None, self.lock_for_step(&kernel)?),
            _ => (Some(self.pipeline(&kernel)?), sync::lock(&self.chains)),
        };
        let Some(link) = link else {
            // Only what reads or changes buffers of the chain has to wait for it.
            let _chains = if chains.open.meets(&kernel) { self.flush(chains)? } else { chains };
            return pipeline.map_or(Ok(()), |pipeline| self.record(&kernel.dispatch(&pipeline, &kernel.buffers())));
        };
        if !chains.open.steps.is_empty() && !chains.open.takes(self, &kernel, &link) {
            chains = self.flush(chains)?;
        }
        self.check()?;
        if let Some(pipeline) = pipeline {
            // What cannot run is an error of its own op, not of the call that ends the chain.
            self.check_dispatch(&kernel.dispatch(&pipeline, &kernel.buffers()))?;
        }
        kernel.inputs.iter().chain(&kernel.outputs).try_for_each(|buffer| self.check_usable(buffer))?;
        chains.open.push(kernel, link);
        Ok(())
    }

    /// Records the open chain.
    pub(super) fn flush_chain(&self) -> Result<()> {
        self.flush(sync::lock(&self.chains)).map(drop)
    }

    /// Returns the lock, after the kernel of a step was compiled that may have to be recorded by itself.
    fn lock_for_step(&self, kernel: &Kernel) -> Result<MutexGuard<'_, Chains>> {
        let key = Key::hashed(kernel);
        let mut chains = sync::lock(&self.chains);
        if !chains.compiled_steps.contains(&key) {
            drop(chains);
            self.pipeline(kernel)?;
            chains = sync::lock(&self.chains);
            if chains.compiled_steps.len() >= MAX_KNOWN {
                chains.compiled_steps.clear();
            }
            chains.compiled_steps.insert(key);
        }
        Ok(chains)
    }

    /// As `flush_chain`, for calls that return no error: the next call that does returns it.
    pub(super) fn flush_chain_for_counts(&self) {
        if let Err(error) = self.flush_chain() {
            self.health.keep(&error);
        }
    }

    /// Records the open chain before a buffer of `words` words is allocated, if that may return memory to the pool: the
    /// chain holds its inputs, of which nobody else may need some. A result of another size does not continue the chain; a
    /// small one may be for a later step of it.
    pub(super) fn release_inputs(&self, words: usize) -> Result<()> {
        let chains = sync::lock(&self.chains);
        match chains.open.steps.first() {
            Some(step) if !(self.has_page(words) && (step.words == words || words <= SMALL)) => {
                self.flush(chains).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// As `flush_chain`. No chain is open when it returns the lock, which it holds while it records, so that no other thread's
    /// kernel comes before the chain. It does not hold it while it compiles the kernel of the chain: the chain stays open, and other
    /// threads may go on with it, or record it step by step.
    ///
    /// On an error the chain stays open if somebody holds a result: nobody can read what was not computed, and the next call
    /// tries again.
    fn flush<'a>(&'a self, mut chains: MutexGuard<'a, Chains>) -> Result<MutexGuard<'a, Chains>> {
        while !chains.open.steps.is_empty() {
            let mut chain = std::mem::take(&mut chains.open);
            match self.record_chain(&mut chains, &chain) {
                Ok(None) => {
                    chain.clear();
                    chains.open = chain;
                }
                Ok(Some(Uncompiled { identity, kernel, rest })) => {
                    chains.open = rest.unwrap_or(chain);
                    drop(chains);
                    let known = self.compile_fused(kernel);
                    chains = sync::lock(&self.chains);
                    chains.known.insert(identity, known);
                }
                Err(error) => {
                    if chain.steps.iter().any(|step| step.output.is_alive()) {
                        chains.open = chain;
                    }
                    return Err(error);
                }
            }
        }
        Ok(chains)
    }

    /// Records a chain, unless its kernel has to be compiled first.
    fn record_chain(&self, chains: &mut Chains, chain: &Chain) -> Result<Option<Uncompiled>> {
        let mut outputs: Vec<Option<Buffer>> = chain.steps.iter().map(|step| step.output.upgrade()).collect();
        for (step, output) in chain.steps.iter().zip(&mut outputs) {
            // A result that no later step reads is computed even if nobody holds it, as if there were no chain; but it needs
            // no memory that there is not.
            if !step.read && output.is_none() {
                *output = self.alloc_again(step.words).ok();
            }
        }
        if outputs.iter().all(Option::is_none) {
            return Ok(None);
        }
        if chain.steps.len() > 1 {
            let fused = chain.fused(&outputs);
            let identity = fused.identity();
            if chains.is_frequent(self, &fused, &identity)
                && let Some(kernel) = self.fused_pipeline(chains, &fused, identity)
            {
                return self.record_fused(kernel, chain, &fused, &outputs);
            }
            if fused.is_epilogue()
                && let Some(result) = outputs[0].take().or_else(|| self.alloc_again(chain.steps[0].words).ok())
            {
                self.record_step(chain, 0, result.clone(), &[])?;
                let rest = chain.after_product(result);
                let uncompiled = self.record_chain(chains, &rest)?;
                return Ok(uncompiled.map(|uncompiled| Uncompiled { rest: Some(rest), ..uncompiled }));
            }
        }
        match self.record_steps(chain, &mut outputs.clone()) {
            // The fused kernel needs no memory for results that only its steps read.
            Err(error) if error.is_out_of_memory() => {
                let fused = chain.fused(&outputs);
                let kernel = self.fused_pipeline(chains, &fused, fused.identity()).ok_or(error)?;
                self.record_fused(kernel, chain, &fused, &outputs)
            }
            done => done.map(|()| None),
        }
    }

    /// Records the one kernel of a chain, if it is compiled.
    fn record_fused(
        &self,
        kernel: FusedKernel,
        chain: &Chain,
        fused: &Fused,
        outputs: &[Option<Buffer>],
    ) -> Result<Option<Uncompiled>> {
        let pipeline = match kernel {
            FusedKernel::Compiled(pipeline) => pipeline,
            FusedKernel::New(uncompiled) => return Ok(Some(*uncompiled)),
        };
        let bound = fused.inputs().iter().map(|&input| &chain.inputs[input]);
        let mut written = outputs.iter().flatten();
        let mut buffers: Vec<&Buffer> = Vec::new();
        if fused.is_epilogue() {
            // As in the product without the formulas: its inputs, and one result.
            let of_product =
                |source: &Source| if let Source::Input(input) = *source { Some(&chain.inputs[input]) } else { None };
            buffers.extend(chain.steps[0].inputs.iter().filter_map(of_product).chain(written.next()));
        }
        buffers.extend(bound.chain(written));
        let (params, groups) = fused.call(self);
        let op = if self.is_profiled() { chain.ops().into() } else { Cow::Borrowed("") };
        self.record(&Dispatch { pipeline: &pipeline, params: &params, buffers: &buffers, groups, op })?;
        Ok(None)
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
            self.record_step(chain, i, output, outputs)?;
            // Returns the memory of results that this step is the last one to read.
            let later = &chain.steps[i + 1..];
            for source in &step.inputs {
                if let &Source::Step(earlier) = source
                    && !held[earlier]
                    && !later.iter().any(|step| step.inputs.contains(source))
                {
                    outputs[earlier] = None;
                }
            }
        }
        Ok(())
    }

    /// Records the kernel of one step, which writes `output`, after those before it, which have written `outputs`.
    fn record_step(&self, chain: &Chain, i: usize, output: Buffer, outputs: &[Option<Buffer>]) -> Result<()> {
        let step = &chain.steps[i];
        let buffer = |source: &Source| match *source {
            Source::Input(input) => chain.inputs.get(input).cloned(),
            Source::Step(earlier) => outputs.get(earlier).cloned().flatten(),
        };
        let mut kernel = step.kernel.clone();
        kernel.inputs = step.inputs.iter().filter_map(buffer).collect();
        kernel.outputs = vec![output];
        self.run_now(&kernel)
    }

    /// Returns the kernel of a chain, for the caller to compile if it is new; `None` if there are too many, if another thread
    /// compiles it, or if it does not compile.
    fn fused_pipeline(&self, chains: &mut Chains, fused: &Fused, identity: Identity) -> Option<FusedKernel> {
        let compiled = &mut chains.compiled[usize::from(fused.is_epilogue())];
        match chains.known.get(&identity) {
            Some(Known::Fused(pipeline)) => return Some(FusedKernel::Compiled(pipeline.clone())),
            Some(Known::Compiling | Known::Failed) => return None,
            Some(Known::Seen(_)) | None if *compiled >= MAX_FUSED => return None,
            Some(Known::Seen(_)) | None => {}
        }
        *compiled += 1;
        chains.known.insert(identity.clone(), Known::Compiling);
        Some(FusedKernel::New(Box::new(Uncompiled { identity, kernel: self.fused_kernel(fused), rest: None })))
    }

    fn compile_fused(&self, kernel: Generated) -> Known {
        #[cfg(test)]
        crate::device::injected_faults::compilation();
        match self.compile_generated(kernel) {
            Ok(pipeline) => Known::Fused(Arc::new(pipeline)),
            Err(message) => {
                log::warn!("{}: a fused kernel does not compile, its steps run one by one: {message}", self.name);
                Known::Failed
            }
        }
    }
}
