//! Several threads that use the same tensors, or the same device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use anygpu::{Device, Result, Tensor};

use crate::common;

type Job = Box<dyn FnOnce() -> Result<()> + Send>;

/// Runs each job on a thread of its own, and fails if they do not end within the time.
fn together(limit: Duration, jobs: Vec<Job>) {
    let (done, results) = channel();
    let count = jobs.len();
    for job in jobs {
        let done = done.clone();
        thread::spawn(move || done.send(job()));
    }
    drop(done);
    let end = Instant::now() + limit;
    for finished in 0..count {
        match results.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(result) => result.unwrap(),
            Err(error) => panic!("{finished} of {count} threads ended within {limit:?}: {error}"),
        }
    }
}

/// Each job takes the two tensors in another order, and some only write one.
#[test]
fn ops_on_the_same_tensors_do_not_wait_for_each_other() -> Result<()> {
    type Step = fn(&Tensor, &Tensor) -> Result<()>;
    let steps: [Step; 8] = [
        |a, b| a.copy_(b),
        |a, b| b.copy_(a),
        |a, b| a.add(b).map(drop),
        |a, b| b.add(a).map(drop),
        |a, _| a.fill_(1.0),
        |_, b| b.fill_(2.0),
        |a, b| a.add_(b),
        |a, b| Tensor::where_cond(&a.gt(b)?, a, b).map(drop),
    ];
    for device in common::devices() {
        let (a, b) = (Tensor::zeros([300], &device)?, Tensor::ones([300], &device)?);
        let rounds = if device.is_cpu() { 20_000 } else { 100 };
        let job = |step: Step| {
            let (a, b) = (a.clone(), b.clone());
            Box::new(move || (0..rounds).try_for_each(|_| step(&a, &b))) as Job
        };
        together(Duration::from_secs(100), steps.map(job).into());
        // Lavapipe compiles a kernel when it first runs, in a thread of its own, and crashes if the process ends meanwhile.
        device.synchronize()?;
    }
    Ok(())
}

/// wgpu's GL backend panics in a thread that waits for 6 s while another one computes.
#[test]
fn small_ops_wait_for_long_ones() -> Result<()> {
    for device in common::devices().into_iter().filter(|device| device.info().api.eq_ignore_ascii_case("gl")) {
        long_beside_short(&device)?;
    }
    Ok(())
}

fn long_beside_short(device: &Device) -> Result<()> {
    let product = |n: usize| {
        let x = Tensor::full([n, n], 1.0 / n as f32, device)?;
        x.matmul(&x)?.sum_all()?.item::<f32>()
    };
    product(512)?; // compiles the kernels
    let start = Instant::now();
    product(512)?;
    let n = (512.0 * (12.0 / start.elapsed().as_secs_f64()).cbrt()).min(8192.0) as usize;
    let over = Arc::new(AtomicBool::new(false));
    let (end, x) = (over.clone(), Tensor::full([n, n], 1.0 / n as f32, device)?);
    let long: Job = Box::new(move || {
        let element = x.matmul(&x)?.narrow(0, n / 2, 1)?.narrow(1, n / 2, 1)?.item::<f32>();
        end.store(true, Ordering::Relaxed);
        assert!((element? * n as f32 - 1.0).abs() < 1e-3);
        Ok(())
    });
    let short = || {
        let (over, device) = (over.clone(), device.clone());
        Box::new(move || {
            let mut kept = Vec::new(); // so that each one is a new buffer
            while !over.load(Ordering::Relaxed) {
                let ones = Tensor::ones([100], &device)?;
                assert_eq!(ones.add(1.0)?.to_vec::<f32>()?, [2.0; 100]);
                kept.push(ones);
            }
            Ok(())
        }) as Job
    };
    let shorts = (0..8).map(|_| short());
    together(Duration::from_secs(120), [long].into_iter().chain(shorts).collect());
    Ok(())
}
