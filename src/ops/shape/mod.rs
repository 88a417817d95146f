//! Views, copies, and moves to other devices: ops that do not compute with the elements.

pub(in crate::ops) mod arrange;
pub(in crate::ops) mod copy;
mod join;
pub(in crate::ops) mod mesh;
pub(in crate::ops) mod pad;
pub(in crate::ops) mod slice;
pub(in crate::ops) mod to_device;
pub(in crate::ops) mod view;
