//! Launches of a kernel with its arguments by name.

use std::fmt;

use bytemuck::NoUninit;

use super::WgslKernel;
use super::arguments::unknown;
use super::backward::{Function, KernelBackward, with_gradient};
use super::output::Output;
use super::uniform::ParamValue;
use crate::device::Device;
use crate::error::Result;
use crate::tensor::Tensor;

/// A launch of a [`WgslKernel`] on a device.
///
/// Tensors and params are given by the names that they have in the source. [`WgslKernel::on`] makes it.
///
/// Arguments that do not fit are an error of the call that runs it: [`dispatch`](Self::dispatch),
/// [`dispatch_folded`](Self::dispatch_folded) or [`workgroups`](Self::workgroups).
///
/// ```
/// use anygpu::kernel::{Output, WgslKernel};
/// use anygpu::{Device, Tensor};
///
/// let saxpy = WgslKernel::new(
///     "
///     struct Params { a: f32 }
///     @group(0) @binding(0) var<uniform> params: Params;
///     @group(0) @binding(1) var<storage, read> x: array<f32>;
///     @group(0) @binding(2) var<storage, read_write> y: array<f32>;
///     @compute @workgroup_size(64)
///     fn saxpy(@builtin(global_invocation_id) id: vec3<u32>) {
///         if id.x < arrayLength(&x) { y[id.x] = params.a * x[id.x] + y[id.x]; }
///     }
///     ",
///     "saxpy",
/// )?;
/// for device in Device::all().iter().filter(|device| !device.is_cpu()) {
///     let (x, y) = (Tensor::ones([100], device)?, Tensor::full([100], 3.0, device)?);
///     let launch = saxpy.on(device).input("x", &x).output("y", Output::copy_of(&y)).set("a", 2.0);
///     let sums = launch.dispatch(100)?;
///     assert_eq!(sums[0].to_vec::<f32>()?, [5.0; 100]);
/// }
/// # Ok::<(), anygpu::Error>(())
/// ```
#[must_use = "a launch runs when dispatch(), dispatch_folded() or workgroups() is called"]
pub struct Launch<'a> {
    kernel: &'a WgslKernel,
    device: &'a Device,
    inputs: Vec<(&'a str, &'a Tensor)>,
    outputs: Vec<(&'a str, Output<'a>)>,
    words: Vec<u32>,
    /// Whether each member of the params has a value.
    set: Vec<bool>,
    backward: Option<Function>,
    wrong: Option<String>,
}

impl fmt::Debug for Launch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Launch { kernel, device, inputs, outputs, .. } = self;
        let inputs: Vec<&str> = inputs.iter().map(|(name, _)| *name).collect();
        let outputs: Vec<&str> = outputs.iter().map(|(name, _)| *name).collect();
        let mut all = f.debug_struct("Launch");
        all.field("kernel", &kernel.entry).field("device", device).field("inputs", &inputs).field("outputs", &outputs);
        all.finish_non_exhaustive()
    }
}

impl WgslKernel {
    /// Begins a launch on a device, with arguments by name.
    pub fn on<'a>(&'a self, device: &'a Device) -> Launch<'a> {
        let uniform = self.reflection.params.as_ref();
        let words = vec![0; uniform.map_or(0, |uniform| uniform.words)];
        let set = vec![false; uniform.map_or(0, |uniform| uniform.members.len())];
        Launch {
            kernel: self,
            device,
            inputs: Vec::new(),
            outputs: Vec::new(),
            words,
            set,
            backward: None,
            wrong: None,
        }
    }
}

impl<'a> Launch<'a> {
    /// Sets the tensor for the binding `var<storage, read>` of this name. The tensor must be on the device.
    pub fn input(mut self, name: &'a str, tensor: &'a Tensor) -> Self {
        self.inputs.push((name, tensor));
        self
    }

    /// Sets the output for the binding `var<storage, read_write>` of this name: a pair of a shape and an element
    /// type, which starts as zeros, or an [`Output`].
    pub fn output(mut self, name: &'a str, output: impl Into<Output<'a>>) -> Self {
        self.outputs.push((name, output.into()));
        self
    }

