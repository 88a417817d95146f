//! `--plot`: throughput against size.

use std::path::Path;

use anygpu_plot::Animator;

use super::Measurement;
use crate::failure::Failure;

/// The curves of one unit: points of size and throughput, with the names of their curves.
struct Panel<'a> {
    unit: &'static str,
    /// The highest throughput of its first device.
    best: f64,
    points: Vec<(String, f64, &'a Measurement)>,
}

/// If one device is more than this many times as fast as another, they have separate panels: one scale would make
/// the slower one's curve a flat line.
const FAR: f64 = 10.0;

/// Draws the medians of the workloads whose sizes can be chosen: a panel for each unit, with a curve for each workload
/// and device.
///
/// # Errors
/// [`Failure::Run`] if the file cannot be written.
pub fn save(rows: &[Measurement], path: &Path) -> Result<(), Failure> {
    let mut panels: Vec<Panel> = Vec::new();
    for row in rows {
        let Some(size) = row.size.filter(|size| *size > 0.0) else { continue };
        let point = (format!("{} on {}", row.workload, row.device), size.log2(), row);
        let alike =
            rows.iter().filter(|other| other.size.is_some() && (other.unit, &other.device) == (row.unit, &row.device));
        let best = alike.fold(0.0, |best, other| f64::max(best, other.median));
        let near = |panel: &&mut Panel| panel.best <= FAR * best && best <= FAR * panel.best;
        match panels.iter_mut().find(|panel| panel.unit == row.unit && near(panel)) {
            Some(panel) => panel.points.push(point),
            None => panels.push(Panel { unit: row.unit, best, points: vec![point] }),
        }
    }
    let width = 700 * panels.len().clamp(1, 6) as u32 + if panels.len() > 1 { 0 } else { 200 };
    let mut animator = Animator::new("size: log2 of the elements of the largest tensor")
        .title("anygpu bench: throughput against size, medians")
        .size(width, 520);
    let mut curves: Vec<String> = Vec::new();
    for panel in &panels {
        let mut names: Vec<&str> = Vec::new();
        for (name, ..) in &panel.points {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        animator = animator.panel(panel.unit, &names);
        curves.extend(names.into_iter().map(String::from));
    }
    for (name, size, row) in panels.iter().flat_map(|panel| &panel.points) {
        let values: Vec<Option<f64>> = curves.iter().map(|curve| (curve == name).then_some(row.median)).collect();
        animator.add(*size, &values)?;
    }
    animator.save(path).map_err(|error| Failure::Run(format!("--plot {}: {error}", path.display())))
}
