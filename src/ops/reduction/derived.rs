//! Ops that are compositions of others: no kernel, no gradient of their own.
//!
//! Where a fused kernel exists too, the composition is its oracle, and what runs where the kernel does not reach.

use crate::error::Result;
use crate::tensor::Tensor;

impl Tensor {
    /// softmax along a dimension too long for the kernel.
    pub(in crate::ops) fn long_softmax(&self, dim: usize) -> Result<Tensor> {
        let e = self.sub(&self.detach().max(&[dim], true)?)?.exp()?;
        e.div(&e.sum(&[dim], true)?)
    }

    /// log-softmax along a dimension too long for the kernel.
    pub(in crate::ops) fn long_log_softmax(&self, dim: usize) -> Result<Tensor> {
        let shifted = self.sub(&self.detach().max(&[dim], true)?)?;
        shifted.sub(&shifted.exp()?.sum(&[dim], true)?.log()?)
    }
}
