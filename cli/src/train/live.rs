//! `--live`: the curves of a run in the terminal.

use std::io::IsTerminal;

use console::Term;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Style};
use ratatui_core::symbols::Marker;
use ratatui_core::text::{Line, Span};
use ratatui_core::widgets::Widget;
use ratatui_widgets::chart::{Axis, Chart, Dataset, GraphType};

use super::Epoch;

/// The losses of steps are averaged over this many parts of the run: a terminal has no more dots.
const PARTS: usize = 200;

/// The size of the drawing in rows and columns at most, and at least.
const LARGEST: (u16, u16) = (16, 120);
const SMALLEST: (u16, u16) = (8, 40);

/// From this width on, the charts are side by side. In a narrower terminal there is only the loss.
const BOTH: u16 = 72;

const TRAINING: Color = Color::Cyan;
const TEST: Color = Color::Yellow;
const FRAME: Color = Color::DarkGray;

/// A curve: its name, colour and points.
type Curve<'a> = (&'a str, Color, &'a [(f64, f64)]);

/// What `--live` draws.
#[derive(Clone, Debug)]
pub struct Live {
    epochs: usize,
    /// Sum and number of the losses in each part of the run.
    training: Vec<(f64, u32)>,
    test: Vec<(f64, f64)>,
    accuracy: Vec<(f64, f64)>,
}

impl Live {
    /// Returns the curves of a run of this many epochs, without points.
    pub fn new(epochs: usize) -> Live {
        Live { epochs: epochs.max(1), training: vec![(0.0, 0); PARTS], test: Vec::new(), accuracy: Vec::new() }
    }

    /// As [`new`](Live::new); returns `None` with a warning if standard error, where progress goes, is not a
    /// terminal.
    pub fn on_terminal(epochs: usize) -> Option<Live> {
        let terminal = std::io::stderr().is_terminal();
        if !terminal {
            log::warn!("--live: standard error is not a terminal: there will be a line per epoch instead of curves");
        }
        terminal.then(|| Live::new(epochs))
    }

    /// Adds the loss of a step that ends after this many epochs.
    pub fn step(&mut self, epochs: f64, loss: f64) {
        if loss.is_finite() {
            let part = (epochs / self.epochs as f64 * PARTS as f64).ceil() as usize;
            let part = &mut self.training[part.clamp(1, PARTS) - 1];
            *part = (part.0 + loss, part.1.saturating_add(1));
        }
    }

    /// Adds the figures of an epoch of the test images.
    pub fn epoch(&mut self, done: &Epoch) {
        let x = done.epoch as f64;
        self.test.extend(Some((x, done.test_loss)).filter(|point| point.1.is_finite()));
        self.accuracy.extend(Some((x, done.test_acc)).filter(|point| point.1.is_finite()));
    }

    /// Adds an epoch before a resumption, of which only the mean loss is known.
    pub fn earlier(&mut self, done: &Epoch) {
        self.step(done.epoch as f64 - 0.5, done.train_loss);
        self.epoch(done);
    }

    /// Returns the curves in the size of the terminal; nothing if that is too small.
    pub fn draw(&self) -> String {
        let (rows, columns) = Term::stderr().size();
        // The bar and a line of the shell are below and above.
        let (rows, columns) = (rows.saturating_sub(3).min(LARGEST.0), columns.saturating_sub(1).min(LARGEST.1));
        if rows < SMALLEST.0 || columns < SMALLEST.1 { String::new() } else { text(&self.render(columns, rows)) }
    }

    fn render(&self, columns: u16, rows: u16) -> Buffer {
        let mut buffer = Buffer::empty(Rect::new(0, 0, columns, rows));
        let part = self.epochs as f64 / PARTS as f64;
        let mean = |(i, (sum, count)): (usize, &(f64, u32))| {
            (*count > 0).then(|| ((i as f64 + 0.5) * part, sum / f64::from(*count)))
        };
        let training: Vec<(f64, f64)> = self.training.iter().enumerate().filter_map(mean).collect();
        let highest = training.iter().chain(&self.test).fold(0.0, |highest, point| f64::max(highest, point.1));
        let lowest = self.accuracy.iter().fold(1.0, |lowest, point| f64::min(lowest, point.1));
        let loss = [("training", TRAINING, &training[..]), ("test", TEST, &self.test[..])];
        let accuracy = [("test", TEST, &self.accuracy[..])];
        let loss_ends = [0.0, if highest > 0.0 { highest * 1.05 } else { 1.0 }];
        let accuracy_ends = [(lowest * 10.0 - 0.2).floor().clamp(0.0, 9.0) / 10.0, 1.0];
        let width = if columns >= BOTH { columns / 2 } else { columns };
        self.chart(&mut buffer, Rect::new(0, 0, width, rows), "loss", loss_ends, &loss);
        if columns >= BOTH {
            self.chart(&mut buffer, Rect::new(width, 0, width, rows), "accuracy", accuracy_ends, &accuracy);
        }
        buffer
    }

