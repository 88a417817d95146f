//! The output of the net over all devices, without a step.

use std::sync::Arc;

use super::DataParallel;
use super::collectives::gather;
use super::members::State;
use super::replica::Replica;
use super::step::Part;
use crate::autograd::{is_recording, no_grad};
use crate::data::DataLoader;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::metrics::Accuracy;
use crate::nn::Module;
use crate::ops::cat;
use crate::tensor::{Tensor, to_together};
use crate::util::sync::lock;
use crate::util::waiting;

/// Outputs, and the buffers after them.
type Outputs = (Vec<Tensor>, Vec<Tensor>);

impl Replica {
    /// Returns the net's output in evaluation mode and outside the graph, without waiting for it.
    fn predict(&self, images: &Tensor) -> Result<Tensor> {
        self.net.eval();
        no_grad(|| self.forward(&images.detach()))
    }

    /// Returns what `work` computes with the net in evaluation mode and outside the graph, without waiting for it.
    fn predict_with(
        &self,
        inputs: &[Tensor],
        work: &(impl Fn(&dyn Module, &[Tensor]) -> Result<Vec<Tensor>> + ?Sized),
    ) -> Result<Vec<Tensor>> {
        self.net.eval();
        let inputs: Vec<Tensor> = inputs.iter().map(Tensor::detach).collect();
        let moved = to_together(&inputs.iter().collect::<Vec<_>>(), &self.device)?;
        let outputs = no_grad(|| work(&*self.net, &moved))?;
        self.device.alive()?;
        Ok(outputs)
    }

    /// Returns the net's output in its present mode, without waiting for it.
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let output = self.net.forward(&input.to(&self.device)?)?;
        self.device.alive()?;
        Ok(output)
    }
}

impl DataParallel {
    /// Returns the device on which outputs are gathered: the first one that is not left out.
    #[must_use]
    pub fn output_device(&self) -> Device {
        let roster = lock(&self.roster);
        // A device without samples may be lost before a step finds it out.
        let takes_part = |(i, device): &(usize, &Device)| roster.balance.takes_part(*i) && !device.is_lost();
        let first = roster.devices.iter().enumerate().find(takes_part);
        first.map_or(&roster.devices[0], |(_, device)| device).clone()
    }

    /// Switches the net to training mode on all devices; see [`Module::train`](crate::nn::Module::train).
    pub fn train(&self) {
        self.each_replica(|net| net.train());
    }

    /// Switches the net to evaluation mode on all devices; see [`Module::eval`](crate::nn::Module::eval).
    pub fn eval(&self) {
        self.each_replica(|net| net.eval());
    }

    /// Calls `f` with the net of each device, and with the net on the host if there are several devices.
    ///
    /// Use it to switch the modes of layers. Do not change values in it: write the trained values through
    /// [`module`](DataParallel::module).
    ///
    /// ```
    /// use anygpu::nn::models::resnet18;
    /// use anygpu::{DataParallel, Device};
    ///
    /// let net = DataParallel::new(resnet18(1, 10)?, &[Device::new("cpu/0")?, Device::new("cpu/1")?])?;
    /// net.each_replica(|net| net.get_submodule("bn1").into_iter().for_each(|norm| norm.keep_eval(true)));
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn each_replica(&self, f: impl Fn(&dyn Module)) {
        f(&*self.host.net);
        let nets = lock(&self.roster).nets.clone(); // `f` may ask this for something
        nets.iter().for_each(|net| f(&**net));
    }

