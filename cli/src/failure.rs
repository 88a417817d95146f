//! The failures of commands, and their exit statuses.

use std::io::Write;
use std::process::ExitCode;

/// Why a command stops.
#[derive(Debug)]
pub enum Failure {
    /// The command line is wrong: exit status 2.
    Usage(String),
    /// The work failed: exit status 1.
    Run(String),
    /// A device is lost: exit status 1, unless the command can go on.
    DeviceLost(String),
    /// Ctrl-C or another signal ended the work: the message, and the exit status.
    Stopped(String, u8),
    /// As `Stopped`, where another process prints the message.
    Quiet(u8),
    /// The reader of standard output has closed the pipe (`| head`). Nothing is printed.
    ClosedPipe,
}

impl Failure {
    /// Prints the error on standard error, and returns the exit status.
    pub fn report(self) -> ExitCode {
        let (message, status) = self.message();
        match self {
            Failure::Usage(_) => print(&format!("error: {message}\n\nFor more information, try '--help'.")),
            Failure::Run(_) | Failure::DeviceLost(_) => print(&format!("error: {message}")),
            Failure::Stopped(..) => print(&message),
            Failure::Quiet(_) | Failure::ClosedPipe => {}
        }
        ExitCode::from(status)
    }

    /// Returns what is wrong, and the exit status.
    pub fn message(&self) -> (String, u8) {
        match self {
            Failure::Usage(message) => (message.clone(), 2),
            Failure::Run(message) | Failure::DeviceLost(message) => (message.clone(), 1),
            Failure::Stopped(message, status) => (message.clone(), *status),
            Failure::Quiet(status) => (String::new(), *status),
            // The status that a shell reports for a program that SIGPIPE ended.
            Failure::ClosedPipe => ("standard output is closed".to_string(), 141),
        }
    }
}

/// Prints on standard error, and ignores a closed one.
fn print(message: &str) {
    let _ = writeln!(std::io::stderr(), "{message}");
}

impl From<anygpu::Error> for Failure {
    fn from(error: anygpu::Error) -> Self {
        match error {
            anygpu::Error::UnknownDevice { .. } => Failure::Usage(error.to_string()),
            error if error.is_device_lost() => Failure::DeviceLost(error.to_string()),
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
