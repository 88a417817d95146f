//! What `run.mjs` calls in a page: each function returns what was seen, and throws the error that it met.
#![cfg(target_arch = "wasm32")]
#![allow(missing_docs, reason = "a test")]

use anygpu::Device;
use anygpu::check::{Options, Table};
use wasm_bindgen::prelude::*;

type Result<T> = std::result::Result<T, JsError>;

#[wasm_bindgen(start)]
fn start() {
    console_error_panic_hook::set_once();
    let _ = console_log::init_with_level(log::Level::Warn);
}

/// Returns the names of the devices, each with its kind and adapter.
#[wasm_bindgen]
pub async fn devices() -> Vec<String> {
    let devices = anygpu::init().await;
    devices.iter().map(|device| format!("{device} {} {}", device.info().kind, device.info().adapter)).collect()
}

/// Runs the quick op table on a device, and returns the report.
#[wasm_bindgen]
pub async fn op_table(device: &str, family: Option<String>) -> Result<String> {
    let device = Device::new_async(device).await?;
    let table = Table::new(&Options { quick: true, family, ..Options::default() });
    let report = table.run_async(&device).await?;
    let failures: Vec<String> =
        report.ops.iter().flat_map(|op| &op.failures).map(|failure| failure.to_string()).collect();
    let cases: usize = report.ops.iter().map(|op| op.cases).sum();
    Ok(format!(
        "{cases} cases, {} failed, quarantined {:?}\n{}",
        failures.len(),
        report.quarantined,
        failures.join("\n")
    ))
}
