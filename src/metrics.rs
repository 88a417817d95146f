//! Metrics of training: loss, accuracy, a confusion matrix, samples per second, and a stopwatch that waits for devices.
//! Losses and counts are summed on the device and read only on request, so measuring them does not stall the device.
//! Batches may come from several devices: each device has its own sum, and reading a value adds them up.

mod early_stopping;
mod timer;

pub use early_stopping::EarlyStopping;
pub use timer::Timer;

use web_time::Instant;

use crate::autograd::no_grad;
use crate::device::{Device, rerun};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::autocast;
use crate::ops::long::cast::labels_as_words;
use crate::tensor::Tensor;

/// One sum per device.
#[derive(Clone, Debug, Default)]
struct Sums {
    on_devices: Vec<Tensor>,
    /// The sum of values on `cpu`, which can be read at once.
    on_host: Option<Vec<f64>>,
}

impl Sums {
    fn add(&mut self, value: &Tensor) -> Result<()> {
        if value.device().is_cpu() {
            let sums = self.on_host.get_or_insert_with(|| vec![0.0; value.elem_count()]);
            return value.with_slice(|values: &[f32]| {
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += f64::from(*value));
            });
        }
        match self.on_devices.iter_mut().find(|sum| sum.device() == value.device()) {
            Some(sum) => *sum = sum.add(value)?,
            None => self.on_devices.push(value.clone()),
        }
        Ok(())
    }

    /// Runs a function that reads the sums. Runs it again when they have arrived.
    async fn rerun<T>(&self, f: impl FnMut() -> Result<T>) -> Result<T> {
        let devices: Vec<Device> = self.on_devices.iter().map(|sum| sum.device().clone()).collect();
        rerun(&devices, f).await
    }

    /// The sum over all devices, of `len` elements.
    fn read(&self, len: usize) -> Result<Vec<f64>> {
        let mut all = self.on_host.clone().unwrap_or_else(|| vec![0.0; len]);
        for sum in &self.on_devices {
            all.iter_mut().zip(sum.to_vec::<f32>()?).for_each(|(all, sum)| *all += f64::from(sum));
        }
        Ok(all)
    }
}

/// The mean of a quantity over samples, such as the loss.
///
/// It stays on its device until it is read.
///
/// ```
/// use anygpu::{Tensor, metrics::Mean, try_gpu};
///
/// let mut loss = Mean::new();
/// for (batch, size) in [(0.5f32, 64), (0.2, 32)] {
///     loss.add(&Tensor::scalar(batch, &try_gpu(0))?, size)?; // two small kernels, without waiting
/// }
/// assert!((loss.value()? - 0.4).abs() < 1e-6); // (64 · 0.5 + 32 · 0.2) / 96
/// loss.reset();
/// assert!(loss.value()?.is_nan());
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Mean {
    sums: Sums,
    count: usize,
}

impl Mean {
    /// Creates a mean of no samples.
    #[must_use]
    pub fn new() -> Mean {
        Mean::default()
    }

    /// Adds `value`, a scalar that is the mean over `count` samples, as f32. Nothing is read back.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for more than one value; the errors of the device.
    pub fn add(&mut self, value: &Tensor, count: usize) -> Result<()> {
        if value.elem_count() != 1 {
            let detail = format!("the mean of a batch is one value, not {:?}", value.shape());
            return Err(Error::argument("Mean", detail));
        }
        let value = value.detach().to_dtype(DType::F32)?.reshape(())?;
        self.sums.add(&no_grad(|| value.mul_scalar(count as f32))?)?;
        self.count += count;
        Ok(())
    }

    /// Returns the mean over all samples, or NaN without any. Waits for the devices.
    ///
    /// # Errors
    /// The errors of [`Tensor::to_vec`].
    pub fn value(&self) -> Result<f64> {
        Ok(self.sums.read(1)?[0] / self.count as f64)
    }

    /// Asynchronous form of [`Mean::value`]. Use it in a browser, where `value` would have to wait.
    ///
    /// # Errors
    /// The errors of [`Tensor::to_vec`].
    pub async fn value_async(&self) -> Result<f64> {
        self.sums.rerun(|| self.value()).await
    }

