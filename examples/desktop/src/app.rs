//! The window: how it begins and ends, and what happens in each frame.

mod panels;

use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anygpu::{Device, DeviceKind, data, try_gpu};
use eframe::egui::{self, ColorImage, vec2};

use crate::canvas::Canvas;
use crate::classify::Classifier;
use crate::devices::{self, Faults};
use crate::filter::{self, Filter, Settings};
use crate::frames::Frames;
use crate::options::Options;
use crate::training::Training;

/// The size of the window.
pub const SIZE: [f32; 2] = [960.0, 600.0];

/// The outcome of the program, if the window's button did not close it: a line to print, or an error.
pub type Outcome = Arc<OnceLock<Result<String, String>>>;

/// The time between frames while something moves, on software adapters. Others wait for the screen.
const FRAME: Duration = Duration::from_micros(16_667);

/// The settings with which the window begins.
pub struct Start {
    /// The command line.
    pub options: Options,
    /// The device that classifies, if one is named.
    pub classify: Option<Device>,
    /// The devices that train at once, if some are named.
    pub train: Option<Vec<Device>>,
}

/// The state of the window.
pub struct App {
    options: Options,
    outcome: Outcome,
    faults: Arc<Faults>,
    digits: data::Splits,
    /// The device that draws the window, or why it cannot compute.
    window: Result<Device, String>,
    canvas: Canvas,
    /// The image of the test set that is shown next.
    next_digit: usize,
    classifier: Classifier,
    filter: Result<Filter, String>,
    settings: Settings,
    animated: bool,
    /// The source of the kernel as the user has edited it, and what is wrong with it.
    source: String,
    source_error: Option<String>,
    training: Training,
    frames: Frames,
    /// Whether a frame has been drawn.
    begun: bool,
    closing: Option<Closing>,
}

/// The program's end: the report of the frames, and the screenshot that is waited for.
struct Closing {
    report: String,
    screenshot: Option<Receiver<Arc<ColorImage>>>,
}

impl App {
    /// Makes the window's contents.
    ///
    /// # Errors
    ///
    /// A message if there is nothing to draw with.
    pub fn new(creation: &eframe::CreationContext, start: Start, outcome: Outcome) -> Result<App, String> {
        let context = &creation.egui_ctx;
        context.set_theme(egui::Theme::Dark);
        let digits = data::mnist_5k().map_err(text)?;
        let state = creation.wgpu_render_state.as_ref().ok_or("eframe draws without wgpu")?;
        let faults = devices::faults(&state.device, context);
        let window = Device::from_wgpu(&state.adapter, &state.device, &state.queue).map_err(text);
        let settings = Settings { turns: 0.35, edges: 0.0 };
        let filter = window.clone().and_then(|device| {
            let mut filter = Filter::new(state, &device, &digits.test).map_err(text)?;
            // The driver compiles the kernels now, and not in the middle of the first frame.
            filter.run(settings).map_err(text)?;
            Ok(filter)
        });
        // Not the window's device by default: while a thread compiles the kernel of a chain of elementwise ops, other
        // threads that use the device wait.
        let classifies = start.classify.unwrap_or_else(|| try_gpu(0));
        let trains = start.train.is_some();
        let other = devices::for_training(window.as_ref().ok());
        let mut app = App {
            canvas: Canvas::new(),
            next_digit: 0,
            classifier: Classifier::new(classifies, &digits.train),
            filter,
            settings,
            animated: true,
            source: filter::SOURCE.into(),
            source_error: None,
            training: Training::new(start.train.unwrap_or_else(|| vec![other])),
            frames: Frames::new(),
            begun: false,
            closing: None,
            options: start.options,
            outcome,
            faults,
            digits,
            window,
        };
        if trains {
            app.training.start(context);
        }
        if let Some(digit) = app.options.draw {
            let labels = &app.digits.test.labels;
            app.next_digit = labels.iter().position(|&label| label == digit).unwrap_or_default();
            app.show_example();
        }
        Ok(app)
    }

    /// Draws an image of the test set on the canvas.
    fn show_example(&mut self) {
        let test = &self.digits.test;
        let pixels = test.h * test.w;
        self.canvas.set(&test.images[self.next_digit * pixels..][..pixels]);
        self.next_digit = (self.next_digit + 1) % test.n;
        self.classifier.classify(Some(self.canvas.centred()));
    }

