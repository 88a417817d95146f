//! Gradients of kernels.

use super::WgslKernel;
use super::arguments::unknown;
use super::output::{Output, Start};
use crate::error::{Error, Result};
use crate::ops::Backward;
use crate::ops::custom_grad::attached;
use crate::tensor::Tensor;

pub(super) type Function = Box<dyn Fn(&KernelBackward) -> Result<Vec<(&'static str, Tensor)>> + Send + Sync>;

/// The arguments of the function that computes a kernel's gradients: see [`Launch::with_backward`].
///
/// The function returns the gradients by the names of the inputs, each with the shape of its input. Inputs that it
/// does not name get no gradient. An output that started as a copy of a tensor is an input too. The function runs
/// when [`Tensor::backward`] comes to the result, and is not recorded. It must own all that it needs, for example a
/// kernel in an `Arc` or a `static`.
///
/// ```
/// use std::sync::Arc;
/// use anygpu::kernel::WgslKernel;
/// use anygpu::{DType, Device, Tensor};
///
/// let source = "
///     @group(0) @binding(0) var<storage, read> x: array<f32>;
///     @group(0) @binding(1) var<storage, read> dy: array<f32>;
///     @group(0) @binding(2) var<storage, read_write> y: array<f32>;
///     @group(0) @binding(3) var<storage, read_write> dx: array<f32>;
///     @compute @workgroup_size(64)
///     fn square(@builtin(global_invocation_id) id: vec3<u32>) {
///         if id.x < arrayLength(&x) { y[id.x] = x[id.x] * x[id.x]; }
///     }
///     @compute @workgroup_size(64)
///     fn square_grad(@builtin(global_invocation_id) id: vec3<u32>) {
///         if id.x < arrayLength(&x) { dx[id.x] = 2.0 * x[id.x] * dy[id.x]; }
///     }";
/// let square = WgslKernel::new(source, "square")?;
/// let gradient = Arc::new(WgslKernel::new(source, "square_grad")?);
/// for device in Device::all().iter().filter(|device| !device.is_cpu()) {
///     let x = Tensor::arange(0.0, 4.0, 1.0, device)?.requires_grad();
///     let gradient = gradient.clone();
///     let launch = square.on(device).input("x", &x).output("y", ([4], DType::F32)).with_backward(move |b| {
///         let x = b.input("x")?;
///         let launch = gradient.on(x.device()).input("x", x).input("dy", b.grad());
///         let dx = launch.output("dx", (x.shape(), DType::F32)).dispatch(x.elem_count())?.remove(0);
///         Ok(vec![("x", dx)])
///     });
///     let y = launch.dispatch(4)?;
///     y[0].sum_all()?.backward()?;
///     assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [0.0, 2.0, 4.0, 6.0]);
/// }
/// # Ok::<(), anygpu::Error>(())
/// ```
///
/// [`Launch::with_backward`]: super::Launch::with_backward
#[derive(Debug)]
pub struct KernelBackward<'a> {
    entry: &'a str,
    names: &'a [String],
    of: &'a Backward<'a>,
}

impl KernelBackward<'_> {
    /// Returns the input with this name.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if no input has this name.
    pub fn input(&self, name: &str) -> Result<&Tensor> {
        Ok(&self.of.inputs()[self.place(name)?])
    }

    /// Returns whether the gradient of this input is needed.
    ///
    /// # Errors
    ///
    /// Same as [`input`](Self::input).
    pub fn needs(&self, name: &str) -> Result<bool> {
        Ok(self.of.needs()[self.place(name)?])
    }

    /// Returns the result of the kernel.
    #[must_use]
    pub fn output(&self) -> &Tensor {
        self.of.output()
    }

    /// Returns the gradient of the result, with the result's shape. It may have any layout: kernels read it
    /// densely.
    #[must_use]
    pub fn grad(&self) -> &Tensor {
        self.of.grad()
    }

    fn place(&self, name: &str) -> Result<usize> {
        self.names.iter().position(|known| known == name).ok_or_else(|| {
            let known: Vec<&str> = self.names.iter().map(|name| &**name).collect();
            self.error(unknown("input", name, &known))
        })
    }

    fn error(&self, message: String) -> Error {
        Error::Kernel { name: self.entry.to_string(), message }
    }
}

impl WgslKernel {
    /// Returns the tensors that a launch reads, with their names.
    pub(super) fn read<'t>(&self, inputs: &[&'t Tensor], outputs: &[Output<'t>]) -> Vec<(String, &'t Tensor)> {
        let (mut inputs, mut outputs) = (inputs.iter(), outputs.iter());
        let tensor = |written| match written {
            false => inputs.next().copied(),
            true => outputs.next().and_then(|output| match output.start {
                Start::CopyOf(tensor) => Some(tensor),
                Start::Unspecified | Start::Zeros => None,
            }),
        };
        let tensors: Vec<Option<&Tensor>> =
            self.reflection.bindings.iter().map(|arg| arg.written).map(tensor).collect();
        let named = self.reflection.bindings.iter().zip(tensors);
        named.filter_map(|(arg, tensor)| Some((arg.name.clone(), tensor?))).collect()
    }
}

/// Returns the result of a kernel with a gradient.
pub(super) fn with_gradient(
    entry: String,
    backward: Function,
    read: Vec<(String, &Tensor)>,
    result: Tensor,
) -> Result<Tensor> {
    let (names, inputs): (Vec<String>, Vec<&Tensor>) = read.into_iter().unzip();
    let by_place = move |of: &Backward| {
        let of = KernelBackward { entry: &entry, names: &names, of };
        let mut gradients = vec![None; names.len()];
        for (name, gradient) in backward(&of)? {
            let place = of.place(name)?;
            if gradients[place].replace(gradient).is_some() {
                return Err(of.error(format!("the gradient of '{name}' is given twice")));
            }
        }
        Ok(gradients)
    };
    attached("WgslKernel", &inputs, result, Box::new(by_place))
}
