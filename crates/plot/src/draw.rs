//! The picture of an [`Animator`]: panels side by side.

use std::error::Error;
use std::ops::Range;

use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::register_font;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::animator::{Animator, Panel};

/// The font's name in SVG files, with others for viewers that do not have it. PNG files are drawn with the built-in one.
const FONT: &str = "DejaVu Sans, Verdana, sans-serif";
const INK: RGBColor = RGBColor(40, 40, 48);
const GRID: RGBColor = RGBColor(224, 224, 230);
const COLORS: [RGBColor; 10] = [
    RGBColor(31, 119, 180),
    RGBColor(235, 120, 20),
    RGBColor(44, 150, 60),
    RGBColor(200, 50, 60),
    RGBColor(130, 90, 180),
    RGBColor(120, 85, 75),
    RGBColor(215, 95, 175),
    RGBColor(110, 110, 115),
    RGBColor(165, 165, 20),
    RGBColor(20, 170, 190),
];

/// A PNG is drawn this many times as large and then reduced, so that lines have smooth edges and letters, which are placed
/// on whole pixels, even distances.
const FINER: u32 = 3;

/// Pictures of more pixels are drawn in their own size.
const MOST_FINE_PIXELS: u64 = 4_000_000;

type Done = Result<(), Box<dyn Error>>;

/// The picture as the bytes of an SVG file.
pub(super) fn svg(animator: &Animator, size: (u32, u32)) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut text = String::new();
    draw(animator, &SVGBackend::with_string(&mut text, size).into_drawing_area(), 1)?;
    Ok(text.into_bytes())
}

/// The picture as the bytes of a PNG file.
pub(super) fn png(animator: &Animator, (width, height): (u32, u32)) -> Result<Vec<u8>, Box<dyn Error>> {
    let fine = u64::from(width) * u64::from(height) <= MOST_FINE_PIXELS;
    let scale = if fine { FINER } else { 1 };
    let (wide, high) = (width.saturating_mul(scale), height.saturating_mul(scale));
    let mut pixels = canvas(wide, high)?;
    let backend = BitMapBackend::with_buffer(&mut pixels, (wide, high));
    draw(animator, &backend.into_drawing_area(), scale)?;
    if fine {
        pixels = reduced(&pixels, width, height)?;
    }
    let mut file = Vec::new();
    PngEncoder::new(&mut file).write_image(&pixels, width, height, ExtendedColorType::Rgb8)?;
    Ok(file)
}

/// The most pixels of a PNG. Three bytes each, they take 768 MiB.
const MOST_PIXELS: u64 = 1 << 28;

/// Black pixels of three bytes.
fn canvas(width: u32, height: u32) -> Result<Vec<u8>, Box<dyn Error>> {
    if u64::from(width) * u64::from(height) > MOST_PIXELS {
        return Err(format!(
            "{width} × {height} pixels are more than the {MOST_PIXELS} of a PNG: choose a smaller size()"
        )
        .into());
    }
    let count = width as usize * height as usize * 3;
    let mut pixels = Vec::new();
    pixels.try_reserve_exact(count)?;
    pixels.resize(count, 0u8);
    Ok(pixels)
}

/// The picture with the mean of each [`FINER`] × [`FINER`] pixels.
fn reduced(pixels: &[u8], width: u32, height: u32) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut small = canvas(width, height)?;
    let (width, finer) = (width as usize, FINER as usize);
    for (i, mean) in small.iter_mut().enumerate() {
        let (row, column, channel) = (i / (3 * width), i / 3 % width, i % 3);
        let at =
            |down: usize, right: usize| ((row * finer + down) * width * finer + column * finer + right) * 3 + channel;
        let sum = (0..finer * finer).map(|i| u32::from(pixels[at(i / finer, i % finer)])).sum::<u32>();
        *mean = (sum / (FINER * FINER)) as u8;
    }
    Ok(small)
}

