//! Generates tokens with a decoder of a language model, one at a time. Its outputs of past keys and values are its
//! inputs of the next step.
//!
//! Inputs and outputs are named as by Hugging Face Optimum and ONNX Runtime's model builder: `input_ids`,
//! `attention_mask`, `position_ids`, `past_key_values.N.key` and `past_key_values.N.value`, and the outputs
//! `logits`, `present.N.key` and `present.N.value`.

use std::time::Instant;

use anygpu::onnx::{Dimension, Model, ValueInfo};
use anygpu::{Device, Tensor, no_grad};
use serde_json::json;

use super::inputs::{Input, LIST, numbers, of_numbers};
use super::measure::{self, quantile};
use crate::failure::Failure;
use crate::output;

/// The name of the prompt.
pub const IDS: &str = "input_ids";
const MASK: &str = "attention_mask";
const PLACES: &str = "position_ids";
const PAST: &str = "past_key_values.";
const PRESENT: &str = "present.";
const LOGITS: &str = "logits";

/// A decoder on its device.
pub struct Decoder {
    model: Model,
    device: Device,
    /// The tokens that the text begins with.
    prompt: Vec<i64>,
    /// Inputs that `--input` gives besides the prompt, the same in each step.
    others: Vec<Input>,
    /// The bytes of all tensors on the device before the first step.
    held: u64,
}

/// What a decoder has computed so far.
struct State {
    /// The caches of keys and values, by the names of the inputs.
    caches: Vec<(String, Tensor)>,
    /// The tokens that are in the caches.
    length: usize,
}

/// Tokens, and the seconds of each.
struct Generated {
    tokens: Vec<i64>,
    /// The prompt comes first, and gives the first token.
    seconds: Vec<f64>,
    state: State,
}

/// Returns whether a step makes this input itself.
pub fn makes(info: &ValueInfo) -> bool {
    matches!(info.name.as_str(), MASK | PLACES) || info.name.starts_with(PAST)
}

/// Fails for a model that is not a decoder.
///
/// # Errors
/// [`Failure::Usage`] with what is missing.
pub fn check(model: &Model) -> Result<(), Failure> {
    let needs = |what: &str, name: &str, infos: &[ValueInfo]| {
        if infos.iter().any(|info| info.name == name) {
            return Ok(());
        }
        let all: Vec<String> = infos.iter().map(|info| format!("\n  {info}")).collect();
        Err(Failure::Usage(format!(
            "--generate: the model has no {what} '{name}', which decoders written by Optimum or ONNX Runtime's model builder have; it \
             has{}",
            all.concat()
        )))
    };
    needs("input", IDS, model.inputs())?;
    needs("output", LOGITS, model.outputs())?;
    for info in model.inputs().iter().filter(|info| info.name.starts_with(PAST)) {
        needs("output", &present(&info.name), model.outputs())?;
        cache_shape(info)?;
    }
    Ok(())
}

/// Returns the name of the output that continues an input.
fn present(past: &str) -> String {
    past.replacen(PAST, PRESENT, 1)
}

/// Returns the shape of a cache without tokens, `[1, heads, 0, width]`.
fn cache_shape(info: &ValueInfo) -> Result<[usize; 4], Failure> {
    match info.shape.as_deref() {
        Some(&[_, Dimension::Size(heads), _, Dimension::Size(width)]) if info.element_type.dtype().is_float() => {
            Ok([1, heads, 0, width])
        }
        _ => Err(Failure::Usage(format!(
            "--generate: the input {info} is not a cache of the shape [batch, heads, length, width] with fixed sizes of heads and width"
        ))),
    }
}

impl Decoder {
    /// Takes a model on its device and what `--input` gives.
    ///
    /// # Errors
    /// [`Failure::Usage`] unless the prompt is one sequence of tokens.
    pub fn new(model: Model, mut others: Vec<Input>, device: Device) -> Result<Decoder, Failure> {
        let at = others.iter().position(|input| input.name == IDS);
        let at = at.ok_or_else(|| Failure::Usage(format!("--generate: give the prompt: --input {IDS}=[1,2,3]")))?;
        let ids = others.swap_remove(at).tensor;
        if !matches!(ids.shape(), [1, length] if *length > 0) {
            let shape = ids.shape();
            return Err(Failure::Usage(format!(
                "--generate: the prompt {IDS} has the shape {shape:?}, and [1, tokens] is expected"
            )));
        }
        let prompt = numbers(&ids)?.into_iter().map(|id| id as i64).collect();
        device.synchronize()?;
        let held = device.memory().live;
        Ok(Decoder { model, device, prompt, others, held })
    }

    /// Returns the state before the first token.
    fn begin(&self) -> Result<State, Failure> {
        let past = self.model.inputs().iter().filter(|info| info.name.starts_with(PAST));
        let empty = |info: &ValueInfo| {
            let cache = Tensor::zeros(cache_shape(info)?, &self.device)?.to_dtype(info.element_type.dtype())?;
            Ok::<_, Failure>((info.name.clone(), cache))
        };
        Ok(State { caches: past.map(empty).collect::<Result<_, _>>()?, length: 0 })
    }

