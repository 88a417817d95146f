//! The inputs of a model: files, numbers and random numbers.

use std::path::{Path, PathBuf};

use anygpu::nn::Module;
use anygpu::onnx::{Dimension, ElementType, Model, ValueInfo};
use anygpu::{DType, Device, Tensor};

use super::generate;
use super::images::{self, Picture};
use super::sizes::Sizes;
use super::{Args, named};
use crate::failure::Failure;

/// An input by name.
pub struct Input {
    pub name: String,
    pub tensor: Tensor,
    /// What its first dimension counts, if that is a batch.
    pub batch: Option<&'static str>,
}

/// What `--input` gives.
enum Source {
    Array(PathBuf),
    Image(PathBuf),
    Number(f64),
    List(Vec<f64>),
}

impl Source {
    fn parse(text: &str) -> Result<Source, Failure> {
        let path = Path::new(text);
        let extension = path.extension().map(|end| end.to_ascii_lowercase());
        match extension.as_ref().and_then(|end| end.to_str()) {
            Some("npy") => return Ok(Source::Array(path.into())),
            Some("png" | "jpg" | "jpeg") => return Ok(Source::Image(path.into())),
            _ => {}
        }
        let wrong = || {
            let forms = "a .npy file, an image (.png, .jpg), a number, or a list of numbers such as [1,2,3]";
            Failure::Usage(format!("--input {text}: give {forms}"))
        };
        let number = |text: &str| match text.trim() {
            "true" => Some(1.0),
            "false" => Some(0.0),
            text => text.parse().ok(),
        };
        if let Some(number) = number(text) {
            return Ok(Source::Number(number));
        }
        let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).ok_or_else(wrong)?;
        let items = inner.split(',').filter(|_| !inner.trim().is_empty());
        items.map(number).collect::<Option<_>>().map(Source::List).ok_or_else(wrong)
    }
}

/// Returns all inputs of a model, floats first. Float inputs are on the device, the others on `cpu`.
///
/// # Errors
/// [`Failure::Usage`] for inputs that are missing, unknown or do not fit the model; [`Failure::Run`] for files that cannot be read.
pub fn all(args: &Args, model: &Model, device: &Device) -> Result<Vec<Input>, Failure> {
    let infos = model.inputs();
    let given = given(args, infos)?;
    let is_made = |info: &ValueInfo| args.generate.is_some() && generate::makes(info);
    if let Some((info, _)) = given.iter().find(|(info, _)| is_made(info)) {
        return Err(Failure::Usage(format!("--input {}: --generate makes this input itself: leave it out", info.name)));
    }
    let has_images = given.iter().any(|(_, source)| matches!(source, Source::Image(_)));
    images::check(args, has_images)?;
    let others: &[&str] = if has_images { &["height", "width"] } else { &[] };
    let mut sizes = Sizes::new(&args.sizes, infos, others)?;
    let missing: Vec<&ValueInfo> =
        infos.iter().filter(|info| !given.iter().any(|(other, _)| other.name == info.name) && !is_made(info)).collect();
    if !missing.is_empty() && !args.random {
        return Err(Failure::Usage(report(&missing, infos)));
    }
    // Shapes and conditions come of integers: the host reads them before anything runs. A model without weights runs where
    // its inputs are.
    let bare = model.parameters().is_empty() && model.named_buffers().is_empty();
    let all_there = bare && infos.iter().all(|info| !info.element_type.dtype().is_float());
    let mut inputs = Vec::with_capacity(infos.len());
    let all = given.into_iter().map(|(info, source)| (info, Some(source)));
    for (info, source) in all.chain(missing.into_iter().map(|info| (info, None))) {
        let is_image = matches!(source, Some(Source::Image(_)));
        let tensor = match source {
            Some(Source::Array(path)) => file(info, &path)?,
            Some(Source::Image(path)) => Picture::new(args, info, &path)?.tensor(&sizes)?,
            // One sequence, where both dimensions are open.
            Some(Source::List(ids)) if args.generate.is_some() && info.name == generate::IDS => {
                of_numbers(info, &ids, vec![1, ids.len()], LIST)?
            }
            Some(Source::List(numbers)) => list(info, &numbers, &sizes)?,
            Some(Source::Number(number)) => filled(info, number, &sizes)?,
            None => random(info, &sizes)?,
        };
        sizes.bind(info, tensor.shape())?;
        // No adapter holds floats of 64 bits, which the model computes with on `cpu`.
        let moves = (tensor.dtype().is_float() || all_there) && tensor.dtype() != DType::F64;
        let tensor = if moves { tensor.to(device)? } else { tensor };
        inputs.push(Input { name: info.name.clone(), tensor, batch: batch(info, is_image) });
    }
    inputs.sort_by_key(|input| !input.tensor.dtype().is_float());
    Ok(inputs)
}

