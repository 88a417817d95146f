//! The parameters of an optimiser with its state, in buckets. One dispatch updates a whole bucket.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::Parameters;
use crate::device::labelled_by_default;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::nn::moved;
use crate::ops::optim::{UpdateRule, optimiser_step};
use crate::tensor::{Bucket, Tensor};

/// All parameters of an optimiser, and its state.
#[derive(Debug)]
pub(super) struct OptimizerState {
    optimizer: &'static str,
    parameters: Parameters,
    /// The buckets, found at the first step.
    buckets: Option<Vec<ParameterBucket>>,
}

/// The state of one parameter after some steps. A missing tensor means 0.
pub(super) struct ParameterState {
    pub step: i32,
    pub tensors: Vec<Option<Tensor>>,
}

/// Parameters in one bucket, and their state.
#[derive(Debug)]
pub(super) struct ParameterBucket {
    pub parameters: Vec<Tensor>,
    bucket: Bucket,
    /// The number of steps of each parameter.
    pub steps: Vec<i32>,
    /// The state tensors, with the layout of the bucket; created when a rule first needs them.
    state: Vec<Tensor>,
}

/// Returns an error if a parameter was replaced in its net, so that only `who` has it: the trained net has another one.
/// A clone of the net may still have it, and be trained. Besides the list, `who` has `beside` handles of each
/// parameter. `anew` says how to create another `who`.
pub(super) fn still_trained(who: &'static str, parameters: &[Tensor], beside: usize, anew: &str) -> Result<()> {
    let own = |p: &Tensor| beside + parameters.iter().filter(|other| other.id() == p.id()).count();
    let gone = |p: &Tensor| p.is_replaced() && p.holders() <= own(p);
    let Some(i) = parameters.iter().position(gone) else { return Ok(()) };
    let (shape, device) = (parameters[i].shape(), parameters[i].device());
    let what = if parameters[i].is_leaf() {
        "was replaced when its net was moved or copied (Module::to, DataParallel::new, deep_copy)"
    } else {
        "was frozen, and its net was unfrozen (requires_grad_(true))"
    };
    let detail = format!(
        "parameter {i}, of shape {shape:?} on {device}, {what} after this was made, and the net no longer has it: {anew} after that"
    );
    Err(Error::argument(who, detail))
}

/// How a step changes the parameters of a bucket.
pub(super) trait Rule {
    /// What a step writes.
    type Update;

    /// Returns how many tensors of state a parameter has.
    fn state_tensors(&self) -> usize;

    /// Computes all updates of a bucket, without writing to it.
    fn updates(&self, bucket: &ParameterBucket) -> Result<Vec<Self::Update>>;

    /// Writes the updates.
    fn write(&self, bucket: &mut ParameterBucket, updates: Vec<Self::Update>) -> Result<()>;
}

/// A rule for single elements. It depends on the number of the step, counted from 1.
impl<F: Fn(i32) -> UpdateRule> Rule for F {
    type Update = Update;

    fn state_tensors(&self) -> usize {
        self(1).state_tensors()
    }

    fn updates(&self, bucket: &ParameterBucket) -> Result<Vec<Update>> {
        bucket.updates()
    }

    fn write(&self, bucket: &mut ParameterBucket, updates: Vec<Update>) -> Result<()> {
        bucket.step(&updates, self)
    }
}

/// A part of a step: neighbouring parameters of a bucket, and their gradients as one tensor.
pub(super) struct Update {
    parameters: Range<usize>,
    grad: Tensor,
}

impl OptimizerState {
    /// Creates the state for these parameters. A parameter that occurs twice is updated once.
    pub fn new(optimizer: &'static str, parameters: impl Into<Parameters>) -> OptimizerState {
        OptimizerState { optimizer, parameters: parameters.into(), buckets: None }
    }

    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Updates every parameter that has a gradient.
    pub fn step<R: Rule>(&mut self, rule: &R) -> Result<()> {
        self.check_step(rule)?;
        some_gradient(self.optimizer, &self.parameters)?;
        // All memory is allocated before anything is written: after an error, every parameter is as it was.
        let buckets = self.buckets.iter().flatten();
        let updates = buckets.map(|bucket| rule.updates(bucket)).collect::<Result<Vec<_>>>()?;
        let mut buckets = self.buckets.iter_mut().flatten().zip(updates);
        buckets.try_for_each(|(bucket, updates)| rule.write(bucket, updates))
    }

    /// Checks the gradients, and allocates the state that a step needs.
    pub fn check_step(&mut self, rule: &impl Rule) -> Result<()> {
        self.check_parameters()?;
        if self.buckets.is_none() {
            self.buckets = Some(self.bucketed()?);
        }
        let (optimizer, tensors) = (self.optimizer, rule.state_tensors());
        self.buckets.iter_mut().flatten().try_for_each(|bucket| bucket.prepare(optimizer, tensors))
    }

