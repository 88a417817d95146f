//! Training in the page. Between two steps the worker takes its messages, so a drawing is classified meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;

use anygpu::data::ImageSet;
use anygpu::{Device, Tensor};
use js_sys::{Function, Promise};
use serde_json::{Value, json};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_time::Instant;

use crate::recipe::{self, Trainer};
use crate::state::{DIGITS, RUN, TRAINED, with};
use crate::{Result, since};

/// The milliseconds from one read of losses to the next, about. Each read waits for the device.
const READ: f64 = 100.0;

/// Losses that are read together at most.
const TOGETHER: usize = 16;

/// The milliseconds over which the rate is measured.
const RATE: f64 = 3000.0;

/// The images of a batch when the accuracy is measured.
const TEST_BATCH: usize = 250;

/// Takes the digits: the four files of MNIST.
#[wasm_bindgen]
pub fn load_digits(images: &[u8], labels: &[u8], test_images: &[u8], test_labels: &[u8]) -> Result<()> {
    let train = ImageSet::parse(("images", images), ("labels", labels))?;
    let test = ImageSet::parse(("test images", test_images), ("test labels", test_labels))?;
    DIGITS.set(Some([Arc::new(train), Arc::new(test)]));
    Ok(())
}

/// Ends the run that goes on, after its step.
#[wasm_bindgen]
pub fn stop() {
    RUN.set(RUN.get() + 1);
}

/// Trains until the last epoch or until it is stopped. `report` is given JSON. `pause` returns a promise that
/// resolves when the worker has taken its messages. Returns whether the run was completed.
#[wasm_bindgen]
pub async fn train(device: String, report: Function, pause: Function) -> Result<bool> {
    stop();
    let run = RUN.get();
    let device = Device::new(&device)?;
    let digits = with(&DIGITS, |digits| digits.clone());
    let [train, test] = digits.ok_or_else(|| JsError::new("the digits are not loaded yet"))?;
    let report = |value: Value| drop(report.call1(&JsValue::NULL, &value.to_string().into()));
    let mut trainer = Trainer::new(&device)?;
    TRAINED.set(Some((trainer.net.clone(), device.clone())));
    let loader = recipe::loader(train, recipe::BATCH, true)?;
    report(json!({"batches": loader.batches(), "epochs": recipe::EPOCHS, "batch": recipe::BATCH}));

    let mut step = 0;
    let mut losses: Vec<Tensor> = Vec::new();
    let begin = Instant::now();
    let (mut together, mut last) = (1, 0.0);
    // Times and images that were done by then.
    let mut done = VecDeque::from([(last, 0)]);
    let mut images_done = 0;
    for epoch in 0..recipe::EPOCHS {
        let batches = loader.batches();
        for (i, batch) in loader.epoch(epoch).enumerate() {
            let (images, labels) = batch?;
            losses.push(trainer.step(&images, &labels)?);
            step += 1;
            images_done += labels.elem_count();
            let stopped = RUN.get() != run;
            if losses.len() >= together || i + 1 == batches || stopped {
                let read = read(&std::mem::take(&mut losses)).await?;
                let now = since(begin);
                match now - last {
                    short if short < READ / 2.0 => together = (2 * together).min(TOGETHER),
                    long if long > 2.0 * READ => together = (together / 2).max(1),
                    _ => {}
                }
                last = now;
                done.push_back((now, images_done));
                while done.len() > 2 && now - done[0].0 > RATE {
                    done.pop_front();
                }
                let (begin, before) = done[0];
                let rate = (images_done - before) as f64 / (now - begin).max(1.0) * 1e3;
                report(json!({"step": step, "losses": read, "rate": rate}));
            }
            if stopped {
                return Ok(false);
            }
            turn(&pause).await?;
            if RUN.get() != run && losses.is_empty() {
                return Ok(false);
            }
        }
        let measured = Instant::now();
        let mut right = Vec::new();
        for batch in &recipe::loader(test.clone(), TEST_BATCH, false)? {
            let (images, labels) = batch?;
            right.push(recipe::correct(&trainer.net, &device, &images, &labels)?);
            turn(&pause).await?;
        }
        let right: f32 = read(&right).await?.iter().sum();
        report(json!({"epoch": epoch + 1, "step": step, "accuracy": f64::from(right) / test.n as f64}));
        // The rate is the rate of the steps.
        let spent = since(measured);
        done.iter_mut().for_each(|(time, _)| *time += spent);
        last += spent;
    }
    Ok(true)
}

/// Reads scalars of one device together.
async fn read(scalars: &[Tensor]) -> Result<Vec<f32>> {
    Ok(Tensor::stack(scalars, 0)?.to_vec_async::<f32>().await?)
}

/// Lets the worker take its messages.
async fn turn(pause: &Function) -> Result<()> {
    let failed = |error: JsValue| JsError::new(&format!("{error:?}"));
    let promise = pause.call0(&JsValue::NULL).map_err(failed)?;
    JsFuture::from(Promise::from(promise)).await.map_err(failed)?;
    Ok(())
}
