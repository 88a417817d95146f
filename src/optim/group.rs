//! Parameters as runs of one buffer, and the steps that move a whole run in one dispatch.

use std::collections::{HashMap, HashSet};

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::nn::{flat_view, follows, moved};
use crate::ops::optim::{Rule, optimiser_step};
use crate::tensor::{Tensor, flatten_together};

/// All parameters of an optimiser, and what it remembers of them.
#[derive(Debug)]
pub(super) struct Parameters {
    optimiser: &'static str,
    all: Vec<Tensor>,
    /// Found at the first step.
    groups: Option<Vec<Group>>,
}

/// What is remembered of one parameter after some steps; a tensor that is not there is 0.
pub(super) struct Memories {
    pub step: i32,
    pub tensors: Vec<Option<Tensor>>,
}

/// Parameters in successive slots of one buffer.
#[derive(Debug)]
struct Group {
    parameters: Vec<Tensor>,
    /// How many steps each has made.
    steps: Vec<i32>,
    /// All of them as one 1-D tensor.
    flat: Tensor,
    /// What is remembered, laid out as `flat`; made when a rule first asks for it.
    memories: Vec<Tensor>,
}

impl Parameters {
    /// A parameter that is given twice is updated once.
    pub fn new(optimiser: &'static str, parameters: Vec<Tensor>) -> Parameters {
        Parameters { optimiser, all: parameters, groups: None }
    }

    pub fn all(&self) -> &[Tensor] {
        &self.all
    }

    pub fn zero_grad(&self) {
        self.all.iter().for_each(|parameter| parameter.set_grad(None));
    }

    /// Moves every parameter that has a gradient by the rule for its step, counted from 1.
    pub fn step(&mut self, rule: impl Fn(i32) -> Rule) -> Result<()> {
        if self.groups.is_none() {
            self.groups = Some(self.grouped()?);
        }
        let optimiser = self.optimiser;
        self.groups.iter_mut().flatten().try_for_each(|group| group.step(optimiser, &rule))
    }

    /// For each parameter that made a step: its number, the steps, and views of what is remembered.
    pub fn remembered(&self) -> Result<Vec<(usize, i32, Vec<Tensor>)>> {
        let (numbers, mut all) = (self.numbers(), Vec::new());
        for group in self.groups.iter().flatten() {
            let origin = group.flat.layout().offset;
            for (parameter, &step) in group.parameters.iter().zip(&group.steps).filter(|(_, step)| **step > 0) {
                let start = parameter.layout().offset - origin;
                let view =
                    |memory: &Tensor| memory.narrow(0, start, parameter.elem_count())?.reshape(parameter.shape());
                let memories = group.memories.iter().map(view).collect::<Result<_>>()?;
                all.extend(numbers.get(&parameter.id()).map(|&number| (number, step, memories)));
            }
        }
        all.sort_by_key(|(number, ..)| *number);
        Ok(all)
    }

    /// At which place a parameter was given first.
    fn numbers(&self) -> HashMap<u64, usize> {
        self.all.iter().enumerate().rev().map(|(number, parameter)| (parameter.id(), number)).collect()
    }

    /// Takes over `count` memories of each parameter, given in the order of all of them. Nothing is changed on an error.
    pub fn remember(&mut self, count: usize, given: &[Option<Memories>]) -> Result<()> {
        let (numbers, mut groups) = (self.numbers(), self.grouped()?);
        for group in &mut groups {
            let of = |parameter: &Tensor| given.get(*numbers.get(&parameter.id())?)?.as_ref();
            let memories: Vec<Option<&Memories>> = group.parameters.iter().map(of).collect();
            group.steps = memories.iter().map(|memories| memories.map_or(0, |m| m.step)).collect();
            group.remember(count, &memories)?;
        }
        self.groups = Some(groups);
        Ok(())
    }

    /// Runs of parameters that lie in successive slots.
    fn grouped(&self) -> Result<Vec<Group>> {
        let mut runs: Vec<Vec<Tensor>> = Vec::new();
        let mut seen = HashSet::new();
        for parameter in self.all.iter().filter(|parameter| seen.insert(parameter.id())) {
            match runs.last_mut() {
                Some(run) if run.last().is_some_and(|last| follows(last, parameter)) => run.push(parameter.clone()),
                _ => runs.push(vec![parameter.clone()]),
            }
        }
        let group = |parameters: Vec<Tensor>| {
            let gaps = "a parameter is a view with gaps: give the tensor it is a view of";
            let flat = flat_view(&parameters).ok_or_else(|| Error::argument(self.optimiser, gaps))?;
            Ok(Group { steps: vec![0; parameters.len()], parameters, flat, memories: Vec::new() })
        };
        runs.into_iter().map(group).collect()
    }
}

