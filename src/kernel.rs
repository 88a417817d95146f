//! Kernels of your own: WGSL on tensors, checked before it runs.
//!
//! ```
//! use anygpu::{DType, Device, Tensor, kernel::WgslKernel};
//!
//! let scale = WgslKernel::new(
//!     "
//!     struct Params { factor: f32 }
//!     @group(0) @binding(0) var<uniform> params: Params;
//!     @group(0) @binding(1) var<storage, read> x: array<f32>;
//!     @group(0) @binding(2) var<storage, read_write> y: array<f32>;
//!     @compute @workgroup_size(64)
//!     fn scale(@builtin(global_invocation_id) id: vec3<u32>) {
//!         if id.x < arrayLength(&x) { y[id.x] = params.factor * x[id.x]; }
//!     }
//!     ",
//!     "scale",
//! )?;
//! for device in Device::all().iter().filter(|device| !device.is_cpu()) {
//!     let x = Tensor::arange(0.0, 100.0, 1.0, device)?;
//!     let y = scale.run(&[&x], &[([100], DType::F32)], &[2.5f32.to_bits()], [2, 1, 1])?;
//!     assert_eq!(y[0].to_vec::<f32>()?[99], 247.5);
//! }
//! # Ok::<(), anygpu::Error>(())
//! ```

mod arguments;
mod backward;
mod bounds;
mod contents;
mod directives;
mod launch;
mod layout;
mod limits;
mod output;
mod overrides;
mod reflect;
mod uniform;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::device::gpu::{Buffer, Dispatch, Gpu, ParamsAt, Pipeline, Signature};
use crate::device::{Backend, Device, Storage};
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use crate::util::sync;
pub use backward::KernelBackward;
pub use launch::{Invocations, Launch, Workgroups};
use limits::Slow;
pub use output::Output;
use output::{dense, started};
use reflect::{Reflected, Reflection, reflect};
pub use uniform::ParamValue;

/// How long a compilation may take before a warning is logged.
const LONG: Duration = Duration::from_secs(5);

/// A compute kernel in WGSL.
///
/// # Bindings
///
/// All bindings are in group 0. `var<storage, read>` arrays are the inputs, and `var<storage, read_write>` arrays
/// are the outputs, both in the order of their binding numbers. One `var<uniform>` may hold params. A binding that
/// the entry point does not use is not an argument.
///
/// The elements of an array are `f32`, `i32` or `u32` (or atomics of the integers), or `f16` on adapters that have
/// it. Params cannot be `f16`. `arrayLength` is the tensor's number of elements. For an odd number of `f16`, it is
/// one more, and the last element is unspecified.
///
/// The elements may also be vectors, matrices, arrays or structs of these types. The tensor then has a whole number
/// of them, with their padding in WGSL's layout: 4 numbers for a `vec3`. `arrayLength` is the number of such
/// elements. A struct with members of several types takes a tensor of `u32` with their bits. A binding may also be
/// a struct whose last member is such an array, or have a fixed size: the tensor has all its numbers.
///
/// A source may have overrides, and several entry points, each of which is a kernel: see
/// [`with_overrides`](Self::with_overrides).
///
/// # Arguments
///
/// [`run`](Self::run) takes the arguments in the order of their bindings, and [`on`](Self::on) takes them by name.
///
/// Outputs are new tensors. An output that the kernel also reads, such as `y` in `y[i] = a * x[i] + y[i]`, needs
/// starting elements: pass [`Output::copy_of`] a tensor, or [`Output::zeros`]. An output that holds only atomics
/// starts as zeros, unless the caller passes a tensor.
///
/// # Limits
///
/// - An index out of bounds reads an unspecified element of the array, or 0. A write with it changes such an
///   element, or nothing.
/// - Sources have at most 256 KiB, and expressions at most 1000 levels. The variables of a function have at most 8
///   KiB, and so have the variables in private memory.
/// - A source may begin with `enable f16;` and `enable subgroups;`, for adapters that have them.
/// - On OpenGL, unlike elsewhere, an integer division by 0 has an unspecified result, and `@align` and `@size` are
///   errors where they move a member.
/// - On DirectX 12, `num_workgroups` is right only where the entry point itself reads it, not in a function that
///   has it in a struct.
/// - A kernel is compiled once per device.
///
/// Some drivers leave all loops of an invocation, without an error, after a number of iterations in total: lavapipe
/// and llvmpipe of Mesa 22 do so after 65 535. Each device is probed for this fault. If it has it,
/// [`Device::quirks`] contains [`Quirk::LoopBudget`](crate::device::Quirk::LoopBudget). A kernel with a loop still
/// runs there, and its first launch logs a warning: the results of longer loops are wrong. Keep the iterations of
/// an invocation below that number, use another device, or use a newer driver.
#[derive(Debug)]
pub struct WgslKernel {
    source: String,
    entry: String,
    reflection: Reflection,
    /// Whether the source has a loop.
    loops: bool,
    pipelines: Mutex<HashMap<Device, Arc<Pipeline>>>,
}

