//! Writes modules as ONNX files: a forward pass is traced, and each op becomes nodes.

mod batch;
mod elementwise;
mod exact;
mod graph;
mod layers;
mod movement;
mod translate;
mod write;

use std::collections::HashMap;
use std::path::Path;

use prost::Message;

use super::{ElementType, detail, fault};
use crate::autograd::no_grad;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::nn::Module;
use crate::ops::traced::{Key, trace};
use crate::tensor::Tensor;
use crate::util::atomic::write_atomically;
use batch::{Extent, SIZES};
use graph::Graph;
use write::Port;

/// Writes a module as an ONNX file, which other runtimes run.
///
/// Short for [`Exporter::new`]`().`[`export`](Exporter::export).
///
/// `example` is an input with the shape and the element type of later inputs. Its first dimension is the batch,
/// which may have any size in the file. [`Exporter`] explains how the export works, how to export several inputs,
/// and what cannot be exported.
///
/// # Errors
/// The errors of [`Exporter::export`].
///
/// ```
/// use anygpu::nn::{Linear, Module, ReLU, Sequential};
/// use anygpu::{Tensor, onnx};
///
/// let net = Sequential::new().add("fc1", Linear::new(4, 8)?).add("relu", ReLU).add("fc2", Linear::new(8, 3)?);
/// let folder = tempfile::tempdir().unwrap();
/// let path = folder.path().join("net.onnx");
/// onnx::export(&net, &Tensor::zeros([1, 4], None)?, &path)?;
///
/// let model = onnx::load(&path)?; // here; elsewhere ONNX Runtime, a browser, a phone
/// let x = Tensor::rand([5, 4], None)?;
/// assert_eq!(model.forward(&x)?.to_vec::<f32>()?, net.forward(&x)?.to_vec::<f32>()?);
/// assert!(model.get("fc1.weight").is_some());
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn export(module: &dyn Module, example: &Tensor, path: impl AsRef<Path>) -> Result<()> {
    Exporter::new().export(module, example, path)
}

/// Settings for writing a module as an ONNX file.
///
/// The forward function runs on the example, in evaluation mode, and the ops that it calls are written as ONNX
/// operators. So any function of tensors can be exported. It may have control flow of Rust: the export follows the
/// branches taken for the example. `torch.onnx.export` works in the same way. Parameters and buffers keep their
/// names; other tensors become constants. The module does not change.
///
/// The first dimension of all inputs is the batch. For a graph that takes batches of any size, the forward function
/// runs on 2, 3 and 11 samples. Sizes that differ between these graphs must grow evenly with the batch; other
/// sizes, such as half of it rounded up, are an error. [`fixed_batch`](Exporter::fixed_batch) keeps the size of the
/// example instead.
///
/// The file has operator set 18, or 19 if an op needs it. f16 and bf16 are stored as such and computed in f32, as
/// in this crate. Integers keep their types, except that indices are 64-bit integers within the graph.
///
/// # What cannot be exported
///
/// These are errors:
///
/// - losses and gradients;
/// - shapes that depend on elements (`nonzero`);
/// - random numbers;
/// - elements computed from the input that [`Tensor::to_vec`] and similar methods read on the host, that a
///   user-defined kernel reads, or that a program gets as a buffer or a texture;
/// - in-place writes to such elements, and to tensors that an op has used.
///
/// Results that other threads of the program compute are **not noticed**: they are constants in the file. Compare
/// the file's outputs with the module's on inputs of your own. Runtimes differ in which of several equal elements
/// `argmax` and sorts return first, and in where they put NaN.
///
/// A recurrent layer is written step by step, for the length of the example, and a convolution of volumes is
/// written by planes. Both are correct, but longer than ONNX's own operators for these.
#[derive(Clone, Debug, Default)]
pub struct Exporter {
    inputs: Vec<String>,
    outputs: Vec<String>,
    fixed_batch: bool,
}

impl Exporter {
    /// Returns the default settings: inputs and outputs are named `input` and `output` (numbered, if there are
    /// several), and the batch may have any size.
    #[must_use]
    pub fn new() -> Exporter {
        Exporter::default()
    }

