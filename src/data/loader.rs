//! [`DataLoader`]: how a dataset is divided into batches. `epoch.rs` makes them.

use std::sync::{Arc, Mutex};

use super::epoch::{Epoch, EpochOrder, LoaderConfig, WorkerPool};
use super::shard::{MOST_WORKERS, Shard};
use super::transforms::Transform;
use super::{Batch, Dataset, Random, Sample};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use crate::util::sync::lock;
use crate::util::threads::THREADS;

/// Divides a [`Dataset`] into batches: part k of N samples, each of shape `[..]`, becomes a tensor `[N, ..]`.
///
/// The tensors of a batch are in one block of memory, which is copied to a device in one copy. If the batch size does
/// not divide the number of samples, the last batch of an epoch is shorter, unless [`drop_last`](DataLoader::drop_last)
/// is called. The order and the augmentations depend only on the seed and the epoch, not on the number of workers or
/// the device.
///
/// Batches are on `cpu`, unless [`prefetch`](DataLoader::prefetch) sets a device. Batches of a
/// [`TensorDataset`](crate::data::TensorDataset) without transforms stay where its tensors are.
///
/// # Example
/// ```
/// use anygpu::data::{DataLoader, mnist_5k, transforms::RandomCrop};
/// use anygpu::try_gpu;
///
/// let device = try_gpu(0);
/// let loader = DataLoader::new(mnist_5k()?.train, 256)?
///     .shuffle(7)
///     .transform(RandomCrop::new([28, 28]).padding(2))
///     .workers(2)
///     .prefetch(&device); // makes and uploads the next batches during a step
/// let mut seen = 0;
/// for batch in &loader {
///     let (images, labels) = batch?;
///     assert_eq!(images.shape(), [labels.elem_count(), 1, 28, 28]);
///     assert_eq!(images.device(), &device);
///     seen += labels.elem_count();
/// }
/// assert_eq!(seen, 4000);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub struct DataLoader<B = (Tensor, Tensor)> {
    config: LoaderConfig,
    workers: usize,
    /// Whether another thread makes batches in advance.
    ahead: bool,
    progress: Mutex<Progress>,
    batch: std::marker::PhantomData<fn() -> B>,
}

/// The position of a loader, for a training checkpoint.
///
/// It is valid for a loader over the same number of samples with the same seed and batch size; this is not checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LoaderState {
    /// The current or next epoch, counted from 0.
    pub epoch: u64,
    /// The number of batches of this epoch that were returned.
    pub batches: usize,
}

#[derive(Debug, Default)]
struct Progress {
    /// The current position.
    state: LoaderState,
    /// Whether the next `for` continues there instead of starting the next epoch. This is so after `set_state`, and at
    /// the start of an epoch.
    resume: bool,
}

impl DataLoader {
    /// Creates a loader of batches of `batch_size` samples in the order of the dataset, as pairs `(images, labels)`.
    ///
    /// For samples with another number of parts, use [`items`](DataLoader::items).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `batch_size` is 0.
    pub fn new(dataset: impl Dataset + 'static, batch_size: usize) -> Result<DataLoader> {
        if batch_size == 0 {
            return Err(Error::argument("DataLoader", "the batch size must be at least 1"));
        }
        let config = LoaderConfig {
            dataset: Arc::new(dataset),
            batch_size,
            shuffled: false,
            seed: 0,
            drop_last: false,
            maps: Vec::new(),
            collate: None,
            device: None,
            shard: None,
        };
        Ok(DataLoader::with(config, 0, false))
    }
}

impl<B> DataLoader<B> {
    fn with(config: LoaderConfig, workers: usize, ahead: bool) -> DataLoader<B> {
        let progress = Progress { state: LoaderState::default(), resume: true };
        DataLoader { config, workers, ahead, progress: Mutex::new(progress), batch: std::marker::PhantomData }
    }

