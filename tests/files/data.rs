//! Data loading: batches, their order, threads, resuming, and errors.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anygpu::data::transforms::{RandomCrop, RandomHorizontalFlip};
use anygpu::data::{Array, DataLoader, Dataset, LoaderState, Sample, Subset, TensorDataset, random_split};
use anygpu::{DType, Device, Error, Result, Tensor, autocast, no_grad};

use crate::common::devices_in_turn;

/// Sample i is an image `[1, 4, 4]` of pixels i, i + 1/16, … and the label i; it counts how often it is asked.
#[derive(Default)]
struct Counting {
    len: usize,
    asked: AtomicUsize,
    /// Gives an error for this sample.
    broken: Option<usize>,
    /// Panics at this one.
    bug: Option<usize>,
}

impl Counting {
    fn new(len: usize) -> Counting {
        Counting { len, ..Default::default() }
    }
}

impl Dataset for Counting {
    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize) -> Result<Sample> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        assert!(self.bug != Some(index), "a bug in the dataset");
        if self.broken == Some(index) {
            return Err(Error::Data { path: format!("{index}.png"), detail: "damaged".into() });
        }
        let pixels = (0..16).map(|pixel| index as f32 + pixel as f32 / 16.0).collect();
        Ok(vec![Array::new(pixels, [1, 4, 4])?, Array::scalar(index as u32)])
    }
}

type Seen = Vec<(Vec<f32>, Vec<u32>)>;

fn seen(batches: impl Iterator<Item = Result<(Tensor, Tensor)>>) -> Result<Seen> {
    batches.map(|batch| batch.and_then(|(images, labels)| Ok((images.to_vec()?, labels.to_vec()?)))).collect()
}

fn labels(batches: impl Iterator<Item = Result<(Tensor, Tensor)>>) -> Result<Vec<Vec<u32>>> {
    Ok(seen(batches)?.into_iter().map(|(_, labels)| labels).collect())
}

#[test]
fn every_sample_comes_once_and_the_last_batch_is_short() -> Result<()> {
    let loader = DataLoader::new(Counting::new(7), 3)?;
    assert_eq!((loader.len(), loader.batches(), loader.epoch(0).len()), (7, 3, 3));
    assert_eq!(labels(loader.epoch(0))?, [vec![0, 1, 2], vec![3, 4, 5], vec![6]]);
    assert_eq!(labels(DataLoader::new(Counting::new(7), 100)?.epoch(0))?, [[0, 1, 2, 3, 4, 5, 6]]);
    let whole = DataLoader::new(Counting::new(7), 3)?.drop_last();
    assert_eq!((whole.batches(), labels(whole.epoch(0))?), (2, vec![vec![0, 1, 2], vec![3, 4, 5]]));
    for batch in loader.epoch(0) {
        let (images, labels) = batch?;
        assert_eq!(images.shape(), [labels.elem_count(), 1, 4, 4]);
        let first: Vec<f32> = labels.to_vec::<u32>()?.iter().map(|&label| label as f32).collect();
        assert_eq!(images.i(anygpu::s![.., 0, 0, 0])?.to_vec::<f32>()?, first);
    }
    assert!(DataLoader::new(Counting::new(7), 0).unwrap_err().to_string().contains("batch size"));
    assert_eq!(DataLoader::new(Counting::new(0), 3)?.workers(2).epoch(0).count(), 0);
    Ok(())
}

#[test]
fn the_order_depends_on_seed_and_epoch_alone() -> Result<()> {
    let loader = DataLoader::new(Counting::new(50), 50)?.shuffle(1);
    let [first, second] = [labels((&loader).into_iter())?, labels((&loader).into_iter())?];
    assert_ne!(first, second);
    assert_eq!((&first, &second), (&labels(loader.epoch(0))?, &labels(loader.epoch(1))?));
    assert_ne!(first, labels(DataLoader::new(Counting::new(50), 50)?.shuffle(2).epoch(0))?);
    assert_eq!(first.concat().into_iter().collect::<HashSet<_>>().len(), 50);
    Ok(())
}

fn augmented(seed: u64) -> Result<DataLoader> {
    let loader = DataLoader::new(Counting::new(23), 4)?.shuffle(seed);
    Ok(loader.transform(RandomCrop::new([4, 4]).padding(2)).transform(RandomHorizontalFlip::new(0.5)))
}

