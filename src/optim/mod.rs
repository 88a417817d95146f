//! Optimisers: they move parameters along their gradients, in place, on whatever devices the parameters are.

mod adam;
mod group;
mod rms_prop;
mod sgd;

pub use adam::Adam;
pub use rms_prop::RmsProp;
pub use sgd::Sgd;
