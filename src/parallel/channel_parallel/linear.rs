use super::parts::{Parted, compute, devices, joined, placed, range_of, ranges, sizes};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::nn::{Linear, Module};
use crate::tensor::Tensor;

/// A [`Linear`] layer whose output features are split among devices.
///
/// Each device has some rows of the weight and of the bias, and computes its part of the output.
///
/// Takes `x: [.., in]` on any device and returns `y: [.., out]` on the device of `x`. The parts compute at the same
/// time, forward and backward. Copies between devices go through the host. The parameters are
/// `parts.0.weight: [out₀, in]`, `parts.0.bias: [out₀]`, `parts.1.weight` and so on, each on its device. An optimiser
/// takes them as they are.
///
/// Create it from a layer that already has its values, for example from a checkpoint. For saving,
/// [`to_linear`](ColumnParallelLinear::to_linear) returns the plain layer. [`Module::to`] moves all parts to one
/// device and so undoes the split, with the same results: move a net before its layers are split.
///
/// # Example
/// ```
/// use anygpu::nn::{Linear, Module, ReLU, Sequential};
/// use anygpu::parallel::{ColumnParallelLinear, RowParallelLinear};
/// use anygpu::{Device, Tensor};
///
/// let devices = [Device::new("cpu/0")?, Device::new("cpu/1")?];
/// let (up, down) = (Linear::new(8, 100)?, Linear::new(100, 8)?);
/// let net = Sequential::new()
///     .add("up", ColumnParallelLinear::new(&up, &devices, &[3.0, 1.0])?) // 75 features on the first device, 25 on the second
///     .add("relu", ReLU)
///     .add("down", RowParallelLinear::new(&down, &devices, &[3.0, 1.0])?);
/// let x = Tensor::rand([5, 8], None)?;
/// assert!(net.forward(&x)?.allclose(&down.forward(&up.forward(&x)?.relu()?)?, 1e-5, 1e-6)?);
/// assert_eq!(net.get("up.parts.1.weight").unwrap().shape(), [25, 8]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ColumnParallelLinear {
    parts: Vec<Linear>,
}

impl ColumnParallelLinear {
    /// Splits the outputs of a layer among devices in proportion to `weights`, one positive number for each device.
    ///
    /// Every device gets at least one output. A frozen parameter stays frozen.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there are no devices, more devices than outputs, or weights that do not fit; the
    /// errors of opening the devices.
    pub fn new(linear: &Linear, devices: &[Device], weights: &[f64]) -> Result<ColumnParallelLinear> {
        let sizes = sizes("ColumnParallelLinear", linear.weight().shape()[0], devices, weights)?;
        let part = |(range, device): ((usize, usize), &Device)| {
            let bias = linear.bias().map(|bias| range_of(bias, 0, range)).transpose()?;
            let (weight, bias) = placed(range_of(linear.weight(), 0, range)?, bias, device)?;
            Ok(Linear::of_parts(weight, bias))
        };
        let parts = ranges(&sizes).zip(devices).map(part).collect::<Result<_>>()?;
        Ok(ColumnParallelLinear { parts })
    }

    /// Returns the devices of the parts, in order.
    #[must_use]
    pub fn devices(&self) -> Vec<Device> {
        devices(&self.parts)
    }

    /// Returns the plain layer on `cpu`, with copies of the values.
    ///
    /// # Errors
    /// The errors of the devices.
    ///
    /// ```
    /// use anygpu::nn::{Linear, Module};
    /// use anygpu::{Device, parallel::ColumnParallelLinear};
    ///
    /// let linear = Linear::new(4, 6)?;
    /// let parallel = ColumnParallelLinear::new(&linear, &[Device::cpu(), Device::new("cpu/1")?], &[1.0, 2.0])?;
    /// let state = parallel.to_linear()?.state_dict(); // weight and bias, as those of the plain layer
    /// assert_eq!(state.get("weight").unwrap().to_vec::<f32>()?, linear.weight().to_vec::<f32>()?);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn to_linear(&self) -> Result<Linear> {
        let biased = self.parts.iter().all(|part| part.bias().is_some());
        let bias = biased.then(|| joined(self.parts.iter().filter_map(Linear::bias), 0)).transpose()?;
        Ok(Linear::of_parts(joined(self.parts.iter().map(Linear::weight), 0)?, bias))
    }
}

