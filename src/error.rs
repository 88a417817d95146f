//! The crate's error type.
//!
//! There is one type for the whole crate, because a training step uses every module (data, tensors, several
//! devices). Its caller can only report most errors: the operation, the cause and the remedy. Errors to which a
//! program can react have their own variants.

use std::fmt;

mod device_name_hint;

use device_name_hint::hint;

/// The result of every fallible function of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate.
///
/// The message states the operation, the cause and, if there is one, the remedy.
///
/// `Debug` prints the message too, so that `unwrap`, and a `main` that returns an error, end with a readable text.
/// If an error has a cause, its message contains the message of the cause. So [`source`](std::error::Error::source)
/// is always `None`: programs that print the chain of sources (`{:#}` of `anyhow`) print each message once.
///
/// ```
/// use anygpu::{Error, Tensor};
///
/// let error = Tensor::zeros([2, 3], None)?.matmul(&Tensor::zeros([2, 3], None)?).unwrap_err();
/// assert_eq!(format!("{error:?}"), error.to_string());
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An op was called with tensors on different devices. Move one with [`Tensor::to`](crate::Tensor::to).
    #[error(
        "Expected all tensors to be on the same device, but found at least two devices, {left} and {right}! ({op}: move one with .to(&device))"
    )]
    DeviceMismatch {
        /// The op that was called.
        op: &'static str,
        /// The first tensor's device.
        left: String,
        /// The device of the first tensor that differs.
        right: String,
    },
    /// Two shapes are incompatible in an op.
    #[error("shape mismatch in {op}: {left:?} and {right:?}: {detail}")]
    ShapeMismatch {
        /// The op that was called.
        op: &'static str,
        /// The first shape.
        left: Vec<usize>,
        /// The second shape.
        right: Vec<usize>,
        /// The rule that is violated.
        detail: String,
    },
    /// An argument of an op (a dimension, a range, a kernel size, …) does not fit the tensor.
    #[error("{op}: {detail}")]
    InvalidArgument {
        /// The op that was called.
        op: &'static str,
        /// What is wrong with which argument.
        detail: String,
    },
    /// A tensor has an element type that the op does not accept.
    #[error("{op}: expected a tensor of {expected}, got {got}{}", conversion(expected))]
    DTypeMismatch {
        /// The op that was called.
        op: &'static str,
        /// The accepted type.
        expected: String,
        /// The type of the argument.
        got: String,
    },
    /// This machine has no device of that name.
    #[error("unknown device '{name}': this machine has {}{}", available.join(", "), hint(name, available))]
    UnknownDevice {
        /// The requested name.
        name: String,
        /// All names of this machine.
        available: Vec<String>,
    },
    /// The adapter exists, but could not be opened.
    #[error("cannot open device {device}: {reason}")]
    DeviceUnavailable {
        /// The device's name.
        device: String,
        /// The message of the driver.
        reason: String,
    },
    /// The device is lost (a driver reset, an unplugged card, a suspended laptop). Every later call on it returns this
    /// error.
    #[error("device {device} is lost: {reason}")]
    DeviceLost {
        /// The device's name.
        device: String,
        /// The message of the driver.
        reason: String,
    },
    /// The device has no memory left, even after all cached buffers were released.
    #[error(
        "out of memory on {device}: {requested} bytes requested, {in_use} bytes in use by tensors{}{}",
        available.map(|bytes| format!(", {bytes} bytes of host memory available")).unwrap_or_default(),
        listed(held)
    )]
    OutOfMemory {
        /// The device's name.
        device: String,
        /// The size of the request in bytes.
        requested: u64,
        /// The number of bytes in use by tensors.
        in_use: u64,
        /// The number of bytes of host memory that were available, if there were too few. This applies to software
        /// adapters too.
        available: Option<u64>,
        /// What holds most of the memory, as [`Device::memory_report`](crate::Device::memory_report) prints it.
        held: Vec<String>,
    },
    /// A size is larger than the adapter allows.
    #[error("{device} allows {limit} up to {max}, but {value} is needed: split the tensor, or use another device")]
    LimitExceeded {
        /// The device's name.
        device: String,
        /// The name of the limit in WebGPU.
        limit: &'static str,
        /// The required value.
        value: u64,
        /// The limit of the adapter.
        max: u64,
    },
    /// The driver or wgpu refused a command.
    #[error("{device}: {message}")]
    Gpu {
        /// The device's name.
        device: String,
        /// The message of the driver or of wgpu.
        message: String,
    },
    /// A user's WGSL kernel does not compile, or is called with bindings that do not match it.
    #[error("kernel {name}: {message}")]
    Kernel {
        /// The kernel's entry point.
        name: String,
        /// What is wrong, with the source line if it is known.
        message: String,
    },
    /// The graph cannot be differentiated as asked.
    #[error("backward: {0}")]
    Autograd(String),
    /// A data file is missing, damaged or of an unexpected kind.
    #[error("{path}: {detail}")]
    Data {
        /// The file or folder.
        path: String,
        /// What is wrong with it.
        detail: String,
    },
    /// One of several devices failed. The others are unaffected.
    #[error("replica on {device}: {error}")]
    Replica {
        /// The device's name.
        device: String,
        /// The error on that device. The message contains it, so it is not the [`source`](std::error::Error::source).
        error: Box<Error>,
    },
    /// A replica waited for a value that another one computes in the same step, but the other one failed (its error has
    /// the cause) or ran other layers.
    #[error(
        "given up, because another replica ended before it reached the same exchange: it failed, or the replicas ran \
         different layers or losses, which is not possible with a batch norm or a weighted loss over several devices"
    )]
    Abandoned,
    /// A device did not end its part of a step in time.
    #[error("{device} has not ended its part of the step for {seconds} s")]
    Timeout {
        /// The device's name.
        device: String,
        /// The limit, in seconds.
        seconds: f64,
    },
    /// In a browser, a call would have to wait for a device, and the thread of a page or a worker cannot wait.
    /// Nothing is lost: use the call's asynchronous form. Tensors keep their elements.
    #[error("{call} would wait for the device, which code in a browser cannot: use {instead}")]
    WouldBlock {
        /// The call.
        call: &'static str,
        /// Its asynchronous form.
        instead: &'static str,
    },
    /// The processes of a job cannot train together, because of MPI or because of what they were asked to do.
    #[error("rank {rank} on {host}: {message}")]
    Communication {
        /// The rank of this process.
        rank: usize,
        /// The name of its machine.
        host: String,
        /// What is wrong.
        message: String,
    },
    /// The worker thread of a device panicked, because of a bug in a module or a loss function.
    #[error("worker thread of {device} panicked: {message}")]
    WorkerPanic {
        /// The device's name.
        device: String,
        /// The panic's message.
        message: String,
    },
    /// A dataset, a transform or a collate function panicked while a [`DataLoader`](crate::data::DataLoader) made a
    /// batch.
    #[error("the data loader panicked at {place}: {message}")]
    DataPanic {
        /// The sample or the batch that was being made.
        place: String,
        /// The panic's message.
        message: String,
    },
    /// An invariant of this crate does not hold. It is never caused by an argument of the caller.
    #[error("internal error: {message}. This is a bug in anygpu: please report it, with the program that shows it")]
    Internal {
        /// The invariant.
        message: String,
    },
}