/// Returns the inputs of `--input`. Files come first, since they set the sizes of open dimensions; then the inputs
/// that take sizes of them.
fn given<'a>(args: &Args, infos: &'a [ValueInfo]) -> Result<Vec<(&'a ValueInfo, Source)>, Failure> {
    let mut given: Vec<(&ValueInfo, Source)> = Vec::new();
    for text in &args.inputs {
        let (info, value) = named("--input", text, "input", infos)?;
        if given.iter().any(|(other, _)| other.name == info.name) {
            return Err(Failure::Usage(format!("--input {}: it is given twice", info.name)));
        }
        given.push((info, Source::parse(value)?));
    }
    given.sort_by_key(|(_, source)| match source {
        Source::Array(_) | Source::Image(_) => 0,
        Source::List(_) => 1,
        Source::Number(_) => 2,
    });
    Ok(given)
}

/// Returns what the first dimension of an input counts, if it is open or the input is an image.
fn batch(info: &ValueInfo, is_image: bool) -> Option<&'static str> {
    let open = |dimension: &Dimension| !matches!(dimension, Dimension::Size(_));
    match &info.shape {
        Some(shape) if is_image => (shape.len() == 4).then_some("images"),
        Some(shape) => (shape.len() > 1 && open(&shape[0])).then_some("rows"),
        None => is_image.then_some("images"),
    }
}

/// The error of inputs that are missing.
fn report(missing: &[&ValueInfo], infos: &[ValueInfo]) -> String {
    let names: Vec<String> = missing.iter().map(|info| format!("'{}'", info.name)).collect();
    let all: Vec<String> = infos.iter().map(|info| format!("\n  {info}")).collect();
    format!(
        "no --input for {}; the inputs of the model are{}\ngive --input NAME=FILE.npy, --input NAME=NUMBER or \
         --input NAME=IMAGE, or --random for random numbers",
        names.join(", "),
        all.concat()
    )
}

/// Reads a `.npy` file as the declared type.
fn file(info: &ValueInfo, path: &Path) -> Result<Tensor, Failure> {
    let tensor = Tensor::from_npy(path, Device::cpu())?;
    let (kind, dtype) = (info.element_type, info.element_type.dtype());
    let wrong = |detail: String| Failure::Usage(format!("input {info}: {} {detail}", path.display()));
    match (tensor.dtype(), dtype) {
        (from, to) if from == to && bounds(kind) == bounds_of(to) => Ok(tensor),
        (from, to) if from.is_float() && to.is_float() => {
            let converted = tensor.to_dtype(to)?;
            let (before, after) = (numbers(&tensor)?, numbers(&converted)?);
            match before.iter().zip(&after).find(|(before, after)| before.is_finite() && !after.is_finite()) {
                None => Ok(converted),
                Some((number, _)) => {
                    Err(wrong(format!("has {number}, which is too large for {to}: scale the numbers")))
                }
            }
        }
        (from, to) => {
            let values = numbers(&tensor)?;
            let converted = of_numbers(info, &values, tensor.shape().to_vec(), &path.display().to_string())?;
            if to.is_float() && numbers(&converted)? != values {
                return Err(wrong(format!("has integers of {from} that {to} would round: save them as floats")));
            }
            Ok(converted)
        }
    }
}

/// Returns a list of numbers in the declared shape, in which at most one open dimension has a size by their count.
fn list(info: &ValueInfo, numbers: &[f64], sizes: &Sizes) -> Result<Tensor, Failure> {
    let Some(mut shape) = sizes.shape(info) else { return of_numbers(info, numbers, vec![numbers.len()], LIST) };
    let count: usize = shape.iter().fold(1, |count, size| count.saturating_mul(*size));
    let open = (0..shape.len()).find(|&at| sizes.of(info, at).is_none());
    match open {
        Some(at) if count > 0 && numbers.len().is_multiple_of(count) => shape[at] = numbers.len() / count,
        _ if count == numbers.len() => {}
        _ => {
            let given = numbers.len();
            return Err(Failure::Usage(format!("input {info}: {given} numbers do not fit the shape {shape:?}")));
        }
    }
    of_numbers(info, numbers, shape, LIST)
}

