//! Elements that arrive later: in any order of calls, many at once, and from devices that are lost meanwhile.

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use anygpu::metrics::Mean;
use anygpu::nn::{Linear, cross_entropy};
use anygpu::{DType, DataParallel, Device, DeviceKind, Error, Result, Tensor, checkpoint};

use crate::common::devices_in_turn;

const SOON: Duration = Duration::from_secs(60);

/// Returns x · xᵀ and so on, long enough that the device computes when the call returns.
fn work(device: &Device) -> Result<Tensor> {
    let x = Tensor::ones([256, 256], device)?;
    (0..8).try_fold(x.clone(), |y, _| y.matmul(&x)?.mul_scalar(1.0 / 256.0))
}

#[test]
fn elements_are_those_of_the_call() -> Result<()> {
    for device in &devices_in_turn() {
        let x = Tensor::arange(0.0, 300_000.0, 1.0, device)?; // more than one chunk
        let mut reads: Vec<_> = (0..6)
            .map(|round| {
                let read = x.to_vec_async::<f32>();
                x.fill_(-1.0 - round as f32)?;
                Ok(read)
            })
            .collect::<Result<_>>()?;
        for (round, read) in reads.drain(..).enumerate() {
            let elements = pollster::block_on(read)?;
            assert_eq!(elements.len(), 300_000);
            let first = if round == 0 { 0.0 } else { -(round as f32) };
            let last = if round == 0 { 299_999.0 } else { -(round as f32) };
            assert_eq!((elements[0], elements[299_999]), (first, last), "{device}");
        }
    }
    Ok(())
}

#[test]
fn every_type_and_view() -> Result<()> {
    for device in &devices_in_turn() {
        let x = Tensor::arange(0.0, 24.0, 1.0, device)?.reshape([4, 6])?;
        let turned = x.t()?.narrow(0, 1, 3)?;
        assert_eq!(pollster::block_on(turned.to_vec_async::<f32>())?, turned.to_vec::<f32>()?, "{device}");
        let bytes = x.to_dtype(DType::U8)?.narrow(1, 1, 3)?;
        assert_eq!(pollster::block_on(bytes.to_vec_async::<u8>())?, bytes.to_vec::<u8>()?, "{device}");
        let mask = x.gt(&Tensor::full((), 11.5, device)?)?;
        assert_eq!(pollster::block_on(mask.to_vec_async::<bool>())?, mask.to_vec::<bool>()?, "{device}");
        assert_eq!(pollster::block_on(Tensor::zeros([0, 3], device)?.to_vec_async::<f32>())?, [0.0; 0]);
        let wrong = pollster::block_on(x.to_vec_async::<u32>()).unwrap_err();
        assert!(matches!(wrong, Error::DTypeMismatch { op: "to_vec_async", .. }), "{wrong}");
    }
    Ok(())
}

/// The call returns while the device works, and a program that draws asks for the result between its frames.
#[test]
fn nothing_waits() -> Result<()> {
    for device in &devices_in_turn() {
        drop(work(device)?.to_vec::<f32>()?); // compiles the kernels
        let y = work(device)?;
        // The products take tens of milliseconds on software adapters; a thread may be held up for so long, but not always. On
        // OpenGL, calls wait for each other.
        if device.info().kind == DeviceKind::Software && device.info().api != "GL" {
            let returns_before = || Ok::<_, Error>(work(device)?.to_vec_async::<f32>().try_get().is_none());
            let mut all = (0..5).map(|_| returns_before());
            assert!(all.any(|before| before.unwrap_or_else(|error| panic!("{error}"))), "{device} was waited for");
        }
        let mut read = y.to_vec_async::<f32>();
        let start = Instant::now();
        let elements = loop {
            if let Some(elements) = read.try_get() {
                break elements?;
            }
            assert!(start.elapsed() < SOON, "{device}");
            thread::sleep(Duration::from_millis(1));
        };
        assert!(elements.iter().all(|&v| v == 1.0), "{device}");
        assert!(matches!(read.try_get(), Some(Err(_))), "elements are given once");
    }
    Ok(())
}

/// Functions are called in the order of the reads, and one that panics takes nothing from the others.
#[test]
fn functions_are_called_in_order() -> Result<()> {
    for device in &devices_in_turn() {
        let (sender, receiver) = channel();
        for round in 0..20u32 {
            let sender = sender.clone();
            Tensor::full([50], round, device)?.to_vec_then(move |elements: Result<Vec<u32>>| {
                sender.send(elements).ok();
                assert!(round != 7 || !by_the_reader(), "for a test: this one panics");
            });
        }
        for round in 0..20u32 {
            let elements = receiver.recv_timeout(SOON).expect("every function is called")?;
            assert_eq!(elements, [round; 50], "{device}");
        }
    }
    Ok(())
}

/// Returns whether a device's thread runs this. On the host, the caller itself calls the function, and would get the panic.
fn by_the_reader() -> bool {
    thread::current().name().is_some_and(|name| name.starts_with("reads of"))
}

/// Returns whether the adapter has logical devices for single tests.
fn own(device: &Device) -> bool {
    device.info().api != "GL" && !device.name().contains('/')
}