#[test]
fn batches_are_the_same_whoever_makes_them_and_wherever_they_go() -> Result<()> {
    let expected = seen(augmented(5)?.epoch(3))?;
    assert_ne!(expected, seen(augmented(6)?.epoch(3))?);
    assert_eq!(expected.len(), 6);
    for workers in [1, 2, 5, 40] {
        assert_eq!(seen(augmented(5)?.workers(workers).epoch(3))?, expected, "{workers} workers");
    }
    for device in devices_in_turn() {
        for workers in [0, 3] {
            let loader = augmented(5)?.workers(workers).prefetch(&device);
            assert!(
                loader.epoch(0).all(|batch| batch.is_ok_and(|(x, y)| x.device() == &device && y.device() == &device))
            );
            assert_eq!(seen(loader.epoch(3))?, expected, "{workers} workers, to {device}");
        }
    }
    Ok(())
}

/// Uploads from another thread while kernels are recorded: the batches stay whole.
#[test]
fn prefetching_does_not_disturb_what_computes() -> Result<()> {
    for device in devices_in_turn() {
        let loader = DataLoader::new(Counting::new(64), 4)?.prefetch(&device);
        let mut total = Tensor::zeros((), &device)?;
        for batch in &loader {
            let (images, labels) = batch?;
            let work = images.mul_scalar(2.0)?.sum_all()?;
            total = total.add(&work)?.add(&labels.to_dtype(DType::F32)?.sum_all()?)?;
        }
        let pixels: f32 = (0..64).map(|i| 16.0 * i as f32 + 7.5).sum();
        assert_eq!(total.item::<f32>()?, 2.0 * pixels + 2016.0, "{device}");
    }
    Ok(())
}

#[test]
fn an_epoch_goes_on_in_the_middle() -> Result<()> {
    for workers in [0, 2] {
        let loader = augmented(1)?.workers(workers);
        assert_eq!(loader.state(), LoaderState { epoch: 0, batches: 0 });
        seen((&loader).into_iter())?;
        assert_eq!(loader.state(), LoaderState { epoch: 1, batches: 0 }, "the first epoch is over");
        let head = seen((&loader).into_iter().take(2))?;
        let state = loader.state();
        assert_eq!(state, LoaderState { epoch: 1, batches: 2 });

        let resumed = augmented(1)?.workers(workers);
        resumed.set_state(state);
        assert_eq!(resumed.state(), state);
        let tail = seen((&resumed).into_iter())?;
        assert_eq!([head, tail].concat(), seen(loader.epoch(1))?);
        assert_eq!(seen((&resumed).into_iter())?, seen(loader.epoch(2))?, "and then the next epoch");
    }
    // A loop that was left begins the next epoch; one at its last batch has nothing left of the old one.
    let loader = augmented(1)?;
    (&loader).into_iter().take(1).for_each(drop);
    assert_eq!((&loader).into_iter().number(), 1);
    loader.set_state(LoaderState { epoch: 4, batches: 6 });
    assert_eq!((&loader).into_iter().count(), 0);
    assert_eq!((&loader).into_iter().number(), 5);
    Ok(())
}

#[test]
fn an_error_or_a_panic_is_that_of_its_batch() -> Result<()> {
    for workers in [0, 2] {
        let set = Counting { broken: Some(5), bug: Some(9), ..Counting::new(12) };
        let batches: Vec<_> = DataLoader::new(set, 3)?.workers(workers).epoch(0).collect();
        let good: Vec<bool> = batches.iter().map(Result::is_ok).collect();
        assert_eq!(good, [true, false, true, false], "{workers} workers");
        let text = |i: usize| batches[i].as_ref().map(drop).unwrap_err().to_string();
        assert_eq!(text(1), "5.png: damaged");
        assert!(matches!(batches[3], Err(Error::DataPanic { .. })), "{:?}", batches[3]);
        assert!(text(3).contains("data loader") && text(3).contains("sample 9: a bug in the dataset"), "{}", text(3));
    }
    Ok(())
}

#[test]
fn samples_that_do_not_go_together_are_refused() -> Result<()> {
    let odd = |change: fn(usize) -> Sample| -> Result<String> {
        let loader = DataLoader::new(Counting::new(2), 2)?.map(move |sample, _| {
            let label = sample[1].as_slice::<u32>()?[0] as usize;
            Ok(change(label))
        });
        Ok(loader.epoch(0).next().expect("a batch").map(drop).unwrap_err().to_string())
    };
    let shapes = odd(|i| vec![Array::new(vec![0f32; i + 1], i + 1).expect("it fits"), Array::scalar(0u32)])?;
    assert!(shapes.contains("[1] and [2]") && shapes.contains("one shape"), "{shapes}");
    let types = odd(|i| vec![if i == 0 { Array::scalar(0u32) } else { Array::scalar(0f32) }, Array::scalar(0u32)])?;
    assert!(types.contains("u32") && types.contains("f32"), "{types}");
    let parts = odd(|i| vec![Array::scalar(0u32); 2 + i])?;
    assert!(parts.contains("2 parts, another 3"), "{parts}");
    assert!(odd(|_| vec![])?.contains("no parts"));
    let three = odd(|_| vec![Array::scalar(0u32); 3])?;
    assert!(three.contains("has 3 parts, and the loop takes 2") && three.contains("items"), "{three}");
    Ok(())
}

