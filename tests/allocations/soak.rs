//! Random work on eight threads over all devices, for `ANYGPU_SOAK_SECONDS` (3 if it is not set): ops of random shapes, copies
//! between devices, training on one and on two, kernels of users, reads that do not wait, and errors on purpose. Results are right
//! all the time, and only the errors come that are asked for. From the fifth part of the time on, memory does not grow; this is
//! asserted for runs of two minutes and more.

use std::sync::{LazyLock, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anygpu::kernel::Output;
use anygpu::nn::{self, CrossEntropyLoss, Module, models};
use anygpu::optim::SGD;
use anygpu::{Conv, DataParallel, Device, Error, Pool, Result, Tensor, WgslKernel};

use crate::common::{self, alone};
use crate::counting;

/// A generator of numbers: Knuth's multiplier, upper bits.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}

static SAXPY: LazyLock<WgslKernel> = LazyLock::new(|| {
    let source = "
        struct Params { a: f32 }
        @group(0) @binding(0) var<uniform> params: Params;
        @group(0) @binding(1) var<storage, read> x: array<f32>;
        @group(0) @binding(2) var<storage, read_write> y: array<f32>;
        @compute @workgroup_size(64)
        fn saxpy(@builtin(global_invocation_id) id: vec3<u32>) {
            if id.x < arrayLength(&x) { y[id.x] += params.a * x[id.x]; }
        }";
    WgslKernel::new(source, "saxpy").expect("the kernel is valid")
});

/// Returns how many of five calls fail as they must.
fn errors_on_purpose(x: &Tensor, other: &Device) -> Result<usize> {
    let [n, columns] = [x.shape()[0], x.shape()[1]];
    let elsewhere = Tensor::ones([columns], other)?;
    let kinds = [
        matches!(x.matmul(&Tensor::ones([columns + 1, n], x.device())?), Err(Error::ShapeMismatch { .. })),
        matches!(x.narrow(0, n, 1), Err(Error::InvalidArgument { .. })),
        matches!(
            Tensor::zeros([1 << 20, 1 << 20], x.device()),
            Err(Error::OutOfMemory { .. } | Error::LimitExceeded { .. })
        ),
        x.device() == other || matches!(x.add(&elsewhere), Err(Error::DeviceMismatch { .. })),
        matches!(Device::new("gpu:99"), Err(Error::UnknownDevice { .. })),
    ];
    Ok(kinds.into_iter().filter(|right| *right).count())
}

/// Loses a device of chaos on the first adapter that can be lost, in the middle of what the thread does, and opens it again.
fn loss_of_a_device(devices: &[Device], thread: u64) -> Result<()> {
    let Some(adapter) = devices.iter().find(|device| !device.is_cpu() && device.info().api != "GL") else {
        return Ok(());
    };
    let device = Device::new(&format!("chaos:{adapter}?lose={}", 20 + thread))?;
    let mut x = Tensor::ones([4], &device)?;
    let lost =
        (0..40).try_for_each(|_| x.add(1.0).and_then(|y| std::mem::replace(&mut x, y).to_vec::<f32>()).map(drop));
    assert!(lost.is_err_and(|error| error.is_device_lost()), "thread {thread}");
    assert_eq!(Tensor::ones([4], &device.reopen()?)?.sum_all()?.item::<f32>()?, 4.0);
    Ok(())
}

/// One piece of work of a random size. Returns what it computed and what is right.
fn work(numbers: &mut Numbers, device: &Device, other: &Device) -> Result<(f32, f32)> {
    let n = 1 + numbers.below(200);
    let ones = Tensor::ones([n, 7], device)?;
    match numbers.below(11) {
        0 => Ok((ones.matmul(&ones.t()?)?.sum_all()?.item()?, 7.0 * (n * n) as f32)),
        1 => Ok((ones.to(other)?.add(1.0)?.to(device)?.sum_all()?.item()?, 14.0 * n as f32)),
        2 => {
            let x = Tensor::ones([1 + n % 3, 2, n, n], device)?;
            let w = Tensor::ones([3, 2, 3, 3], device)?;
            let k = n.min(3);
            let y = x.conv2d(&w, None, Conv::new().padding(1))?.max_pool2d(Pool::new(k))?;
            Ok((y.max_all()?.item()?, 2.0 * (k * k) as f32))
        }
        3 => {
            let x = ones.requires_grad();
            (&x * &x)?.sum_all()?.backward()?;
            Ok((x.grad().map_or(Ok(0.0), |grad| grad.sum_all()?.item())?, 14.0 * n as f32))
        }
        4 => Ok((Tensor::iota(n, device)?.one_hot(n)?.sum_all()?.item::<u32>()? as f32, n as f32)),
        5 => {
            let mut net = models::mlp(&[7, 20, 3])?;
            net.to_(device)?;
            let mut optimizer = SGD::new(net.parameters(), 0.1);
            let labels = Tensor::full([n], 1u32, device)?;
            let mut losses = Vec::new();
            for _ in 0..3 {
                optimizer.zero_grad();
                let loss = CrossEntropyLoss::new().forward(&net.forward(&ones)?, &labels)?;
                loss.backward()?;
                optimizer.step()?;
                losses.push(loss.item::<f32>()?);
            }
            Ok((f32::from(u8::from(losses[2] < losses[0])), 1.0))
        }
        6 => {
            if device.is_cpu() {
                return Ok((0.0, 0.0));
            }
            let y = ones.add(0.5)?;
            let launch = SAXPY.on(device).set("a", 2.0).input("x", &ones).output("y", Output::copy_of(&y));
            Ok((launch.dispatch(7 * n)?.remove(0).sum_all()?.item()?, 3.5 * 7.0 * n as f32))
        }
        7 => Ok((errors_on_purpose(&ones, other)? as f32, 5.0)),
        8 => Ok((pollster::block_on(ones.sum_all()?.to_vec_async::<f32>())?[0], 7.0 * n as f32)),
        9 => {
            let devices = if device == other { vec![device.clone()] } else { vec![device.clone(), other.clone()] };
            let net = DataParallel::new(models::mlp(&[7, 5, 3])?, &devices)?;
            let labels = Tensor::full([n], 1u32, device)?;
            let mut optimizer = SGD::new(net.parameters(), 0.1);
            let mut losses = Vec::new();
            for _ in 0..3 {
                optimizer.zero_grad();
                losses.push(net.train_batch(&ones, &labels, nn::cross_entropy)?.item::<f32>()?);
                optimizer.step()?;
            }
            Ok((f32::from(u8::from(losses[2] < losses[0])), 1.0))
        }
        _ => {
            let data: Vec<f32> = (0..n * 64).map(|i| (i % 5) as f32).collect();
            let sum: f32 = data.iter().sum();
            Ok((Tensor::from_vec(data, [n, 64], device)?.sum(1, false)?.sum_all()?.item()?, sum))
        }
    }
}

const MIB: f64 = (1 << 20) as f64;

/// Memory of the process in MiB: what is resident, where the system says so, and what Rust code has allocated, without drivers.
fn memory() -> [f64; 2] {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let resident = pages.split_whitespace().nth(1).and_then(|pages| pages.parse::<f64>().ok()).unwrap_or(0.0);
    [resident * 4096.0 / MIB, counting::live() as f64 / MIB]
}

#[test]
fn eight_threads_on_all_devices() {
    let _alone = alone();
    let seconds = std::env::var("ANYGPU_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3.0);
    let (begin, time) = (Instant::now(), Duration::from_secs_f64(seconds));
    let devices = common::devices();
    let measured = Mutex::new(Vec::new());
    let count: usize = thread::scope(|scope| {
        let measured = &measured;
        scope.spawn(move || {
            while begin.elapsed() < time {
                measured.lock().unwrap().push((begin.elapsed().as_secs_f64(), memory()));
                thread::sleep((time / 60).min(Duration::from_secs(10)));
            }
        });
        let run = |seed: u64| {
            let devices = &devices;
            move || {
                let (mut numbers, mut count) = (Numbers(seed), 0);
                loss_of_a_device(devices, seed).unwrap();
                while begin.elapsed() < time {
                    let device = &devices[numbers.below(devices.len())];
                    let other = &devices[numbers.below(devices.len())];
                    let (got, expected) = work(&mut numbers, device, other).unwrap();
                    assert_eq!(got, expected, "piece {count} of thread {seed} on {device} and {other}");
                    count += 1;
                }
                count
            }
        };
        let threads: Vec<_> = (0..8).map(|seed| scope.spawn(run(seed))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let measured = measured.into_inner().unwrap();
    // The peak and the median of the samples of each fifth.
    let fifths = |kind: usize| {
        [0.0, 0.2, 0.4, 0.6, 0.8].map(|from: f64| {
            let within = measured.iter().filter(|(at, _)| (from * seconds..(from + 0.2) * seconds).contains(at));
            let mut sizes: Vec<f64> = within.map(|(_, sizes)| sizes[kind]).collect();
            sizes.sort_by(f64::total_cmp);
            [sizes.last().copied().unwrap_or(0.0), sizes.get(sizes.len() / 2).copied().unwrap_or(0.0)]
        })
    };
    let [resident, allocated] = [fifths(0), fifths(1)];
    let of = |fifths: [[f64; 2]; 5], which: usize| fifths.map(|sizes| sizes[which]);
    println!(
        "{count} pieces of work; in the five fifths of the time at most {:.0?} MiB resident (medians {:.0?}), {:.1?} allocated \
         (medians {:.1?})",
        of(resident, 0),
        of(resident, 1),
        of(allocated, 0),
        of(allocated, 1)
    );
    // Freed memory of drivers and of threads that have ended is not all given back to the system.
    // What Rust code has allocated has moments with the tensors of many threads on `cpu`, so that its peaks are chance.
    let grows = |sizes: [f64; 5], most: f64| sizes[4] > sizes[1] * most;
    let memory_grows = grows(of(resident, 0), 1.1) || grows(of(resident, 1), 1.1) || grows(of(allocated, 1), 1.05);
    assert!(seconds < 120.0 || !memory_grows, "memory grows: {measured:.0?}");
}
