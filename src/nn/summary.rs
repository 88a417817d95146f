//! Tables of the layers of a net, made from a record of the calls of its layers.

use std::collections::HashMap;
use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex};

use super::{Module, layers};
use crate::context::slot;
use crate::device::Device;
use crate::error::Result;
use crate::tensor::Tensor;
use crate::util::sync::lock;
use crate::util::units::bytes;

/// A layer's address and type name. The type is needed because a struct has the same address as its first field.
type Key = (usize, &'static str);

fn key(module: &dyn Module) -> Key {
    (std::ptr::from_ref(module).cast::<()>() as usize, module.type_name())
}

/// The output of one call of a layer.
#[derive(Debug)]
struct LayerCall {
    layer: Key,
    shape: Vec<usize>,
    bytes: usize,
}

slot! {
    /// The record of the calls of layers, while a summary is made.
    CALLS: Option<Arc<Mutex<Vec<LayerCall>>>> = None
}

/// Returns the output of a layer of this crate. An error gets the layer's name instead of the op's; see [`recorded`].
pub(super) fn seen<M: Module>(layer: &M, output: Result<Tensor>) -> Result<Tensor> {
    recorded(layer, output).map_err(|error| error.of_layer(layer.type_name()))
}

/// Returns whether a summary is made on this thread, which needs the output of each layer.
pub(super) fn is_recording() -> bool {
    CALLS.with(Option::is_some)
}

/// Returns a layer's output unchanged. While a summary is made on this thread, the call is recorded.
pub(super) fn recorded<M: Module>(layer: &M, output: Result<Tensor>) -> Result<Tensor> {
    if let Ok(output) = &output {
        note(key(layer), output);
    }
    output
}

fn note(layer: Key, output: &Tensor) {
    CALLS.with(|calls| {
        if let Some(calls) = calls {
            let bytes = output.elem_count() * output.dtype().size();
            lock(calls).push(LayerCall { layer, shape: output.shape().to_vec(), bytes });
        }
    });
}

/// The layers of a net with the output shape of each for one input: see [`Module::summary`].
///
/// `Display` prints a table.
///
/// Output shapes are recorded for the layers of this crate and for layers in a [`Sequential`](super::Sequential) or a
/// `Box<dyn Module>`. A user-defined module that is a field of another has no recorded output, but the layers in it do.
/// Parameters are counted for the layer that holds them.
///
/// ```
/// use anygpu::nn::{self, Module};
///
/// let summary = nn::models::lenet()?.summary(&[1, 1, 28, 28])?;
/// println!("{summary}");
/// assert_eq!(summary.layers()[1].output.as_deref(), Some(&[1, 20, 26, 26][..]));
/// assert_eq!((summary.parameters, summary.trainable, summary.parameter_bytes), (129_068, 129_068, 516_272));
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Summary {
    layers: Vec<LayerSummary>,
    /// The number of elements in all parameters.
    pub parameters: usize,
    /// The number of elements in the parameters that are not frozen.
    pub trainable: usize,
    /// The size of all parameters in bytes.
    pub parameter_bytes: usize,
    /// The size of all buffers, such as running statistics, in bytes.
    pub buffer_bytes: usize,
    /// The size of the input in bytes.
    pub input_bytes: usize,
    /// The size of the outputs of all innermost layers in bytes. In training, most of them are kept for the backward
    /// pass.
    pub output_bytes: usize,
}

/// A row of a [`Summary`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LayerSummary {
    /// The dotted name; empty for the net itself.
    pub name: String,
    /// The type's name without its path.
    pub kind: &'static str,
    /// The nesting depth; 0 for the net itself.
    pub depth: usize,
    /// The shape of its last output, if a call was recorded.
    pub output: Option<Vec<usize>>,
    /// The number of elements in its own parameters, without the parameters of layers within it.
    pub parameters: usize,
}

impl Summary {
    pub(super) fn new(module: &dyn Module, shape: &[usize]) -> Result<Summary> {
        let device = module.parameters().first().map_or_else(Device::cpu, |parameter| parameter.device().clone());
        Summary::of(module, &Tensor::zeros(shape, &device)?)
    }

