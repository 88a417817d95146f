use std::path::Path;

use anygpu::checkpoint::write_atomically;
use anygpu::{Error, Result};

use super::draw;

/// A picture of curves that is updated while a net trains, like the `Animator` of "Dive into deep learning".
///
/// Each panel has its own scale and one or more curves. [`add`](Animator::add) appends a point to each curve.
/// [`save`](Animator::save) draws the points so far, as PNG or SVG, with the names of the curves above them. The
/// font is built in.
///
/// ```
/// use anygpu_plot::Animator;
///
/// # let folder = tempfile::tempdir().expect("a folder");
/// # let folder = folder.path();
/// let mut animator = Animator::new("epoch").title("LeNet").panel("loss", &["train"]).shares("accuracy", &["train", "test"]);
/// for epoch in 1..=3 {
///     let x = f64::from(epoch);
///     animator.add(x - 0.5, &[Some(1.0 / x), None, None])?; // in the middle of an epoch
///     animator.add(x, &[0.9 / x, 1.0 - 0.3 / x, 1.0 - 0.4 / x])?;
///     animator.save(folder.join("curves.svg"))?; // a viewer shows the new points
/// }
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Animator {
    pub(super) title: String,
    pub(super) x_label: String,
    pub(super) panels: Vec<Panel>,
    size: (u32, u32),
}

/// The largest absolute value that is drawn: beyond it, the length of an axis would not be finite.
const LARGEST: f64 = 1e300;

/// A chart with its own scale.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Panel {
    pub name: String,
    /// Whether its values are fractions of 1, such as accuracies.
    pub shares: bool,
    pub curves: Vec<Curve>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Curve {
    pub label: String,
    pub points: Vec<(f64, f64)>,
}

impl Animator {
    /// Creates an animator without panels. `x_label` is the label of the x axis of all panels.
    pub fn new(x_label: &str) -> Animator {
        Animator { title: String::new(), x_label: x_label.to_string(), panels: Vec::new(), size: (1120, 480) }
    }

    /// Sets the title.
    pub fn title(mut self, title: &str) -> Animator {
        self.title = title.to_string();
        self
    }

    /// Sets the width and height of the picture in pixels. The default is 1120 and 480. A PNG has at most 2²⁸ pixels.
    pub fn size(mut self, width: u32, height: u32) -> Animator {
        self.size = (width, height);
        self
    }

    /// Adds a panel of these curves. Its scale begins at 0, or below the lowest value, and ends above the highest.
    /// If a panel has at least ten values, a few values that are ten times as high as the others do not affect the
    /// scale: the curve leaves the picture there.
    pub fn panel(self, name: &str, curves: &[&str]) -> Animator {
        self.with(name, curves, false)
    }

    /// Adds a panel of curves that are fractions of 1, such as accuracies: its scale ends at 1.
    pub fn shares(self, name: &str, curves: &[&str]) -> Animator {
        self.with(name, curves, true)
    }

    fn with(mut self, name: &str, curves: &[&str], shares: bool) -> Animator {
        let curves = curves.iter().map(|label| Curve { label: label.to_string(), points: Vec::new() }).collect();
        self.panels.push(Panel { name: name.to_string(), shares, curves });
        self
    }

    /// Appends a point to each curve, in the order in which the panels and curves were added: a number, or `None`
    /// for a curve without a value at `x`. Numbers that are not finite, or beyond ±1e300, are omitted.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless there is exactly one value for each curve.
    pub fn add<V: Into<Option<f64>> + Copy>(&mut self, x: f64, values: &[V]) -> Result<()> {
        let curves = self.panels.iter().map(|panel| panel.curves.len()).sum::<usize>();
        if values.len() != curves {
            return Err(wrong(format!("{} values for {curves} curves", values.len())));
        }
        for (curve, &value) in self.panels.iter_mut().flat_map(|panel| &mut panel.curves).zip(values) {
            let value: Option<f64> = value.into();
            curve.points.extend(value.filter(|y| y.abs() <= LARGEST && x.abs() <= LARGEST).map(|y| (x, y)));
        }
        Ok(())
    }