/// What all parts of a picture have in common.
struct Look<'a> {
    x_label: &'a str,
    xs: Range<f64>,
    ticks: Vec<f64>,
    /// The names of all curves. Curves of the same name have the same colour in all panels.
    names: Vec<&'a str>,
    /// Pixels of the canvas for one pixel of the picture.
    scale: u32,
}

impl Look<'_> {
    fn px(&self, size: u32) -> i32 {
        i32::try_from(size * self.scale).unwrap_or(i32::MAX)
    }

    fn font(&self, size: u32) -> TextStyle<'static> {
        (FONT, size * self.scale).into_font().color(&INK)
    }

    fn color(&self, label: &str) -> RGBColor {
        COLORS[self.names.iter().position(|name| *name == label).unwrap_or(0) % COLORS.len()]
    }
}

fn draw<B: DrawingBackend>(animator: &Animator, root: &DrawingArea<B, Shift>, scale: u32) -> Done
where
    B::ErrorType: 'static,
{
    register_font(FONT, FontStyle::Normal, dejavu::sans::regular()).map_err(|_| "the built-in font does not load")?;
    let mut names: Vec<&str> = Vec::new();
    for curve in animator.panels.iter().flat_map(|panel| &panel.curves) {
        if !names.contains(&curve.label.as_str()) {
            names.push(&curve.label);
        }
    }
    let xs = x_range(animator);
    let look = Look { x_label: &animator.x_label, ticks: ticks(&xs), xs, names, scale };
    root.fill(&WHITE)?;
    let mut area = root.margin(look.px(10), 0, 0, 0);
    if !animator.title.is_empty() {
        area = area.titled(&animator.title, look.font(19))?;
    }
    let areas = area.split_evenly((1, animator.panels.len()));
    for (area, panel) in areas.iter().zip(&animator.panels) {
        draw_panel(area, panel, &look)?;
    }
    root.present()?;
    Ok(())
}

/// An axis with these numbers, where plotters would choose its own.
struct XAxis {
    xs: RangedCoordf64,
    ticks: Vec<f64>,
}

impl XAxis {
    fn new(look: &Look) -> XAxis {
        XAxis { xs: look.xs.clone().into(), ticks: look.ticks.clone() }
    }
}

impl Ranged for XAxis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.xs.map(value, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.xs.range()
    }
}

/// The space around a panel, and the space for the numbers of its y axis.
const MARGIN: u32 = 14;
const Y_LABELS: u32 = 62;

fn draw_panel<B: DrawingBackend>(area: &DrawingArea<B, Shift>, panel: &Panel, look: &Look) -> Done
where
    B::ErrorType: 'static,
{
    let legend = legend(area, panel, look)?;
    let (_, area) = area.split_vertically(legend);
    let ys = y_range(panel);
    let mut chart = ChartBuilder::on(&area)
        .margin(look.px(MARGIN))
        .margin_top(look.px(4))
        .x_label_area_size(look.px(44))
        .y_label_area_size(look.px(Y_LABELS))
        .build_cartesian_2d(XAxis::new(look), ys.clone())?;
    chart
        .configure_mesh()
        .x_desc(look.x_label)
        .y_desc(panel.name.as_str())
        .y_labels(8)
        .x_label_formatter(&|x| short(*x))
        .y_label_formatter(&|y| short(*y))
        .set_all_tick_mark_size(look.px(5))
        .axis_style(INK.stroke_width(look.scale))
        .bold_line_style(GRID.stroke_width(look.scale))
        .light_line_style(TRANSPARENT)
        .label_style(look.font(14))
        .axis_desc_style(look.font(15))
        .draw()?;
    for curve in &panel.curves {
        let color = look.color(&curve.label);
        // A value far outside of the scale, such as an accuracy of 1e9, would overflow the numbers of pixels.
        let points = curve.points.iter().map(|&(x, y)| (x, y.clamp(ys.start, ys.end)));
        chart.draw_series(LineSeries::new(points, color.stroke_width(2 * look.scale)))?;
        if curve.points.len() <= MOST_DOTS {
            let inside = curve.points.iter().filter(|point| (ys.start..=ys.end).contains(&point.1));
            chart.draw_series(inside.map(|&point| Circle::new(point, look.px(3), color.filled())))?;
        }
    }
    Ok(())
}