impl Error {
    /// Returns whether a device ran out of memory. A smaller batch may work.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Error::OutOfMemory { .. } => true,
            Error::Replica { error, .. } => error.is_out_of_memory(),
            _ => false,
        }
    }

    /// Returns whether a device is lost for the rest of the process. Other devices can still be used.
    #[must_use]
    pub fn is_device_lost(&self) -> bool {
        match self {
            Error::DeviceLost { .. } => true,
            Error::Replica { error, .. } => error.is_device_lost(),
            _ => false,
        }
    }

    /// Returns whether this error is only a consequence of another replica's failure.
    pub(crate) fn is_abandoned(&self) -> bool {
        match self {
            Error::Abandoned => true,
            Error::Replica { error, .. } => error.is_abandoned(),
            _ => false,
        }
    }

    /// Returns whether a call would wait in a browser.
    pub(crate) fn is_would_block(&self) -> bool {
        match self {
            Error::WouldBlock { .. } => true,
            Error::Replica { error, .. } => error.is_would_block(),
            _ => false,
        }
    }

    /// Returns whether a device failed, so that another device may be able to do the same work.
    pub(crate) fn is_of_device(&self) -> bool {
        match self {
            Error::Replica { error, .. } => error.is_of_device(),
            Error::Gpu { .. } | Error::WorkerPanic { .. } | Error::Timeout { .. } | Error::DeviceUnavailable { .. } => {
                true
            }
            _ => self.is_device_lost() || self.is_for_less_memory(),
        }
    }

    /// Returns whether the same may work with less data at a time.
    pub(crate) fn is_for_less_memory(&self) -> bool {
        match self {
            Error::OutOfMemory { .. } | Error::LimitExceeded { .. } => true,
            Error::Replica { error, .. } => error.is_for_less_memory(),
            _ => false,
        }
    }

    /// Returns the error of a layer: the name of the op, which begins with a small letter, is replaced by the name
    /// of the layer that called it.
    pub(crate) fn of_layer(mut self, layer: &'static str) -> Self {
        let (Error::DeviceMismatch { op, .. }
        | Error::ShapeMismatch { op, .. }
        | Error::InvalidArgument { op, .. }
        | Error::DTypeMismatch { op, .. }) = &mut self
        else {
            return self;
        };
        if op.starts_with(|c: char| c.is_lowercase()) {
            *op = layer;
        }
        self
    }

    /// Adds the name of the layer, in its container, to an error about the layer's input. If that container is in
    /// another container, that one puts its name before.
    pub(crate) fn at_layer(mut self, name: &str) -> Self {
        const LAYER: &str = " (layer '";
        if let Error::ShapeMismatch { detail, .. } | Error::InvalidArgument { detail, .. } = &mut self {
            match detail.rfind(LAYER).filter(|_| detail.ends_with("')")) {
                Some(at) => detail.insert_str(at + LAYER.len(), &format!("{name}.")),
                None => detail.push_str(&format!("{LAYER}{name}')")),
            }
        }
        self
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Error::Internal { message: message.into() }
    }

    pub(crate) fn argument(op: &'static str, detail: impl Into<String>) -> Self {
        Error::InvalidArgument { op, detail: detail.into() }
    }

    pub(crate) fn shapes(op: &'static str, left: &[usize], right: &[usize], detail: impl Into<String>) -> Self {
        Error::ShapeMismatch { op, left: left.to_vec(), right: right.to_vec(), detail: detail.into() }
    }
}