/// Returns a tensor of the declared shape whose elements are one number.
fn filled(info: &ValueInfo, number: f64, sizes: &Sizes) -> Result<Tensor, Failure> {
    let scalar = of_numbers(info, &[number], vec![], "--input")?;
    let shape = sizes.shape(info).unwrap_or_default();
    Ok(scalar.broadcast_to(shape)?.contiguous()?)
}

fn random(info: &ValueInfo, sizes: &Sizes) -> Result<Tensor, Failure> {
    let cpu = Device::cpu();
    let shape = sizes.shape(info).ok_or_else(|| {
        Failure::Usage(format!("--random: the model does not say the shape of input {info}: give it with --input"))
    })?;
    let dtype = info.element_type.dtype();
    let tensor = match dtype {
        dtype if dtype.is_float() => Tensor::rand(shape, &cpu)?,
        DType::U8 => Tensor::randint(0, 256, shape, &cpu)?,
        _ => Tensor::randint(0, 2, shape, &cpu)?,
    };
    Ok(tensor.to_dtype(dtype)?)
}

/// The least and the largest integer of a type of tensors.
fn bounds_of(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::Bool => (0.0, 1.0),
        DType::U8 => (0.0, u8::MAX.into()),
        DType::U32 => (0.0, u32::MAX.into()),
        DType::I32 => (i32::MIN.into(), i32::MAX.into()),
        // Integers that an f64 has exactly.
        DType::I64 => (-(2f64.powi(53)), 2f64.powi(53)),
        _ => (f64::NEG_INFINITY, f64::INFINITY),
    }
}

/// The least and the largest integer of a declared type, as far as tensors have them.
fn bounds(kind: ElementType) -> (f64, f64) {
    match kind {
        ElementType::Uint2 => (0.0, 3.0),
        ElementType::Int2 => (-2.0, 1.0),
        ElementType::Uint4 => (0.0, 15.0),
        ElementType::Int4 => (-8.0, 7.0),
        ElementType::Int8 => (i8::MIN.into(), i8::MAX.into()),
        ElementType::Int16 => (i16::MIN.into(), i16::MAX.into()),
        ElementType::Uint16 => (0.0, u16::MAX.into()),
        ElementType::Uint64 => (0.0, 2f64.powi(53)),
        kind => bounds_of(kind.dtype()),
    }
}

/// What errors call a list of numbers.
pub const LIST: &str = "the list";

/// Returns numbers as a tensor of the declared type on `cpu`. `from`: where they come from, for errors.
pub fn of_numbers(info: &ValueInfo, numbers: &[f64], shape: Vec<usize>, from: &str) -> Result<Tensor, Failure> {
    let (cpu, dtype) = (Device::cpu(), info.element_type.dtype());
    if dtype == DType::F64 {
        return Ok(Tensor::from_f64(numbers, shape, &cpu)?);
    }
    if dtype.is_float() {
        let floats: Vec<f32> = numbers.iter().map(|number| *number as f32).collect();
        return Ok(Tensor::from_vec(floats, shape, &cpu)?.to_dtype(dtype)?);
    }
    let (least, largest) = bounds(info.element_type);
    let fits = |number: f64| number.fract() == 0.0 && (least..=largest).contains(&number);
    if let Some(number) = numbers.iter().find(|number| !fits(**number)) {
        return Err(Failure::Usage(format!(
            "input {info}: {from} has {number}, and its elements are whole numbers from {least} to {largest}: round or scale \
             the numbers first"
        )));
    }
    let integers = || numbers.iter().map(|number| *number as i64);
    Ok(match dtype {
        DType::Bool => Tensor::from_vec(integers().map(|n| n != 0).collect::<Vec<bool>>(), shape, &cpu),
        DType::U8 => Tensor::from_vec(integers().map(|n| n as u8).collect::<Vec<u8>>(), shape, &cpu),
        DType::I64 => Tensor::from_vec(integers().collect::<Vec<i64>>(), shape, &cpu),
        DType::U32 => Tensor::from_vec(integers().map(|n| n as u32).collect::<Vec<u32>>(), shape, &cpu),
        _ => Tensor::from_vec(integers().map(|n| n as i32).collect::<Vec<i32>>(), shape, &cpu),
    }?)
}

/// Returns the elements of a tensor, all of which are exact except integers beyond 2⁵³.
pub fn numbers(tensor: &Tensor) -> anygpu::Result<Vec<f64>> {
    tensor.to_vec_f64()
}
