//! Optimisers: they move parameters along their gradients, in place, on whatever devices the parameters are.

mod sgd;

pub use sgd::Sgd;
