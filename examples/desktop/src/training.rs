//! A training run in a thread of its own, which sends what it has reached to the window.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread::{self, JoinHandle};

use anygpu::nn::models::{LENET_RECIPE, lenet};
use anygpu::{DataParallel, Device, Result, data, manual_seed, nn, optim};
use eframe::egui;

use crate::classify::Weights;
use crate::curve::History;

/// The steps from one snapshot of the weights to the next.
const SNAPSHOT: usize = 10;

/// The steps from one measurement of the accuracy on the test set to the next. One takes as long as several steps.
const EVALUATION: usize = 50;

/// What the thread sends.
enum Message {
    /// A step and its loss.
    Step(usize, f32),
    /// The accuracy on the test set after a step.
    Accuracy(usize, f64),
    /// The weights.
    Weights(Weights),
}

/// A thread that trains until it is told to stop.
struct Run {
    stop: Arc<AtomicBool>,
    messages: Receiver<Message>,
    thread: JoinHandle<Result<()>>,
}

/// The training of a net: at most one run at a time, and what the last one has reached.
pub struct Training {
    /// The devices that the next run uses.
    pub devices: Vec<Device>,
    /// Losses and accuracies.
    pub history: History,
    run: Option<Run>,
    error: Option<String>,
}

impl Training {
    /// Returns a training that has not begun.
    pub fn new(devices: Vec<Device>) -> Training {
        Training { devices, history: History::default(), run: None, error: None }
    }

    /// Returns whether a run is going on.
    pub fn is_running(&self) -> bool {
        self.run.is_some()
    }

    /// Returns why the last run has ended, if nobody stopped it.
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// Starts a run from random weights.
    pub fn start(&mut self, context: &egui::Context) {
        (self.history, self.error) = (History::default(), None);
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, messages) = mpsc::channel();
        let (devices, stopped, context) = (self.devices.clone(), stop.clone(), context.clone());
        let thread = thread::spawn(move || {
            let result = train(&devices, &stopped, |message| {
                sender.send(message).ok();
            });
            // The window notices the end of the run by the closed channel.
            drop(sender);
            context.request_repaint();
            result
        });
        self.run = Some(Run { stop, messages, thread });
    }

    /// Asks the thread to stop after its step.
    pub fn stop(&mut self) {
        if let Some(run) = &self.run {
            run.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Takes what the thread has sent since the last frame. Returns the newest weights among it.
    pub fn receive(&mut self) -> Option<Weights> {
        let mut newest = None;
        while let Some(run) = &self.run {
            match run.messages.try_recv() {
                Ok(Message::Step(step, loss)) => self.history.add_loss(step, loss),
                Ok(Message::Accuracy(step, accuracy)) => self.history.add_accuracy(step, accuracy),
                Ok(Message::Weights(weights)) => newest = Some(weights),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => self.finish(),
            }
        }
        newest
    }

    /// Stops the thread, waits for the end of its step, and keeps its error.
    pub fn finish(&mut self) {
        self.stop();
        let Some(run) = self.run.take() else { return };
        self.error = match run.thread.join() {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("the training thread panicked".into()),
        };
        // Lost devices are opened anew by the next run.
        self.devices = self.devices.iter().map(|device| device.reopen().unwrap_or_else(|_| device.clone())).collect();
    }
}

/// Trains LeNet on the built-in digits until it is told to stop.
///
/// # Errors
///
/// The errors of the devices, for example [`anygpu::Error::DeviceLost`].
fn train(devices: &[Device], stop: &AtomicBool, report: impl Fn(Message)) -> Result<()> {
    manual_seed(0);
    let (train, test) = data::mnist_5k()?.loaders(LENET_RECIPE.batch_size, 0)?;
    let net = DataParallel::new(lenet()?, devices)?;
    let mut sgd = optim::SGD::new(net.parameters(), LENET_RECIPE.lr).momentum(LENET_RECIPE.momentum);
    let mut step = 0;
    loop {
        for batch in &train {
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let (images, labels) = batch?;
            let loss = net.train_batch(&images, &labels, nn::cross_entropy)?;
            sgd.step()?;
            step += 1;
            // This thread may wait for the device, unlike the thread of the window.
            report(Message::Step(step, loss.item()?));
            if step % SNAPSHOT == 0 {
                // Copied, since the next step writes to the parameters.
                let state = net.state_dict().copied()?.to(Device::cpu())?;
                report(Message::Weights(Weights { step, state }));
            }
            if step % EVALUATION == 0 {
                report(Message::Accuracy(step, net.evaluate(&test)?));
            }
        }
    }
}
