//! `--plot`: throughput against size.

use std::path::Path;

use anygpu::watch::Animator;

use super::Measurement;
use crate::failure::Failure;

/// The curves of one unit: points of size and throughput, with the names of their curves.
struct Panel<'a> {
    unit: &'static str,
    points: Vec<(String, f64, &'a Measurement)>,
}

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
        match panels.iter_mut().find(|panel| panel.unit == row.unit) {
            Some(panel) => panel.points.push(point),
            None => panels.push(Panel { unit: row.unit, points: vec![point] }),
        }
    }
    let width = if panels.len() > 1 { 1400 } else { 900 };
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
