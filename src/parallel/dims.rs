//! Which dimension of inputs and outputs is the sample dimension.

use super::DataParallel;
use super::pipeline::Pipeline;
use crate::error::{Error, Result};
use crate::nn::{Module, recurrent};
use crate::tensor::Tensor;

/// The sample dimensions. The last one of a list holds for all further inputs or outputs.
#[derive(Clone, Debug)]
pub(super) struct SampleDims {
    inputs: Vec<usize>,
    /// Empty: the sample dimension of the first input.
    outputs: Vec<usize>,
}

impl Default for SampleDims {
    fn default() -> SampleDims {
        SampleDims { inputs: vec![0], outputs: Vec::new() }
    }
}

impl SampleDims {
    fn set_inputs(&mut self, dims: &[usize]) -> Result<()> {
        if dims.is_empty() {
            return Err(Error::argument("with_batch_dims", "there must be a dimension for the first input"));
        }
        self.inputs = dims.to_vec();
        Ok(())
    }

    fn set_outputs(&mut self, dims: &[usize]) -> Result<()> {
        if dims.is_empty() {
            return Err(Error::argument("with_output_dims", "there must be a dimension for the first output"));
        }
        self.outputs = dims.to_vec();
        Ok(())
    }

    pub fn input(&self, index: usize) -> usize {
        self.inputs.get(index).or(self.inputs.last()).copied().unwrap_or(0)
    }

    pub fn output(&self, index: usize) -> usize {
        self.outputs.get(index).or(self.outputs.last()).copied().unwrap_or_else(|| self.input(0))
    }

    /// Returns the number of samples of inputs that are to be split.
    ///
    /// # Errors
    /// If inputs have no samples, or differ in their number.
    pub fn samples(&self, call: &'static str, inputs: &[&Tensor]) -> Result<usize> {
        let Some((first, others)) = inputs.split_first() else {
            return Err(Error::argument(call, "there are no inputs to split"));
        };
        let Some(&samples) = first.shape().get(self.input(0)) else {
            let (shape, dim) = (first.shape(), self.input(0));
            let detail = match first.rank() {
                0 => "the input is a scalar, and has no samples to split".to_owned(),
                _ => format!("the input has the shape {shape:?}, which has no sample dimension {dim}"),
            };
            return Err(Error::argument(call, detail));
        };
        for (i, other) in (1..).zip(others) {
            if other.shape().get(self.input(i)) != Some(&samples) {
                let rule = match (self.input(0), self.input(i)) {
                    (0, 0) => {
                        "all inputs and labels must have the same number of samples: the first dimensions must be equal"
                    }
                    _ => "the sample dimensions, which with_batch_dims names, must have equal sizes",
                };
                return Err(Error::shapes(call, first.shape(), other.shape(), rule));
            }
        }
        Ok(samples)
    }

    /// Returns the samples of each input in consecutive parts with these numbers of samples. They are views.
    pub fn cut(&self, inputs: &[Tensor], sizes: &[usize]) -> Result<Vec<Vec<Tensor>>> {
        let split = |(i, input): (usize, &Tensor)| input.split_sizes(sizes, self.input(i));
        let inputs = inputs.iter().enumerate().map(split).collect::<Result<Vec<_>>>()?;
        Ok((0..sizes.len()).map(|part| inputs.iter().map(|input| input[part].clone()).collect()).collect())
    }

    /// Returns how many entries each output has per sample: one, or more, such as the tokens of `[N · T, C]`.
    ///
    /// # Errors
    /// If an output cannot be joined with the outputs of other samples.
    pub fn check_outputs(&self, call: &'static str, samples: usize, outputs: &[Tensor]) -> Result<Vec<usize>> {
        let entries = |(i, output): (usize, &Tensor)| {
            let (shape, dim) = (output.shape(), self.output(i));
            match shape.get(dim) {
                Some(0) if samples == 0 => Ok(1),
                Some(&size) if samples > 0 && size > 0 && size % samples == 0 => Ok(size / samples),
                _ => {
                    let detail = format!(
                        "output {i} for {samples} samples has the shape {shape:?}: dimension {dim} is not the sample \
                         dimension, so the outputs of several devices cannot be joined. Name the right one by \
                         with_output_dims, or return one value for each sample, such as unreduced losses"
                    );
                    Err(Error::argument(call, detail))
                }
            }
        };
        outputs.iter().enumerate().map(entries).collect()
    }

    /// Returns an error if the net begins with a recurrent layer that takes sequences `[T, N, I]`, and they would be
    /// split along T.
    pub fn check_first_layer(&self, call: &'static str, net: &dyn Module) -> Result<()> {
        if self.input(0) != 0 || !recurrent::takes_time_first(net) {
            return Ok(());
        }
        let detail = "the net takes sequences [T, N, ..]: dimension 0 is time, but batches are split along dimension 0. Call \
                      with_batch_dims(&[1, ..]), or batch_first() on the layer";
        Err(Error::argument(call, detail))
    }
}

impl DataParallel {
    /// Sets the sample dimension of each input, along which the input is split: one for each input of a call, in order.
    ///
    /// The last one holds for further inputs. The default is 0. `[1, 0]` is for sequences `[T, N, ..]` with labels
    /// `[N]`.
    ///
    /// Dropout assumes that dimension 0 of its input is the sample dimension. With another sample dimension, a step
    /// draws other random numbers than one device would. Outputs of [`predict`](DataParallel::predict) are joined along
    /// the sample dimension of the first input, unless [`with_output_dims`](DataParallel::with_output_dims) sets
    /// another one.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `dims` is empty.
    ///
    /// ```
    /// use anygpu::nn::{self, Linear};
    /// use anygpu::{DataParallel, Device, Tensor};
    ///
    /// let devices = [Device::new("cpu/0")?, Device::new("cpu/1")?];
    /// let net = DataParallel::new(Linear::new(4, 3)?, &devices)?.with_batch_dims(&[1])?;
    /// let x = Tensor::rand([5, 8, 4], None)?; // 5 steps of 8 sequences
    /// assert_eq!(net.predict(&x)?.shape(), [5, 8, 3]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn with_batch_dims(mut self, dims: &[usize]) -> Result<DataParallel> {
        self.dims.set_inputs(dims)?;
        Ok(self)
    }

    /// Sets the sample dimension of each output of [`predict_with`](DataParallel::predict_with) and
    /// [`predict`](DataParallel::predict), in order.
    ///
    /// The last one holds for further outputs. `[0, 1]` is for outputs `[N, ..]` and states `[layers, N, H]`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `dims` is empty.
    pub fn with_output_dims(mut self, dims: &[usize]) -> Result<DataParallel> {
        self.dims.set_outputs(dims)?;
        Ok(self)
    }
}

impl Pipeline {
    /// Sets the sample dimension of the input and of the labels, along which they are cut into micro-batches, like
    /// [`DataParallel::with_batch_dims`]. The default is 0.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `dims` is empty.
    pub fn with_batch_dims(mut self, dims: &[usize]) -> Result<Pipeline> {
        self.dims.set_inputs(dims)?;
        Ok(self)
    }

    /// Sets the sample dimension of the output of [`predict`](Pipeline::predict). The default is the input's.
    #[must_use]
    pub fn with_output_dim(mut self, dim: usize) -> Pipeline {
        self.dims.outputs = vec![dim];
        self
    }
}