    /// Returns an error if there are no parameters, or if a parameter never gets a gradient or is no longer in its net.
    pub fn check_parameters(&self) -> Result<()> {
        self.trainable()?;
        let beside = usize::from(self.buckets.is_some());
        still_trained(self.optimizer, &self.parameters, beside, "make the optimiser from net.parameters()")
    }

    /// Returns an error if there are no parameters, or if a parameter never gets a gradient.
    fn trainable(&self) -> Result<()> {
        if self.parameters.is_empty() {
            let detail = "there are no parameters to update: pass net.parameters()";
            return Err(Error::argument(self.optimizer, detail));
        }
        if let Some(i) = self.parameters.iter().position(|parameter| parameter.node().is_some()) {
            let detail = format!(
                "parameter {i} is the result of an op, which gets no gradient: pass the tensor that it was computed from, \
                 on which requires_grad() was called"
            );
            return Err(Error::argument(self.optimizer, detail));
        }
        Ok(())
    }

    /// Returns, for each parameter of a replica that is not lost and made a step, its index, its number of steps, and views of
    /// its state.
    pub fn saved(&self) -> Result<Vec<(usize, i32, Vec<Tensor>)>> {
        let (numbers, mut all) = (numbers(self.parameters.living_replica()), Vec::new());
        for bucket in self.buckets.iter().flatten() {
            let views: Vec<Vec<Tensor>> = bucket.state_views()?;
            for (i, (parameter, &step)) in bucket.parameters.iter().zip(&bucket.steps).enumerate() {
                if let Some(&number) = numbers.get(&parameter.id()).filter(|_| step > 0) {
                    all.push((number, step, views.iter().map(|views| views[i].clone()).collect()));
                }
            }
        }
        all.sort_by_key(|(number, ..)| *number);
        Ok(all)
    }

    /// Restores a state of `count` tensors for each parameter of a replica, in order, in every replica. On error,
    /// nothing is changed.
    pub fn restore(&mut self, count: usize, given: &[Option<ParameterState>]) -> Result<()> {
        let numbers: HashMap<u64, usize> = self.parameters.replicas().flat_map(numbers).collect();
        let mut buckets = self.bucketed()?;
        for bucket in &mut buckets {
            let of = |parameter: &Tensor| given.get(*numbers.get(&parameter.id())?)?.as_ref();
            let states: Vec<Option<&ParameterState>> = bucket.parameters.iter().map(of).collect();
            bucket.steps = states.iter().map(|state| state.map_or(0, |state| state.step)).collect();
            bucket.restore(count, &states)?;
        }
        self.buckets = Some(buckets);
        Ok(())
    }

    /// Returns the parameters in the longest buckets that they already form.
    fn bucketed(&self) -> Result<Vec<ParameterBucket>> {
        let mut seen = HashSet::new();
        let distinct: Vec<Tensor> = self.parameters.iter().filter(|p| seen.insert(p.id())).cloned().collect();
        let bucket = |run: &[Tensor]| {
            let gaps = "a parameter is a view with gaps: give the tensor it is a view of";
            let bucket = Bucket::recognise(run).ok_or_else(|| Error::argument(self.optimizer, gaps))?;
            Ok(ParameterBucket { parameters: run.to_vec(), bucket, steps: vec![0; run.len()], state: Vec::new() })
        };
        Bucket::runs(&distinct).map(bucket).collect()
    }
}

/// Returns an error if no parameter has a gradient: a step would change nothing.
pub(super) fn some_gradient(optimizer: &'static str, parameters: &Parameters) -> Result<()> {
    if parameters.iter().any(|parameter| parameter.grad().is_some()) {
        return Ok(());
    }
    let count = parameters.len();
    let detail = if parameters.iter().any(Tensor::is_tracked) {
        format!(
            "none of the {count} parameters has a gradient, so the step would change nothing: call backward() between \
             zero_grad() and step(), on a loss that is computed from them. A net that was moved (Module::to, DataParallel::new) has \
             new parameters: make the optimiser from net.parameters() after the move"
        )
    } else {
        format!(
            "none of the {count} parameters gets a gradient, since all are frozen: call requires_grad_(true) on the net, or \
             requires_grad() on the tensors, and make the optimiser after that"
        )
    };
    Err(Error::argument(optimizer, detail))
}

/// Returns the index of the first occurrence of each parameter of a replica, by its id.
fn numbers(replica: &[Tensor]) -> HashMap<u64, usize> {
    replica.iter().enumerate().rev().map(|(number, parameter)| (parameter.id(), number)).collect()
}