/// The message, as `Display` prints it.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Implements `TryFrom<&str>` for a type by means of its `FromStr`.
macro_rules! try_from_str {
    ($t:ty) => {
        impl TryFrom<&str> for $t {
            type Error = $crate::Error;

            /// Parses the name, as `str::parse` does.
            fn try_from(name: &str) -> $crate::Result<Self> {
                name.parse()
            }
        }
    };
}
pub(crate) use try_from_str;

/// How to convert a tensor, for the end of a message, unless the accepted type says so itself.
fn conversion(expected: &str) -> &'static str {
    if expected.contains("(convert ") { "" } else { " (convert it with .to_dtype())" }
}

/// What holds the most memory, for the end of a message.
fn listed(held: &[String]) -> String {
    if held.is_empty() { String::new() } else { format!("; most is held by {}", held.join(", ")) }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn what_main_prints_is_the_message() {
        let kernel = Error::Kernel { name: "f".into(), message: "line 2:\n  ┌─ wgsl".into() };
        assert_eq!(format!("{kernel:?}"), "kernel f: line 2:\n  ┌─ wgsl");
        let replica = Error::Replica { device: "cpu".into(), error: Box::new(Error::Autograd("no".into())) };
        assert_eq!(format!("{replica:?}"), "replica on cpu: backward: no");
        assert!(replica.source().is_none(), "a printed chain would name the cause twice");
    }

    #[test]
    fn layers_are_named_with_their_path() {
        let error = Error::argument("conv2d", "too small").of_layer("Conv2d").of_layer("Net");
        assert_eq!(
            error.clone().at_layer("conv1").at_layer("body").to_string(),
            "Conv2d: too small (layer 'body.conv1')"
        );
        let lost = Error::DeviceLost { device: "gpu:0".into(), reason: "unplugged".into() };
        assert_eq!(lost.clone().of_layer("Conv2d").at_layer("conv1"), lost);
    }
}