/// A curve with more points is drawn without dots.
const MOST_DOTS: usize = 30;

/// Draws the names of the curves above a panel, where they hide nothing, in as many rows as they need. Returns the height
/// of the rows.
fn legend<B: DrawingBackend>(area: &DrawingArea<B, Shift>, panel: &Panel, look: &Look) -> Result<i32, Box<dyn Error>>
where
    B::ErrorType: 'static,
{
    let (line, gap, row) = (look.px(22), look.px(6), look.px(20));
    let font = look.font(14);
    let left = look.px(MARGIN + Y_LABELS);
    let right = i32::try_from(area.dim_in_pixel().0).unwrap_or(i32::MAX).saturating_sub(look.px(MARGIN));
    let (mut x, mut y) = (left, look.px(MARGIN));
    for curve in &panel.curves {
        let (width, _) = area.estimate_text_size(&curve.label, &font)?;
        let width = i32::try_from(width).unwrap_or(i32::MAX).saturating_add(line + gap);
        if x > left && x.saturating_add(width) > right {
            (x, y) = (left, y + row);
        }
        let stroke = look.color(&curve.label).stroke_width(2 * look.scale);
        area.draw(&PathElement::new([(x, y), (x + line, y)], stroke))?;
        let text = font.pos(Pos::new(HPos::Left, VPos::Center));
        area.draw(&Text::new(curve.label.as_str(), (x + line + gap, y), text))?;
        x = x.saturating_add(width).saturating_add(3 * gap);
    }
    Ok(y + row / 2)
}

/// A number with the digits that an axis needs.
fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_string(),
        size if !(1e-3..1e6).contains(&size) => format!("{value:.1e}"),
        _ => format!("{value:.3}").trim_end_matches('0').trim_end_matches('.').to_string(),
    }
}

/// The most numbers on the x axis.
const MOST_TICKS: f64 = 11.0;

/// Numbers for the x axis: multiples of 1, 2 or 5 times a power of ten. They are whole numbers if there are two of them.
fn ticks(xs: &Range<f64>) -> Vec<f64> {
    let whole = xs.end.floor() - xs.start.ceil() >= 1.0 || xs.end - xs.start == 1.0;
    let least = (xs.end - xs.start) / MOST_TICKS;
    let power = 10f64.powf(least.log10().floor());
    let step = [1.0, 2.0, 5.0].map(|factor| factor * power).into_iter().find(|step| *step >= least);
    let step = f64::max(step.unwrap_or(10.0 * power), if whole { 1.0 } else { 0.0 });
    let first = (xs.start / step).ceil();
    (0..=MOST_TICKS as usize).map(|i| (first + i as f64) * step).take_while(|tick| *tick <= xs.end).collect()
}

/// From the first to the last point, with a margin; never empty.
fn x_range(animator: &Animator) -> Range<f64> {
    let points = animator.panels.iter().flat_map(|panel| &panel.curves).flat_map(|curve| &curve.points);
    let (low, high) = points.fold((f64::MAX, f64::MIN), |(low, high), point| (low.min(point.0), high.max(point.0)));
    let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
    // A single point is in the middle, with the only whole number beside it.
    let margin = if high > low { (high - low) * 0.04 } else { f64::max(0.5, low.abs() * 1e-9) };
    low - margin..high + margin
}