    /// Makes a summary like [`Module::summary`], for an input of any type, such as token ids.
    ///
    /// # Errors
    /// The errors of [`Module::forward`].
    pub fn of(module: &dyn Module, input: &Tensor) -> Result<Summary> {
        let copy = module.clone_box(); // the clone has its own mode, so the module's is unchanged
        let copy = layers::inner(&*copy);
        copy.eval();
        let calls = Arc::new(Mutex::new(Vec::new()));
        let output = {
            let _calls = CALLS.set(Some(calls.clone()));
            crate::no_grad(|| copy.forward(input))
        };
        let mut rows = rows(copy);
        rows[0].0.output = Some(output?.shape().to_vec());
        let output_bytes = assign(&lock(&calls), &mut rows);

        let bytes = |tensors: &[Tensor]| tensors.iter().map(|t| t.elem_count() * t.dtype().size()).sum();
        let (parameters, buffers) = (copy.parameters(), copy.named_buffers());
        let buffers: Vec<Tensor> = buffers.into_iter().map(|(_, buffer)| buffer).collect();
        let trainable = parameters.iter().filter(|p| p.is_tracked());
        Ok(Summary {
            layers: rows.into_iter().map(|(row, ..)| row).collect(),
            parameters: copy.num_parameters(),
            trainable: trainable.map(Tensor::elem_count).sum(),
            parameter_bytes: bytes(&parameters),
            buffer_bytes: bytes(&buffers),
            input_bytes: bytes(std::slice::from_ref(input)),
            output_bytes,
        })
    }

    /// Returns the layers: first the net itself, then the layers within it, each before those within it.
    #[must_use]
    pub fn layers(&self) -> &[LayerSummary] {
        &self.layers
    }
}

/// Returns a row without an output for each layer, with the key that identifies its calls and whether it is innermost.
fn rows(module: &dyn Module) -> Vec<(LayerSummary, Key, bool)> {
    let mut counted = HashSet::new();
    let row = |(name, module): (String, &dyn Module)| {
        let mut children = Vec::new();
        module.visit_children(&mut |name, _| children.push(format!("{name}.")));
        let mut parameters = 0;
        module.visit(&mut |name, parameter| {
            if !children.iter().any(|child| name.starts_with(child)) && counted.insert(parameter.id()) {
                parameters += parameter.elem_count();
            }
        });
        let depth = if name.is_empty() { 0 } else { 1 + name.matches('.').count() };
        let layer = LayerSummary { name, kind: module.type_name(), depth, output: None, parameters };
        (layer, key(module), children.is_empty())
    };
    layers::slots(module).into_iter().map(row).collect()
}

/// Sets the output of each row to the output of its last call. Returns the size in bytes of the outputs of all calls of
/// innermost layers. Layers without fields may share an address; their calls are assigned to them in turn.
fn assign(calls: &[LayerCall], rows: &mut [(LayerSummary, Key, bool)]) -> usize {
    let mut places: HashMap<Key, Vec<usize>> = HashMap::new();
    rows.iter().enumerate().skip(1).for_each(|(i, row)| places.entry(row.1).or_default().push(i));
    let mut bytes = 0;
    for call in calls {
        let Some(place) = places.get_mut(&call.layer) else { continue };
        let (layer, _, innermost) = &mut rows[place[0]];
        layer.output = Some(call.shape.clone());
        bytes += if *innermost { call.bytes } else { 0 };
        place.rotate_left(1);
    }
    bytes
}

/// Formats a number in groups of three digits: `1 234 567`.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().map(|g| str::from_utf8(g).unwrap_or("")).collect();
    groups.join(" ")
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = vec![["layer".to_string(), "output".to_string(), "parameters".to_string()]];
        table.extend(self.layers.iter().map(|layer| {
            let own = layer.name.rsplit('.').next().unwrap_or_default();
            let space = if own.is_empty() { "" } else { " " };
            let parameters = if layer.parameters == 0 { String::new() } else { grouped(layer.parameters) };
            let output = layer.output.as_ref().map(|shape| format!("{shape:?}")).unwrap_or_default();
            [format!("{}{own}{space}({})", "  ".repeat(layer.depth), layer.kind), output, parameters]
        }));
        let width = |i: usize| table.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
        let widths = [width(0), width(1), width(2)];
        for [layer, output, parameters] in &table {
            let [first, second, third] = widths;
            let row = format!("{layer:first$}  {output:second$}  {parameters:>third$}");
            writeln!(f, "{}", row.trim_end())?;
        }
        let frozen = self.parameters - self.trainable;
        writeln!(
            f,
            "{} parameters ({} frozen), {}",
            grouped(self.parameters),
            grouped(frozen),
            bytes(self.parameter_bytes as u64)
        )?;
        let [buffers, input, outputs] =
            [self.buffer_bytes, self.input_bytes, self.output_bytes].map(|count| bytes(count as u64));
        write!(f, "buffers {buffers}, input {input}, outputs of the innermost layers {outputs}")
    }
}
