//! Operators of ONNX in ops of this crate.

mod attention;
mod bits;
mod detection;
mod elementwise;
mod fused_attention;
mod index;
mod layers;
mod linear;
mod long;
mod microsoft;
mod norms;
mod pads;
mod pools;
mod quantised;
mod random;
mod recurrent;
mod reduce;
mod resize;
mod sequence;
mod shape;
mod signal;
mod state;
mod values;
mod window;

use super::call::Operator;

pub(super) use elementwise::fold;
pub(super) use fused_attention::{FUSED_ATTENTION, fused_attention};
pub(super) use index::{Range, slice_range};
pub(super) use long::range;
pub(super) use shape::{new_shape, shape_values, split_sizes};

/// The function of an operator, if there is one. The domain of ONNX's own operators is empty.
pub(super) fn find(domain: &str, op: &str) -> Option<Operator> {
    match domain {
        "" => {
            let families = [
                // Before the elementwise tables, which have these operators for 32 bits.
                bits::find,
                elementwise::find,
                reduce::find,
                linear::find,
                attention::find,
                layers::find,
                norms::find,
                index::find,
                pads::find,
                pools::find,
                quantised::find,
                detection::find,
                signal::find,
                random::find,
                values::find,
                recurrent::find,
                resize::find,
                sequence::find,
                state::find,
                shape::find,
            ];
            families.into_iter().find_map(|family| family(op))
        }
        "com.microsoft" => microsoft::find(op),
        _ => None,
    }
}
