//! Kernels: plain data that becomes a [pipeline](super::pipeline), once for each device and specialisation.

use super::chain::{Link, Pointwise};
use super::queue::Dispatch;
use super::shader::{ParamWords, Params, Shader, ShaderText};
use super::{Buffer, Gpu, Pipeline};
use crate::error::{Error, Result};

/// Invocations in a workgroup of all one-dimensional kernels; `WG` in `prelude.wgsl`.
const WORKGROUP: usize = 64;

/// The most workgroups in one dimension that every WebGPU adapter allows.
const MAX_GROUPS: usize = 65_535;

/// The workgroups of a row where there are more than that; `ROW` in `prelude.wgsl`. With 2³² invocations in the grid, their
/// numbers do not overflow, since this is a power of two.
const ROW: usize = 2048;

/// One dispatch, as plain data. All bindings are in group 0: the params at 0, then the inputs, then the outputs.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(super) shader: ShaderText,
    pub(super) entry: &'static str,
    /// Text that precedes the shader: types and sizes that `override` cannot set.
    pub(super) header: &'static str,
    /// Values of the shader's `override` constants.
    pub(super) constants: Vec<(&'static str, f64)>,
    /// `@binding(0) var<uniform>`
    pub(super) params: ParamWords,
    /// `var<storage, read>`; whole buffers.
    pub(super) inputs: Vec<Buffer>,
    /// `var<storage, read_write>`; whole buffers, none of which may be an input.
    pub(super) outputs: Vec<Buffer>,
    /// Workgroups in x, y, z; nothing runs if one is 0.
    pub(super) groups: [u32; 3],
    /// Set if the kernel may be fused with others.
    pub(super) link: Option<Link>,
    /// Whether it may find a fault: [`Gpu::fault_record`].
    pub(super) checks: bool,
    /// The op that it computes; empty if none.
    pub(super) op: &'static str,
}

/// A kernel without its grid. See [`Kernel::build`].
#[must_use = "a kernel is complete when each() or workgroups() says how often it runs"]
pub(crate) struct KernelBuilder(Kernel);

/// A value that can be bound: a buffer, or an op's input on an adapter.
pub(crate) trait AsBuffer {
    fn as_buffer(&self) -> &Buffer;
}

impl AsBuffer for Buffer {
    fn as_buffer(&self) -> &Buffer {
        self
    }
}

/// A value of an `override` constant.
pub(crate) trait Constant {
    fn value(self) -> f64;
}

macro_rules! constants {
    ($($t:ty: |$v:ident| $value:expr;)*) => {$(
        impl Constant for $t {
            fn value(self) -> f64 {
                let $v = self;
                $value
            }
        }
    )*};
}
constants! { bool: |v| f64::from(u8::from(v)); u8: |v| v.into(); u32: |v| v.into(); usize: |v| v as f64; }

impl Kernel {
    /// Returns the buffers that it writes.
    #[cfg(test)]
    pub fn written(&self) -> &[Buffer] {
        &self.outputs
    }

    /// Starts a kernel: `Kernel::build(SHADER, "entry", Params { .. }).input(x).output(out).each(count)`.
    ///
    /// Inputs and outputs are bound in the order of the calls, inputs first.
    pub fn build<P: Params>(shader: Shader<P>, entry: &'static str, params: P) -> KernelBuilder {
        KernelBuilder(Kernel {
            shader: shader.text,
            entry,
            header: "",
            constants: Vec::new(),
            params: ParamWords::of(&params),
            inputs: Vec::new(),
            outputs: Vec::new(),
            groups: [0; 3],
            link: None,
            checks: false,
            op: "",
        })
    }

    /// Returns the buffers of the kernel in the order of their bindings.
    pub(super) fn buffers(&self) -> Vec<&Buffer> {
        self.inputs.iter().chain(&self.outputs).collect()
    }

    /// Returns the call of the kernel's pipeline with its buffers.
    pub(super) fn dispatch<'a>(&'a self, pipeline: &'a Pipeline, buffers: &'a [&'a Buffer]) -> Dispatch<'a> {
        Dispatch { pipeline, params: &self.params.words, buffers, groups: self.groups, op: self.op.into() }
    }

    /// Says that the kernel may find a fault, which the next wait after it is recorded looks for.
    pub fn checking(self) -> Self {
        Kernel { checks: true, ..self }
    }

    /// Says that the kernel computes a formula element by element, so that it may be fused with others.
    pub fn pointwise(mut self, call: Option<Pointwise>) -> Self {
        self.link = call.map(|call| Link::Formula(Box::new(call)));
        self
    }
}

impl KernelBuilder {
    /// Sets one of the shader's headers.
    pub fn header(mut self, header: &'static str) -> Self {
        self.0.header = header;
        self
    }

    /// Sets an `override` constant. A constant that is not set has its default.
    pub fn constant(mut self, name: &'static str, value: impl Constant) -> Self {
        self.0.constants.push((name, value.value()));
        self
    }