    /// Sets the names of the inputs, in order.
    #[must_use]
    pub fn inputs(mut self, names: &[&str]) -> Exporter {
        self.inputs = names.iter().map(|&name| name.to_owned()).collect();
        self
    }

    /// Sets the names of the outputs, in order.
    #[must_use]
    pub fn outputs(mut self, names: &[&str]) -> Exporter {
        self.outputs = names.iter().map(|&name| name.to_owned()).collect();
        self
    }

    /// Fixes the shapes in the file to the example's, including the size of its batch.
    #[must_use]
    pub fn fixed_batch(mut self) -> Exporter {
        self.fixed_batch = true;
        self
    }

    /// Writes a module with one input and one output to a file. The file is written completely or not at all.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with a list of the ops that cannot be exported, or with another reason why the
    /// module cannot be written; if names are not distinct, or if there are not as many as inputs and outputs; if
    /// the file cannot be written. The errors of the forward function.
    pub fn export(&self, module: &dyn Module, example: &Tensor, path: impl AsRef<Path>) -> Result<()> {
        let copy = module.clone_box();
        copy.eval();
        let forward = |inputs: &[Tensor]| Ok(vec![copy.forward(&inputs[0])?]);
        self.write(&*copy, &[example], forward, path.as_ref())
    }

    /// Writes a forward function of any inputs and outputs to a file, as [`export`](Exporter::export) does.
    ///
    /// `forward` is called with a copy of the module in evaluation mode, which shares the module's parameters.
    ///
    /// # Errors
    /// Same as [`export`](Exporter::export).
    ///
    /// ```
    /// use anygpu::nn::{Linear, Module};
    /// use anygpu::{Tensor, onnx};
    ///
    /// let net = Linear::new(4, 2)?;
    /// let folder = tempfile::tempdir().unwrap();
    /// let path = folder.path().join("two.onnx");
    /// let examples = [&Tensor::zeros([1, 4], None)?, &Tensor::zeros([1, 2], None)?];
    /// let exporter = onnx::Exporter::new().inputs(&["x", "shift"]).outputs(&["scores", "class"]);
    /// exporter.export_with(&net, &examples, &path, |net, inputs| {
    ///     let scores = net.forward(&inputs[0])?.add(&inputs[1])?;
    ///     let class = scores.argmax(-1)?;
    ///     Ok(vec![scores, class])
    /// })?;
    /// assert_eq!(onnx::load(&path)?.outputs()[1].name, "class");
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn export_with<M: Module + Clone>(
        &self,
        module: &M,
        examples: &[&Tensor],
        path: impl AsRef<Path>,
        forward: impl Fn(&M, &[Tensor]) -> Result<Vec<Tensor>>,
    ) -> Result<()> {
        let copy = module.clone();
        copy.eval();
        self.write(&copy, examples, |inputs| forward(&copy, inputs), path.as_ref())
    }

    fn write(
        &self,
        module: &dyn Module,
        examples: &[&Tensor],
        forward: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>,
        path: &Path,
    ) -> Result<()> {
        let bytes = self.bytes(module, examples, forward)?;
        let failed = |error| fault(format!("{}: {error}", path.display()));
        write_atomically(path, |file| file.write_all(&bytes)).map_err(failed)
    }