    /// Ends the program when its device is lost or its time is over: takes the screenshot, waits for it, writes it, and
    /// closes the window.
    fn close_when_due(&mut self, context: &egui::Context) {
        if let Some(message) = self.faults.lost.get() {
            self.outcome.set(Err(message.clone())).ok();
            context.send_viewport_cmd(egui::ViewportCommand::Close);
        }
        let Some(seconds) = self.options.seconds else { return };
        if self.closing.is_none() && self.frames.elapsed() >= seconds {
            let screenshot = self.options.screenshot.is_some().then(|| {
                let (sender, receiver) = mpsc::channel();
                let repaint = context.clone();
                context.request_screenshot(move |image| {
                    sender.send(image).ok();
                    repaint.request_repaint();
                });
                receiver
            });
            self.closing = Some(Closing { report: self.report(), screenshot });
        }
        let Some(closing) = &self.closing else { return };
        let written = match closing.screenshot.as_ref().map(Receiver::try_recv) {
            Some(Err(TryRecvError::Empty)) => return,
            Some(Err(TryRecvError::Disconnected)) => Err("the window gave no picture".into()),
            Some(Ok(image)) => self.options.screenshot.as_ref().map_or(Ok(()), |file| {
                let [width, height] = image.size.map(|side| side as u32);
                let saved = image::save_buffer(file, image.as_raw(), width, height, image::ColorType::Rgba8);
                saved.map_err(|error| format!("{}: {error}", file.display()))
            }),
            None => Ok(()),
        };
        self.outcome.set(written.map(|()| closing.report.clone())).ok();
        context.send_viewport_cmd(egui::ViewportCommand::Close);
    }

    /// Returns the line that is printed at the end.
    fn report(&self) -> String {
        let window = self.window.as_ref().map_or_else(String::clone, describe);
        let devices: Vec<&str> = self.training.devices.iter().map(Device::name).collect();
        let training = match (self.training.history.last(), self.training.error()) {
            (_, Some(message)) => format!("stopped: {message}"),
            (None, None) => "no step".into(),
            (Some((step, loss)), None) => {
                let accuracy = self.training.history.accuracy().unwrap_or_default();
                format!("{step} steps on {}, loss {loss:.3}, accuracy {accuracy:.3}", devices.join(","))
            }
        };
        let classifies = self.classifier.device().name();
        format!("{}; window {window}; classify {classifies}; train {training}", self.frames.report())
    }
}

impl eframe::App for App {
    fn ui(&mut self, ui: &mut egui::Ui, _frame: &mut eframe::Frame) {
        if !self.begun {
            (self.begun, self.frames) = (true, Frames::new());
        }
        self.frames.count();
        if let Some(weights) = self.training.receive() {
            self.classifier.load(weights);
        }
        let waiting = self.classifier.update(ui.ctx());

        let plain = egui::Frame::NONE.inner_margin(egui::Margin::symmetric(12, 8));
        egui::Panel::bottom("status").frame(plain).show(ui, |ui| self.show_status(ui));
        egui::CentralPanel::default().frame(plain).show(ui, |ui| {
            ui.spacing_mut().item_spacing.x = 24.0;
            ui.columns_const(|columns: &mut [egui::Ui; 3]| {
                columns.iter_mut().for_each(|column| column.spacing_mut().item_spacing = vec2(8.0, 6.0));
                let [first, second, third] = columns;
                self.show_drawing(first);
                self.show_filter(second);
                self.show_training(third);
            });
        });

        self.close_when_due(ui.ctx());
        let moving = self.animated || self.training.is_running() || self.options.seconds.is_some();
        if waiting || moving {
            let software = self.window.as_ref().is_ok_and(|device| device.info().kind == DeviceKind::Software);
            let frame = if software { FRAME } else { Duration::ZERO };
            ui.ctx().request_repaint_after(frame.saturating_sub(self.frames.since_begin()));
        }
    }

    // The ground of the panels, which have no ground of their own: so each pixel of it is painted once.
    fn clear_color(&self, visuals: &egui::Visuals) -> [f32; 4] {
        visuals.panel_fill.to_normalized_gamma_f32()
    }

    fn on_exit(&mut self) {
        self.training.finish();
        self.classifier.finish();
    }
}

/// Returns the name of an adapter with its driver.
fn describe(device: &Device) -> String {
    let info = device.info();
    format!("{}, {}, through {}", info.adapter, info.driver, info.api)
}

/// Returns the message of an error.
fn text(error: anygpu::Error) -> String {
    error.to_string()
}
