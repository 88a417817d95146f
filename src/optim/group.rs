//! Parameters as runs of one buffer, and the steps that move a whole run in one dispatch.

use std::collections::HashSet;

use crate::error::{Error, Result};
use crate::nn::{flat_view, follows};
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
        let next = self.steps[0] + 1;
        let together = self.steps.iter().all(|&step| step + 1 == next);
        match grads.iter().cloned().collect::<Option<Vec<Tensor>>>().filter(|_| together) {
            Some(grads) => self.update(0, &self.flat_grad(&grads)?, rule(next))?,
            None => self.step_each(&grads, rule)?,
        }
        self.steps.iter_mut().zip(&grads).for_each(|(step, grad)| *step += i32::from(grad.is_some()));
        Ok(())
    }

    /// All gradients, laid out as `flat`. After `DataParallel` they lie so already.
    fn flat_grad(&self, grads: &[Tensor]) -> Result<Tensor> {
        match flat_view(grads) {
            Some(flat) => Ok(flat),
            None => flatten_together(grads)?.narrow(0, 0, self.flat.elem_count()),
        }
    }

    /// The way when some parameters took no part in the loss: those that did, one by one.
    fn step_each(&self, grads: &[Option<Tensor>], rule: &impl Fn(i32) -> Rule) -> Result<()> {
        let origin = self.flat.layout().offset;
        for ((parameter, grad), step) in self.parameters.iter().zip(grads).zip(&self.steps) {
            if let Some(grad) = grad {
                let grad = grad.detach().contiguous()?.reshape(grad.elem_count())?;
                self.update(parameter.layout().offset - origin, &grad, rule(step + 1))?;
            }
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
