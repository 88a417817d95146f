//! `--plot out.png`: loss and accuracy by epoch, side by side.
//!
//! Works on a bare machine: the font is inside the binary.

use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::register_font;

use crate::failure::Failure;

/// Width and height of the picture in pixels.
pub const SIZE: (u32, u32) = (1120, 480);

const FONT: &str = "dejavu";
const INK: RGBColor = RGBColor(40, 40, 48);
const GRID: RGBColor = RGBColor(224, 224, 230);
const BLUE: RGBColor = RGBColor(31, 119, 180);
const ORANGE: RGBColor = RGBColor(235, 120, 20);

/// What the plot shows of one epoch.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// Counted from 1.
    pub epoch: usize,
    /// Mean loss over the epoch's training images.
    pub train_loss: f64,
    /// Mean loss over the test images after the epoch.
    pub test_loss: f64,
    /// Share of test images that are classified rightly, 0 to 1.
    pub test_acc: f64,
}

/// One line of a panel.
struct Curve {
    label: &'static str,
    color: RGBColor,
    points: Vec<(f64, f64)>,
}

impl Curve {
    fn new(label: &'static str, color: RGBColor, points: &[Point], value: impl Fn(&Point) -> f64) -> Self {
        Curve { label, color, points: points.iter().map(|p| (p.epoch as f64, value(p))).collect() }
    }
}

/// Writes the PNG. `title` stands above both panels.
///
/// # Errors
/// When the file cannot be written.
pub fn write(path: &Path, title: &str, points: &[Point]) -> Result<(), Failure> {
    draw(path, title, points).map_err(|e| {
        Failure::Run(format!("cannot write the plot {}: {e}: is its folder there and writable?", path.display()))
    })
}

fn draw(path: &Path, title: &str, points: &[Point]) -> Result<(), Box<dyn std::error::Error>> {
    register_font(FONT, FontStyle::Normal, dejavu::sans::regular()).map_err(|_| "the built-in font does not load")?;
    let root = BitMapBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let root = root.margin(10, 0, 0, 0).titled(title, (FONT, 19).into_font().color(&INK))?;
    let (left, right) = root.split_horizontally(SIZE.0 / 2);

    let losses =
        [Curve::new("training", BLUE, points, |p| p.train_loss), Curve::new("test", ORANGE, points, |p| p.test_loss)];
    panel(&left, "loss", loss_range(&losses), &losses)?;
    let accuracy = [Curve::new("test", ORANGE, points, |p| p.test_acc)];
    panel(&right, "accuracy", accuracy_range(points), &accuracy)?;
    root.present()?;
    Ok(())
}

fn panel(
    area: &DrawingArea<BitMapBackend<'_>, Shift>,
    name: &str,
    range: Range<f64>,
    curves: &[Curve],
) -> Result<(), Box<dyn std::error::Error>> {
    let last = curves.iter().flat_map(|c| &c.points).map(|p| p.0).fold(1.0, f64::max);
    let style = (FONT, 14).into_font().color(&INK);
    let mut chart = ChartBuilder::on(area)
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(62)
        .build_cartesian_2d(epoch_range(last), range)?;
    chart
        .configure_mesh()
        .x_desc("epoch")
        .y_desc(name)
        .x_labels(last.clamp(2.0, 10.0) as usize)
        .y_labels(8)
        .x_label_formatter(&|x| if x.fract().abs() < 1e-6 { format!("{x:.0}") } else { String::new() })
        .y_label_formatter(&|y| format!("{y:.3}").trim_end_matches('0').trim_end_matches('.').to_string())
        .axis_style(INK)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .label_style(style.clone())
        .axis_desc_style((FONT, 15).into_font().color(&INK))
        .draw()?;
    for curve in curves {
        let color = curve.color;
        chart
            .draw_series(LineSeries::new(curve.points.iter().copied(), color.stroke_width(2)))?
            .label(curve.label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], color.stroke_width(2)));
        chart.draw_series(curve.points.iter().map(|&p| Circle::new(p, 3, color.filled())))?;
    }
    let corner = if name == "loss" { SeriesLabelPosition::UpperRight } else { SeriesLabelPosition::LowerRight };
    chart
        .configure_series_labels()
        .position(corner)
        .margin(12)
        .legend_area_size(30)
        .background_style(WHITE.mix(0.85))
        .border_style(GRID)
        .label_font(style)
        .draw()?;
    Ok(())
}

/// The epochs with a little air; never empty, also with one epoch.
fn epoch_range(last: f64) -> Range<f64> {
    let air = (last - 1.0).max(1.0) * 0.04;
    1.0 - air..last.max(2.0) + air
}

/// From 0 to a little above the highest loss.
fn loss_range(curves: &[Curve]) -> Range<f64> {
    let top = curves.iter().flat_map(|c| &c.points).map(|p| p.1).filter(|v| v.is_finite()).fold(0.0, f64::max);
    0.0..if top > 0.0 { top * 1.08 } else { 1.0 }
}

/// Ends at 1; starts at a round tenth below the lowest accuracy, so that a good run is not a flat line.
fn accuracy_range(points: &[Point]) -> Range<f64> {
    let low = points.iter().map(|p| p.test_acc).filter(|v| v.is_finite()).fold(1.0, f64::min);
    let start = ((low - 0.02) * 10.0).floor() / 10.0;
    start.clamp(0.0, 0.9)..1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_never_empty() {
        for last in [1.0, 2.0, 40.0] {
            let range = epoch_range(last);
            assert!(range.start < 1.0 && range.end > last, "{range:?}");
        }
        assert_eq!(loss_range(&[]), 0.0..1.0);
        let point = Point { epoch: 1, train_loss: 0.0, test_loss: 0.0, test_acc: 0.957 };
        assert_eq!(accuracy_range(&[point]), 0.9..1.0);
        assert_eq!(accuracy_range(&[]), 0.9..1.0);
    }

    #[test]
    fn one_epoch_and_odd_numbers_are_drawn() {
        let dir = tempfile::tempdir().unwrap();
        for (i, loss) in [0.5, f64::NAN, f64::INFINITY].into_iter().enumerate() {
            let path = dir.path().join(format!("{i}.png"));
            let point = Point { epoch: 1, train_loss: loss, test_loss: loss, test_acc: 0.1 };
            write(&path, "a title", &[point]).unwrap();
            assert_eq!(&std::fs::read(path).unwrap()[..8], b"\x89PNG\r\n\x1a\n");
        }
    }
}
