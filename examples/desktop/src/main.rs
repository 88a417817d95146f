//! A window with a drawing that is classified, a picture filter and a training run: how a program with a user interface
//! uses anygpu without waiting for a device. See README.md beside the manifest.

mod app;
mod canvas;
mod classify;
mod curve;
mod devices;
mod filter;
mod frames;
mod options;
mod training;

use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use anygpu::Device;
use eframe::{NativeOptions, egui};

use app::{App, Outcome, Start};

fn main() -> ExitCode {
    let options = match options::parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            print!("{}", options::USAGE);
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            eprintln!("{message}\n\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    match run(options) {
        Ok(Some(report)) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Ok(None) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("anygpu-desktop: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Shows the window until it is closed. Returns the line that is printed then, if there is one.
fn run(options: options::Options) -> Result<Option<String>, String> {
    let start = Start {
        classify: options.classify.as_deref().map(Device::new).transpose().map_err(|error| error.to_string())?,
        train: options.train.as_deref().map(Device::list).transpose().map_err(|error| error.to_string())?,
        options,
    };
    let mut native = NativeOptions {
        viewport: egui::ViewportBuilder::default().with_title("anygpu").with_inner_size(app::SIZE),
        // Software adapters take long for it.
        dithering: false,
        ..NativeOptions::default()
    };
    native.wgpu_options.wgpu_setup = devices::setup().into();
    let outcome: Outcome = Arc::new(OnceLock::new());
    let shared = outcome.clone();
    let create: eframe::AppCreator = Box::new(|creation| Ok(Box::new(App::new(creation, start, shared)?)));
    eframe::run_native("anygpu", native, create).map_err(|error| format!("cannot show a window: {error}"))?;
    outcome.get().cloned().transpose()
}