    /// Returns batches as another type: `Tensor`, `(Tensor, Tensor)`, `(Tensor, Tensor, Tensor)` or `Vec<Tensor>`.
    ///
    /// ```
    /// use anygpu::Tensor;
    /// use anygpu::data::{DataLoader, TensorDataset};
    ///
    /// let x = Tensor::rand([10, 3], None)?;
    /// let loader = DataLoader::new(TensorDataset::new(&[&x])?, 4)?.drop_last().items::<Tensor>();
    /// let shapes: Vec<_> = loader.epoch(0).map(|x| x.map(|x| x.shape().to_vec())).collect::<Result<_, _>>()?;
    /// assert_eq!(shapes, [[4, 3], [4, 3]]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn items<C: Batch>(self) -> DataLoader<C> {
        DataLoader { progress: self.progress, ..DataLoader::with(self.config, self.workers, self.ahead) }
    }

    /// Shuffles each epoch in a new order, which depends only on `seed` and the number of the epoch.
    ///
    /// The random choices of transforms depend on the seed, the number of the epoch and the number of the sample.
    #[must_use]
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.config.shuffled = true;
        self.seed(seed)
    }

    /// Sets the seed of the random choices of transforms, without shuffling. The default is 0.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.config.seed = seed;
        self
    }

    /// Omits the samples at the end of an epoch that do not fill a batch.
    #[must_use]
    pub fn drop_last(mut self) -> Self {
        self.config.drop_last = true;
        self
    }

    /// Applies `transform` to the first part of each sample, the image, after earlier transforms.
    #[must_use]
    pub fn transform(self, transform: impl Transform + 'static) -> Self {
        self.map(move |mut sample, random| {
            if !sample.is_empty() {
                let image = sample.remove(0);
                sample.insert(0, transform.apply(image, random)?);
            }
            Ok(sample)
        })
    }

    /// Applies `f` to each whole sample, after earlier transforms. Random choices that use its [`Random`] are the same
    /// in every run.
    #[must_use]
    pub fn map(mut self, f: impl Fn(Sample, &mut Random) -> Result<Sample> + Send + Sync + 'static) -> Self {
        self.config.maps.push(Arc::new(f));
        self
    }

    /// Makes batches with `f` instead of stacking the samples: `f` takes the samples of a batch and returns its arrays.
    ///
    /// ```
    /// use anygpu::data::{Array, DataLoader, Dataset, Sample};
    /// use anygpu::{Result, Tensor};
    ///
    /// /// Sample i is a sequence of i elements.
    /// struct Sequences;
    ///
    /// impl Dataset for Sequences {
    ///     fn len(&self) -> usize {
    ///         4
    ///     }
    ///     fn get(&self, index: usize) -> Result<Sample> {
    ///         Ok(vec![Array::new(vec![1.0f32; index], [index])?])
    ///     }
    /// }
    ///
    /// /// Pads with zeros to the longest.
    /// fn padded(samples: Vec<Sample>) -> Result<Sample> {
    ///     let longest = samples.iter().map(|sample| sample[0].elem_count()).max().unwrap_or(0);
    ///     let mut values = Vec::new();
    ///     for sample in &samples {
    ///         values.extend(sample[0].as_slice::<f32>()?);
    ///         values.resize(values.len().next_multiple_of(longest), 0.0);
    ///     }
    ///     Ok(vec![Array::new(values, [samples.len(), longest])?])
    /// }
    ///
    /// let loader = DataLoader::new(Sequences, 2)?.collate(padded).items::<Tensor>();
    /// let last = loader.epoch(0).last().expect("two batches")?;
    /// assert_eq!(last.to_vec::<f32>()?, [1.0, 1.0, 0.0, 1.0, 1.0, 1.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    #[must_use]
    pub fn collate(mut self, f: impl Fn(Vec<Sample>) -> Result<Sample> + Send + Sync + 'static) -> Self {
        self.config.collate = Some(Arc::new(f));
        self
    }

    /// Makes batches in `threads` threads, each up to two batches in advance.
    ///
    /// With 0, the default, each batch is made when the loop requests it. With a [`shard`](Self::shard), there are at
    /// most 15 threads. If you leave a loop early, it waits until each thread has finished its current sample.
    #[must_use]
    pub fn workers(mut self, threads: usize) -> Self {
        self.workers = threads;
        self
    }

    /// Makes batches on `device` and in advance: while a step computes, another thread (or the
    /// [`workers`](Self::workers)) makes and uploads the next two batches.
    ///
    /// [`DataParallel`](crate::DataParallel) splits batches itself, so prefetch to `cpu` for it.
    #[must_use]
    pub fn prefetch(mut self, device: &Device) -> Self {
        self.config.device = Some(device.clone());
        self.ahead = true;
        self
    }

    /// Makes only this process's part of each batch, for training with several processes: see [`Shard`].
    ///
    /// The order of the samples, their augmentations and the number of batches are the same as with one process. If a
    /// batch has fewer samples than there are processes, some parts have no samples.
    ///
    /// ```
    /// use anygpu::Tensor;
    /// use anygpu::data::{DataLoader, Shard, TensorDataset};
    ///
    /// let x = Tensor::arange(0.0, 5.0, 1.0, None)?;
    /// let part = |rank| {
    ///     let loader = DataLoader::new(TensorDataset::new(&[&x])?, 4)?.shard(&Shard::new(rank, 2)?).items::<Tensor>();
    ///     loader.epoch(0).map(|x| x?.to_vec::<f32>()).collect::<Result<Vec<_>, _>>()
    /// };
    /// assert_eq!(part(0)?, [vec![0.0, 1.0], vec![4.0]]);
    /// assert_eq!(part(1)?, [vec![2.0, 3.0], vec![]]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    #[must_use]
    pub fn shard(mut self, shard: &Shard) -> Self {
        self.config.shard = Some(shard.clone());
        self
    }

    /// Returns the number of samples.
    pub fn len(&self) -> usize {
        self.config.dataset.len()
    }

    /// Returns whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of batches in an epoch.
    pub fn batches(&self) -> usize {
        self.config.batches()
    }

    /// Returns the position of `for batch in &loader`. [`set_state`](DataLoader::set_state) continues there, even in
    /// another process.
    ///
    /// ```
    /// use anygpu::data::{DataLoader, LoaderState, mnist_5k};
    ///
    /// let loader = || Ok::<_, anygpu::Error>(DataLoader::new(mnist_5k()?.train, 100)?.shuffle(1));
    /// let killed = loader()?;
    /// let mut batches = (&killed).into_iter();
    /// batches.by_ref().take(3).for_each(drop);
    /// assert_eq!(killed.state(), LoaderState { epoch: 0, batches: 3 });
    ///
    /// let resumed = loader()?;
    /// resumed.set_state(killed.state());
    /// let labels = |batch: Option<_>| -> anygpu::Result<Vec<u32>> {
    ///     let (_images, labels): (anygpu::Tensor, anygpu::Tensor) = batch.expect("40 batches")?;
    ///     labels.to_vec()
    /// };
    /// assert_eq!(labels((&resumed).into_iter().next())?, labels(batches.next())?);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn state(&self) -> LoaderState {
        lock(&self.progress).state
    }

    /// Makes the next `for batch in &loader` continue at `state`, with the rest of its epoch (which may be empty).
    pub fn set_state(&self, state: LoaderState) {
        *lock(&self.progress) = Progress { state, resume: true };
    }

    /// Returns the batches of epoch `epoch`, counted from 0.
    ///
    /// Each call returns the same batches. This does not change [`state`](DataLoader::state).
    pub fn epoch(&self, epoch: u64) -> Epoch<'_, B> {
        self.start(LoaderState { epoch, batches: 0 }, false)
    }

    fn start(&self, from: LoaderState, tracked: bool) -> Epoch<'_, B> {
        let order = Arc::new(EpochOrder::new(&self.config, from.epoch));
        let threads = if self.ahead { self.workers.max(1) } else { self.workers };
        let threads = if self.config.shard.is_some() { threads.min(MOST_WORKERS) } else { threads };
        let pool = (threads > 0 && THREADS).then(|| WorkerPool::start(&self.config, &order, from.batches, threads));
        Epoch::new(self, order, pool, from.batches, tracked)
    }

    pub(super) fn config(&self) -> &LoaderConfig {
        &self.config
    }

    /// Records the position of the loop.
    pub(super) fn reached(&self, state: LoaderState, resume: bool) {
        *lock(&self.progress) = Progress { state, resume };
    }
}

/// `for batch in &loader` runs the next epoch.
impl<'a, B: Batch> IntoIterator for &'a DataLoader<B> {
    type Item = Result<B>;
    type IntoIter = Epoch<'a, B>;

    fn into_iter(self) -> Epoch<'a, B> {
        let mut progress = lock(&self.progress);
        if !progress.resume {
            progress.state = LoaderState { epoch: progress.state.epoch + 1, batches: 0 };
        }
        progress.resume = false;
        let state = progress.state;
        drop(progress);
        self.start(state, true)
    }
}

impl<B> std::fmt::Debug for DataLoader<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let LoaderConfig { batch_size, shuffled, seed, drop_last, device, .. } = &self.config;
        f.debug_struct("DataLoader")
            .field("len", &self.len())
            .field("batch_size", batch_size)
            .field("shuffle", &shuffled.then_some(seed))
            .field("drop_last", drop_last)
            .field("workers", &self.workers)
            .field("device", device)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
