//! What a run gives: a table of the outputs, their files and their largest scores.

use std::path::PathBuf;

use anygpu::Tensor;
use anygpu::onnx::{Model, Outputs};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::inputs::numbers;
use super::{Args, named};
use crate::failure::Failure;
use crate::output;

/// The first elements that are printed.
const FIRST: usize = 6;

/// What is printed and written, checked before the model runs.
pub struct Report {
    /// Names of outputs, and their files.
    files: Vec<(String, PathBuf)>,
    top: Option<usize>,
    labels: Option<Vec<String>>,
}

/// A score of one class.
#[derive(Serialize)]
struct Guess {
    class: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    score: f64,
}

/// The numbers of an output.
struct Summary {
    least: f64,
    mean: f64,
    largest: f64,
    nan: usize,
}

impl Summary {
    fn of(numbers: &[f64]) -> Summary {
        let least = numbers.iter().copied().fold(f64::NAN, f64::min);
        let largest = numbers.iter().copied().fold(f64::NAN, f64::max);
        let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
        Summary { least, mean, largest, nan: numbers.iter().filter(|number| number.is_nan()).count() }
    }
}

/// A number in a table.
pub fn shown(number: f64) -> String {
    let size = number.abs();
    match number {
        _ if number.fract() == 0.0 && size < 1e9 => format!("{number}"),
        _ if size.is_finite() && (size >= 1e5 || size < 1e-3) => format!("{number:.4e}"),
        _ => format!("{number:.5}"),
    }
}

impl Report {
    /// Reads the labels, and finds out whether the files can be written.
    ///
    /// # Errors
    /// [`Failure::Usage`] for an output that the model does not have; [`Failure::Run`] for files.
    pub fn new(args: &Args, model: &Model) -> Result<Report, Failure> {
        let mut files: Vec<(String, PathBuf)> = Vec::new();
        for text in &args.outputs {
            let (info, path) = named("--output", text, "output", model.outputs())?;
            let path = output::writable("--output", path.as_ref(), &["npy"])?;
            if files.iter().any(|(name, file)| *name == info.name || *file == path) {
                let detail = "each output has one file, and each file one output";
                return Err(Failure::Usage(format!("--output {text}: {detail}")));
            }
            files.push((info.name.clone(), path));
        }
        let read = |path: &PathBuf| {
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|error| Failure::Run(format!("--labels {}: {error}", path.display())))?;
            Ok::<_, Failure>(text.lines().map(|line| line.trim_end().to_owned()).collect())
        };
        Ok(Report { files, top: args.top, labels: args.labels.as_ref().map(read).transpose()? })
    }

    /// Prints the outputs and writes the files.
    ///
    /// # Errors
    /// [`Failure::Run`] if a file cannot be written, or for `--top` of outputs that are no scores.
    pub fn show(&self, model: &Model, outputs: &Outputs, as_json: bool) -> Result<(), Failure> {
        let mut table = output::table(&["output", "type", "shape", "least", "mean", "largest", "first elements"]);
        let (mut lines, mut ranked) = (Vec::new(), false);
        for (info, (name, tensor)) in model.outputs().iter().zip(outputs.iter()) {
            let numbers = numbers(tensor)?;
            let summary = Summary::of(&numbers);
            let file = self.files.iter().find(|(of, _)| of == name).map(|(_, path)| path);
            if let Some(path) = file {
                tensor.save_npy(path)?;
            }
            let top = self.top(tensor, &numbers)?;
            ranked |= top.is_some();
            let first = &numbers[..numbers.len().min(FIRST)];
            let (kind, shape) = (info.element_type.to_string(), tensor.shape());
            if as_json {
                let mut line = json!({
                    "output": name, "type": kind, "shape": shape, "least": summary.least, "mean": summary.mean,
                    "largest": summary.largest, "nan": summary.nan, "first": first,
                });
                let more = file.map(|path| ("file", json!(path.display().to_string())));
                let more = more.into_iter().chain(top.map(|top| ("top", json!(top))));
                line.as_object_mut().into_iter().for_each(|line: &mut Map<String, Value>| {
                    line.extend(more.clone().map(|(key, value)| (key.to_owned(), value)));
                });
                output::json(&line)?;
                continue;
            }
            let more = if first.len() < numbers.len() { " …" } else { "" };
            let first = first.iter().copied().map(shown).collect::<Vec<_>>().join(" ") + more;
            let [least, mean, largest] = match numbers.is_empty() {
                true => [const { String::new() }; 3],
                false => [summary.least, summary.mean, summary.largest].map(shown),
            };
            table.add_row([name.to_owned(), kind, format!("{shape:?}"), least, mean, largest, first]);
            if summary.nan > 0 {
                lines.push(format!("{name}: {} of {} elements are NaN", summary.nan, numbers.len()));
            }
            lines.extend(top.iter().flatten().enumerate().map(|(row, guesses)| ranking(name, row, guesses)));
        }
        if !as_json {
            output::line(table)?;
            lines.iter().try_for_each(output::line)?;
        }
        match self.top {
            Some(_) if !ranked => {
                Err(Failure::Run("--top: no output has scores of classes, the shape [rows, classes]".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Returns the largest scores of each row, if they are asked for and the output has the shape `[rows, classes]`.
    fn top(&self, tensor: &Tensor, numbers: &[f64]) -> Result<Option<Vec<Vec<Guess>>>, Failure> {
        let (Some(count), &[_, classes]) = (self.top, tensor.shape()) else { return Ok(None) };
        if classes == 0 || !tensor.dtype().is_float() {
            return Ok(None);
        }
        if let Some(labels) = self.labels.as_ref().filter(|labels| labels.len() != classes) {
            let lines = labels.len();
            return Err(Failure::Run(format!(
                "--labels: the file has {lines} lines, and the output {classes} classes"
            )));
        }
        let row = |scores: &[f64]| {
            let mut order: Vec<usize> = (0..classes).collect();
            order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
            order.truncate(count);
            let label = |class: usize| self.labels.as_ref().map(|labels| labels[class].clone());
            order.into_iter().map(|class| Guess { class, label: label(class), score: scores[class] }).collect()
        };
        Ok(Some(numbers.chunks(classes).map(row).collect()))
    }
}

/// A row's largest scores as a line.
fn ranking(name: &str, row: usize, guesses: &[Guess]) -> String {
    let guess = |guess: &Guess| {
        let class = guess.label.clone().unwrap_or_else(|| guess.class.to_string());
        format!("{class} {}", shown(guess.score))
    };
    format!("{name}[{row}]: {}", guesses.iter().map(guess).collect::<Vec<_>>().join(", "))
}