    /// Sets a member of the uniform's struct: to a number, or to an array of the numbers of a vector, of an array, or
    /// of a matrix by its columns.
    ///
    /// A member of a struct within the struct is `"outer.inner"`; in an array of structs, it is `"list[0].inner"`. If
    /// the uniform is not a struct, its name is the variable's name.
    pub fn set(mut self, name: &str, value: impl Into<ParamValue>) -> Self {
        let uniform = self.kernel.reflection.params.as_ref();
        let done = match uniform.and_then(|uniform| uniform.member(name)) {
            Some((i, member)) => {
                self.set[i] = true;
                member.write(&value.into(), &mut self.words)
            }
            None => Err(unknown("param", name, &self.kernel.params())),
        };
        self.note(done)
    }

    /// Sets the whole uniform to the bytes of a struct with WGSL's layout: the layout of `#[repr(C)]`, with padding
    /// where WGSL aligns a member to 8 or 16 bytes.
    pub fn params<T: NoUninit>(mut self, params: &T) -> Self {
        let (bytes, words) = (bytemuck::bytes_of(params), self.words.len());
        if bytes.len() != 4 * words {
            let detail = format!("its uniform has {} bytes, the struct given for it {}", 4 * words, bytes.len());
            return self.note(Err(detail));
        }
        self.words = bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
        self.set.fill(true);
        self
    }

