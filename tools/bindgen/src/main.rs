//! `anygpu-bindgen IN.wasm FOLDER NAME`: writes the JavaScript beside a module of wasm-bindgen, as `wasm-bindgen --target web --out-name NAME
//! --out-dir FOLDER IN.wasm` does. That program has to be of the same version as the library, which is easy to get wrong; this one is.

use std::process::ExitCode;

use wasm_bindgen_cli_support::Bindgen;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [input, folder, name] = &arguments[..] else {
        eprintln!("usage: anygpu-bindgen IN.wasm FOLDER NAME");
        return ExitCode::from(2);
    };
    let mut bindgen = Bindgen::new();
    let generated =
        bindgen.input_path(input).out_name(name).typescript(false).web(true).and_then(|web| web.generate(folder));
    match generated {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("anygpu-bindgen: {error:#}");
            ExitCode::FAILURE
        }
    }
}
