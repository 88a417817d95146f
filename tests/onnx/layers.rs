//! Convolutions, pooling, normalisations, losses.

use super::call::{Call, Outcome};

pub fn map(call: &Call) -> Option<Outcome> {
    let _ = call;
    None
}
