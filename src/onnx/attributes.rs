//! Attributes of the nodes of functions, and those that are constants.

use super::proto::{AttributeProto, FunctionProto, NodeProto, TensorProto};

/// A node of a function with the attributes that a call gives, or their defaults.
pub(super) fn bound(node: &NodeProto, function: &FunctionProto, call: &NodeProto) -> NodeProto {
    let given = |name: &str| {
        let of = |list: &[AttributeProto]| list.iter().find(|attribute| attribute.name == name).cloned();
        of(&call.attribute).or_else(|| of(&function.attribute_proto))
    };
    let mut node = node.clone();
    bind(&mut node, &given);
    node
}

/// Replaces references to attributes of a function, also in the graphs within a node.
fn bind(node: &mut NodeProto, given: &dyn Fn(&str) -> Option<AttributeProto>) {
    let attributes = std::mem::take(&mut node.attribute);
    let one = |mut attribute: AttributeProto| match attribute.ref_attr_name.as_str() {
        "" => {
            let graph = attribute.g.as_mut();
            graph.into_iter().flat_map(|graph| &mut graph.node).for_each(|node| bind(node, given));
            Some(attribute)
        }
        reference => given(reference).map(|value| AttributeProto { name: attribute.name, ..value }),
    };
    node.attribute = attributes.into_iter().filter_map(one).collect();
}

/// The other forms of a constant: numbers as attributes.
pub(super) fn constant(attribute: &AttributeProto) -> Option<TensorProto> {
    let tensor = match attribute.name.as_str() {
        "value_float" => TensorProto { data_type: 1, float_data: vec![attribute.f], ..TensorProto::default() },
        "value_floats" => {
            let dims = vec![attribute.floats.len() as i64];
            TensorProto { data_type: 1, dims, float_data: attribute.floats.clone(), ..TensorProto::default() }
        }
        "value_int" => TensorProto { data_type: 7, int64_data: vec![attribute.i], ..TensorProto::default() },
        "value_ints" => {
            let dims = vec![attribute.ints.len() as i64];
            TensorProto { data_type: 7, dims, int64_data: attribute.ints.clone(), ..TensorProto::default() }
        }
        _ => return None,
    };
    Some(tensor)
}
