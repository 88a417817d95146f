//! The curve of a training run: its points, and how they are drawn.

use eframe::egui::{self, Align2, Color32, Pos2, Rect, Sense, Stroke, TextStyle, vec2};

/// The most points that are kept. When there are more, each two become one.
const MOST: usize = 1024;

/// The colour of the loss.
pub const LOSS: Color32 = Color32::from_rgb(255, 160, 70);
/// The colour of the accuracy.
pub const ACCURACY: Color32 = Color32::from_rgb(100, 190, 255);

/// The losses and accuracies of a run.
pub struct History {
    /// Pairs of a step and the mean loss of it and the steps before it, back to the point before.
    losses: Vec<[f32; 2]>,
    /// The steps that make a point.
    stride: usize,
    /// The losses of steps that are no point yet, and their number.
    sum: f32,
    count: usize,
    /// Pairs of a step and the accuracy.
    accuracies: Vec<[f32; 2]>,
    last: Option<(usize, f32)>,
}

impl Default for History {
    fn default() -> History {
        History { losses: Vec::new(), stride: 1, sum: 0.0, count: 0, accuracies: Vec::new(), last: None }
    }
}

impl History {
    /// Adds the loss of a step.
    pub fn add_loss(&mut self, step: usize, loss: f32) {
        self.last = Some((step, loss));
        (self.sum, self.count) = (self.sum + loss, self.count + 1);
        if self.count >= self.stride {
            self.losses.push([step as f32, self.sum / self.count as f32]);
            (self.sum, self.count) = (0.0, 0);
        }
        if self.losses.len() > MOST {
            self.losses = self.losses.chunks(2).map(merged).collect();
            self.stride *= 2;
        }
    }

    /// Adds the accuracy after a step.
    pub fn add_accuracy(&mut self, step: usize, accuracy: f64) {
        self.accuracies.push([step as f32, accuracy as f32]);
    }

    /// Returns the last step and its loss.
    pub fn last(&self) -> Option<(usize, f32)> {
        self.last
    }

    /// Returns the last accuracy.
    pub fn accuracy(&self) -> Option<f32> {
        self.accuracies.last().map(|point| point[1])
    }

    /// Draws both curves, the loss with its scale on the left and the accuracy with its scale on the right.
    pub fn show(&self, ui: &mut egui::Ui, height: f32) {
        let (response, painter) = ui.allocate_painter(vec2(ui.available_width(), height), Sense::hover());
        let visuals = ui.visuals();
        let (font, text) = (TextStyle::Small.resolve(ui.style()), visuals.weak_text_color());
        let outer = response.rect;
        let plot = Rect::from_min_max(outer.min + vec2(36.0, 12.0), outer.max - vec2(44.0, 24.0));

        let steps = self.last.map_or(1.0, |(step, _)| step as f32).max(10.0);
        let highest = self.losses.iter().fold(0.5f32, |most, point| most.max(point[1])).min(10.0);
        let top = (highest * 2.0).ceil() / 2.0;
        for quarter in 0..=4 {
            let share = quarter as f32 / 4.0;
            let y = plot.bottom() - share * plot.height();
            painter.hline(plot.x_range(), y, Stroke::new(1.0, visuals.window_stroke.color));
            let loss = format!("{:.2}", share * top);
            painter.text(Pos2::new(plot.left() - 5.0, y), Align2::RIGHT_CENTER, loss, font.clone(), LOSS);
            let accuracy = format!("{:.0} %", share * 100.0);
            painter.text(Pos2::new(plot.right() + 5.0, y), Align2::LEFT_CENTER, accuracy, font.clone(), ACCURACY);
        }
        let below = |x, align, label: String| {
            painter.text(Pos2::new(x, plot.bottom() + 6.0), align, label, font.clone(), text);
        };
        below(plot.left(), Align2::LEFT_TOP, "0".into());
        below(plot.right(), Align2::RIGHT_TOP, format!("{steps:.0} steps"));

        let place = |[step, share]: [f32; 2]| {
            let share = share.clamp(0.0, 1.0);
            Pos2::new(plot.left() + step / steps * plot.width(), plot.bottom() - share * plot.height())
        };
        let losses: Vec<Pos2> = self.losses.iter().map(|&[step, loss]| place([step, loss / top])).collect();
        painter.line(losses, Stroke::new(1.5, LOSS));
        let accuracies: Vec<Pos2> = self.accuracies.iter().copied().map(place).collect();
        for &point in &accuracies {
            painter.circle_filled(point, 2.5, ACCURACY);
        }
        painter.line(accuracies, Stroke::new(1.5, ACCURACY));
    }
}

/// Returns one point for neighbouring ones: the last step, and the mean loss.
fn merged(points: &[[f32; 2]]) -> [f32; 2] {
    let step = points.last().map_or(0.0, |point| point[0]);
    [step, points.iter().map(|point| point[1]).sum::<f32>() / points.len() as f32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_runs_keep_few_points() {
        let mut history = History::default();
        (1..=10_000).for_each(|step| history.add_loss(step, if step <= 5000 { 2.0 } else { 1.0 }));
        assert!(history.losses.len() <= MOST && history.losses.len() >= MOST / 4, "{}", history.losses.len());
        assert!(history.losses.is_sorted_by(|a, b| a[0] < b[0]));
        assert!(history.losses.iter().all(|point| (1.0..=2.0).contains(&point[1])));
        assert_eq!(history.last(), Some((10_000, 1.0)));
    }
}