#[test]
fn reads_that_nobody_wants_are_dropped() -> Result<()> {
    for device in devices_in_turn().iter().filter(|device| own(device)) {
        let device = &Device::new(&format!("{device}/8"))?; // no other test uses its memory
        let before = device.memory().live;
        for _ in 0..10 {
            drop(work(device)?.to_vec_async::<f32>());
        }
        let last = Tensor::ones([1], device)?.to_vec_async::<f32>();
        assert_eq!(pollster::block_on(last)?, [1.0]);
        assert_eq!(device.memory().live, before, "{device}");
    }
    Ok(())
}

#[test]
fn threads_and_other_reads_go_on_beside_them() -> Result<()> {
    for device in &devices_in_turn() {
        thread::scope(|scope| {
            let rounds = |number: u32| {
                move || -> Result<()> {
                    for round in 0..20 {
                        let x = Tensor::full([1000], number * 100 + round, device)?;
                        let (later, now) = (x.to_vec_async::<u32>(), x.to_vec::<u32>()?);
                        assert_eq!(pollster::block_on(later)?, now);
                        assert_eq!(now, [number * 100 + round; 1000]);
                    }
                    Ok(())
                }
            };
            let threads: Vec<_> = (0..4).map(|number| scope.spawn(rounds(number))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
        })?;
    }
    Ok(())
}

/// A device that is lost, before the call or during it, is a typed error soon.
#[test]
fn a_lost_device_ends_its_reads() -> Result<()> {
    for device in devices_in_turn().iter().filter(|device| !device.is_cpu() && own(device)) {
        let lost = Device::new(&format!("{device}/9"))?;
        let y = work(&lost)?;
        let reads: Vec<_> = (0..4).map(|_| y.to_vec_async::<f32>()).collect();
        lost.lose()?;
        let late = y.to_vec_async::<f32>();
        let start = Instant::now();
        for read in reads {
            // It may have been done before.
            match pollster::block_on(read) {
                Ok(elements) => assert_eq!(elements.len(), 256 * 256),
                Err(error) => assert!(error.is_device_lost(), "{error}"),
            }
        }
        assert!(pollster::block_on(late).unwrap_err().is_device_lost());
        assert!(start.elapsed() < SOON);
    }
    Ok(())
}

/// A fault belongs to the first read after it, and not to one that was begun before and ends later.
#[test]
fn faults_are_those_of_the_work_before_a_read() -> Result<()> {
    for device in devices_in_turn().iter().filter(|device| !device.is_cpu() && own(device)) {
        let device = &Device::new(&format!("{device}/10"))?; // no other test has faults there
        for round in 0..10 {
            let table = Tensor::ones([4, 2], device)?;
            let good = work(device)?.to_vec_async::<f32>();
            let rows = table.index_select(0, &Tensor::from_slice(&[1u32, 9 + round], 2, device)?)?;
            let error = rows.to_vec::<f32>().unwrap_err();
            assert!(error.to_string().contains(&format!("index {}", 9 + round)), "{error}");
            assert_eq!(pollster::block_on(good)?.len(), 256 * 256);
        }
    }
    Ok(())
}

/// The forms for executors run on any: here on one that moves a future to another thread.
#[test]
fn futures_go_to_other_threads() -> Result<()> {
    fn elsewhere<T: Send>(future: impl Future<Output = Result<T>> + Send) -> Result<T> {
        thread::scope(|scope| scope.spawn(|| pollster::block_on(future)).join().expect("no panic"))
    }
    for device in &Device::all() {
        assert_eq!(&elsewhere(Device::new_async(device.name()))?, device);
        let x = Tensor::arange(0.0, 5.0, 1.0, device)?;
        assert_eq!(elsewhere(x.sum_all()?.item_async::<f32>())?, 10.0, "{device}");
        assert_eq!(elsewhere(x.to_async(Device::cpu()))?.to_vec::<f32>()?, [0.0, 1.0, 2.0, 3.0, 4.0], "{device}");
        elsewhere(device.synchronize_async())?;
        assert_eq!(&elsewhere(device.reopen_async())?, device);
        let mut mean = Mean::new();
        mean.add(&x.mean_all()?, 5)?;
        assert_eq!(elsewhere(mean.value_async())?, 2.0, "{device}");
        let net = DataParallel::new(Linear::new(1, 2)?, &[device.clone(), Device::new("cpu/1")?])?;
        let (x, labels) = (Tensor::ones([4, 1], None)?, Tensor::from_slice(&[0u32, 1, 0, 1], 4, None)?);
        let loss = elsewhere(net.train_batch_async(&x, &labels, cross_entropy))?.item::<f32>()?;
        assert!(loss.is_finite(), "{device}: {loss}");
        assert_eq!(elsewhere(net.predict_async(&x))?.shape(), [4, 2], "{device}");
        let state = net.module().state_dict();
        let bytes = elsewhere(checkpoint::to_bytes_async(&state))?;
        assert_eq!(checkpoint::from_bytes(&bytes, "a test", device)?.len(), state.len());
    }
    assert_eq!(elsewhere(async { Ok(anygpu::init().await.len()) })?, Device::all().len());
    Ok(())
}