impl Module for ColumnParallelLinear {
    crate::children!(parts);

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let outputs: Vec<usize> = self.parts.iter().map(|part| part.weight().shape()[0]).collect();
        let inputs = self.parts[0].weight().shape()[1];
        let last = last_dimension("ColumnParallelLinear", input, inputs, outputs.iter().sum())?;
        compute("ColumnParallelLinear", &self.parts, input, Parted::Whole, Parted::Along(last, outputs))
    }
}

/// A [`Linear`] layer whose input features are split among devices.
///
/// Each device has some columns of the weight, and computes a term of the output. The terms are added in f32, in the
/// order of the devices.
///
/// Takes `x: [.., in]` on any device and returns `y: [.., out]` on the device of `x`. The parts compute at the same
/// time, forward and backward. Copies between devices go through the host, and each device gets only its part of `x`.
/// The parameters are `parts.0.weight: [out, in₀]`, `parts.0.bias: [out]`, `parts.1.weight: [out, in₁]` and so on. The
/// first device has the whole bias.
///
/// [`ColumnParallelLinear`] describes checkpoints and moves, and has an example.
#[derive(Clone, Debug)]
pub struct RowParallelLinear {
    parts: Vec<Linear>,
}

impl RowParallelLinear {
    /// Splits the inputs of a layer among devices in proportion to `weights`, one positive number for each device.
    ///
    /// Every device gets at least one input. A frozen parameter stays frozen.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there are no devices, more devices than inputs, or weights that do not fit; the
    /// errors of opening the devices.
    pub fn new(linear: &Linear, devices: &[Device], weights: &[f64]) -> Result<RowParallelLinear> {
        let sizes = sizes("RowParallelLinear", linear.weight().shape()[1], devices, weights)?;
        let part = |(i, (range, device)): (usize, ((usize, usize), &Device))| {
            let bias = linear.bias().filter(|_| i == 0).cloned();
            let (weight, bias) = placed(range_of(linear.weight(), 1, range)?, bias, device)?;
            Ok(Linear::of_parts(weight, bias))
        };
        let parts = ranges(&sizes).zip(devices).enumerate().map(part).collect::<Result<_>>()?;
        Ok(RowParallelLinear { parts })
    }

    /// Returns the devices of the parts, in order.
    #[must_use]
    pub fn devices(&self) -> Vec<Device> {
        devices(&self.parts)
    }

    /// Returns the plain layer on `cpu`, with copies of the values: see [`ColumnParallelLinear::to_linear`].
    ///
    /// # Errors
    /// The errors of the devices.
    pub fn to_linear(&self) -> Result<Linear> {
        let bias = self.parts[0].bias().map(|bias| joined([bias].into_iter(), 0)).transpose()?;
        Ok(Linear::of_parts(joined(self.parts.iter().map(Linear::weight), 1)?, bias))
    }
}

impl Module for RowParallelLinear {
    crate::children!(parts);

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let inputs: Vec<usize> = self.parts.iter().map(|part| part.weight().shape()[1]).collect();
        let outputs = self.parts[0].weight().shape()[0];
        let last = last_dimension("RowParallelLinear", input, inputs.iter().sum(), outputs)?;
        compute("RowParallelLinear", &self.parts, input, Parted::Along(last, inputs), Parted::Whole)
    }
}

/// Returns the last dimension of an input, which must have `inputs` features.
fn last_dimension(layer: &'static str, input: &Tensor, inputs: usize, outputs: usize) -> Result<usize> {
    if !input.dtype().is_float() {
        let expected = "a float type (convert integers with x.to_dtype(DType::F32)?)".into();
        return Err(Error::DTypeMismatch { op: layer, expected, got: input.dtype().to_string() });
    }
    if input.shape().last() != Some(&inputs) {
        let detail =
            format!("the layer is from {inputs} to {outputs} features: the input's last dimension must be {inputs}");
        return Err(Error::shapes(layer, input.shape(), &[outputs, inputs], detail));
    }
    Ok(input.rank() - 1)
}
