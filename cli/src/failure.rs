//! How a command fails, and with which exit status.

use std::io::Write;
use std::process::ExitCode;

/// Why a command stops.
#[derive(Debug)]
pub enum Failure {
    /// The command line asks for something that is not there: exit status 2.
    Usage(String),
    /// The work failed: exit status 1.
    Run(String),
    /// Whoever reads our standard output went away (`| head`). Nobody is left to be told.
    ClosedPipe,
}

impl Failure {
    /// Says what is wrong on standard error, and gives the exit status.
    pub fn report(self) -> ExitCode {
        match self {
            Failure::Usage(message) => {
                say(&format!("error: {message}\n\nFor more information, try '--help'."));
                ExitCode::from(2)
            }
            Failure::Run(message) => {
                say(&format!("error: {message}"));
                ExitCode::from(1)
            }
            // What a shell reports for a program that SIGPIPE ended, as it ends `cat`.
            Failure::ClosedPipe => ExitCode::from(141),
        }
    }
}

/// On standard error, if anybody reads it.
fn say(message: &str) {
    let _ = writeln!(std::io::stderr(), "{message}");
}

impl From<anygpu::Error> for Failure {
    fn from(error: anygpu::Error) -> Self {
        match error {
            anygpu::Error::UnknownDevice { .. } => Failure::Usage(error.to_string()),
            error if error.is_out_of_memory() => {
                Failure::Run(format!("{error}: use smaller batches or images, or fewer programs on that device"))
            }
            error => Failure::Run(error.to_string()),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Failure::ClosedPipe,
            _ => Failure::Run(format!("standard output: {error}")),
        }
    }
}
