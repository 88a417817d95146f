//! The output of the net over all devices, without a step.

use super::DataParallel;
use super::collectives::gather;
use super::replica::Replica;
use super::worker::wait_all;
use crate::context;
use crate::data::DataLoader;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::metrics::Accuracy;
use crate::process_group::ProcessGroup;
use crate::sync::lock;
use crate::tensor::{Tensor, generator, skip_blocks};

impl DataParallel {
    /// Returns the device on which outputs are gathered: the first one.
    #[must_use]
    pub fn output_device(&self) -> &Device {
        &self.replicas[0].device
    }

    /// Switches all replicas to training mode; see [`Module::train`](crate::nn::Module::train).
    pub fn train(&self) {
        self.replicas.iter().for_each(|replica| replica.net.train());
    }

    /// Switches all replicas to evaluation mode; see [`Module::eval`](crate::nn::Module::eval).
    pub fn eval(&self) {
        self.replicas.iter().for_each(|replica| replica.net.eval());
    }

    /// Returns the net's output for `input: [N, ..]`, on [`output_device`](DataParallel::output_device), in the mode that
    /// the net is in: a new net is in training mode, and [`train_batch`](DataParallel::train_batch) and
    /// [`predict`](DataParallel::predict) switch it. The input is split among the devices as in training.
    ///
    /// With one device, the output is in the graph, as that of a module. With several it is not, because only
    /// `train_batch` exchanges the gradients of the replicas.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with several devices outside [`no_grad`](crate::no_grad), unless all parameters are
    /// frozen; those of [`predict`](DataParallel::predict).
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
    /// assert_eq!((y.shape(), y.device()), (&[8, 3][..], net.output_device()));
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _alone = self.alone("forward")?;
        if self.workers.is_empty() {
            return self.replicas[0].forward(input);
        }
        let tracked = input.is_tracked() || self.replicas[0].parameters.iter().any(Tensor::is_tracked);
        if tracked && context::read(|context| context.recording) {
            let detail = "the gradients of several replicas are exchanged by train_batch only: train with \
                          train_batch(&x, &y, loss_fn), or compute outputs within no_grad(|| …), as predict does";
            return Err(Error::argument("forward", detail));
        }
        match self.parts(input) {
            Some(sizes) => self.split(input, sizes, Replica::forward),
            None => {
                let output = self.replicas[0].forward(input)?;
                // In training mode, the running statistics of the first replica were updated, and only those.
                self.replicas[1..].iter().try_for_each(|other| other.copy_buffers_from(&self.replicas[0]))?;
                Ok(output)
            }
        }
    }

    /// Returns the net's output for `images: [N, ..]` in evaluation mode, on the first device and outside the graph. The
    /// images are split among the devices as in training.
    ///
    /// # Errors
    /// Those of the net's ops; with several devices, with the name of the device that failed. A lost device and a call
    /// by a loss function are errors as in [`train_batch`](DataParallel::train_batch).
    pub fn predict(&self, images: &Tensor) -> Result<Tensor> {
        let _alone = self.alone("predict")?; // not during a step, which switches the layers to training mode
        match self.parts(images) {
            Some(sizes) => self.split(images, sizes, Replica::predict),
            None => self.replicas[0].predict(images),
        }
    }

    /// Returns the number of samples of each replica, or `None` if the first one alone computes the output: there is no
    /// other, or there are too few samples.
    fn parts(&self, input: &Tensor) -> Option<Vec<usize>> {
        let samples = input.shape().first().copied().unwrap_or(0);
        let sizes = lock(&self.balance).sizes(samples);
        (!self.workers.is_empty() && !sizes.contains(&0)).then_some(sizes)
    }

    /// Runs `work` of each replica on its part of the input, and gathers the outputs.
    fn split(
        &self,
        input: &Tensor,
        sizes: Vec<usize>,
        work: fn(&Replica, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let group = ProcessGroup::new(sizes.clone(), generator());
        let parts = input.split_sizes(&sizes, 0)?.into_iter().zip(group.ranks());
        let jobs = self.workers.iter().zip(&self.replicas).zip(parts).map(|((worker, replica), (part, rank))| {
            let replica = replica.clone();
            worker.submit(move || {
                let output = rank.scope(|| work(&replica, &part))?;
                replica.device.synchronize()?; // here, so that a failure is reported as this device's error
                Ok(output)
            })
        });
        let outputs = wait_all(jobs.collect())?;
        skip_blocks(group.drawn());
        gather(&outputs, &self.replicas[0].device)
    }

    /// Returns the accuracy over one epoch of `loader`, 0 to 1: the fraction of samples whose greatest output is at
    /// their label. It is counted on the device and read back once.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there are no samples; those of [`predict`](DataParallel::predict).
    pub fn evaluate(&self, loader: &DataLoader) -> Result<f64> {
        let mut accuracy = Accuracy::new();
        for batch in loader.epoch(0) {
            let (images, labels) = batch?;
            accuracy.add(&self.predict(&images)?, &labels)?;
        }
        if accuracy.count() == 0 {
            return Err(Error::argument("evaluate", "the loader has no samples, so that there is no accuracy"));
        }
        accuracy.value()
    }
}
