//! The picture of an [`Animator`]: panels side by side.

use std::error::Error;
use std::ops::Range;

use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::register_font;

use super::animator::{Animator, Panel};
use crate::device::cpu::with_room;
use crate::shape::checked_elem_count;

const FONT: &str = "dejavu";
const INK: RGBColor = RGBColor(40, 40, 48);
const GRID: RGBColor = RGBColor(224, 224, 230);
const COLORS: [RGBColor; 6] = [
    RGBColor(31, 119, 180),
    RGBColor(235, 120, 20),
    RGBColor(44, 150, 60),
    RGBColor(200, 50, 60),
    RGBColor(130, 90, 180),
    RGBColor(120, 85, 75),
];

type Done = Result<(), Box<dyn Error>>;

/// The picture as the bytes of an SVG file.
pub(super) fn svg(animator: &Animator, size: (u32, u32)) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut text = String::new();
    draw(animator, &SVGBackend::with_string(&mut text, size).into_drawing_area())?;
    Ok(text.into_bytes())
}

/// The picture as the bytes of a PNG file.
pub(super) fn png(animator: &Animator, (width, height): (u32, u32)) -> Result<Vec<u8>, Box<dyn Error>> {
    let count = checked_elem_count("Animator", &[width as usize, height as usize, 3])?;
    let mut pixels = with_room(count)?;
    pixels.resize(count, 0u8);
    draw(animator, &BitMapBackend::with_buffer(&mut pixels, (width, height)).into_drawing_area())?;
    let mut file = Vec::new();
    PngEncoder::new(&mut file).write_image(&pixels, width, height, ExtendedColorType::Rgb8)?;
    Ok(file)
}

fn draw<B: DrawingBackend>(animator: &Animator, root: &DrawingArea<B, Shift>) -> Done
where
    B::ErrorType: 'static,
{
    register_font(FONT, FontStyle::Normal, dejavu::sans::regular()).map_err(|_| "the built-in font does not load")?;
    root.fill(&WHITE)?;
    let mut area = root.margin(10, 0, 0, 0);
    if !animator.title.is_empty() {
        area = area.titled(&animator.title, (FONT, 19).into_font().color(&INK))?;
    }
    let areas = area.split_evenly((1, animator.panels.len()));
    let xs = x_range(animator);
    // Curves of the same name have the same colour in all panels.
    let mut names: Vec<&str> = Vec::new();
    for curve in animator.panels.iter().flat_map(|panel| &panel.curves) {
        if !names.contains(&curve.label.as_str()) {
            names.push(&curve.label);
        }
    }
    for (area, shown) in areas.iter().zip(&animator.panels) {
        panel(area, &animator.x_label, xs.clone(), shown, &names)?;
    }
    root.present()?;
    Ok(())
}

fn panel<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    x_label: &str,
    xs: Range<f64>,
    panel: &Panel,
    names: &[&str],
) -> Done
where
    B::ErrorType: 'static,
{
    let whole = xs.end - xs.start > 2.0;
    let mut chart = ChartBuilder::on(area)
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(62)
        .build_cartesian_2d(xs.clone(), y_range(panel))?;
    chart
        .configure_mesh()
        .x_desc(x_label)
        .y_desc(panel.name.as_str())
        .x_labels(if whole { (xs.end - xs.start).clamp(2.0, 10.0) as usize } else { 5 })
        .y_labels(8)
        .x_label_formatter(&|x| match whole {
            true if x.fract().abs() > 1e-6 => String::new(),
            _ => short(*x),
        })
        .y_label_formatter(&|y| short(*y))
        .axis_style(INK)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .label_style((FONT, 14).into_font().color(&INK))
        .axis_desc_style((FONT, 15).into_font().color(&INK))
        .draw()?;
    curves(&mut chart, panel, names)?;
    let corner = if panel.shares { SeriesLabelPosition::LowerRight } else { SeriesLabelPosition::UpperRight };
    chart
        .configure_series_labels()
        .position(corner)
        .margin(12)
        .legend_area_size(30)
        .background_style(WHITE.mix(0.85))
        .border_style(GRID)
        .label_font((FONT, 14).into_font().color(&INK))
        .draw()?;
    Ok(())
}

type Chart<'a, B> = ChartContext<'a, B, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// The curves of a panel, with the entries of its legend.
fn curves<'a, B: DrawingBackend + 'a>(chart: &mut Chart<'a, B>, panel: &Panel, names: &[&str]) -> Done
where
    B::ErrorType: 'static,
{
    let ys = y_range(panel);
    for curve in &panel.curves {
        let color = COLORS[names.iter().position(|name| *name == curve.label).unwrap_or(0) % COLORS.len()];
        // A value far outside of the scale, such as an accuracy of 1e9, would overflow the numbers of pixels.
        let points = || curve.points.iter().map(|&(x, y)| (x, y.clamp(ys.start, ys.end)));
        chart
            .draw_series(LineSeries::new(points(), color.stroke_width(2)))?
            .label(curve.label.as_str())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], color.stroke_width(2)));
        if curve.points.len() <= MOST_DOTS {
            chart.draw_series(points().map(|point| Circle::new(point, 3, color.filled())))?;
        }
    }
    Ok(())
}

/// A curve with more points is drawn without dots.
const MOST_DOTS: usize = 50;

/// A number with the digits that an axis needs.
fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_string(),
        size if !(1e-3..1e6).contains(&size) => format!("{value:.1e}"),
        _ => format!("{value:.3}").trim_end_matches('0').trim_end_matches('.').to_string(),
    }
}

/// From the first to the last point, with a margin; never empty.
fn x_range(animator: &Animator) -> Range<f64> {
    let points = animator.panels.iter().flat_map(|panel| &panel.curves).flat_map(|curve| &curve.points);
    let (low, high) = points.fold((f64::MAX, f64::MIN), |(low, high), point| (low.min(point.0), high.max(point.0)));
    let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
    let high = if high > low { high } else { low + 1.0 };
    let margin = (high - low) * 0.04;
    low - margin..high + margin
}

/// For losses, from 0 (or below the lowest) to a little above the highest. For fractions of 1, from a multiple of 0.1
/// below the lowest to 1, so that high accuracies are not a flat line.
fn y_range(panel: &Panel) -> Range<f64> {
    let values = || panel.curves.iter().flat_map(|curve| &curve.points).map(|point| point.1);
    if panel.shares {
        let low = values().fold(1.0, f64::min);
        return (((low - 0.02) * 10.0).floor() / 10.0).clamp(0.0, 0.9)..1.0;
    }
    let (low, high) = (values().fold(0.0, f64::min), values().fold(0.0, f64::max));
    // Between the smallest numbers there are no others to draw.
    if high - low > 1e-300 { low * 1.08..high * 1.08 } else { 0.0..1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_never_empty() {
        let empty = Animator::new("epoch").panel("loss", &["a"]).shares("accuracy", &["b"]);
        assert_eq!(
            (x_range(&empty), y_range(&empty.panels[0]), y_range(&empty.panels[1])),
            (-0.04..1.04, 0.0..1.0, 0.9..1.0)
        );
        let mut one = empty.clone();
        one.add(3.0, &[0.0, 0.957]).unwrap();
        assert_eq!((y_range(&one.panels[0]), y_range(&one.panels[1])), (0.0..1.0, 0.9..1.0));
        assert!(x_range(&one).contains(&3.0));
        assert_eq!([0.0, 0.25, 10.0, 1e-5, 2e7].map(short), ["0", "0.25", "10", "1.0e-5", "2.0e7"]);
    }
}