    /// Draws a chart below a line with its name and the names of its curves.
    fn chart(&self, buffer: &mut Buffer, area: Rect, name: &str, ends: [f64; 2], curves: &[Curve]) {
        let mut title = vec![Span::raw(name)];
        title.extend(curves.iter().map(|(name, color, _)| Span::styled(format!("  ━ {name}"), *color)));
        buffer.set_line(area.x + 1, area.y, &Line::from(title), area.width.saturating_sub(1));
        let sets = curves.iter().map(|(_, color, points)| {
            Dataset::default().marker(Marker::Braille).graph_type(GraphType::Line).style(*color).data(points)
        });
        let frame = Style::new().fg(FRAME);
        let middle = (self.epochs.is_multiple_of(2)).then(|| (self.epochs / 2).to_string());
        let xs = [Some("0".to_string()), middle, Some(format!("{} epochs", self.epochs))];
        let ys = [ends[0], (ends[0] + ends[1]) / 2.0, ends[1]].map(short);
        Chart::new(sets.collect())
            .x_axis(Axis::default().bounds([0.0, self.epochs as f64]).labels(xs.into_iter().flatten()).style(frame))
            .y_axis(Axis::default().bounds(ends).labels(ys).style(frame))
            .legend_position(None)
            .render(Rect { y: area.y + 1, height: area.height - 1, ..area }, buffer);
    }
}

/// A number in a few digits.
fn short(value: f64) -> String {
    if value == 0.0 || (0.01..1000.0).contains(&value.abs()) { format!("{value:.2}") } else { format!("{value:.1e}") }
}

/// The characters of a drawing, coloured if standard error takes colours.
fn text(buffer: &Buffer) -> String {
    let mut lines = Vec::new();
    for row in buffer.content().chunks(usize::from(buffer.area.width).max(1)) {
        let mut line = String::new();
        let blank = row.iter().rev().take_while(|cell| cell.symbol() == " ").count();
        for run in row[..row.len() - blank].chunk_by(|a, b| a.fg == b.fg) {
            let symbols: String = run.iter().map(|cell| cell.symbol()).collect();
            let style = console::Style::new().for_stderr();
            let style = match run[0].fg {
                TRAINING => style.cyan(),
                TEST => style.yellow(),
                FRAME => style.black().bright(),
                _ => style,
            };
            line.push_str(&style.apply_to(symbols).to_string());
        }
        lines.push(line);
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(epoch: usize, loss: f64) -> Epoch {
        let (train_loss, test_loss, test_acc) = (loss, loss, 1.0 - loss / 4.0);
        Epoch { epoch, train_loss, test_loss, test_acc, seconds: 1.0, images_per_s: 1.0 }
    }

    #[test]
    fn any_points_are_drawn_in_any_size() {
        for epochs in [1, 2, 10, 100_000] {
            let mut live = Live::new(epochs);
            for (i, loss) in [2.3, f64::NAN, 1e300, 0.0, -1.0, f64::INFINITY].into_iter().enumerate() {
                live.step(i as f64 / 6.0, loss);
                live.epoch(&done(i, loss));
                live.earlier(&done(epochs + 7, loss));
                for (columns, rows) in [(40, 8), (72, 16), (120, 16)] {
                    live.render(columns, rows);
                }
            }
        }
        text(&Live::new(1).render(40, 8));
    }

    #[test]
    fn the_curves_fill_their_charts() {
        let mut live = Live::new(4);
        for step in 1..=40 {
            live.step(f64::from(step) / 10.0, 2.0 / f64::from(step));
        }
        (1..=4).for_each(|epoch| live.epoch(&done(epoch, 1.0 / epoch as f64)));
        let drawn = text(&live.render(80, 12));
        let plain = console::strip_ansi_codes(&drawn);
        let lines: Vec<&str> = plain.lines().collect();
        assert_eq!(lines.len(), 12);
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{plain}");
        assert!(lines[0].contains("loss  ━ training  ━ test") && lines[0].contains("accuracy  ━ test"), "{plain}");
        assert!(lines[11].contains('0') && lines[11].contains("2") && lines[11].contains("4 epochs"), "{plain}");
        assert!(plain.contains("2.10") && plain.contains("1.00"), "{plain}");
        let dots = plain.chars().filter(|c| ('\u{2801}'..='\u{28ff}').contains(c)).count();
        assert!(dots > 40, "{dots} cells with dots: {plain}");
    }
}
