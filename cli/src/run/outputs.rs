//! The outputs of a run: a table, their files and their largest scores.

use std::path::PathBuf;

use anygpu::Tensor;
use anygpu::onnx::{Model, Outputs, ValueInfo};
use serde::Serialize;
use serde_json::{Value, json};

use super::inputs::numbers;
use super::{Args, named};
use crate::failure::Failure;
use crate::output;

/// The number of first elements that are printed.
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

/// What is printed of an output.
struct Row<'a> {
    name: &'a str,
    kind: String,
    shape: &'a [usize],
    numbers: Vec<f64>,
    summary: Summary,
    /// The file that it was written to.
    file: Option<&'a PathBuf>,
    /// For each row of scores, the largest.
    top: Option<Vec<Vec<Guess>>>,
}

impl Row<'_> {
    fn first(&self) -> &[f64] {
        &self.numbers[..self.numbers.len().min(FIRST)]
    }

    fn json(&self) -> Value {
        let Summary { least, mean, largest, nan } = self.summary;
        let mut line = json!({
            "output": self.name, "type": self.kind, "shape": self.shape, "least": least, "mean": mean, "largest": largest,
            "nan": nan, "first": self.first(),
        });
        if let Some(path) = self.file {
            line["file"] = json!(path.display().to_string());
        }
        if let Some(top) = &self.top {
            line["top"] = json!(top);
        }
        line
    }

    fn cells(&self) -> [String; 7] {
        let [least, mean, largest] = match self.numbers.is_empty() {
            true => [const { String::new() }; 3],
            false => [self.summary.least, self.summary.mean, self.summary.largest].map(shown),
        };
        let more = if self.first().len() < self.numbers.len() { " …" } else { "" };
        let first = self.first().iter().copied().map(shown).collect::<Vec<_>>().join(" ") + more;
        [self.name.to_owned(), self.kind.clone(), format!("{:?}", self.shape), least, mean, largest, first]
    }

    /// The lines below the table.
    fn notes(&self) -> Vec<String> {
        let (name, nan, count) = (self.name, self.summary.nan, self.numbers.len());
        let nan = (nan > 0).then(|| format!("{name}: {nan} of {count} elements are NaN"));
        let ranked = self.top.iter().flatten().enumerate().map(|(row, guesses)| ranking(name, row, guesses));
        nan.into_iter().chain(ranked).collect()
    }
}

/// A number in a table.
pub fn shown(number: f64) -> String {
    let size = number.abs();
    match number {
        _ if number.fract() == 0.0 && size < 1e9 => format!("{number}"),
        _ if size.is_finite() && !(1e-3..1e5).contains(&size) => format!("{number:.4e}"),
        _ => format!("{number:.5}"),
    }
}

/// The longest file of labels that is read.
const MOST_BYTES: u64 = 64 << 20;

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
            let text = anygpu::read_text(path, MOST_BYTES);
            let text = text.map_err(|error| Failure::Run(format!("--labels {}: {error}", path.display())))?;
            Ok::<_, Failure>(text.lines().map(|line| line.trim_end().to_owned()).collect())
        };
        Ok(Report { files, top: args.top, labels: args.labels.as_ref().map(read).transpose()? })
    }

    /// Prints the outputs and writes the files.
    ///
    /// # Errors
    /// [`Failure::Run`] if a file cannot be written, or for `--top` if no output has scores.
    pub fn show(&self, model: &Model, outputs: &Outputs, as_json: bool) -> Result<(), Failure> {
        let row = |(info, (name, tensor)): (&ValueInfo, (_, _))| self.row(info, name, tensor);
        let rows: Vec<Row> = model.outputs().iter().zip(outputs.iter()).map(row).collect::<Result<_, _>>()?;
        if as_json {
            rows.iter().try_for_each(|row| output::json(&row.json()))?;
        } else {
            let mut table = output::table(&["output", "type", "shape", "least", "mean", "largest", "first elements"]);
            table.add_rows(rows.iter().map(Row::cells));
            output::line(table)?;
            rows.iter().flat_map(Row::notes).try_for_each(output::line)?;
        }
        let ranked = rows.iter().any(|row| row.top.is_some());
        match self.top {
            Some(_) if !ranked => {
                Err(Failure::Run("--top: no output has scores of classes, the shape [rows, classes]".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Returns what is printed of an output, and writes its file.
    fn row<'a>(&'a self, info: &ValueInfo, name: &'a str, tensor: &'a Tensor) -> Result<Row<'a>, Failure> {
        let numbers = numbers(tensor)?;
        let file = self.files.iter().find(|(of, _)| of == name).map(|(_, path)| path);
        if let Some(path) = file {
            tensor.save_npy(path)?;
        }
        let (kind, shape, summary) = (info.element_type.to_string(), tensor.shape(), Summary::of(&numbers));
        let top = self.top(tensor, &numbers)?;
        Ok(Row { name, kind, shape, numbers, summary, file, top })
    }

    /// Returns the largest scores of each row, if they are asked for and the output has the shape `[rows,
    /// classes]`, which dimensions of size 1 may follow.
    fn top(&self, tensor: &Tensor, numbers: &[f64]) -> Result<Option<Vec<Vec<Guess>>>, Failure> {
        let (Some(count), &[_, classes, ref others @ ..]) = (self.top, tensor.shape()) else { return Ok(None) };
        if classes == 0 || others.iter().any(|size| *size != 1) || !tensor.dtype().is_float() {
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
