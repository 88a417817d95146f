//! Views, copies and moves of the same elements.

pub(in crate::ops) mod arrange;
pub(in crate::ops) mod copy;
pub(in crate::ops) mod pad;
pub(in crate::ops) mod slice;
pub(in crate::ops) mod to_device;
pub(in crate::ops) mod view;