    /// Runs the model once, and returns the most likely token after these.
    fn step(&self, ids: &[i64], state: &mut State) -> Result<i64, Failure> {
        let total = state.length + ids.len();
        let mut made = Vec::new();
        for info in self.model.inputs() {
            let values: Vec<f64> = match info.name.as_str() {
                IDS => ids.iter().map(|id| *id as f64).collect(),
                MASK => vec![1.0; total],
                PLACES => (state.length..total).map(|place| place as f64).collect(),
                _ => continue,
            };
            made.push((info.name.as_str(), of_numbers(info, &values, vec![1, values.len()], LIST)?));
        }
        let caches = std::mem::take(&mut state.caches);
        let given = self.others.iter().map(|input| (input.name.as_str(), &input.tensor));
        let past = caches.iter().map(|(name, cache)| (name.as_str(), cache));
        let inputs: Vec<_> = made.iter().map(|(name, tensor)| (*name, tensor)).chain(given).chain(past).collect();
        let outputs = no_grad(|| self.model.run(&inputs))?;
        let output = |name: &str| {
            outputs.get(name).ok_or_else(|| Failure::Run(format!("--generate: the model gave no output '{name}'")))
        };
        let logits = output(LOGITS)?;
        let Some(&[1, rows, _]) = Some(logits.shape()).filter(|shape| !shape.contains(&0)) else {
            let shape = logits.shape();
            return Err(Failure::Run(format!(
                "--generate: '{LOGITS}' has the shape {shape:?}, and [1, tokens, scores] is expected"
            )));
        };
        let token = no_grad(|| logits.narrow(1, rows - 1, 1)?.argmax(-1))?;
        state.caches = caches
            .iter()
            .map(|(name, _)| Ok((name.clone(), output(&present(name))?.clone())))
            .collect::<Result<_, Failure>>()?;
        state.length = total;
        Ok(numbers(&token)?[0] as i64)
    }

    /// Generates tokens: the most likely one each.
    fn generate(&self, count: usize) -> Result<Generated, Failure> {
        let mut state = self.begin()?;
        let (mut tokens, mut seconds) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for _ in 0..count {
            let start = Instant::now();
            let token = match tokens.last() {
                None => self.step(&self.prompt, &mut state)?,
                Some(last) => self.step(&[*last], &mut state)?,
            };
            seconds.push(start.elapsed().as_secs_f64());
            tokens.push(token);
        }
        Ok(Generated { tokens, seconds, state })
    }

    /// Generates `count` tokens, and prints them with the times and the memory. `bench`: generates them this many
    /// times more, and prints the times of these runs instead. `profile`: prints where the time of one more token
    /// goes.
    ///
    /// # Errors
    /// [`Failure::Run`] for outputs that do not fit; the errors of the model and of the device.
    pub fn run(&self, count: usize, bench: Option<usize>, profile: bool, as_json: bool) -> Result<(), Failure> {
        self.device.reset_peak_memory();
        let Generated { tokens, mut seconds, mut state } = self.generate(count)?;
        let mut prompts = vec![seconds.remove(0)];
        if let Some(runs) = bench {
            prompts.clear();
            seconds.clear();
            for _ in 0..runs {
                let times = self.generate(count)?.seconds;
                prompts.push(times[0]);
                seconds.extend(&times[1..]);
            }
        }
        prompts.sort_by(f64::total_cmp);
        seconds.sort_by(f64::total_cmp);
        let prompt = quantile(&prompts, 0.5);
        let rate = (!seconds.is_empty()).then(|| 1.0 / quantile(&seconds, 0.5).max(1e-9));
        let peak = self.device.memory().peak;
        if as_json {
            output::json(&json!({ "generate": {
                "device": self.device.name(), "tokens": tokens, "prompt_tokens": self.prompt.len(), "prompt_seconds": prompt,
                "tokens_per_second": rate, "weights_bytes": self.held, "peak_bytes": peak,
            }}))?;
        } else {
            let list: Vec<String> = tokens.iter().map(i64::to_string).collect();
            let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
            let rate = rate.map_or(String::new(), |rate| format!("; then {rate:.2} tokens/s"));
            output::line(format!("tokens: {}", list.join(" ")))?;
            output::line(format!(
                "{}: prompt of {} tokens in {:.3} s{rate}; weights {}, tensors at most {}",
                self.device,
                self.prompt.len(),
                prompt,
                mib(self.held),
                mib(peak),
            ))?;
        }
        match tokens.last() {
            Some(last) if profile => {
                measure::profile_of(&self.device, || self.step(&[*last], &mut state).map(|_| ()), as_json)
            }
            _ => Ok(()),
        }
    }
}
