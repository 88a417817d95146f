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
mod bounds;
mod launch;
mod limits;
mod output;
mod reflect;
mod uniform;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::device::gpu::{Gpu, ParamsAt, Pipeline, Signature};
use crate::device::{Backend, Device, Storage};
use crate::error::{Error, Result};
use crate::sync;
use crate::tensor::Tensor;
pub use launch::{Invocations, Launch};
pub use output::Output;
use output::{dense, started};
use reflect::{Reflection, reflect};
pub use uniform::ParamValue;

/// A compute kernel in WGSL.
///
/// Its bindings are in group 0: `var<storage, read>` arrays are the inputs, `var<storage, read_write>` arrays the
/// outputs, both in the order of their binding numbers; one `var<uniform>` may hold params. Arrays are of `f32`, `i32`
/// or `u32` (or atomics of the integers), and `arrayLength` is the tensor's number of elements. Arrays may be of `vec2` or
/// `vec4` of these, for tensors of a whole number of such vectors; then `arrayLength` is the number of vectors. A binding
/// that the entry point does not use is not an argument.
///
/// Outputs are new tensors. An output that the kernel also reads, as `y` in `y[i] = a * x[i] + y[i]`, needs its
/// starting elements: [`Output::copy_of`] a tensor, or [`Output::zeros`]. Arrays of atomics start as zeros unless the
/// caller passes a tensor.
///
/// [`run`](Self::run) takes the arguments in the order of their bindings, and [`on`](Self::on) by their names.
///
/// An index out of bounds reads an unspecified element of the array or 0, and writes such an element or nothing. On
/// OpenGL, unlike elsewhere, an integer division by 0 has an unspecified result. Sources have at most 256 KiB,
/// expressions at most 1000 levels. On DirectX 12, `num_workgroups` is right only where the entry point itself reads it,
/// not in a function that has it in a struct. A kernel is compiled once per device.
#[derive(Debug)]
pub struct WgslKernel {
    source: String,
    entry: String,
    reflection: Reflection,
    pipelines: Mutex<HashMap<Device, Arc<Pipeline>>>,
}

impl WgslKernel {
    /// Parses and validates `source`, without a device.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] with the line and the error there.
    ///
    /// ```
    /// use anygpu::kernel::WgslKernel;
    /// let error = WgslKernel::new("@compute @workgroup_size(1)\nfn f() { let x = y; }", "f").unwrap_err();
    /// assert!(error.to_string().starts_with("kernel f: line 2: "), "{error}");
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn new(source: &str, entry: &str) -> Result<Self> {
        let reflection = limits::on_large_stack(source, || reflect(source, entry))
            .map_err(|message| Error::Kernel { name: entry.to_string(), message })?;
        Ok(WgslKernel { source: source.into(), entry: entry.into(), reflection, pipelines: Mutex::default() })
    }

    /// Runs the kernel on the device of the inputs, with `groups` workgroups in x, y and z, and returns the outputs.
    ///
    /// `outputs` are pairs of a shape and an element type, for tensors that start as zeros, or [`Output`]s. `params`
    /// are the words of the uniform in WGSL's layout (`f32::to_bits` for floats). The results are outside of the
    /// gradient graph.
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

    /// Runs the kernel on a given device, as [`run`](WgslKernel::run): for kernels without inputs.
    ///
    /// # Errors
    ///
    /// As [`run`](WgslKernel::run).
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
            gpu.dispatch(&pipeline, params, &in_order.collect::<Vec<_>>(), groups)?;
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
        if let (true, Some(budget)) = (self.reflection.loops, gpu.caps().loop_budget) {
            log::warn!(
                "kernel {} has loops, and the driver of {device} ({}) silently leaves them after some {budget} \
                 iterations per invocation in total: give each invocation less work",
                self.entry,
                device.info().driver
            );
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
        let compiled = limits::on_large_stack(&self.source, compile).map_err(|message| self.error(message))?;
        let pipeline = Arc::new(compiled);
        pipelines.insert(device.clone(), pipeline.clone());
        Ok(pipeline)
    }

