//! Records the steps of a [chain](super::chain): as one kernel, or one by one.

use std::borrow::Cow;
use std::sync::Arc;

use super::chain::{Chain, Chains, Known, Link, MAX_FUSED, RUNS_BEFORE, Source};
use super::fused::Fused;
use super::queue::Dispatch;
use super::{Buffer, Gpu, Kernel, Pipeline};
use crate::error::Result;
use crate::sync;

/// The words of a buffer for which a chain goes on.
const SMALL: usize = 8192;

impl Gpu {
    /// Records a kernel, after the open chain if the two share a buffer that one of them writes; or keeps it as the next step of
    /// a chain.
    pub(super) fn chain_or_run(&self, mut kernel: Kernel) -> Result<()> {
        let link = kernel.link.take_if(|_| RUNS_BEFORE.is_some());
        // Compiled before the lock is taken, which other threads need for kernels that are compiled already.
        let pipeline = match link {
            Some(Link::Formula(_)) => None,
            _ => Some(self.pipeline(&kernel)?),
        };
        let mut chains = sync::lock(&self.chains);
        let Some(link) = link else {
            // Only what reads or changes buffers of the chain has to wait for it.
            if chains.open.meets(&kernel) {
                self.flush(&mut chains)?;
            }
            return pipeline.map_or(Ok(()), |pipeline| self.record(&kernel.dispatch(&pipeline, &kernel.buffers())));
        };
        if !chains.open.steps.is_empty() && !chains.open.takes(self, &kernel, &link) {
            self.flush(&mut chains)?;
        }
        self.check()?;
        if let Some(pipeline) = pipeline {
            // What cannot run is an error of its own op, not of the call that ends the chain.
            self.check_dispatch(&kernel.dispatch(&pipeline, &kernel.buffers()))?;
        }
        chains.open.push(kernel, link);
        Ok(())
    }

    /// Records the open chain.
    pub(super) fn flush_chain(&self) -> Result<()> {
        self.flush(&mut sync::lock(&self.chains))
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
        let mut chains = sync::lock(&self.chains);
        match chains.open.steps.first() {
            Some(step) if !(self.has_page(words) && (step.words == words || words <= SMALL)) => self.flush(&mut chains),
            _ => Ok(()),
        }
    }

    /// As `flush_chain`. The lock is held until all of it is recorded, so that no other thread's kernel comes before it. On
    /// an error the chain stays open if somebody holds a result: nobody can read what was not computed, and the next call
    /// tries again.
    fn flush(&self, chains: &mut Chains) -> Result<()> {
        let chain = std::mem::take(&mut chains.open);
        let done = if chain.steps.is_empty() { Ok(()) } else { self.record_chain(chains, &chain) };
        if done.is_err() && chain.steps.iter().any(|step| step.output.is_alive()) {
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
            if chains.is_frequent(self, &fused)
                && let Some(done) = self.record_fused(chains, chain, &fused, &outputs)
            {
                return done;
            }
            if fused.is_epilogue()
                && let Some(result) = outputs[0].take().or_else(|| self.alloc_again(chain.steps[0].words).ok())
            {
                self.record_step(chain, 0, result.clone(), &[])?;
                return self.record_chain(chains, &chain.after_product(result));
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
        Some(self.record(&Dispatch { pipeline: &pipeline, params: &params, buffers: &buffers, groups, op }))
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

    /// Returns the kernel of a chain; `None` if there are too many, or it does not compile.
    fn fused_pipeline(&self, chains: &mut Chains, fused: &Fused) -> Option<Arc<Pipeline>> {
        let compiled = &mut chains.compiled[usize::from(fused.is_epilogue())];
        let known = chains.known.entry(fused.identity()).or_insert(Known::Seen(0));
        match known {
            Known::Fused(pipeline) => return Some(pipeline.clone()),
            Known::Failed => return None,
            Known::Seen(_) if *compiled >= MAX_FUSED => return None,
            Known::Seen(_) => {}
        }
        *compiled += 1;
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
