//! The command line.

use std::path::PathBuf;
use std::time::Duration;

/// What `--help` prints.
pub const USAGE: &str = "\
Usage: anygpu-desktop [OPTIONS]

A window with three panels: a drawn digit that is classified, a picture filter, and a training run.

  --classify DEVICE          classify on this device: cpu, gpu:0, soft:1, ...
  --train DEVICE[,DEVICE]    start training at once, on one device or on several
  --draw DIGIT               begin with a digit of the test set, 0 to 9, as if it had been drawn
  --seconds N                close after N seconds and print one line: frames, frames per second, devices
  --screenshot FILE.png      save a picture of the window before it closes; needs --seconds
  --help                     print this text
";

/// The arguments.
#[derive(Debug, Default)]
pub struct Options {
    /// The name of the device that classifies.
    pub classify: Option<String>,
    /// The names of the devices that train at once, separated by commas.
    pub train: Option<String>,
    /// The digit that is shown at first.
    pub draw: Option<u8>,
    /// The time after which the window closes.
    pub seconds: Option<Duration>,
    /// The file of the screenshot.
    pub screenshot: Option<PathBuf>,
}

/// Returns the options, or `None` if help is asked for.
///
/// # Errors
///
/// A message for an argument that is unknown or has no proper value.
pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let mut options = Options::default();
    while let Some(name) = arguments.next() {
        if name == "--help" || name == "-h" {
            return Ok(None);
        }
        let mut value = || arguments.next().ok_or_else(|| format!("{name} needs a value"));
        match name.as_str() {
            "--classify" => options.classify = Some(value()?),
            "--train" => options.train = Some(value()?),
            "--draw" => options.draw = Some(digit(&value()?)?),
            "--seconds" => options.seconds = Some(seconds(&value()?)?),
            "--screenshot" => options.screenshot = Some(value()?.into()),
            _ => return Err(format!("unknown argument '{name}'")),
        }
    }
    if options.screenshot.is_some() && options.seconds.is_none() {
        return Err("--screenshot needs --seconds: the picture is taken when the time is over".into());
    }
    Ok(Some(options))
}

fn digit(text: &str) -> Result<u8, String> {
    text.parse().ok().filter(|digit| *digit <= 9).ok_or_else(|| format!("--draw takes 0 to 9, not '{text}'"))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.filter(|time| !time.is_zero()).ok_or_else(|| format!("--seconds takes a positive number, not '{text}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Option<Options>, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn arguments_are_read() {
        let options = parsed("--train cpu,soft:0 --draw 7 --seconds 2.5 --screenshot a.png").unwrap().unwrap();
        assert_eq!((options.train.as_deref(), options.draw), (Some("cpu,soft:0"), Some(7)));
        assert_eq!(options.seconds, Some(Duration::from_millis(2500)));
        assert!(parsed("--help --nonsense").unwrap().is_none());
    }

    #[test]
    fn mistakes_are_messages() {
        for line in ["--nonsense", "--draw", "--draw 10", "--seconds -1", "--seconds 1e99", "--screenshot a.png"] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }
}