    fn error(&self, message: impl Into<String>) -> Error {
        Error::Kernel { name: self.entry.clone(), message: message.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    const SUM_OF_TWO: &str = "
        struct Params { offset: u32, factor: f32 }
        @group(0) @binding(3) var<storage, read_write> out: array<f32>;
        @group(0) @binding(7) var<storage, read_write> count: array<atomic<u32>>;
        @group(0) @binding(1) var<storage, read> a: array<f32>;
        @group(0) @binding(2) var<storage, read> b: array<i32>;
        @group(0) @binding(5) var<uniform> params: Params;
        @group(0) @binding(1) var<storage, read> unused: array<u32>;
        @compute @workgroup_size(32)
        fn sum(@builtin(global_invocation_id) id: vec3<u32>) {
            if id.x >= arrayLength(&out) { return; }
            out[id.x] = a[id.x] + params.factor * f32(b[id.x + params.offset]);
            atomicAdd(&count[0], arrayLength(&a));
        }
        @compute @workgroup_size(1)
        fn other() { for (var i = 0u; i < unused[0]; i++) { out[i] = 0.0; } }
    ";

    fn adapters() -> impl Iterator<Item = Device> {
        Device::all().into_iter().filter(|device| !device.is_cpu())
    }

    #[test]
    fn bindings_are_reflected_by_entry_point() -> Result<()> {
        let kernel = WgslKernel::new(SUM_OF_TWO, "sum")?;
        let names: Vec<_> =
            kernel.reflection.bindings.iter().map(|arg| (&*arg.name, arg.binding, arg.written)).collect();
        assert_eq!(names, [("a", 1, false), ("b", 2, false), ("out", 3, true), ("count", 7, true)]);
        assert!(!kernel.reflection.bindings.iter().any(|arg| arg.written && arg.read), "atomics start as zeros");
        assert!(kernel.reflection.params.as_ref().is_some_and(|params| (params.binding, params.words) == (5, 2)));
        assert!(kernel.reflection.loops);
        assert_eq!(WgslKernel::new(SUM_OF_TWO, "other")?.reflection.bindings.len(), 2);
        Ok(())
    }

    #[test]
    fn broken_sources_say_where() {
        let compute = "@compute @workgroup_size(1) fn f()";
        let cases = [
            ("fn f( {", "line 1"),
            (&*format!("\n{compute} {{ let x: f32 = 1u; }}"), "line 2"),
            ("fn g() {}", "no such @compute entry point"),
            (
                &format!("@group(1) @binding(0) var<storage, read_write> x: array<f32>;\n{compute} {{ x[0] = 1.0; }}"),
                "@group(1)",
            ),
            (
                &format!(
                    "@group(0) @binding(0) var<storage, read_write> x: array<vec3<f32>>;\n{compute} {{ x[0].x = 1.0; }}"
                ),
                "'x'",
            ),
            (
                &format!("enable f16;\n@group(0) @binding(0) var<uniform> m: vec2<f16>;\n{compute} {{ let y = m.x; }}"),
                "'m' must be made of",
            ),
        ];
        for (source, expected) in cases {
            let error = WgslKernel::new(source, "f").unwrap_err().to_string();
            assert!(error.starts_with("kernel f: ") && error.contains(expected), "{source}: {error}");
        }
    }

    #[test]
    fn it_runs_on_views_with_exact_lengths() -> Result<()> {
        let kernel = WgslKernel::new(SUM_OF_TWO, "sum")?;
        for device in adapters() {
            let a = Tensor::arange(0.0, 20.0, 1.0, &device)?.narrow(0, 3, 10)?;
            let b = Tensor::from_slice(&(0..20).collect::<Vec<i32>>(), [2, 10], &device)?.t()?;
            let outputs = [([5, 2], DType::F32), ([1, 1], DType::U32)];
            let results = kernel.run(&[&a, &b], &outputs, &[1, 10f32.to_bits()], [1, 1, 1])?;
            assert_eq!(results[0].shape(), [5, 2]);
            // b.t() reads 0, 10, 1, 11, 2, …; the kernel starts at its second element.
            let expected = [103.0, 14.0, 115.0, 26.0, 127.0, 38.0, 139.0, 50.0, 151.0, 62.0f32];
            assert_eq!(results[0].to_vec::<f32>()?, expected, "{device}");
            assert_eq!(results[1].to_vec::<u32>()?, [100], "{device}: ten invocations saw ten elements, from zero");
        }
        Ok(())
    }

    const SAXPY: &str = "
        @group(0) @binding(0) var<storage, read> x: array<f32>;
        @group(0) @binding(1) var<storage, read_write> y: array<f32>;
        @group(0) @binding(2) var<storage, read_write> z: array<f32>;
        fn add(i: u32) { y[i] = 2.0 * x[i] + y[i]; z[i] = x[i]; }
        @compute @workgroup_size(64)
        fn saxpy(@builtin(global_invocation_id) id: vec3<u32>) { if id.x < arrayLength(&x) { add(id.x); } }
    ";

    #[test]
    fn an_output_that_is_read_needs_its_starting_elements() -> Result<()> {
        let kernel = WgslKernel::new(SAXPY, "saxpy")?;
        for device in adapters() {
            let x = Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0], 4, &device)?;
            let pair = |shape: usize| Output::from(([shape], DType::F32));
            let refused = kernel.run(&[&x], &[pair(4), pair(4)], &[], [1, 1, 1]).map(drop).unwrap_err().to_string();
            assert!(refused.contains("'y'") && refused.contains("Output::copy_of"), "{refused}");

            let zeros = kernel.run(&[&x], &[Output::zeros([4], DType::F32), pair(4)], &[], [1, 1, 1])?;
            assert_eq!(zeros[0].to_vec::<f32>()?, [2.0, 4.0, 6.0, 8.0], "{device}");
            // A view: only its elements are copied, and they do not change.
            let y = Tensor::arange(0.0, 8.0, 1.0, &device)?.reshape([4, 2])?.narrow(1, 1, 1)?;
            let sums = kernel.run(&[&x], &[Output::copy_of(&y), pair(4)], &[], [1, 1, 1])?;
            assert_eq!(sums[0].to_vec::<f32>()?, [3.0, 7.0, 11.0, 15.0], "{device}");
            assert_eq!((sums[0].shape(), sums[1].to_vec::<f32>()?), (&[4, 1][..], x.to_vec()?), "{device}");
            assert_eq!(y.to_vec::<f32>()?, [1.0, 3.0, 5.0, 7.0], "{device}");
            let elsewhere = y.to(Device::cpu())?;
            let elsewhere = kernel.run(&[&x], &[Output::copy_of(&elsewhere), pair(4)], &[], [1, 1, 1]);
            assert!(matches!(elsewhere.map(drop), Err(Error::DeviceMismatch { .. })), "{device}");
        }
        Ok(())
    }

