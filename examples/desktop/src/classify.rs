//! The classification of a drawing while the window goes on drawing frames.
//!
//! A thread does what takes long: opening a device, loading weights, and the first forward pass, for which the
//! driver compiles kernels. The thread of the window records the later passes, and reads their results without
//! waiting.

use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anygpu::nn::models::lenet;
use anygpu::nn::{Module, Sequential, StateDict};
use anygpu::tensor::PendingRead;
use anygpu::{Device, Result, Tensor, data, no_grad};
use eframe::egui;

use crate::canvas::SIDE;

/// The weights of a net after some training steps, on `cpu`.
#[derive(Clone)]
pub struct Weights {
    /// The number of steps.
    pub step: usize,
    /// The values by name.
    pub state: StateDict,
}

/// The probabilities of the ten digits, and how they came about.
pub struct Answer {
    /// The probabilities.
    pub probabilities: Vec<f32>,
    /// The training steps of the weights; 0 if the net is untrained.
    pub step: usize,
    /// The time from the start of the pass to the frame in which its result was there.
    pub time: Duration,
}

/// A net on a device whose kernels are compiled.
struct Net {
    device: Device,
    layers: Sequential,
    step: usize,
}

/// A thread that prepares a net.
struct Loading {
    result: Receiver<Result<Net>>,
    thread: JoinHandle<()>,
}

/// A result that is on its way.
struct Pending {
    read: PendingRead<f32>,
    step: usize,
    begin: Instant,
}

/// Classifies drawings on a device that can be changed.
pub struct Classifier {
    /// The device that was chosen.
    device: Device,
    /// Mean and standard deviation of the pixels that the net is trained with.
    statistics: [f32; 2],
    /// The newest weights of a training run.
    weights: Option<Weights>,
    /// Whether the net has to be prepared again: for another device, or with other weights.
    outdated: bool,
    loading: Option<Loading>,
    net: Option<Net>,
    /// A drawing that is not classified yet, or not with this net.
    drawing: Option<Vec<f32>>,
    /// The drawing whose classification was begun last.
    begun: Option<Vec<f32>>,
    pending: Option<Pending>,
    answer: Option<Answer>,
    error: Option<String>,
}

impl Classifier {
    /// Returns a classifier with an untrained net, for images with the statistics of this set.
    pub fn new(device: Device, digits: &data::ImageSet) -> Classifier {
        let (mean, deviation) = digits.mean_std();
        Classifier {
            device,
            statistics: [mean[0], deviation[0]],
            weights: None,
            outdated: true,
            loading: None,
            net: None,
            drawing: None,
            begun: None,
            pending: None,
            answer: None,
            error: None,
        }
    }

    /// Returns the chosen device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Changes the device. If the same device is chosen again and is lost, it is reopened.
    pub fn select(&mut self, device: Device) {
        (self.device, self.net, self.error, self.outdated) = (device, None, None, true);
    }

    /// Takes newer weights.
    pub fn load(&mut self, weights: Weights) {
        (self.weights, self.outdated) = (Some(weights), true);
    }

    /// Takes a drawing, or `None` for an empty one.
    pub fn classify(&mut self, drawing: Option<Vec<f32>>) {
        if drawing.is_none() {
            (self.begun, self.pending, self.answer) = (None, None, None);
        }
        self.drawing = drawing;
    }

    /// Returns the newest result.
    pub fn answer(&self) -> Option<&Answer> {
        self.answer.as_ref()
    }

    /// Returns what went wrong last.
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// Returns whether a net is being prepared and there is none to use meanwhile.
    pub fn is_opening(&self) -> bool {
        self.loading.is_some() && self.net.is_none()
    }

    /// Takes what has arrived and begins what is to be done. Called in every frame; does not wait for results of a
    /// device. Returns whether something is still to come.
    pub fn update(&mut self, context: &egui::Context) -> bool {
        if let Err(error) = self.advance(context) {
            (self.error, self.net, self.pending) = (Some(error.to_string()), None, None);
        }
        self.pending.is_some()
    }

    fn advance(&mut self, context: &egui::Context) -> Result<()> {
        self.receive_net()?;
        if self.outdated && self.loading.is_none() && self.error.is_none() {
            self.outdated = false;
            self.loading = Some(self.prepare(context));
        }
        if let Some(pending) = &mut self.pending {
            let Some(probabilities) = pending.read.try_get() else { return Ok(()) };
            let (step, time) = (pending.step, pending.begin.elapsed());
            self.pending = None;
            self.answer = Some(Answer { probabilities: probabilities?, step, time });
        }
        if let (Some(net), Some(drawing)) = (&self.net, self.drawing.take_if(|_| self.net.is_some())) {
            let begin = Instant::now();
            let read = self.forward(net, &drawing)?.to_vec_async();
            self.pending = Some(Pending { read, step: net.step, begin });
            self.begun = Some(drawing);
        }
        Ok(())
    }

    /// Records a forward pass. The device begins with it when the result is read.
    fn forward(&self, net: &Net, drawing: &[f32]) -> Result<Tensor> {
        let [mean, deviation] = self.statistics;
        let pixels: Vec<f32> = drawing.iter().map(|ink| (ink - mean) / deviation).collect();
        probabilities(&net.layers, &pixels, &net.device)
    }

    fn receive_net(&mut self) -> Result<()> {
        let Some(loading) = &self.loading else { return Ok(()) };
        let result = match loading.result.try_recv() {
            Ok(result) => result,
            Err(TryRecvError::Empty) => return Ok(()),
            Err(TryRecvError::Disconnected) => {
                self.loading = None;
                self.error = Some("the thread that loads the net has ended".into());
                return Ok(());
            }
        };
        self.loading = None;
        let net = result?;
        // The user may have chosen another device meanwhile. Then a net for that one is prepared next.
        if net.device.name() == self.device.name() {
            self.device = net.device.clone();
            self.net = Some(net);
            // The newer net classifies the same drawing again.
            self.drawing = self.drawing.take().or(self.begun.take());
        }
        Ok(())
    }

    /// Starts the thread that prepares a net.
    fn prepare(&self, context: &egui::Context) -> Loading {
        let (device, weights, context) = (self.device.clone(), self.weights.clone(), context.clone());
        let (sender, result) = mpsc::channel();
        let thread = thread::spawn(move || {
            sender.send(prepared(&device, weights)).ok();
            context.request_repaint();
        });
        Loading { result, thread }
    }

    /// Waits for the thread that prepares a net.
    pub fn finish(&mut self) {
        if let Some(loading) = self.loading.take() {
            loading.thread.join().ok();
        }
    }
}

/// Opens the device, puts a net on it, and runs it once.
fn prepared(device: &Device, weights: Option<Weights>) -> Result<Net> {
    let device = device.reopen()?;
    let layers = lenet()?.to(&device)?;
    let mut step = 0;
    if let Some(weights) = weights {
        layers.load_state_dict(&weights.state, true)?;
        step = weights.step;
    }
    probabilities(&layers, &[0.0; SIDE * SIDE], &device)?.to_vec::<f32>()?;
    Ok(Net { device, layers, step })
}

fn probabilities(layers: &Sequential, pixels: &[f32], device: &Device) -> Result<Tensor> {
    no_grad(|| layers.forward(&Tensor::from_slice(pixels, [1, 1, SIDE, SIDE], device)?)?.softmax(-1))
}