    /// Draws the curves into a file that ends in `.png` or `.svg`. The file is replaced atomically
    /// ([`write_atomically`]): a viewer never sees a partly written file.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another extension, and if there is no panel; [`Error::Data`] if the file
    /// cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let kind = path.extension().map(|kind| kind.to_string_lossy().to_lowercase()).unwrap_or_default();
        if !["png", "svg"].contains(&kind.as_str()) {
            let detail = format!("{}: it writes PNG and SVG, so name a file that ends in .png or .svg", path.display());
            return Err(wrong(detail));
        }
        if self.panels.is_empty() {
            return Err(wrong("there is no panel to draw: add one with panel()".to_string()));
        }
        let failed = |error: &dyn std::fmt::Display| Error::Data {
            path: path.display().to_string(),
            detail: format!("the plot cannot be written: {error}: is its folder there and writable?"),
        };
        let drawn = if kind == "svg" { draw::svg(self, self.size) } else { draw::png(self, self.size) };
        let bytes = drawn.map_err(|error| failed(&error))?;
        write_atomically(path, |file| file.write_all(&bytes)).map_err(|error| failed(&error))
    }
}

fn wrong(detail: String) -> Error {
    Error::InvalidArgument { op: "Animator", detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curves() -> Animator {
        Animator::new("step").title("a title").panel("loss", &["a", "b"]).shares("accuracy", &["c"])
    }

    #[test]
    fn few_points_and_odd_numbers_are_drawn() {
        let dir = tempfile::tempdir().unwrap();
        let rows: [&[[f64; 3]]; 5] = [
            &[],
            &[[0.5, 0.2, 0.1]],
            &[[f64::NAN, f64::INFINITY, 0.1]],
            &[[-1e300, 1e300, -1e300], [f64::MAX, f64::MIN, f64::MAX]],
            &[[5e-324, 5e-324, 5e-324]; 3],
        ];
        for (i, rows) in rows.iter().enumerate() {
            let mut animator = curves();
            for (x, row) in rows.iter().enumerate() {
                animator.add(x as f64, row).unwrap();
            }
            let png = dir.path().join(format!("{i}.PNG"));
            animator.save(&png).unwrap();
            let bytes = std::fs::read(png).unwrap();
            let side = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
            assert_eq!((&bytes[..8], side(16), side(20)), (&b"\x89PNG\r\n\x1a\n"[..], 1120, 480));
            let svg = dir.path().join(format!("{i}.svg"));
            animator.save(&svg).unwrap();
            let text = std::fs::read_to_string(svg).unwrap();
            assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>") && text.contains("a title"));
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 10, "no temporary file is left");
    }

    #[cfg(unix)]
    #[test]
    fn a_link_to_a_plot_stays_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (target, link) = (dir.path().join("run-7.svg"), dir.path().join("latest.svg"));
        std::fs::write(&target, "old").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        curves().save(&link).unwrap();
        assert!(link.is_symlink());
        assert!(std::fs::read_to_string(&target).unwrap().starts_with("<svg"));
    }

    #[test]
    fn pictures_of_impossible_sizes_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("curves.png");
        for size in [(u32::MAX, u32::MAX), (1 << 20, 1 << 20), (0, 0), (0, 100), (u32::MAX, 0), (1, 1)] {
            let drawn = curves().size(size.0, size.1).save(&path);
            assert!(drawn.is_err() || path.exists(), "{size:?}");
        }
        let large = curves().size(1 << 16, 1 << 16).save(&path).unwrap_err().to_string();
        assert!(large.contains("65536 × 65536 pixels"), "{large}");
    }

    #[test]
    fn what_cannot_be_drawn_is_said() {
        let mut animator = curves();
        assert!(animator.add(0.0, &[1.0, 2.0]).unwrap_err().to_string().contains("2 values for 3 curves"));
        assert!(animator.save("curves.gif").unwrap_err().to_string().contains(".svg"));
        let nowhere = animator.save("/no/such/folder/curves.png").unwrap_err().to_string();
        assert!(nowhere.contains("/no/such/folder/curves.png"), "{nowhere}");
        assert!(Animator::new("x").save("curves.png").unwrap_err().to_string().contains("no panel"));
    }
}