    #[test]
    fn arguments_that_do_not_fit_are_named() -> Result<()> {
        let kernel = WgslKernel::new(SUM_OF_TWO, "sum")?;
        let outputs = [([10], DType::F32), ([1], DType::U32)];
        for device in adapters().chain([Device::cpu()]) {
            let (a, b) = (Tensor::zeros([10], &device)?, Tensor::from_slice(&[0i32; 11], [11], &device)?);
            let fails = |inputs: &[&Tensor], outputs: &[([usize; 1], DType)], params: &[u32], expected: &str| {
                let error = kernel.run(inputs, outputs, params, [1, 1, 1]).map(|_| ()).unwrap_err().to_string();
                assert!(error.contains(expected), "{device}: {error}");
            };
            fails(&[&a], &outputs, &[0, 0], "input bindings [a, b], 1 inputs were given");
            fails(&[&a, &a], &outputs, &[0, 0], "input 'b' is of i32, got a tensor of f32");
            fails(&[&a, &b], &outputs[..1], &[0, 0], "output bindings [out, count], 1 outputs");
            fails(&[&a, &b], &outputs, &[0], "uniform has 2 words, 1 params");
            fails(&[&a, &b], &[([0], DType::F32), ([1], DType::U32)], &[0, 0], "output 'out' got an empty tensor");
            fails(&[], &outputs, &[0, 0], "run_on");
            let huge = kernel.run(&[&a, &b], &[([usize::MAX, 3], DType::F32)], &[0, 0], [1, 1, 1]);
            assert!(matches!(huge.map(|_| ()), Err(Error::InvalidArgument { .. })), "{device}");
            if device.is_cpu() {
                fails(&[&a, &b], &outputs, &[0, 0], "WGSL needs an adapter");
            } else {
                fails(&[&a, &b.to(Device::cpu())?], &outputs, &[0, 0], "same device");
            }
        }
        Ok(())
    }
}