    /// Returns the number of samples.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Removes all samples.
    pub fn reset(&mut self) {
        *self = Mean::default();
    }
}

/// The fraction of samples whose label is the class with the greatest logit, or one of the classes with the k greatest
/// logits.
///
/// ```
/// use anygpu::{Tensor, metrics::Accuracy};
///
/// let logits = Tensor::new([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3], [0.6, 0.3, 0.1]], None)?;
/// let labels = Tensor::new([1u32, 2, 2], None)?;
/// let (mut first, mut two) = (Accuracy::new(), Accuracy::top(2));
/// first.add(&logits, &labels)?;
/// two.add(&logits, &labels)?;
/// assert!((first.value()? - 1.0 / 3.0).abs() < 1e-9);
/// assert!((two.value()? - 2.0 / 3.0).abs() < 1e-9);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Accuracy {
    k: usize,
    right: Sums,
    count: usize,
}

impl Default for Accuracy {
    fn default() -> Accuracy {
        Accuracy::new()
    }
}

impl Accuracy {
    /// Creates an accuracy that counts the greatest logit only.
    #[must_use]
    pub fn new() -> Accuracy {
        Accuracy::top(1)
    }

    /// Creates an accuracy that counts the `k` greatest logits. Among equal logits, the first ones count.
    #[must_use]
    pub fn top(k: usize) -> Accuracy {
        Accuracy { k, right: Sums::default(), count: 0 }
    }

    /// Adds a batch of `logits: [N, classes]` and integer `labels: [N]`.
    ///
    /// Also takes `[N, classes, ..]` and `[N, ..]`, for instance of pixels, like
    /// [`cross_entropy`](crate::nn::cross_entropy). Labels are moved to the device of the logits if necessary. Nothing
    /// is read back.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] unless there is one label for each position; [`Error::InvalidArgument`] with fewer
    /// classes than k.
    pub fn add(&mut self, logits: &Tensor, labels: &Tensor) -> Result<()> {
        let (logits, labels) = one_label_each("Accuracy", logits, labels)?;
        let right = no_grad(|| match self.k {
            1 => logits.argmax(1)?.eq(&labels),
            k => logits.topk(k, 1, true, true)?.1.eq(&labels.unsqueeze(1)?),
        })?;
        self.right.add(&right.to_dtype(DType::F32)?.sum_all()?)?;
        self.count += labels.elem_count();
        Ok(())
    }

    /// Returns the fraction, 0 to 1, of all samples, or NaN without any. Waits for the devices.
    ///
    /// # Errors
    /// The errors of [`Tensor::to_vec`].
    pub fn value(&self) -> Result<f64> {
        Ok(self.right.read(1)?[0] / self.count as f64)
    }

    /// Asynchronous form of [`Accuracy::value`]. Use it in a browser, where `value` would have to wait.
    ///
    /// # Errors
    /// The errors of [`Tensor::to_vec`].
    pub async fn value_async(&self) -> Result<f64> {
        self.right.rerun(|| self.value()).await
    }

    /// Returns the number of samples.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Removes all samples; k stays.
    pub fn reset(&mut self) {
        *self = Accuracy::top(self.k);
    }
}

/// The number of samples by label and prediction: row i, column j counts the samples of label i predicted as j.
///
/// ```
/// use anygpu::{Tensor, metrics::ConfusionMatrix};
///
/// let mut matrix = ConfusionMatrix::new(2);
/// let logits = Tensor::new([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], None)?;
/// matrix.add(&logits, &Tensor::new([0u32, 1, 1], None)?)?;
/// assert_eq!(matrix.value()?, [[1, 0], [1, 1]]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ConfusionMatrix {
    classes: usize,
    counts: Sums,
}

impl ConfusionMatrix {
    /// Creates a matrix of this many classes.
    #[must_use]
    pub fn new(classes: usize) -> ConfusionMatrix {
        ConfusionMatrix { classes, counts: Sums::default() }
    }