/// Waits for the threads to let go of the dataset.
fn let_go(set: &Arc<Counting>) -> bool {
    let start = Instant::now();
    while Arc::strong_count(set) > 1 && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(2));
    }
    Arc::strong_count(set) == 1
}

#[test]
fn an_endless_dataset_is_read_as_far_as_it_is_needed_and_no_thread_stays() -> Result<()> {
    for workers in [1, 3] {
        let set = Arc::new(Counting::new(usize::MAX));
        let loader = DataLoader::new(set.clone(), 5)?.workers(workers);
        let mut batches = loader.epoch(0);
        for k in 0..10u32 {
            let (_, labels) = batches.next().expect("it is endless")?;
            assert_eq!(labels.to_vec::<u32>()?, (5 * k..5 * k + 5).collect::<Vec<_>>());
        }
        std::thread::sleep(Duration::from_millis(100)); // what the threads can do ahead, they have done
        let asked = set.asked.load(Ordering::SeqCst);
        assert!(asked <= 5 * (10 + 2 * workers), "{workers} workers asked for {asked} samples");
        drop(batches);
        drop(loader);
        assert!(let_go(&set), "{workers} workers: a thread still has the dataset");
    }
    let shuffled = DataLoader::new(Counting::new(usize::MAX), 5)?.shuffle(0);
    let error = shuffled.epoch(0).next().expect("a batch").map(drop).unwrap_err();
    assert!(error.is_out_of_memory(), "an order of 2⁶⁴ samples: {error}");
    Ok(())
}

#[test]
fn tensors_of_all_types_become_batches() -> Result<()> {
    for device in devices_in_turn() {
        let x = Tensor::arange(0.0, 15.0, 1.0, &device)?.reshape([5, 3])?;
        let parts = [x.to_dtype(DType::F16)?, x.to_dtype(DType::U8)?, x.to_dtype(DType::Bool)?];
        let set = TensorDataset::new(&parts.iter().collect::<Vec<_>>())?;
        let loader = DataLoader::new(set, 2)?.items::<(Tensor, Tensor, Tensor)>().prefetch(&device);
        let (halves, bytes, bools) = loader.epoch(0).nth(1).expect("a second batch")?;
        assert_eq!(halves.to_dtype(DType::F32)?.to_vec::<f32>()?, [6.0, 7.0, 8.0, 9.0, 10.0, 11.0]);
        assert_eq!((bytes.to_vec::<u8>()?, bytes.shape()), (vec![6, 7, 8, 9, 10, 11], &[2, 3][..]), "{device}");
        assert!(bools.to_vec::<bool>()?.iter().all(|&b| b));
    }
    let (x, y) = (Tensor::zeros([3, 2], None)?, Tensor::zeros([2], None)?);
    assert!(TensorDataset::new(&[&x, &y]).is_err() && TensorDataset::new(&[]).is_err());
    Ok(())
}