/// For losses: from 0 (or below the lowest) to a little above the highest, or above most of them if a few are far
/// higher; those lines leave the picture. For fractions of 1: from a multiple of 0.1 below the lowest to 1, so that
/// high accuracies are not a flat line.
fn y_range(panel: &Panel) -> Range<f64> {
    let values = || panel.curves.iter().flat_map(|curve| &curve.points).map(|point| point.1);
    if panel.shares {
        let low = values().fold(1.0, f64::min);
        return (((low - 0.02) * 10.0).floor() / 10.0).clamp(0.0, 0.9)..1.0;
    }
    let (low, mut high) = (values().fold(0.0, f64::min), values().fold(0.0, f64::max));
    let mut sorted: Vec<f64> = values().collect();
    sorted.sort_by(f64::total_cmp);
    if let Some(most) = sorted.get(sorted.len() * 9 / 10).filter(|most| sorted.len() >= FEW && **most > low) {
        let usual = sorted.iter().filter(|value| *value - low <= (most - low) * SPIKE);
        high = usual.fold(low, |high, value| high.max(*value));
    }
    // Between the smallest numbers there are no others to draw.
    if high - low > 1e-300 { low * 1.08..high * 1.08 } else { 0.0..1.0 }
}

/// A panel of fewer values has none that are far higher than most.
const FEW: usize = 10;

/// A value this many times as high as nine tenths of the others does not determine the scale.
const SPIKE: f64 = 10.0;

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
        assert_eq!(x_range(&one), 2.5..3.5);
        let mut far = empty.clone();
        far.add(1e300, &[0.0, 0.957]).unwrap();
        assert!(x_range(&far).start < x_range(&far).end);
        assert_eq!([0.0, 0.25, 10.0, 1e-5, 2e7].map(short), ["0", "0.25", "10", "1.0e-5", "2.0e7"]);
    }

    #[test]
    fn the_x_axis_has_the_whole_numbers_of_epochs() {
        let of = |first: f64, last: f64| {
            let mut animator = Animator::new("epoch").panel("loss", &["a"]);
            animator.add(first, &[1.0]).unwrap();
            animator.add(last, &[1.0]).unwrap();
            ticks(&x_range(&animator))
        };
        assert_eq!(of(1.0, 1.0), [1.0]);
        assert_eq!(of(1.0, 2.0), [1.0, 2.0]);
        assert_eq!(of(1.0, 3.0), [1.0, 2.0, 3.0]);
        assert_eq!(of(0.5, 2.5), [1.0, 2.0]);
        assert_eq!(of(1.0, 10.0), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]);
        assert_eq!(of(1.0, 20.0), [2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0, 18.0, 20.0]);
        assert!((4..=12).contains(&of(0.25, 0.75).len()), "parts of an epoch");
        for last in [1e-300, 1e-9, 3.7, 1e3, 1e17, 1e300] {
            assert!((1..=12).contains(&of(0.0, last).len()), "{last}");
        }
    }

    #[test]
    fn a_spike_leaves_the_picture() {
        let of = |values: &[f64]| {
            let mut animator = Animator::new("epoch").panel("loss", &["a"]);
            values.iter().enumerate().for_each(|(x, y)| animator.add(x as f64, &[*y]).unwrap());
            y_range(&animator.panels[0])
        };
        let mut values: Vec<f64> = (1..=20).map(|x| 2.0 / f64::from(x)).collect();
        assert_eq!(of(&values), 0.0..2.16);
        values[7] = 1e5;
        assert_eq!(of(&values), 0.0..2.16, "the others keep their scale");
        assert_eq!(of(&[1.0, 1e5]), 0.0..1.08e5, "of two values neither is unusual");
    }

    #[test]
    fn a_finer_picture_is_reduced_to_its_means() {
        let mut fine = vec![0u8; 3 * 3 * 2 * 3]; // 6 × 3 pixels
        fine[..9].fill(255); // the first three of the first row
        assert_eq!(reduced(&fine, 2, 1).unwrap(), [85, 85, 85, 0, 0, 0]);
    }
}