    /// Sets several `override` constants.
    pub fn constants(mut self, constants: impl IntoIterator<Item = (&'static str, usize)>) -> Self {
        self.0.constants.extend(constants.into_iter().map(|(name, value)| (name, value.value())));
        self
    }

    /// Binds the next `var<storage, read>`.
    pub fn input(mut self, buffer: &impl AsBuffer) -> Self {
        self.0.inputs.push(buffer.as_buffer().clone());
        self
    }

    /// Binds the next `var<storage, read_write>`, which must not be an input.
    pub fn output(mut self, buffer: &impl AsBuffer) -> Self {
        self.0.outputs.push(buffer.as_buffer().clone());
        self
    }

    /// Runs `count` invocations in workgroups of `WG`, usually one for each element.
    pub fn each(mut self, count: usize) -> Kernel {
        if u32::try_from(count).is_err() {
            self.0.params.too_large = Some(("invocations", count));
        }
        self.0.groups = grid_of(count);
        self.0
    }

    /// Runs `count` workgroups, folded over y if x is too small; `linear_group` of the prelude computes their numbers.
    pub fn workgroups(mut self, count: usize) -> Kernel {
        self.0.groups = grid(count);
        self.0
    }
}

/// Returns the workgroups for at least `count` invocations.
pub(super) fn grid_of(count: usize) -> [u32; 3] {
    grid(count.div_ceil(WORKGROUP))
}

/// Returns the workgroups in x, y and z for at least `count` of them. Too many rows are refused when the kernel runs.
fn grid(count: usize) -> [u32; 3] {
    match u32::try_from(count) {
        Ok(count) if count as usize <= MAX_GROUPS => [count, 1, 1],
        _ => [ROW as u32, u32::try_from(count.div_ceil(ROW)).unwrap_or(u32::MAX), 1],
    }
}

impl Gpu {
    /// Records a kernel of this crate, or keeps it as a part of a [chain](super::chain), which a later call records.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`] if it does not compile or its buffers do not match; [`Error::LimitExceeded`] for too many
    /// workgroups or buffers; [`Error::InvalidArgument`] for sizes over 2³²; [`Error::DeviceLost`].
    pub(crate) fn run(&self, kernel: Kernel) -> Result<()> {
        if let Some((what, value)) = kernel.params.too_large {
            let detail =
                format!("{what} = {value}: an adapter's kernel counts up to 2^32 (split the tensor, or use cpu)");
            return Err(Error::argument(kernel.shader.name, detail));
        }
        if kernel.groups.contains(&0) {
            return self.check();
        }
        self.check_lengths(kernel.inputs.iter().chain(&kernel.outputs))?;
        self.pace()?;
        self.collect_times();
        let checks = kernel.checks;
        self.chain_or_run(kernel)?;
        if checks {
            self.expect_fault();
        }
        Ok(())
    }

    /// Records the kernels of the op `name` with the result `out`. Elementwise kernels that follow may become a part of the last one.
    ///
    /// # Errors
    ///
    /// Same as [`run`](Self::run).
    pub(crate) fn run_op(&self, name: &'static str, mut kernels: Vec<Kernel>, out: &Buffer) -> Result<()> {
        kernels.iter_mut().for_each(|kernel| kernel.op = name);
        let writes = |kernel: &Kernel| kernel.outputs.iter().any(|output| output.id() == out.id());
        if let Some((last, before)) = kernels.split_last_mut()
            && last.shader.has_epilogue()
            && writes(last)
            && !before.iter().any(writes)
        {
            // It alone writes the result, so it writes all of it.
            last.link = Some(Link::Product { count: out.len() });
        }
        kernels.into_iter().try_for_each(|kernel| self.run(kernel))
    }

    /// Records a kernel now. It shares no buffer with the open chain that one of them writes.
    pub(super) fn run_now(&self, kernel: &Kernel) -> Result<()> {
        let pipeline = self.pipeline(kernel)?;
        self.record(&kernel.dispatch(&pipeline, &kernel.buffers()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_is_folded_where_x_is_too_small() {
        assert_eq!([grid(0), grid(1), grid(MAX_GROUPS)], [[0, 1, 1], [1, 1, 1], [65_535, 1, 1]]);
        assert_eq!([grid(MAX_GROUPS + 1), grid(MAX_GROUPS + 2)], [[2048, 32, 1], [2048, 33, 1]]);
        assert_eq!(grid(usize::MAX)[1], u32::MAX);
        // The largest number of invocations: none of their numbers is over 2³².
        let [x, y, _] = grid((u32::MAX as usize).div_ceil(WORKGROUP));
        assert_eq!(x as usize * y as usize * WORKGROUP, 1 << 32);
        let prelude = include_str!("../../../shaders/common/prelude.wgsl");
        assert!(
            prelude.contains(&format!("const ROW = {ROW}u;")) && prelude.contains(&format!("const WG = {WORKGROUP}u;"))
        );
    }
}
