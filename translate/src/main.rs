//! `translate-kernels`: hands the kernels of the crate to compilers that it does not link, which browsers and
//! DirectX have. `scripts/other-compilers.sh` fetches these compilers and runs all of it:
//!
//! ```sh
//! translate-kernels FOLDER              # writes all kernels in WGSL and HLSL, and kernels.json, which lists them
//! node translate/tint.mjs FOLDER        # compiles the WGSL as Chrome does
//! python3 translate/dxc.py LIB FOLDER   # compiles the HLSL as DirectX 12 does, some of it to SPIR-V too
//! translate-kernels --compare FOLDER    # runs those from both texts, and compares the numbers
//! ```
//!
//! Exit status: 0 if all is well, 1 if not, 2 for a wrong command line.

mod cases;
mod compare;
mod texts;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--compare", folder] => compare::compare(Path::new(folder)),
        [folder] if !folder.starts_with('-') => write(Path::new(folder)),
        _ => {
            eprintln!("usage: translate-kernels FOLDER | --compare FOLDER");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(good) => ExitCode::from(u8::from(!good)),
        Err(error) => {
            eprintln!("translate-kernels: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write(folder: &Path) -> Result<bool, Box<dyn Error>> {
    println!("{} kernels in {}", texts::write(folder)?, folder.display());
    Ok(true)
}