/// The tensors of a dataset are not copied, and its batches are made where they are.
#[test]
fn batches_of_tensors_stay_on_their_device() -> Result<()> {
    for device in devices_in_turn() {
        let x = Tensor::arange(0.0, 20.0, 1.0, &device)?.reshape([10, 2])?;
        let y = Tensor::from_vec((0..10u32).collect::<Vec<_>>(), 10, &device)?;
        let set = Arc::new(TensorDataset::new(&[&x, &y])?);
        let loader = || DataLoader::new(set.clone(), 4).map(|loader| loader.shuffle(3));
        let here = loader()?.epoch(0).collect::<Result<Vec<_>>>()?;
        assert_eq!(here.iter().map(|(x, _)| x.shape()[0]).collect::<Vec<_>>(), [4, 4, 2]);
        assert!(here.iter().all(|(x, y)| x.device() == &device && y.device() == &device), "{device}");
        let through_host = loader()?.map(|sample, _| Ok(sample));
        assert_eq!(seen(here.into_iter().map(Ok))?, seen(through_host.epoch(0))?, "{device}");
        for to in [Device::cpu(), Device::new("cpu/1")?] {
            let (x, _) = loader()?.prefetch(&to).epoch(0).next().expect("a batch")?;
            assert_eq!(x.device(), &to);
        }
        let parts = random_split(Subset::first(set.clone(), 6), &[2, 4], 0)?.remove(1);
        let (x_part, y_part) = DataLoader::new(parts, 9)?.workers(2).epoch(0).next().expect("a batch")?;
        assert_eq!((x_part.device(), x_part.shape()), (&device, &[4, 2][..]));
        let firsts: Vec<f32> = y_part.to_vec::<u32>()?.iter().map(|&i| 2.0 * i as f32).collect();
        assert_eq!(x_part.i(anygpu::s![.., 0])?.to_vec::<f32>()?, firsts);
        x.fill_(7.0)?;
        assert_eq!(loader()?.epoch(0).next().expect("a batch")?.0.to_vec::<f32>()?, [7.0; 8], "{device}: a copy");
        assert!(set.get(10).is_err() && set.get_batch(&[10]).is_err());
        let mixed = TensorDataset::new(&[&x, &y.to(Device::cpu())?])?;
        let (x, y) = DataLoader::new(mixed, 4)?.epoch(0).next().expect("a batch")?;
        assert_eq!((x.device(), y.device()), (&device, &Device::cpu()));
    }
    Ok(())
}

#[test]
fn fashion_mnist_is_read_from_a_folder() -> Result<()> {
    let digits = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/mnist-5k"); // the same format
    let (train, test) = anygpu::data::fashion_mnist(digits)?.loaders(64, 0)?;
    assert_eq!((train.len(), test.len(), anygpu::data::FASHION_MNIST_CLASSES[9]), (4000, 1000, "ankle boot"));
    let error = anygpu::data::fashion_mnist("/nowhere").unwrap_err().to_string();
    assert!(error.contains("train-images-idx3-ubyte.gz") && error.contains("download_fashion_mnist"), "{error}");
    Ok(())
}

#[test]
fn splits_share_no_sample() -> Result<()> {
    let parts = random_split(Counting::new(10), &[6, 4, 0], 3)?;
    let members = |part: &Subset<_>| -> Result<Vec<u32>> {
        (0..Dataset::len(part)).map(|i| Ok(Dataset::get(part, i)?[1].as_slice::<u32>()?[0])).collect()
    };
    let (a, b) = (members(&parts[0])?, members(&parts[1])?);
    assert_eq!((a.len(), b.len(), Dataset::len(&parts[2])), (6, 4, 0));
    assert_eq!([a.clone(), b].concat().into_iter().collect::<HashSet<_>>().len(), 10);
    assert_ne!(a, [0, 1, 2, 3, 4, 5]);
    assert_eq!(a, members(&random_split(Counting::new(10), &[6, 4], 3)?[0])?);
    assert!(random_split(Counting::new(10), &[6, 5], 3).is_err());
    assert_eq!(Subset::first(Counting::new(3), 10).len(), 3);
    Ok(())
}

/// A dataset that computes with tensors.
struct Computing;

impl Dataset for Computing {
    fn len(&self) -> usize {
        4
    }

    /// Whether a product is recorded, and whether it is of halves.
    fn get(&self, _: usize) -> Result<Sample> {
        let x = Tensor::ones([2, 2], None)?.requires_grad();
        let product = x.matmul(&x)?;
        let seen = [u32::from(product.is_tracked()), u32::from(product.dtype() == DType::F16)];
        Ok(vec![Array::new(seen.to_vec(), [2])?])
    }
}

/// Threads that make batches ahead compute as the loop would that asks for them.
#[test]
fn threads_compute_in_the_state_of_the_loop() -> Result<()> {
    for workers in [0, 2] {
        let epoch = || -> Result<Vec<Vec<u32>>> {
            let loader = DataLoader::new(Arc::new(Computing), 2)?.items::<Tensor>().workers(workers);
            loader.epoch(0).map(|batch| batch?.to_vec()).collect()
        };
        assert_eq!(epoch()?, [[1, 0, 1, 0]; 2], "{workers} workers");
        assert_eq!(no_grad(epoch)?, [[0, 0, 0, 0]; 2], "{workers} workers without gradients");
        assert_eq!(autocast(DType::F16, epoch)?, [[1, 1, 1, 1]; 2], "{workers} workers in halves");
    }
    Ok(())
}