impl WgslKernel {
    /// Parses and validates `source`, without a device.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] with the line number and the error in that line, for a source that is not valid;
    /// [`Error::Kernel`] if the source has no compute entry point `entry`.
    ///
    /// ```
    /// use anygpu::kernel::WgslKernel;
    /// let error = WgslKernel::new("@compute @workgroup_size(1)\nfn f() { let x = y; }", "f").unwrap_err();
    /// assert!(error.to_string().starts_with("kernel f: line 2: "), "{error}");
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn new(source: &str, entry: &str) -> Result<Self> {
        Self::with_overrides(source, entry, &[])
    }

    /// Parses and validates `source`, with values for its overrides by name.
    ///
    /// Other overrides have their defaults. A number must fit the type of its override; for a bool, it is 0 or 1.
    /// Overrides can be sizes of workgroups, and of arrays in workgroup memory.
    ///
    /// # Errors
    ///
    /// Same as [`new`](Self::new), and [`Error::Kernel`] for a name or a value that does not fit, or an override without a value.
    ///
    /// ```
    /// use anygpu::{DType, Device, Tensor, kernel::WgslKernel};
    ///
    /// let source = "
    ///     override SIZE: u32 = 64;
    ///     override FACTOR: f32;
    ///     @group(0) @binding(0) var<storage, read> x: array<f32>;
    ///     @group(0) @binding(1) var<storage, read_write> y: array<f32>;
    ///     @compute @workgroup_size(SIZE)
    ///     fn scale(@builtin(global_invocation_id) id: vec3<u32>) {
    ///         if id.x < arrayLength(&x) { y[id.x] = FACTOR * x[id.x]; }
    ///     }";
    /// let triple = WgslKernel::with_overrides(source, "scale", &[("FACTOR", 3.0), ("SIZE", 32.0)])?;
    /// for device in Device::all().iter().filter(|device| !device.is_cpu()) {
    ///     let x = Tensor::ones([100], device)?;
    ///     let y = triple.on(device).input("x", &x).output("y", ([100], DType::F32)).dispatch(100)?;
    ///     assert_eq!(y[0].to_vec::<f32>()?, [3.0; 100]);
    /// }
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn with_overrides(source: &str, entry: &str, values: &[(&str, f64)]) -> Result<Self> {
        let Reflected { source, reflection, loops } = limits::on_large_stack(source, || reflect(source, entry, values))
            .map_err(|message| Error::Kernel { name: entry.to_string(), message })?;
        Ok(WgslKernel { source, entry: entry.into(), reflection, loops, pipelines: Mutex::default() })
    }