    /// Returns the bytes of the file.
    fn bytes(
        &self,
        module: &dyn Module,
        examples: &[&Tensor],
        forward: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>,
    ) -> Result<Vec<u8>> {
        if examples.is_empty() {
            return Err(fault("a model needs at least one input"));
        }
        let mut named = HashMap::new();
        let mut add = |name: &str, tensor: &Tensor| {
            named.entry(Key::of(tensor)).or_insert_with(|| name.to_owned());
        };
        module.visit(&mut add);
        module.visit_buffers(&mut add);
        let traced = |inputs: Vec<Tensor>| traced(&inputs, &named, &forward);
        let (first, merged, shapes) = if self.fixed_batch {
            let own = no_grad(|| examples.iter().map(|x| x.copy()).collect::<Result<_>>())?;
            let only = traced(own)?;
            let fixed = |size: &usize| Extent { fixed: *size as i64, per_sample: 0 };
            let shapes = only.shapes.iter().map(|shape| shape.iter().map(fixed).collect()).collect();
            let merged = batch::fixed(&only.graph);
            (only, merged, shapes)
        } else {
            let [a, b, c] = SIZES.map(|size| traced(resized(examples, size)?));
            let (a, b, c) = (a?, b?, c?);
            let merged = batch::merged([&a.graph, &b.graph, &c.graph])?;
            let shapes = a.shapes.iter().zip(b.shapes.iter().zip(&c.shapes));
            let shapes = shapes.map(|(a, (b, c))| batch::extents("an input or an output", [a, b, c]));
            let shapes = shapes.collect::<Result<Vec<Vec<Extent>>>>()?;
            (a, merged, shapes)
        };
        let count = examples.len();
        let dtypes = examples.iter().map(|x| x.dtype()).chain(first.dtypes);
        let names = self.names(count, shapes.len() - count)?;
        let ports = names.into_iter().zip(dtypes).zip(shapes);
        let mut ports: Vec<Port> =
            ports.map(|((name, dtype), shape)| Port { name, kind: ElementType::natural(dtype), shape }).collect();
        let outputs = ports.split_off(count);
        let model = write::model(&first.graph, &merged, module.type_name(), &ports, &outputs)?;
        // Readers of protocol buffers refuse more.
        if model.encoded_len() > i32::MAX as usize {
            return Err(fault(format!(
                "the model has {} bytes, and a file of ONNX at most 2 GiB",
                model.encoded_len()
            )));
        }
        Ok(model.encode_to_vec())
    }

    /// Returns the names of inputs and outputs.
    fn names(&self, inputs: usize, outputs: usize) -> Result<Vec<String>> {
        let mut all = Vec::new();
        for (given, count, default) in [(&self.inputs, inputs, "input"), (&self.outputs, outputs, "output")] {
            match given.len() {
                0 if count == 1 => all.push(default.to_owned()),
                0 => all.extend((0..count).map(|i| format!("{default}_{i}"))),
                len if len == count => all.extend(given.iter().cloned()),
                len => return Err(fault(format!("{len} names for {count} {default}s"))),
            }
        }
        let twice = all.iter().enumerate().find(|(i, name)| name.is_empty() || all[..*i].contains(name));
        match twice {
            Some((_, name)) => Err(fault(format!("the name '{name}' is empty, or given twice"))),
            None => Ok(all),
        }
    }
}

/// The graph of one run of the forward function.
struct Traced {
    graph: Graph,
    /// The shapes of inputs and outputs.
    shapes: Vec<Vec<usize>>,
    /// The types of the outputs.
    dtypes: Vec<DType>,
}

fn traced(
    inputs: &[Tensor],
    named: &HashMap<Key, String>,
    forward: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<Traced> {
    let examples: Vec<&Tensor> = inputs.iter().collect();
    let refused = |error: Error| match &error {
        Error::InvalidArgument { op: "onnx", detail } => fault(format!("the module cannot be exported: {detail}")),
        _ => error,
    };
    let run = || no_grad(|| forward(inputs));
    let (outputs, steps) = trace("onnx", &examples, run).map_err(refused)?;
    if outputs.is_empty() {
        return Err(fault("the forward function returns no output"));
    }
    let graph = no_grad(|| translate::translate(&steps, inputs, &outputs, named))
        .map_err(|error| fault(format!("the module cannot be exported: {}", detail(&error))))?;
    let shapes = inputs.iter().chain(&outputs).map(|x| x.shape().to_vec()).collect();
    Ok(Traced { graph, shapes, dtypes: outputs.iter().map(Tensor::dtype).collect() })
}

/// Returns the examples with batches of this size: their samples, again and again.
fn resized(examples: &[&Tensor], size: usize) -> Result<Vec<Tensor>> {
    let one = |x: &&Tensor| match x.shape().first() {
        None | Some(0) => {
            let shape = x.shape();
            Err(fault(format!("an example of shape {shape:?} has no sample: its first dimension is the batch")))
        }
        Some(&samples) => no_grad(|| {
            let samples: Vec<Tensor> = (0..size).map(|i| x.narrow(0, i % samples, 1)).collect::<Result<_>>()?;
            Tensor::cat(&samples, 0)
        }),
    };
    examples.iter().map(one).collect()
}
