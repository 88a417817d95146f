//! Values that last from one call of the page to the next. A value is taken out or cloned, never borrowed across an
//! `.await`: other calls run meanwhile.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::thread::LocalKey;

use anygpu::data::ImageSet;
use anygpu::nn::{Sequential, StateDict};
use anygpu::onnx::Model;
use anygpu::{Device, WgslKernel};

/// A net, and where it is.
pub type Placed = (Sequential, Device);

thread_local! {
    /// The weights that come with the page, on `cpu`.
    pub static WEIGHTS: RefCell<Option<StateDict>> = const { RefCell::new(None) };
    /// The net with these weights on the device that was used last.
    pub static CLASSIFIER: RefCell<Option<Placed>> = const { RefCell::new(None) };
    /// The net that is being trained or was trained last.
    pub static TRAINED: RefCell<Option<Placed>> = const { RefCell::new(None) };
    /// The digits to train on, and those to measure the accuracy with.
    pub static DIGITS: RefCell<Option<[Arc<ImageSet>; 2]>> = const { RefCell::new(None) };
    /// The number of the run that may go on. Another number ends it.
    pub static RUN: Cell<u32> = const { Cell::new(0) };
    /// The model of a file, by the devices that it was used on.
    pub static MODELS: RefCell<HashMap<String, Model>> = RefCell::new(HashMap::new());
    /// The kernel of the source that was run last.
    pub static KERNEL: RefCell<Option<(String, Arc<WgslKernel>)>> = const { RefCell::new(None) };
}

/// Returns the result of a function of a value.
pub fn with<T, R>(value: &'static LocalKey<RefCell<T>>, f: impl FnOnce(&mut T) -> R) -> R {
    value.with_borrow_mut(f)
}