    /// Returns the net's output for `input: [N, ..]` in its current mode, on
    /// [`output_device`](DataParallel::output_device).
    ///
    /// A new net is in training mode; [`train_batch`](DataParallel::train_batch) and [`predict`](DataParallel::predict)
    /// switch the mode. The input is split among the devices as in training.
    ///
    /// With one device, the output is in the graph, as with a plain module. With several devices it is not, because
    /// only `train_batch` exchanges the gradients of the replicas.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with several devices outside [`no_grad`](crate::no_grad), unless all parameters are
    /// frozen; the errors of [`predict`](DataParallel::predict).
    ///
    /// ```
    /// use anygpu::{DataParallel, Device, Tensor, nn::Linear, no_grad};
    ///
    /// let x = Tensor::rand([8, 4], None)?;
    /// let net = DataParallel::new(Linear::new(4, 3)?, &[Device::cpu()])?;
    /// net.forward(&x)?.sum_all()?.backward()?;
    /// assert!(net.parameters()[0].grad().is_some());
    ///
    /// let net = DataParallel::new(Linear::new(4, 3)?, &[Device::cpu(), Device::new("cpu/1")?])?;
    /// let y = no_grad(|| net.forward(&x))?;
    /// assert_eq!((y.shape(), y.device()), (&[8, 3][..], &net.output_device()));
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let (mut state, _in_call) = self.alone("forward")?;
        if state.members.is_empty() {
            return self.host.forward(input);
        }
        let tracked = input.is_tracked() || self.host.parameters.iter().any(Tensor::is_tracked);
        if tracked && is_recording() {
            let detail = "only train_batch exchanges the gradients of several replicas: train with \
                          train_batch(&x, &y, loss_fn), or compute outputs within no_grad(|| …), as predict does";
            return Err(Error::argument("forward", detail));
        }
        // In training mode, the replicas update their running statistics.
        let outputs = self.split(&mut state, "forward", &[input], |replica, inputs, rank| {
            let output = replica.forward(&inputs[0])?;
            Ok((vec![output], if rank == 0 { replica.buffers_on_host()? } else { Vec::new() }))
        })?;
        only(outputs)
    }

    /// Returns the net's output for `images: [N, ..]` in evaluation mode, on
    /// [`output_device`](DataParallel::output_device) and outside the graph.
    ///
    /// The images are split among the devices as in training.
    ///
    /// # Errors
    /// The errors of the net's ops. Failures of devices and calls from a loss function are handled as in
    /// [`train_batch`](DataParallel::train_batch).
    pub fn predict(&self, images: &Tensor) -> Result<Tensor> {
        let outputs = waiting::wait_for(self.predict_async(images));
        outputs.map_err(|error| error.instead("predict", "predict_async"))
    }

    fn outputs(&self, images: &Tensor) -> Result<Tensor> {
        let (mut state, _in_call) = self.alone("predict")?; // not during a step, which switches the layers to training mode
        if state.members.is_empty() {
            return self.host.predict(images);
        }
        let outputs = self.split(&mut state, "predict", &[images], |replica, inputs, _| {
            Ok((vec![replica.predict(&inputs[0])?], Vec::new()))
        })?;
        only(outputs)
    }

    /// Asynchronous form of [`predict`](DataParallel::predict). Use it in a browser, where `predict` would have to wait
    /// for several devices.
    ///
    /// # Errors
    /// The errors of [`predict`](DataParallel::predict).
    pub async fn predict_async(&self, images: &Tensor) -> Result<Tensor> {
        self.rerun(|| self.outputs(images)).await
    }

    /// Returns the outputs of a function of your own, in evaluation mode like [`predict`](DataParallel::predict). Use
    /// it for nets with several inputs or outputs.
    ///
    /// All `inputs` are split along their first dimension, or along the dimensions of
    /// [`with_batch_dims`](DataParallel::with_batch_dims). All must have the same number of samples. `work` is called
    /// for each device, in parallel. It gets the replica of the net in evaluation mode and the device's part of each
    /// input. The first dimension of each output that it returns must be the sample dimension, unless
    /// [`with_output_dims`](DataParallel::with_output_dims) sets another one. Each output is gathered.
    ///
    /// # Errors
    /// The errors of [`predict`](DataParallel::predict); [`Error::ShapeMismatch`] unless all inputs have the same
    /// number of samples; with several devices, [`Error::InvalidArgument`] for an output without a sample dimension,
    /// such as a scalar.
    ///
    /// ```
    /// use anygpu::{DataParallel, Device, Tensor, nn::Linear};
    ///
    /// let net = DataParallel::new(Linear::new(4, 3)?, &[Device::new("cpu/0")?, Device::new("cpu/1")?])?;
    /// let (a, b) = (Tensor::rand([10, 4], None)?, Tensor::rand([10, 4], None)?);
    /// let outputs = net.predict_with(&[&a, &b], |replica, part| {
    ///     let (a, b) = (replica.forward(&part[0])?, replica.forward(&part[1])?);
    ///     Ok(vec![(&a - &b)?.square()?.sum(1, false)?, a])
    /// })?;
    /// assert_eq!((outputs[0].shape(), outputs[1].shape()), (&[10][..], &[10, 3][..]));
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn predict_with<F>(&self, inputs: &[&Tensor], work: F) -> Result<Vec<Tensor>>
    where
        F: Fn(&dyn Module, &[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
    {
        let (mut state, _in_call) = self.alone("predict_with")?;
        if state.members.is_empty() {
            self.dims.samples("predict_with", inputs)?;
            return self.host.predict_with(&inputs.iter().copied().cloned().collect::<Vec<_>>(), &work);
        }
        let work = Arc::new(work);
        self.split(&mut state, "predict_with", inputs, move |replica, inputs, _| {
            Ok((replica.predict_with(inputs, &*work)?, Vec::new()))
        })
    }

    /// Runs `work` of each replica on its part of the inputs, with its rank, and gathers the outputs. The host's
    /// buffers become those of the first replica.
    fn split(
        &self,
        state: &mut State,
        call: &'static str,
        inputs: &[&Tensor],
        work: impl Fn(&Replica, &[Tensor], usize) -> Result<Outputs> + Clone + Send + 'static,
    ) -> Result<Vec<Tensor>> {
        (state.losses, state.joint) = (None, None); // also after a panic in a step
        self.dims.check_first_layer(call, &*self.host.net)?;
        let samples = self.dims.samples(call, inputs)?;
        let inputs: Vec<Tensor> = inputs.iter().copied().cloned().collect();
        self.in_micro_batches(samples, |sizes| {
            let mut all = Vec::with_capacity(sizes.len());
            for (part, &samples) in self.dims.cut(&inputs, sizes)?.iter().zip(sizes) {
                let (outputs, buffers) = self.split_at_once(state, call, part, samples, work.clone())?;
                // Running statistics of a forward pass in training mode.
                self.set_buffers(state, &buffers)?;
                all.push(outputs);
            }
            joined(call, &all, |i, outputs| match outputs {
                [whole] => Ok(whole.clone()),
                several => cat(&several.iter().collect::<Vec<_>>(), self.dims.output(i)),
            })
        })
    }

    /// As [`split`](DataParallel::split), for samples that the devices compute at once.
    fn split_at_once(
        &self,
        state: &mut State,
        call: &'static str,
        inputs: &[Tensor],
        samples: usize,
        work: impl Fn(&Replica, &[Tensor], usize) -> Result<Outputs> + Clone + Send + 'static,
    ) -> Result<Outputs> {
        let outputs = self.with_survivors(state, samples, |state, sizes| {
            let (work, dims) = (work.clone(), self.dims.clone());
            let work = move |replica: &Replica, part: Part| {
                let output = work(replica, &part.inputs, part.rank)?;
                let per_sample = dims.check_outputs(call, part.samples, &output.0)?;
                replica.device.synchronize()?; // here, so that a failure is reported as this device's error
                Ok((output, per_sample))
            };
            self.on_each_device(state, sizes, inputs, 0, work, |_, _, _| Ok(()))
        })?;
        let (outputs, per_sample): (Vec<Outputs>, Vec<Vec<usize>>) = outputs.into_iter().map(|(_, part)| part).unzip();
        let unlike = |part: &Vec<usize>| part.iter().zip(&per_sample[0]).any(|(here, there)| here != there);
        if per_sample.iter().any(unlike) {
            let detail = "the size of the function's outputs per sample differs between devices";
            return Err(Error::argument(call, detail));
        }
        let (outputs, mut buffers): (Vec<Vec<Tensor>>, Vec<Vec<Tensor>>) = outputs.into_iter().unzip();
        let device = self.output_device();
        let joined = joined(call, &outputs, |i, outputs| match self.dims.output(i) {
            0 => gather(outputs, &device),
            dim => {
                let here = outputs.iter().map(|output| output.to(&device)).collect::<Result<Vec<_>>>()?;
                cat(&here.iter().collect::<Vec<_>>(), dim)
            }
        })?;
        Ok((joined, buffers.swap_remove(0)))
    }

    /// Asynchronous form of [`evaluate`](DataParallel::evaluate). Use it in a browser, where `evaluate` would have to
    /// wait.
    ///
    /// # Errors
    /// The errors of [`evaluate`](DataParallel::evaluate).
    pub async fn evaluate_async(&self, loader: &DataLoader) -> Result<f64> {
        let mut accuracy = Accuracy::new();
        for batch in loader.epoch(0) {
            let (images, labels) = batch?;
            accuracy.add(&self.predict_async(&images).await?, &labels)?;
        }
        if accuracy.count() == 0 {
            return Err(Error::argument("evaluate", "the loader has no samples, so there is no accuracy"));
        }
        accuracy.value_async().await
    }

    /// Returns the accuracy over one epoch of `loader`, from 0 to 1: the fraction of samples whose greatest output is
    /// at their label.
    ///
    /// It is counted on the device and read back once.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there are no samples; the errors of [`predict`](DataParallel::predict).
    pub fn evaluate(&self, loader: &DataLoader) -> Result<f64> {
        let accuracy = waiting::wait_for(self.evaluate_async(loader));
        accuracy.map_err(|error| error.instead("evaluate", "evaluate_async"))
    }
}

/// Joins each output of several parts of the samples.
fn joined(
    call: &'static str,
    parts: &[Vec<Tensor>],
    join: impl Fn(usize, &[Tensor]) -> Result<Tensor>,
) -> Result<Vec<Tensor>> {
    let count = parts.first().map_or(0, Vec::len);
    if parts.iter().any(|outputs| outputs.len() != count) {
        return Err(Error::argument(call, "the function's number of outputs differs between parts of the samples"));
    }
    (0..count).map(|i| join(i, &parts.iter().map(|outputs| outputs[i].clone()).collect::<Vec<_>>())).collect()
}

/// Returns the only output of a call.
fn only(mut outputs: Vec<Tensor>) -> Result<Tensor> {
    outputs.pop().ok_or_else(|| Error::internal("a net without an output"))
}