    /// Gives the result a gradient, for a kernel with one output: see [`KernelBackward`]. Without this, results are
    /// not part of the gradient graph.
    pub fn with_backward(
        mut self,
        backward: impl Fn(&KernelBackward) -> Result<Vec<(&'static str, Tensor)>> + Send + Sync + 'static,
    ) -> Self {
        self.backward = Some(Box::new(backward));
        self
    }

    /// Runs at least this many invocations: `n` in x, or `[x, y, z]`.
    ///
    /// Returns the outputs, in the order of their binding numbers. The number is rounded up to whole workgroups, so the
    /// kernel must skip the invocations past the end.
    ///
    /// # Errors
    ///
    /// The errors of [`WgslKernel::run`]; [`Error::Kernel`](crate::Error::Kernel) for names that the kernel does
    /// not have, and for names that have no argument; [`Error::LimitExceeded`](crate::Error::LimitExceeded) for
    /// more workgroups than the adapter allows in a dimension (65 535 on most). In that case use
    /// [`dispatch_folded`](Self::dispatch_folded).
    pub fn dispatch(self, invocations: impl Into<Invocations>) -> Result<Vec<Tensor>> {
        let Invocations(invocations) = invocations.into();
        self.run(|kernel, _| {
            let size = kernel.reflection.workgroup_size;
            Ok([0, 1, 2].map(|d| invocations[d].div_ceil(size[d].max(1) as usize)))
        })
    }

    /// Runs at least `n` invocations, in workgroups that are divided between x and y, and returns the outputs.
    ///
    /// Use it for more workgroups than an adapter allows in x. The kernel must compute its index from x and y: with
    /// `@workgroup_size(64)` and `@builtin(num_workgroups) count: vec3<u32>`, the index is
    /// `id.x + id.y * count.x * 64u`. Like in [`dispatch`](Self::dispatch), it must skip the invocations past the end.
    ///
    /// # Errors
    ///
    /// Same as [`dispatch`](Self::dispatch). [`Error::Kernel`](crate::Error::Kernel) if the entry point does not take
    /// `num_workgroups`, if a workgroup has more than one invocation in y or z, or if the indices do not fit in u32.
    pub fn dispatch_folded(self, n: usize) -> Result<Vec<Tensor>> {
        self.run(|kernel, most| kernel.folded(n, most))
    }

    /// Runs this many workgroups: `n` in x, or the numbers in x, y and z as an array or a tuple. Returns the
    /// outputs, in the order of their binding numbers.
    ///
    /// # Errors
    ///
    /// Same as [`dispatch`](Self::dispatch).
    pub fn workgroups(self, groups: impl Into<Workgroups>) -> Result<Vec<Tensor>> {
        let Workgroups(groups) = groups.into();
        self.run(|_, _| Ok(groups.map(|count| count as usize)))
    }

    /// Runs the workgroups that a function returns for the kernel and the most of a dimension.
    fn run(self, groups: impl FnOnce(&WgslKernel, usize) -> Result<[usize; 3]>) -> Result<Vec<Tensor>> {
        let kernel = self.kernel;
        if let Some(wrong) = self.wrong {
            return Err(kernel.error(wrong));
        }
        if let (Some(i), Some(uniform)) = (self.set.iter().position(|set| !set), &kernel.reflection.params) {
            let name = &uniform.members[i].name;
            return Err(kernel.error(format!("param '{name}' has no value: set it with .set(\"{name}\", …)")));
        }
        let inputs: Vec<&Tensor> = kernel.in_order("input", false, &self.inputs)?.into_iter().copied().collect();
        let outputs: Vec<Output> = kernel.in_order("output", true, &self.outputs)?.into_iter().cloned().collect();
        if self.backward.is_some() && outputs.len() != 1 {
            return Err(kernel.error(format!("a gradient is for kernels with one output, it has {}", outputs.len())));
        }
        let mut results = kernel.launch(self.device, &inputs, &outputs, &self.words, |gpu| {
            let most = gpu.caps().max_workgroups;
            let groups = groups(kernel, most as usize)?;
            let [Ok(x), Ok(y), Ok(z)] = groups.map(u32::try_from) else {
                let largest = groups.into_iter().max().unwrap_or(0);
                return Err(gpu.limit("max_compute_workgroups_per_dimension", largest as u64, most.into()));
            };
            Ok([x, y, z])
        })?;
        if let Some(backward) = self.backward
            && let Some(result) = results.pop()
        {
            let read = kernel.read(&inputs, &outputs);
            results.push(with_gradient(kernel.entry.clone(), backward, read, result)?);
        }
        Ok(results)
    }

    fn note(mut self, done: Result<(), String>) -> Self {
        if let Err(wrong) = done {
            self.wrong.get_or_insert(wrong);
        }
        self
    }
}

/// A number of invocations: in x, or in x, y and z.
#[derive(Clone, Copy, Debug)]
pub struct Invocations([usize; 3]);

impl From<usize> for Invocations {
    fn from(x: usize) -> Invocations {
        Invocations([x, 1, 1])
    }
}

impl From<[usize; 2]> for Invocations {
    fn from([x, y]: [usize; 2]) -> Invocations {
        Invocations([x, y, 1])
    }
}

impl From<[usize; 3]> for Invocations {
    fn from(sizes: [usize; 3]) -> Invocations {
        Invocations(sizes)
    }
}

impl From<(usize, usize)> for Invocations {
    fn from((x, y): (usize, usize)) -> Invocations {
        Invocations([x, y, 1])
    }
}

impl From<(usize, usize, usize)> for Invocations {
    fn from((x, y, z): (usize, usize, usize)) -> Invocations {
        Invocations([x, y, z])
    }
}

/// A number of workgroups: in x, in x and y, or in x, y and z.
#[derive(Clone, Copy, Debug)]
pub struct Workgroups([u32; 3]);

impl From<u32> for Workgroups {
    fn from(x: u32) -> Workgroups {
        Workgroups([x, 1, 1])
    }
}

impl From<[u32; 3]> for Workgroups {
    fn from(groups: [u32; 3]) -> Workgroups {
        Workgroups(groups)
    }
}

impl From<(u32, u32)> for Workgroups {
    fn from((x, y): (u32, u32)) -> Workgroups {
        Workgroups([x, y, 1])
    }
}

impl From<(u32, u32, u32)> for Workgroups {
    fn from((x, y, z): (u32, u32, u32)) -> Workgroups {
        Workgroups([x, y, z])
    }
}

impl WgslKernel {
    /// Returns the names of the params, as [`Launch::set`] takes them.
    #[must_use]
    pub fn params(&self) -> Vec<&str> {
        let members = self.reflection.params.iter().flat_map(|uniform| &uniform.members);
        members.map(|member| &*member.name).collect()
    }

    /// Returns the workgroups in x and y, at most `most` each, for at least `n` invocations.
    fn folded(&self, n: usize, most: usize) -> Result<[usize; 3]> {
        let [x, y, z] = self.reflection.workgroup_size;
        if !self.reflection.counts_workgroups || y != 1 || z != 1 {
            return Err(self.error(format!(
                "a folded dispatch needs a kernel with @workgroup_size({x}) and @builtin(num_workgroups) count: vec3<u32>, whose \
                 place is id.x + id.y * count.x * {x}u"
            )));
        }
        let groups = n.div_ceil(x.max(1) as usize);
        // As few in y as there can be.
        let rows = groups.div_ceil(most).max(1);
        let columns = groups.div_ceil(rows);
        if columns.saturating_mul(rows).saturating_mul(x as usize) as u64 > 1 << 32 {
            return Err(self.error(format!("{n} places do not fit in u32: split the work")));
        }
        Ok([columns, rows, 1])
    }
}