impl ParameterBucket {
    /// Checks the shapes of the gradients, and creates the state that a step needs.
    fn prepare(&mut self, optimizer: &'static str, state_tensors: usize) -> Result<()> {
        for parameter in &self.parameters {
            if let Some(grad) = parameter.grad().filter(|grad| grad.shape() != parameter.shape()) {
                let rule = "a gradient must have the shape of its parameter";
                return Err(Error::shapes(optimizer, parameter.shape(), grad.shape(), rule));
            }
        }
        let flat = self.bucket.flat();
        while self.state.len() < state_tensors {
            let zeros = labelled_by_default("optimizer state", || Tensor::zeros(flat.shape(), flat.device()))?;
            self.state.push(zeros);
        }
        Ok(())
    }

    /// Returns the updates of a step, one for each run of parameters that have gradients and equal numbers of steps.
    /// There is a single run, unless some parameters are frozen or do not contribute to the loss.
    fn updates(&self) -> Result<Vec<Update>> {
        let grads: Vec<Option<Tensor>> = self.parameters.iter().map(Tensor::grad).collect();
        let all: Vec<(usize, i32)> =
            (0..grads.len()).filter(|&i| grads[i].is_some()).map(|i| (i, self.steps[i])).collect();
        let runs = all.chunk_by(|(i, steps), (next, next_steps)| i + 1 == *next && steps == next_steps);
        let update = |run: &[(usize, i32)]| {
            let (first, last) = (run[0].0, run[run.len() - 1].0);
            let grads: Vec<Tensor> = grads[first..=last].iter().flatten().cloned().collect();
            // After `DataParallel` or clipping, the gradients already are a bucket.
            Ok(Update { parameters: first..last + 1, grad: Bucket::of(&grads)?.flat().clone() })
        };
        runs.map(update).collect()
    }

    fn step(&mut self, updates: &[Update], rule: &impl Fn(i32) -> UpdateRule) -> Result<()> {
        for Update { parameters, grad } in updates {
            let start = self.bucket.range(parameters.start, parameters.end - 1).start;
            self.update(start, grad, rule(self.steps[parameters.start] + 1))?;
            self.steps[parameters.clone()].iter_mut().for_each(|step| *step += 1);
        }
        Ok(())
    }

    /// Updates the elements of the bucket from `start` on with the 1-D `grad`.
    fn update(&self, start: usize, grad: &Tensor, rule: UpdateRule) -> Result<()> {
        let part = |flat: &Tensor| flat.narrow(0, start, grad.elem_count());
        let state = self.state[..rule.state_tensors()].iter().map(part).collect::<Result<Vec<_>>>()?;
        optimiser_step(&part(self.bucket.flat())?, grad, &state, rule)
    }

    /// Returns views of each state tensor, one per parameter.
    pub fn state_views(&self) -> Result<Vec<Vec<Tensor>>> {
        self.state.iter().map(|flat| self.bucket.with_flat(flat.clone()).tensors()).collect()
    }

    /// Creates the state tensors with the layout of the parameters. All values are moved to this device in one copy.
    fn restore(&mut self, count: usize, given: &[Option<&ParameterState>]) -> Result<()> {
        let here = self.bucket.flat().device();
        let known = |state: &&ParameterState| state.tensors.iter().flatten().cloned().collect::<Vec<_>>();
        // Adapters hold no f64.
        let narrow = |tensor: Tensor| if tensor.dtype().is_long() { tensor.to_dtype(DType::F32) } else { Ok(tensor) };
        let known = given.iter().flatten().flat_map(known).map(narrow).collect::<Result<Vec<Tensor>>>()?;
        let mut known = moved(&known.iter().collect::<Vec<_>>(), here)?.into_iter();
        let mut all: Vec<Vec<Tensor>> = vec![Vec::new(); count];
        for (parameter, state) in self.parameters.iter().zip(given) {
            for (i, of_all) in all.iter_mut().enumerate() {
                let tensor = state.and_then(|state| state.tensors.get(i)?.as_ref());
                of_all.push(match tensor.and_then(|_| known.next()) {
                    Some(tensor) => tensor.to_dtype(DType::F32)?,
                    None => Tensor::zeros(parameter.shape(), here)?,
                });
            }
        }
        self.state = all.iter().map(|tensors| Ok(Bucket::gather(tensors)?.flat().clone())).collect::<Result<_>>()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_one_bucket_stay_together_and_duplicates_count_once() -> Result<()> {
        let tensor = |values: &[f32]| Tensor::from_slice(values, values.len(), None);
        let views = Bucket::gather(&[tensor(&[1.0])?, tensor(&[2.0; 65])?])?.tensors()?;
        let buckets =
            |parameters: Vec<Tensor>| OptimizerState::new("test", parameters).bucketed().map(|buckets| buckets.len());
        assert_eq!(buckets([views.clone(), views].concat())?, 1);
        assert_eq!(buckets(vec![tensor(&[1.0])?, tensor(&[2.0])?])?, 2);
        Ok(())
    }
}
