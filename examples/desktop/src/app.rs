//! The window: its three panels, and what happens in each frame.

use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anygpu::{Device, DeviceKind, data, try_gpu};
use eframe::egui::{self, Align2, Color32, ColorImage, RichText, Sense, TextStyle, vec2};

use crate::canvas::Canvas;
use crate::classify::Classifier;
use crate::curve;
use crate::devices::{self, Faults};
use crate::filter::{self, Filter, Settings};
use crate::frames::Frames;
use crate::options::Options;
use crate::training::Training;

/// The size of the window.
pub const SIZE: [f32; 2] = [960.0, 600.0];

/// The sides of the canvas and of the filtered picture.
const PICTURE: f32 = 252.0;

/// What the program ends with, if not with the window's button: a line to print, or an error.
pub type Outcome = Arc<OnceLock<Result<String, String>>>;

/// The time between frames while something moves, on software adapters. Others wait for the screen.
const FRAME: Duration = Duration::from_micros(16_667);

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
    /// A message for devices of the command line that do not exist.
    pub fn new(creation: &eframe::CreationContext, options: Options, outcome: Outcome) -> Result<App, String> {
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
        // Not the window's device by default: while a thread compiles kernels on a device, calls of other threads on it wait.
        let classifies = match &options.classify {
            Some(name) => Device::new(name).map_err(text)?,
            None => try_gpu(0),
        };
        let mut app = App {
            canvas: Canvas::new(),
            next_digit: 0,
            classifier: Classifier::new(classifies, &digits.train),
            filter,
            settings,
            animated: true,
            source: filter::SOURCE.into(),
            source_error: None,
            training: Training::default(),
            frames: Frames::new(),
            begun: false,
            closing: None,
            options,
            outcome,
            faults,
            digits,
            window,
        };
        app.training.devices = match &app.options.train {
            Some(names) => Device::list(names).map_err(text)?,
            None => vec![devices::for_training(app.window.as_ref().ok())],
        };
        if app.options.train.is_some() {
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

    /// The first panel: the canvas and the probabilities.
    fn show_drawing(&mut self, ui: &mut egui::Ui) {
        heading(ui, "Draw a digit");
        let window = self.window.as_ref().ok();
        if let Some(device) = line(ui, |ui| devices::menu(ui, self.classifier.device(), window)) {
            self.classifier.select(device);
        }
        ui.vertical_centered(|ui| {
            if self.canvas.show(ui, PICTURE) {
                self.classifier.classify(Some(self.canvas.centred()));
            }
        });
        ui.horizontal(|ui| {
            if ui.button("Clear").clicked() {
                self.canvas.clear();
                self.classifier.classify(None);
            }
            if ui.button("Example").clicked() {
                self.show_example();
            }
            ui.label(self.classifier_status());
        });
        let answer = self.classifier.answer().map_or(&[][..], |answer| &answer.probabilities);
        show_probabilities(ui, answer);
        if let Some(message) = self.classifier.error() {
            error(ui, message);
        }
    }

    fn classifier_status(&self) -> String {
        match self.classifier.answer() {
            _ if self.classifier.is_opening() => format!("opening {} …", self.classifier.device().name()),
            Some(answer) => {
                let net = if answer.step == 0 { "untrained".into() } else { format!("step {}", answer.step) };
                format!("net: {net}, {:.1} ms", answer.time.as_secs_f64() * 1e3)
            }
            None => String::new(),
        }
    }

    /// The second panel: the filtered picture, and the kernel's source.
    fn show_filter(&mut self, ui: &mut egui::Ui) {
        heading(ui, "Filter a picture");
        line(ui, |ui| ui.weak("by a WGSL kernel on the window's own device"));
        if self.animated {
            let time = ui.input(|input| input.time);
            self.settings.turns = 0.5 * (time * 0.7).sin() as f32;
        }
        let filtered = self.filter.as_mut().map_err(|message| message.clone());
        match filtered.and_then(|filter| filter.run(self.settings).map_err(text)) {
            Ok(id) => {
                let picture = egui::load::SizedTexture::new(id, vec2(PICTURE, PICTURE));
                ui.vertical_centered(|ui| ui.image(picture));
            }
            Err(message) => error(ui, &message),
        }
        ui.horizontal(|ui| {
            ui.spacing_mut().slider_width = 66.0;
            let turns = egui::Slider::new(&mut self.settings.turns, -1.0..=1.0).show_value(false).text("turns");
            if ui.add(turns).dragged() {
                self.animated = false;
            }
            ui.add(egui::Slider::new(&mut self.settings.edges, 0.0..=1.0).show_value(false).text("edges"));
            ui.checkbox(&mut self.animated, "move");
        });
        if let Some(message) = &self.source_error {
            error(ui, message);
        }
        egui::ScrollArea::both().auto_shrink(false).show(ui, |ui| {
            let source = egui::TextEdit::multiline(&mut self.source).frame(egui::Frame::NONE);
            let font = egui::FontId::monospace(9.5);
            if ui.add(source.code_editor().font(font).desired_width(f32::INFINITY)).changed() {
                let Ok(filter) = &mut self.filter else { return };
                self.source_error = filter.set_source(&self.source).err().map(text);
            }
        });
    }

    /// The third panel: the training run.
    fn show_training(&mut self, ui: &mut egui::Ui) {
        heading(ui, "Train a net");
        let running = self.training.is_running();
        ui.add_enabled_ui(!running, |ui| {
            for device in devices::with(&self.training.devices) {
                let mut ticked = self.training.devices.contains(&device);
                let tick = ui.add(egui::Checkbox::new(&mut ticked, devices::label(&device)));
                if tick.on_hover_text(&device.info().driver).changed() {
                    match ticked {
                        true => self.training.devices.push(device),
                        false => self.training.devices.retain(|other| *other != device),
                    }
                }
            }
        });
        ui.horizontal(|ui| {
            if running {
                if ui.button("Stop").clicked() {
                    self.training.stop();
                }
            } else if ui.add_enabled(!self.training.devices.is_empty(), egui::Button::new("Start")).clicked() {
                self.training.start(ui.ctx());
            }
            if let Some((step, loss)) = self.training.history.last() {
                ui.label(format!("step {step}"));
                ui.label(RichText::new(format!("loss {loss:.3}")).color(curve::LOSS));
            }
            if let Some(accuracy) = self.training.history.accuracy() {
                let text = format!("test accuracy {:.1} %", accuracy * 100.0);
                ui.label(RichText::new(text).color(curve::ACCURACY));
            }
        });
        if let Some(message) = self.training.error() {
            error(ui, message);
        }
        self.training.history.show(ui, ui.available_height());
    }

    /// The line at the bottom.
    fn show_status(&self, ui: &mut egui::Ui) {
        ui.horizontal(|ui| {
            ui.label(format!("{:3.0} frames/s", self.frames.rate()));
            match (self.faults.refused.get(), &self.window) {
                (Some(message), _) | (None, Err(message)) => error(ui, message),
                (None, Ok(device)) => _ = ui.label(format!("drawn by {}", describe(device))),
            }
        });
    }

    /// Ends the program when its device is lost or its time is over: takes the screenshot, waits for it, writes it, and closes
    /// the window.
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

    // The ground of the panels, which have none of their own: so each pixel of it is painted once.
    fn clear_color(&self, visuals: &egui::Visuals) -> [f32; 4] {
        visuals.panel_fill.to_normalized_gamma_f32()
    }

    fn on_exit(&mut self) {
        self.training.finish();
        self.classifier.finish();
    }
}

/// Draws a bar for each digit.
fn show_probabilities(ui: &mut egui::Ui, probabilities: &[f32]) {
    let font = TextStyle::Body.resolve(ui.style());
    let visuals = ui.visuals().clone();
    let best = probabilities.iter().copied().fold(0.0, f32::max);
    for digit in 0..10 {
        let (response, painter) = ui.allocate_painter(vec2(ui.available_width(), 15.0), Sense::hover());
        let (rect, probability) = (response.rect, probabilities.get(digit).copied());
        let strong = probability.is_some_and(|probability| probability == best);
        let colour = if strong { visuals.strong_text_color() } else { visuals.text_color() };
        let mut bar = rect.shrink2(vec2(0.0, 2.0));
        (bar.min.x, bar.max.x) = (rect.left() + 18.0, rect.right() - 52.0);
        painter.text(rect.left_center(), Align2::LEFT_CENTER, digit, font.clone(), colour);
        painter.hline(bar.x_range(), bar.bottom(), visuals.window_stroke);
        if let Some(probability) = probability {
            let mut filled = bar;
            filled.set_width(bar.width() * probability.clamp(0.0, 1.0));
            painter.rect_filled(filled, 2, if strong { curve::ACCURACY } else { visuals.weak_text_color() });
            let percent = format!("{:.1} %", probability * 100.0);
            painter.text(rect.right_center(), Align2::RIGHT_CENTER, percent, font.clone(), colour);
        }
    }
}

fn heading(ui: &mut egui::Ui, text: &str) {
    ui.label(RichText::new(text).heading().strong());
}

/// Shows one line, of the same height in all panels.
fn line<R>(ui: &mut egui::Ui, show: impl FnOnce(&mut egui::Ui) -> R) -> R {
    let layout = egui::Layout::left_to_right(egui::Align::Center);
    ui.allocate_ui_with_layout(vec2(ui.available_width(), 22.0), layout, show).inner
}

fn error(ui: &mut egui::Ui, message: &str) {
    ui.add(egui::Label::new(RichText::new(message).color(Color32::from_rgb(255, 110, 100))).wrap());
}

fn describe(device: &Device) -> String {
    let info = device.info();
    format!("{}, {}, through {}", info.adapter, info.driver, info.api)
}

fn text(error: anygpu::Error) -> String {
    error.to_string()
}