impl Group {
    fn step(&mut self, optimiser: &'static str, rule: &impl Fn(i32) -> Rule) -> Result<()> {
        let grads: Vec<Option<Tensor>> = self.parameters.iter().map(Tensor::grad).collect();
        for (parameter, grad) in self.parameters.iter().zip(&grads) {
            if let Some(grad) = grad.as_ref().filter(|grad| grad.shape() != parameter.shape()) {
                let rule = "a gradient has the shape of its parameter";
                return Err(Error::shapes(optimiser, parameter.shape(), grad.shape(), rule));
            }
        }
        while self.memories.len() < rule(1).memories() {
            self.memories.push(Tensor::zeros(self.flat.shape(), self.flat.device())?);
        }
        self.step_runs(&grads, rule)?;
        self.steps.iter_mut().zip(&grads).for_each(|(step, grad)| *step += i32::from(grad.is_some()));
        Ok(())
    }

    /// Lays out what is remembered as the parameters are: all of it comes here in one copy.
    fn remember(&mut self, count: usize, given: &[Option<&Memories>]) -> Result<()> {
        let here = self.flat.device();
        let known = |memories: &&Memories| memories.tensors.iter().flatten().cloned().collect::<Vec<_>>();
        let known: Vec<Tensor> = given.iter().flatten().flat_map(known).collect();
        let mut known = moved(&known.iter().collect::<Vec<_>>(), here)?.into_iter();
        let mut all: Vec<Vec<Tensor>> = vec![Vec::new(); count];
        for (parameter, memories) in self.parameters.iter().zip(given) {
            for (i, of_all) in all.iter_mut().enumerate() {
                let tensor = memories.and_then(|memories| memories.tensors.get(i)?.as_ref());
                of_all.push(match tensor.and_then(|_| known.next()) {
                    Some(tensor) => tensor.to_dtype(DType::F32)?,
                    None => Tensor::zeros(parameter.shape(), here)?,
                });
            }
        }
        let flat = |tensors: Vec<Tensor>| flatten_together(&tensors)?.narrow(0, 0, self.flat.elem_count());
        self.memories = all.into_iter().map(flat).collect::<Result<_>>()?;
        Ok(())
    }

    /// One update for each run of parameters that have gradients and have made as many steps: a single one, unless some
    /// are frozen or took no part in the loss.
    fn step_runs(&self, grads: &[Option<Tensor>], rule: &impl Fn(i32) -> Rule) -> Result<()> {
        let offset = |i: usize| self.parameters[i].layout().offset - self.flat.layout().offset;
        let all: Vec<(usize, i32)> =
            (0..grads.len()).filter(|&i| grads[i].is_some()).map(|i| (i, self.steps[i])).collect();
        for run in all.chunk_by(|(i, steps), (next, next_steps)| i + 1 == *next && steps == next_steps) {
            let (Some(&(first, steps)), Some(&(last, _))) = (run.first(), run.last()) else { continue };
            let len = offset(last) + self.parameters[last].elem_count() - offset(first);
            let grads: Vec<Tensor> = grads[first..=last].iter().flatten().cloned().collect();
            // After `DataParallel` or clipping they lie in one block already.
            let grad = match flat_view(&grads) {
                Some(flat) => flat,
                None => flatten_together(&grads)?.narrow(0, 0, len)?,
            };
            self.update(offset(first), &grad, rule(steps + 1))?;
        }
        Ok(())
    }

    /// Updates the elements of `flat` from `start` on by the 1-D `grad`.
    fn update(&self, start: usize, grad: &Tensor, rule: Rule) -> Result<()> {
        let part = |flat: &Tensor| flat.narrow(0, start, grad.elem_count());
        let memories = self.memories[..rule.memories()].iter().map(part).collect::<Result<Vec<_>>>()?;
        optimiser_step(&part(&self.flat)?, grad, &memories, rule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::nn::flatten_onto;

    #[test]
    fn flat_parameters_are_one_group_and_duplicates_count_once() -> Result<()> {
        let tensor = |values: &[f32]| Tensor::from_slice(values, values.len(), None);
        let flat = flatten_onto(&[tensor(&[1.0])?, tensor(&[2.0; 65])?], &Device::cpu())?;
        let groups = |parameters| Parameters::new("test", parameters).grouped().map(|groups| groups.len());
        assert_eq!(groups([flat.clone(), flat].concat())?, 1);
        assert_eq!(groups(vec![tensor(&[1.0])?, tensor(&[2.0])?])?, 2);
        Ok(())
    }
}
