//! The names of ops, which errors, profiles and the op table use. Each op says its own beside its `impl`, so that tests know all.

use crate::ops::elementwise::elementwise_names;

/// The names that an op may have.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Names {
    /// These; `names!` registers them.
    Own(&'static [&'static str]),
    /// The names of the functions of the elementwise tables.
    OfTables,
    /// The names of ops or methods that compute by this op. It has the name of the one that made it.
    OfCaller,
}

/// Names that `names!` registered.
pub(in crate::ops) struct Registered(pub &'static [&'static str]);

inventory::collect!(Registered);

/// Expands to the [`Names`] of an op, and registers them: `const NAMES: Names = names!["tril", "triu"];`.
macro_rules! names {
    [$($name:literal),+ $(,)?] => {{
        inventory::submit! { $crate::ops::names::Registered(&[$($name),+]) }
        $crate::ops::names::Names::Own(&[$($name),+])
    }};
}
pub(in crate::ops) use names;

impl Names {
    /// Returns the only name. An op that has several, or whose names are others', has a `name` of its own.
    pub const fn only(self) -> &'static str {
        match self {
            Names::Own([name]) => name,
            Names::Own(_) | Names::OfTables | Names::OfCaller => {
                panic!("an op without one name of its own needs `fn name`")
            }
        }
    }

    /// Returns whether an op with these names may have this one.
    pub fn have(self, name: &str) -> bool {
        match self {
            Names::Own(names) => names.contains(&name),
            Names::OfTables | Names::OfCaller => true,
        }
    }
}

/// Returns the names of all ops, sorted: the registered names, and the names of the elementwise tables.
pub(super) fn all() -> Vec<&'static str> {
    let mut all = elementwise_names();
    all.extend(inventory::iter::<Registered>.into_iter().flat_map(|names| names.0));
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ops_register_their_names() {
        let all = all();
        assert!(all.is_sorted());
        for name in ["add", "relu", "softmax", "log_softmax", "conv2d", "slogdet", "scatter_reduce"] {
            assert!(all.contains(&name), "{name} is not in {all:?}");
        }
    }

    #[test]
    fn an_op_has_no_other_names() {
        const NAMES: Names = Names::Own(&["triu", "tril"]);
        assert!(NAMES.have("tril") && !NAMES.have("flip"));
        assert!(Names::OfCaller.have("flip"));
        assert_eq!(Names::Own(&["flip"]).only(), "flip");
    }
}
