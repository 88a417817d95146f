//! Ops on images: convolution, pooling, resampling.

pub(in crate::ops) mod conv;
pub(in crate::ops) mod grid_sample;
pub(in crate::ops) mod pool;
pub(in crate::ops) mod resample;
pub(in crate::ops) mod resize;
pub(in crate::ops) mod unfold;
pub(in crate::ops) mod window;
