//! Placeholders for several machines in a library without MPI: types without values.

use crate::Tensor;
use crate::data::Shard;
use crate::error::{Error, Result};
use crate::parallel::DataParallel;
use crate::parallel::members::State;
use crate::process_group::Joint;

/// Other processes. Without MPI, there are none.
pub(in crate::parallel) enum Machines {}

/// A step of several processes.
pub(in crate::parallel) struct JointStep<'a>(&'a Machines);

impl Machines {
    pub fn shard(&self) -> Shard {
        match *self {}
    }

    pub fn begin(&self, _: &DataParallel, _: &State, _: usize) -> Result<JointStep<'_>> {
        match *self {}
    }

    pub fn abort(&self, _: &Error) -> ! {
        match *self {}
    }
}

impl JointStep<'_> {
    pub fn place(&self) -> Joint {
        match *self.0 {}
    }

    pub fn samples(&self, _: &Tensor, _: usize) -> Result<Tensor> {
        match *self.0 {}
    }

    pub fn send(&mut self, _: usize, _: Vec<f32>) {
        match *self.0 {}
    }

    pub fn took(&mut self, _: f64) {
        match *self.0 {}
    }

    pub fn finish(self, _: &Tensor, _: &mut f32, _: &mut [bool]) -> Result<()> {
        match *self.0 {}
    }
}
