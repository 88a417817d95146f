//! The contents of the window's three panels and of its last line.

use eframe::egui::{self, Align2, Color32, RichText, Sense, TextStyle, vec2};

use super::{App, describe, text};
use crate::curve;
use crate::devices;

/// The sides of the canvas and of the filtered picture.
const PICTURE: f32 = 252.0;

impl App {
    /// The first panel: the canvas and the probabilities.
    pub(super) fn show_drawing(&mut self, ui: &mut egui::Ui) {
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
        match self.classifier.error() {
            Some(message) => error(ui, &format!("{message}\n\nChoose a device to go on; a lost one is opened again.")),
            None => show_probabilities(ui, self.classifier.answer().map_or(&[], |answer| &answer.probabilities)),
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
    pub(super) fn show_filter(&mut self, ui: &mut egui::Ui) {
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
        // The lines after the first one repeat the source.
        if let Some(message) = self.source_error.as_ref().and_then(|message| message.lines().next()) {
            error(ui, message);
        }
        egui::ScrollArea::vertical().auto_shrink(false).show(ui, |ui| {
            let source = egui::TextEdit::multiline(&mut self.source).frame(egui::Frame::NONE);
            let font = egui::FontId::monospace(9.5);
            if ui.add(source.code_editor().font(font).desired_width(f32::INFINITY)).changed() {
                let Ok(filter) = &mut self.filter else { return };
                self.source_error = filter.set_source(&self.source).err().map(text);
            }
        });
    }

    /// The third panel: the training run.
    pub(super) fn show_training(&mut self, ui: &mut egui::Ui) {
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
    pub(super) fn show_status(&self, ui: &mut egui::Ui) {
        ui.horizontal(|ui| {
            ui.label(format!("{:3.0} frames/s", self.frames.rate()));
            match (self.faults.refused.get(), &self.window) {
                (Some(message), _) | (None, Err(message)) => error(ui, message),
                (None, Ok(device)) => _ = ui.label(format!("drawn by {}", describe(device))),
            }
        });
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
    let text = RichText::new(message).color(Color32::from_rgb(255, 110, 100));
    // The layout of columns would spread the words over the whole width.
    ui.with_layout(egui::Layout::top_down(egui::Align::Min), |ui| ui.add(egui::Label::new(text).wrap()));
}
