//! The crate's one error type.
//!
//! One type, because a training step crosses every room of the crate (data, tensors, a device, another device) and
//! its caller can only do one thing with most failures: report what, where and what to do. The few that a program
//! reacts to have their own variants.

/// What every fallible function of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Anything that can go wrong, with what, where and, where there is one, the remedy.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An op was given tensors that live on different devices. Move one with [`Tensor::to`](crate::Tensor::to).
    #[error(
        "Expected all tensors to be on the same device, but found at least two devices, {left} and {right}! ({op}: use .to())"
    )]
    DeviceMismatch {
        /// The op that was called.
        op: &'static str,
        /// The first tensor's device.
        left: String,
        /// The device of the first tensor that differs.
        right: String,
    },
    /// Two shapes do not go together in an op.
    #[error("shape mismatch in {op}: {left:?} and {right:?}: {detail}")]
    ShapeMismatch {
        /// The op that was called.
        op: &'static str,
        /// The first shape.
        left: Vec<usize>,
        /// The second shape.
        right: Vec<usize>,
        /// The rule that is broken.
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
    /// A tensor has another element type than the op takes.
    #[error("{op}: expected a tensor of {expected}, got {got}")]
    DTypeMismatch {
        /// The op that was called.
        op: &'static str,
        /// What it takes.
        expected: String,
        /// What it was given.
        got: String,
    },
    /// There is no device of that name here.
    #[error("unknown device '{name}': this machine has {}", available.join(", "))]
    UnknownDevice {
        /// The name that was asked for.
        name: String,
        /// All names that would have worked.
        available: Vec<String>,
    },
    /// The adapter is there, but could not be opened.
    #[error("cannot open device {device}: {reason}")]
    DeviceUnavailable {
        /// The device's name.
        device: String,
        /// What the driver said.
        reason: String,
    },
    /// The device is gone (a driver reset, an unplugged card, a suspended laptop). Every later call on it says so too.
    #[error("device {device} is lost: {reason}")]
    DeviceLost {
        /// The device's name.
        device: String,
        /// What the driver said.
        reason: String,
    },
    /// The device has no memory left, even after all cached buffers were given back.
    #[error("out of memory on {device}: {requested} bytes requested, {in_use} bytes in use by tensors")]
    OutOfMemory {
        /// The device's name.
        device: String,
        /// Size of the request, in bytes.
        requested: u64,
        /// What live tensors hold, in bytes.
        in_use: u64,
    },
    /// Something is larger than the adapter allows.
    #[error("{device} allows {limit} up to {max}, but {value} is needed: split the tensor, or use another device")]
    LimitExceeded {
        /// The device's name.
        device: String,
        /// The limit's name in WebGPU.
        limit: &'static str,
        /// What was needed.
        value: u64,
        /// What there is.
        max: u64,
    },
    /// The driver or wgpu refused a command.
    #[error("{device}: {message}")]
    Gpu {
        /// The device's name.
        device: String,
        /// What it said.
        message: String,
    },
    /// A user's WGSL kernel does not compile, or is called with bindings that do not fit it.
    #[error("kernel {name}: {message}")]
    Kernel {
        /// The kernel's entry point.
        name: String,
        /// What is wrong, with the source line where there is one.
        message: String,
    },
    /// The graph cannot be differentiated as asked.
    #[error("backward: {0}")]
    Autograd(String),
    /// A data file is missing, damaged or of another kind.
    #[error("{path}: {detail}")]
    Data {
        /// The file or folder.
        path: String,
        /// What is wrong with it.
        detail: String,
    },
    /// One device of several failed; the others are unharmed.
    #[error("replica on {device}: {source}")]
    Replica {
        /// The device's name.
        device: String,
        /// What happened there.
        source: Box<Error>,
    },
    /// A replica needed what another one computes in the same step, and that one failed (its error is the one to look at),
    /// or went through other layers.
    #[error(
        "given up, because another replica ended before it came to the same exchange: it failed, or replicas go through \
         different layers, which a batch norm over several devices cannot"
    )]
    Abandoned,
    /// The worker thread of a device panicked: a module or a loss function has a bug.
    #[error("worker thread of {device} panicked: {message}")]
    WorkerPanic {
        /// The device's name.
        device: String,
        /// The panic's message.
        message: String,
    },
    /// A dataset, a transform or a collate function panicked while a [`DataLoader`](crate::data::DataLoader) made a batch.
    #[error("the data loader panicked at {place}: {message}")]
    DataPanic {
        /// The sample or the batch that was being made.
        place: String,
        /// The panic's message.
        message: String,
    },
    /// An invariant of this crate does not hold, whatever the caller did.
    #[error("internal error: {message}. This is a bug in anygpu: please report it, with the program that shows it")]
    Internal {
        /// The invariant.
        message: String,
    },
}

impl Error {
    /// Whether a device ran out of memory: a smaller batch may work.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Error::OutOfMemory { .. } => true,
            Error::Replica { source, .. } => source.is_out_of_memory(),
            _ => false,
        }
    }

    /// Whether a device is gone for good in this process: go on with the others.
    pub fn is_device_lost(&self) -> bool {
        match self {
            Error::DeviceLost { .. } => true,
            Error::Replica { source, .. } => source.is_device_lost(),
            _ => false,
        }
    }

    /// Whether this only follows from another replica's failure.
    pub(crate) fn is_abandoned(&self) -> bool {
        match self {
            Error::Abandoned => true,
            Error::Replica { source, .. } => source.is_abandoned(),
            _ => false,
        }
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
