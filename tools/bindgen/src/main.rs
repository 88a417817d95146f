//! `anygpu-bindgen IN.wasm FOLDER NAME [small]`: writes the JavaScript for a module, as the program `wasm-bindgen`
//! does with `--target web --out-name NAME --out-dir FOLDER IN.wasm`. That program must have the same version as
//! the library, and this one has it. `small` leaves out the names of functions.

use std::process::ExitCode;

use wasm_bindgen_cli_support::Bindgen;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (input, folder, name, small) = match &arguments[..] {
        [input, folder, name] => (input, folder, name, false),
        [input, folder, name, small] if small == "small" => (input, folder, name, true),
        _ => {
            eprintln!("usage: anygpu-bindgen IN.wasm FOLDER NAME [small]");
            return ExitCode::from(2);
        }
    };
    let mut bindgen = Bindgen::new();
    bindgen
        .input_path(input)
        .out_name(name)
        .typescript(false)
        .omit_default_module_path(false)
        .remove_name_section(small)
        .remove_producers_section(small);
    match bindgen.web(true).and_then(|web| web.generate(folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("anygpu-bindgen: {error:#}");
            ExitCode::FAILURE
        }
    }
}
