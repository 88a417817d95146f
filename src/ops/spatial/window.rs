//! Sliding windows over planes `[H, W]`: the code that convolution and pooling share.

use anygpu_host::window::{Window, WindowParams};

use crate::device::gpu::wgsl;
use crate::error::{Error, Result};

/// The text that precedes the shaders with sliding windows: their settings as override constants.
pub(in crate::ops) const WINDOW: &str = wgsl!("spatial/window");

/// The largest size: the shaders add up to three sizes in 32 bits.
const MOST: usize = 1 << 30;

/// One size for each of `D` dimensions: an array, or one number for all of them.
///
/// ```
/// use anygpu::Conv;
/// assert_eq!(Conv::<2>::new().stride(2), Conv::new().stride([2, 2]));
/// ```
pub trait Sizes<const D: usize> {
    /// Returns the sizes, outermost dimension first.
    fn sizes(self) -> [usize; D];
}

impl<const D: usize> Sizes<D> for usize {
    fn sizes(self) -> [usize; D] {
        [self; D]
    }
}

impl<const D: usize> Sizes<D> for [usize; D] {
    fn sizes(self) -> [usize; D] {
        self
    }
}

/// Defines methods of options that set one of the `window`'s parameters.
macro_rules! window_setters {
    ($options:ident { $($(#[$doc:meta])* $name:ident;)* }) => {
        impl<const D: usize> $options<D> {
            $(
                $(#[$doc])*
                pub fn $name(mut self, $name: impl Sizes<D>) -> Self {
                    self.window.$name = $name.sizes();
                    self
                }
            )*
        }
    };
}
pub(super) use window_setters;

/// Checks that kernel, stride and dilation are not 0, and that all sizes fit in the shaders' integers.
pub(super) fn check<const D: usize>(window: &WindowParams<D>, op: &'static str, size: [usize; D]) -> Result<()> {
    let WindowParams { kernel, stride, padding, dilation } = *window;
    if kernel.contains(&0) || stride.contains(&0) || dilation.contains(&0) {
        let detail = format!("kernel {kernel:?}, stride {stride:?} and dilation {dilation:?} must not be 0");
        return Err(Error::argument(op, detail));
    }
    let numbers = [size, stride, padding, std::array::from_fn(|d| window.span(d))];
    match numbers.as_flattened().iter().max() {
        Some(&most) if most > MOST => Err(Error::argument(op, format!("a size of {most} is more than {MOST}"))),
        _ => Ok(()),
    }
}

/// Returns the number of windows in each direction, as [`WindowParams::counts`], or an error.
pub(super) fn counts<const D: usize>(
    window: &WindowParams<D>,
    op: &'static str,
    size: [usize; D],
    ceil: bool,
) -> Result<[usize; D]> {
    check(window, op, size)?;
    window.counts(size, ceil).map_err(|_| {
        let WindowParams { kernel, padding, dilation, .. } = window;
        let dilated = if *dilation == [1; D] { String::new() } else { format!(" with dilation {dilation:?}") };
        let detail = format!("kernel {kernel:?}{dilated} is larger than the image {size:?} with padding {padding:?}");
        Error::argument(op, detail)
    })
}

/// Returns the windows over planes of one size.
pub(super) fn over(params: WindowParams, op: &'static str, size: [usize; 2], ceil: bool) -> Result<Window> {
    Ok(Window { params, size, out: counts(&params, op, size, ceil)? })
}

/// Returns the constants of `window.wgsl`.
pub(super) fn constants(window: &WindowParams) -> impl Iterator<Item = (&'static str, usize)> + use<> {
    let WindowParams { kernel, stride, padding, dilation } = *window;
    let names = [["KERNEL_Y", "KERNEL_X"], ["STRIDE_Y", "STRIDE_X"], ["PAD_Y", "PAD_X"], ["DILATION_Y", "DILATION_X"]];
    names.into_iter().flatten().zip([kernel, stride, padding, dilation].into_iter().flatten())
}
