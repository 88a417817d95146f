//! The groups of additional tensors in a training checkpoint.
//!
//! The tensor `w` of the group `ema` is called `extra.ema.w`, and `extra.ema` in the metadata is the number of tensors
//! of the group. A group can be called `ema.x` beside `ema`: a tensor belongs to the group with the longest name that
//! fits. Names that would belong to another group on reading are refused.

use super::safetensors::Metadata;
use crate::nn::StateDict;

const EXTRA: &str = "extra.";

/// Adds a group. Otherwise, returns why it cannot be added, and changes nothing.
pub(super) fn add(
    state: &mut StateDict,
    metadata: &mut Metadata,
    name: &str,
    tensors: &StateDict,
) -> Result<(), String> {
    if metadata.contains_key(&marker(name)) {
        return Err(format!(
            "a second .tensors({name:?}, …) would take the place of the first: give each group a name of its own"
        ));
    }
    let overlap = |longer: &str, shorter: &str, tensor: &str| {
        format!(
            ".tensors({longer:?}, …) and .tensors({shorter:?}, …) overlap: the tensor {tensor:?} of the second has a \
             name of the first: call one of the groups otherwise"
        )
    };
    for (full, _) in state.iter() {
        let Some(inner) = full.strip_prefix(EXTRA).filter(|full| inner_name(full, name).is_some()) else { continue };
        if let Some(shorter) = owner(metadata, inner).filter(|owner| owner.len() < name.len()) {
            return Err(overlap(name, shorter, inner_name(inner, shorter).unwrap_or(inner)));
        }
    }
    for tensor in tensors.names() {
        if let Some(longer) = owner(metadata, &format!("{name}.{tensor}")).filter(|owner| owner.len() > name.len()) {
            return Err(overlap(longer, name, tensor));
        }
    }
    metadata.insert(marker(name), tensors.len().to_string()); // marks the group, also if it is empty
    state.extend(tensors.add_prefix(&format!("{EXTRA}{name}.")));
    Ok(())
}

/// Returns the tensors of a group, or `None` if there is no such group. Returns an error if an earlier version wrote
/// the file with groups that overlap.
pub(super) fn get(state: &StateDict, metadata: &Metadata, name: &str) -> Result<Option<StateDict>, String> {
    let of = |group: &str| -> StateDict {
        let inner = |full: &str| {
            let full = full.strip_prefix(EXTRA)?;
            let inner = inner_name(full, group)?;
            // Groups of the first versions have no marker: their tensors belong to no other group.
            let belongs = owner(metadata, full).map_or(!metadata.contains_key(&marker(group)), |owner| owner == group);
            belongs.then(|| inner.to_string())
        };
        state.iter().filter_map(|(full, tensor)| Some((inner(full)?, tensor.clone()))).collect()
    };
    let related = |group: &&str| inner_name(group, name).is_some() || inner_name(name, group).is_some();
    for group in groups(metadata).filter(|group| *group == name || related(group)) {
        let count = metadata.get(&marker(group)).and_then(|count| count.parse().ok());
        if count.is_some_and(|count: usize| count != of(group).len()) {
            return Err(format!(
                "the group of tensors {name:?} cannot be told from others: {group:?} was written with {} tensors, and \
                 {} have its name, because names of groups overlap",
                count.unwrap_or_default(),
                of(group).len()
            ));
        }
    }
    let found = of(name);
    Ok((!found.is_empty() || metadata.contains_key(&marker(name))).then_some(found))
}

fn marker(name: &str) -> String {
    format!("{EXTRA}{name}")
}

fn groups(metadata: &Metadata) -> impl Iterator<Item = &str> {
    metadata.keys().filter_map(|key| key.strip_prefix(EXTRA))
}

/// Returns the group that a tensor belongs to, among the groups with a marker.
fn owner<'a>(metadata: &'a Metadata, full: &str) -> Option<&'a str> {
    groups(metadata).filter(|group| inner_name(full, group).is_some()).max_by_key(|group| group.len())
}

/// Returns `w` of `ema.w` and the group `ema`.
fn inner_name<'a>(full: &'a str, group: &str) -> Option<&'a str> {
    full.strip_prefix(group)?.strip_prefix('.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Tensor;

    /// Earlier versions stored `x.w` of `ema` and `w` of `ema.x` as one tensor.
    #[test]
    fn files_with_groups_that_overlap_are_read_as_far_as_they_are_clear() {
        let state = |names: &[&str]| -> StateDict {
            names.iter().map(|name| (format!("{EXTRA}{name}"), Tensor::scalar(1.0f32, None).unwrap())).collect()
        };
        let metadata = |groups: &[(&str, usize)]| -> Metadata {
            groups.iter().map(|(name, count)| (marker(name), count.to_string())).collect()
        };
        let overlap = metadata(&[("ema", 1), ("ema.x", 1), ("best", 1)]);
        let read = state(&["ema.x.w", "best.w"]);
        for name in ["ema", "ema.x"] {
            let error = get(&read, &overlap, name).unwrap_err();
            assert!(error.contains(&format!("{name:?}")) && error.contains("\"ema\""), "{error}");
        }
        assert_eq!(get(&read, &overlap, "best").unwrap().unwrap().names().collect::<Vec<_>>(), ["w"]);
        assert!(get(&read, &overlap, "other").unwrap().is_none());

        let clear = metadata(&[("ema", 2), ("ema.x", 1), ("none", 0)]);
        let read = state(&["ema.w", "ema.x.w", "ema.y.w"]);
        assert_eq!(get(&read, &clear, "ema").unwrap().unwrap().names().collect::<Vec<_>>(), ["w", "y.w"]);
        assert_eq!(get(&read, &clear, "ema.x").unwrap().unwrap().names().collect::<Vec<_>>(), ["w"]);
        assert!(get(&read, &clear, "none").unwrap().unwrap().is_empty());
        let unmarked = get(&read, &Metadata::new(), "ema").unwrap().unwrap();
        assert_eq!(unmarked.names().collect::<Vec<_>>(), ["w", "x.w", "y.w"]);
    }
}