    /// Returns the names of the compute entry points of a source, in the order of the source.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] with the line number and the error in that line, for a source that is not valid.
    ///
    /// ```
    /// use anygpu::kernel::WgslKernel;
    /// let source = "@compute @workgroup_size(1) fn a() {} @compute @workgroup_size(1) fn b() {}";
    /// assert_eq!(WgslKernel::entry_points(source)?, ["a", "b"]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn entry_points(source: &str) -> Result<Vec<String>> {
        limits::on_large_stack(source, || reflect::entry_points(source))
            .map_err(|message| Error::Kernel { name: "of a source".to_string(), message })
    }

    /// Compiles the kernel for a device before its first launch there.
    ///
    /// In a browser, use this to learn whether the browser's compiler accepts the kernel: a launch does not wait for
    /// that, and the next wait returns its errors.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] with the driver's message, and for `cpu`; errors of earlier work on the device.
    ///
    /// ```
    /// use anygpu::{Device, kernel::WgslKernel};
    ///
    /// # pollster::block_on(async {
    /// let source = "@group(0) @binding(0) var<storage, read_write> y: array<f32>;
    ///     @compute @workgroup_size(1) fn one() { y[0] = 1.0; }";
    /// let kernel = WgslKernel::new(source, "one")?;
    /// for device in anygpu::init().await.iter().filter(|device| !device.is_cpu()) {
    ///     kernel.compile_async(device).await?;
    /// }
    /// # Ok::<(), anygpu::Error>(())
    /// # })?;
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub async fn compile_async(&self, device: &Device) -> Result<()> {
        let Backend::Gpu(gpu) = device.backend()? else {
            return Err(self.error("WGSL needs an adapter, and this device is cpu"));
        };
        gpu.known().await?; // an earlier error is not the fault of the kernel
        self.pipeline(device, gpu)?;
        gpu.known().await.map_err(|error| {
            sync::lock(&self.pipelines).remove(device);
            match error {
                Error::Gpu { message, .. } => self.error(message),
                other => other,
            }
        })
    }

    /// Returns the names of the inputs, in the order of their bindings.
    #[must_use]
    pub fn inputs(&self) -> Vec<&str> {
        self.reflection.bindings.iter().filter(|arg| !arg.written).map(|arg| &*arg.name).collect()
    }

    /// Returns the names of the outputs, in the order of their bindings, which is also the order of the results.
    #[must_use]
    pub fn outputs(&self) -> Vec<&str> {
        self.reflection.bindings.iter().filter(|arg| arg.written).map(|arg| &*arg.name).collect()
    }

    /// Returns the numbers of invocations of a workgroup in x, y and z.
    #[must_use]
    pub fn workgroup_size(&self) -> [u32; 3] {
        self.reflection.workgroup_size
    }

    /// Runs the kernel on the device of the inputs, with `groups` workgroups in x, y and z, and returns the outputs.
    ///
    /// An element of `outputs` is an [`Output`], or a pair of a shape and an element type for a tensor that starts
    /// as zeros. `params` are the words of the uniform in WGSL's layout (`f32::to_bits` for floats). The results
    /// are not part of the gradient graph.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if the arguments do not fit the bindings, if an output that the kernel reads has no starting
    /// elements, on `cpu`, or if the driver refuses to compile the kernel;
    /// [`Error::InvalidArgument`] for an output of more elements than can be addressed;
    /// [`Error::DeviceMismatch`]; [`Error::LimitExceeded`]; [`Error::OutOfMemory`].
    pub fn run<'a, O: Into<Output<'a>> + Clone>(
        &self,
        inputs: &[&Tensor],
        outputs: &[O],
        params: &[u32],
        groups: [u32; 3],
    ) -> Result<Vec<Tensor>> {
        let first = inputs.first().ok_or_else(|| self.error("without inputs, name the device: use run_on"))?;
        self.run_on(first.device(), inputs, outputs, params, groups)
    }

    /// Runs the kernel on a given device, as [`run`](WgslKernel::run) does: for kernels without inputs.
    ///
    /// # Errors
    ///
    /// Same as [`run`](WgslKernel::run).
    pub fn run_on<'a, O: Into<Output<'a>> + Clone>(
        &self,
        device: &Device,
        inputs: &[&Tensor],
        outputs: &[O],
        params: &[u32],
        groups: [u32; 3],
    ) -> Result<Vec<Tensor>> {
        let outputs: Vec<Output> = outputs.iter().map(|output| output.clone().into()).collect();
        self.launch(device, inputs, &outputs, params, |_| Ok(groups))
    }

    /// Runs the kernel on arguments in the order of their bindings, with as many workgroups as a function returns for the adapter.
    fn launch(
        &self,
        device: &Device,
        inputs: &[&Tensor],
        outputs: &[Output],
        params: &[u32],
        groups: impl FnOnce(&Gpu) -> Result<[u32; 3]>,
    ) -> Result<Vec<Tensor>> {
        self.check_arguments(device, inputs, outputs, params)?;
        let Backend::Gpu(gpu) = device.backend()? else {
            return Err(self.error("WGSL needs an adapter, and these tensors are on cpu: move them with .to()"));
        };
        let groups = groups(gpu)?;
        let pipeline = self.pipeline(device, gpu)?;
        let (mut read, mut made) = (Vec::new(), Vec::new());
        for input in inputs {
            read.push(dense(gpu, input)?);
        }
        for output in outputs {
            made.push(started(gpu, output)?);
        }
        if !groups.contains(&0) {
            let (mut inputs, mut outputs) = (read.iter(), made.iter());
            let in_order = self
                .reflection
                .bindings
                .iter()
                .filter_map(|arg| if arg.written { outputs.next() } else { inputs.next() });
            let buffers: Vec<&Buffer> = in_order.collect();
            gpu.dispatch(&Dispatch { pipeline: &pipeline, params, buffers: &buffers, groups, op: "".into() })?;
        }
        let tensors = made.into_iter().zip(outputs).map(|(buffer, output)| {
            Tensor::from_storage(Storage::Gpu(buffer), output.shape.dims(), output.dtype, device.clone())
        });
        Ok(tensors.collect())
    }

    fn pipeline(&self, device: &Device, gpu: &Gpu) -> Result<Arc<Pipeline>> {
        let mut pipelines = sync::lock(&self.pipelines);
        if let Some(pipeline) = pipelines.get(device) {
            return Ok(pipeline.clone());
        }
        if self.reflection.halves && !gpu.caps().f16 {
            let adapter = &device.info().adapter;
            return Err(
                self.error(format!("it has f16, which {device} ({adapter}) does not compute with: use f32 there"))
            );
        }
        if self.reflection.subgroups && !device.info().features.iter().any(|feature| feature == "subgroups") {
            let adapter = &device.info().adapter;
            return Err(self.error(format!(
                "it has functions of subgroups, which {device} ({adapter}) does not have: use workgroup memory there"
            )));
        }
        if let Some(name) = self.reflection.moved.as_ref().filter(|_| gpu.caps().gl) {
            return Err(self.error(format!(
                "'{name}' has a place that @align, @size or a matrix of two rows sets, and OpenGL ({device}) puts it elsewhere: fill the gap with members of the struct"
            )));
        }
        let signature = Signature {
            params: self
                .reflection
                .params
                .as_ref()
                .map_or(ParamsAt::Nowhere, |uniform| ParamsAt::Uniform(uniform.binding, uniform.words)),
            buffers: self.reflection.bindings.iter().map(|arg| (arg.binding, arg.written)).collect(),
            exact: true,
        };
        let (bytes, most) = (self.reflection.workgroup_bytes, u64::from(gpu.caps().workgroup_memory));
        if bytes > most {
            return Err(gpu.limit("max_compute_workgroup_storage_size", bytes, most));
        }
        let compile = || {
            let clamped = gpu.caps().gl.then(|| reflect::clamped(&self.source)).transpose()?;
            gpu.compile_checked(clamped.as_deref().unwrap_or(&self.source), &self.entry, signature)
        };
        if self.loops
            && let Some(budget) = gpu.caps().loop_budget
        {
            self.tell_loops(device, budget);
        }
        let slow = |slow| self.tell_slow(device, slow);
        let compiled = limits::watched(&self.source, LONG, slow, compile).map_err(|message| self.error(message))?;
        let pipeline = Arc::new(compiled);
        pipelines.insert(device.clone(), pipeline.clone());
        Ok(pipeline)
    }

    /// Logs that the driver leaves the kernel's loops after this many iterations: once for each device, before the
    /// kernel's first launch there.
    fn tell_loops(&self, device: &Device, budget: u32) {
        log::warn!(
            "kernel {}: it has a loop, and the driver of {device} ({}) leaves all loops of an invocation after {budget} iterations in \
             total, without an error: results of longer loops are wrong there. Give each invocation fewer iterations, use another \
             device, or install a newer driver (Mesa 25 does not do so)",
            self.entry,
            device.info().driver
        );
    }

    /// Logs that the driver takes long to compile the kernel.
    fn tell_slow(&self, device: &Device, slow: Slow) {
        let name = &self.entry;
        match slow {
            Slow::Running(time) => log::warn!(
                "kernel {name}: {device} has compiled it for {} s and goes on: drivers take long for large arrays of functions and for \
                 long sources",
                time.as_secs()
            ),
            Slow::Ended(time) => log::warn!("kernel {name}: {device} has compiled it in {:.1} s", time.as_secs_f64()),
        }
    }

    fn error(&self, message: impl Into<String>) -> Error {
        Error::Kernel { name: self.entry.clone(), message: message.into() }
    }
}

#[cfg(test)]
mod tests;