    /// Adds a batch, with the same shapes as [`Accuracy::add`]. Nothing is read back.
    ///
    /// # Errors
    /// The errors of [`Accuracy::add`]; [`Error::ShapeMismatch`] for another number of classes;
    /// [`Error::InvalidArgument`] for a label that is not a class. An adapter reports such a label when the counts are
    /// read.
    pub fn add(&mut self, logits: &Tensor, labels: &Tensor) -> Result<()> {
        let (logits, labels) = one_label_each("ConfusionMatrix", logits, labels)?;
        if logits.shape()[1] != self.classes {
            let rule = "the matrix has another number of classes";
            return Err(Error::shapes("ConfusionMatrix", logits.shape(), &[self.classes; 2], rule));
        }
        // In f32 also within autocast: f16 counts exactly to 2048 only, and bf16 to 256.
        let counts = autocast(DType::F32, || {
            no_grad(|| {
                let predicted = logits.argmax(1)?.one_hot(self.classes)?.to_dtype(DType::F32)?;
                let labelled = labels.one_hot(self.classes)?.to_dtype(DType::F32)?;
                labelled.transpose(0, 1)?.matmul(&predicted)
            })
        })?;
        self.counts.add(&counts)
    }

    /// Returns the counts, `[label][prediction]`. Waits for the devices.
    ///
    /// # Errors
    /// The errors of [`Tensor::to_vec`].
    pub fn value(&self) -> Result<Vec<Vec<u64>>> {
        let counts = self.counts.read(self.classes * self.classes)?;
        Ok(counts.chunks(self.classes.max(1)).map(|row| row.iter().map(|&count| count as u64).collect()).collect())
    }

    /// Asynchronous form of [`ConfusionMatrix::value`]. Use it in a browser, where `value` would have to wait.
    ///
    /// # Errors
    /// The errors of [`Tensor::to_vec`].
    pub async fn value_async(&self) -> Result<Vec<Vec<u64>>> {
        self.counts.rerun(|| self.value()).await
    }

    /// Removes all samples.
    pub fn reset(&mut self) {
        self.counts = Sums::default();
    }
}

/// Returns logits `[count, classes]` and labels `[count]` as u32, one row and one label for each position, on the
/// device of the logits and outside the graph.
fn one_label_each(op: &'static str, logits: &Tensor, labels: &Tensor) -> Result<(Tensor, Tensor)> {
    let fits = match logits.shape() {
        [n, _, rest @ ..] => labels.shape().split_first() == Some((n, rest)),
        _ => false,
    };
    if !fits {
        let rule = "one label for each place: [N, classes, ..] and [N, ..]";
        return Err(Error::shapes(op, logits.shape(), labels.shape(), rule));
    }
    let labels = labels_as_words(op, &labels.detach().to(logits.device())?)?;
    let logits = logits.detach();
    if logits.rank() == 2 {
        return Ok((logits, labels));
    }
    let classes = logits.shape()[1];
    let count = labels.elem_count();
    Ok((no_grad(|| logits.movedim(1, -1)?.reshape([count, classes]))?, labels.reshape([count])?))
}

/// Samples per second, by the wall clock.
///
/// Adapters compute asynchronously: call [`Device::synchronize`](crate::Device::synchronize) before reading a final
/// value.
///
/// ```
/// use anygpu::metrics::Throughput;
///
/// let mut speed = Throughput::new();
/// speed.add(64);
/// assert!(speed.per_second() > 0.0 && speed.samples() == 64);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Throughput {
    start: Instant,
    samples: usize,
}

impl Default for Throughput {
    fn default() -> Throughput {
        Throughput::new()
    }
}

impl Throughput {
    /// Starts the clock.
    #[must_use]
    pub fn new() -> Throughput {
        Throughput { start: Instant::now(), samples: 0 }
    }

    /// Adds `samples`.
    pub fn add(&mut self, samples: usize) {
        self.samples += samples;
    }

    /// Returns the number of samples.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Returns the seconds since the start.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Returns the samples per second since the start.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.samples as f64 / self.seconds().max(1e-9)
    }

    /// Restarts the clock, with no samples.
    pub fn reset(&mut self) {
        *self = Throughput::new();
    }
}
