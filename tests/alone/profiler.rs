//! Profiles of real work: every device, threads, fused kernels, and many kernels.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use anygpu::optim::SGD;
use anygpu::profiler::{Event, Profiler};
use anygpu::{DataParallel, Device, Error, Result, Tensor, WgslKernel, nn};

use crate::common::{alone, devices};

fn of<'a>(events: &'a [Event], device: &'a Device) -> impl Iterator<Item = &'a Event> {
    events.iter().filter(move |event| event.device == device.name())
}

#[test]
fn every_device_says_what_took_how_long() -> Result<()> {
    let _alone = alone();
    let devices = devices();
    let factors: Vec<Tensor> = devices.iter().map(|device| Tensor::rand([256, 256], device)).collect::<Result<_>>()?;
    for factor in &factors {
        factor.matmul(factor)?.sum_all()?.item::<f32>()?; // compiles the kernels
    }
    let begin = Instant::now();
    let profiler = Profiler::start(&devices)?;
    for factor in &factors {
        factor.matmul(factor)?.sum_all()?.item::<f32>()?;
    }
    let profile = profiler.stop();
    let whole = begin.elapsed();
    assert!(profile.elapsed() <= whole && profile.missed() == 0, "{profile}");
    for device in &devices {
        let ops: Vec<&str> = of(profile.events(), device).map(|event| &*event.op).collect();
        assert!(ops.contains(&"matmul") && ops.contains(&"sum"), "{device}: {ops:?}");
        let mut end = Duration::ZERO;
        for event in of(profile.events(), device) {
            // The start is that of the first timestamp, which the host knows to within the time of a submit.
            assert!(event.start + event.duration <= whole + Duration::from_secs(1), "{event:?} of {whole:?}");
            assert!(event.start + Duration::from_millis(1) >= end, "{event:?} begins before {end:?}");
            end = event.start + event.duration;
            let bytes = if device.is_cpu() { 0..=0 } else { 4..=4 * 4 * 256 * 256 };
            assert!(bytes.contains(&event.bytes), "{event:?}");
        }
        // 33 million operations take more than 100 ns anywhere, and less than the profile.
        let products = of(profile.events(), device).filter(|event| event.op == "matmul");
        let time: Duration = products.map(|event| event.duration).sum();
        assert!((Duration::from_nanos(100)..whole).contains(&time), "{device}: {time:?} of {whole:?}");
    }
    Ok(())
}

#[test]
fn the_numbers_and_the_kernels_are_those_without_a_profile() -> Result<()> {
    let _alone = alone();
    for device in &devices() {
        let step = || -> Result<Vec<f32>> {
            let x = Tensor::linspace(-1.0, 1.0, 300, device)?;
            let mut y = x.clone();
            for _ in 0..6 {
                y = y.mul(0.5)?.add(&x)?.tanh()?;
            }
            y.to_vec()
        };
        let expected = step()?;
        let count = || -> Result<u64> {
            let before = device.dispatches();
            step()?;
            Ok(device.dispatches() - before)
        };
        // A chain that came three times is one kernel. Where a chain ends depends on the memory that earlier tests left, at first.
        let (mut kernels, mut same) = (count()?, 0);
        for _ in 0..20 {
            let next = count()?;
            same = if next == kernels { same + 1 } else { 0 };
            kernels = next;
            if same == 3 {
                break;
            }
        }
        assert_eq!(same, 3, "{device}: {kernels} kernels");
        let profiler = Profiler::start(std::slice::from_ref(device))?;
        let got = step()?;
        let profile = profiler.stop();
        assert_eq!(got, expected, "{device}");
        let fused = profile.events().iter().filter(|event| event.op.contains('+')).count();
        if device.is_cpu() {
            assert_eq!((profile.events().len(), fused), (18, 0), "{profile}");
        } else {
            assert_eq!(profile.events().len() as u64, kernels, "{profile}");
            assert!(fused > 0, "{profile}");
        }
    }
    Ok(())
}

#[test]
fn more_kernels_than_a_query_set_has_queries_from_two_threads() -> Result<()> {
    let _alone = alone();
    const EACH: usize = 3000;
    for device in &devices() {
        let x = Tensor::ones([4], device)?;
        let profiler = Profiler::start(std::slice::from_ref(device))?;
        thread::scope(|scope| {
            let work = || (0..EACH).try_for_each(|_| x.cumsum(0).map(drop));
            let threads = [scope.spawn(work), scope.spawn(work)];
            threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
        })?;
        let profile = profiler.stop();
        let sums = profile.events().iter().filter(|event| event.op == "cumsum").count();
        assert_eq!((sums, profile.missed()), (2 * EACH, 0), "{device}");
        let totals = profile.totals();
        let calls: u64 = totals.iter().filter(|total| total.op == "cumsum").map(|total| total.calls).sum();
        assert_eq!(calls, 2 * EACH as u64, "{device}");
    }
    Ok(())
}

#[test]
fn a_step_on_several_devices_is_one_profile() -> Result<()> {
    let _alone = alone();
    let devices = devices();
    let net = DataParallel::new(nn::models::mlp(&[8, 4, 3])?, &devices)?;
    let mut optimizer = SGD::new(net.parameters(), 0.1);
    let (x, labels) = (Tensor::rand([64, 8], None)?, Tensor::zeros([64], None)?.to_dtype(anygpu::DType::U32)?);
    let mut step = || -> Result<f32> {
        optimizer.zero_grad();
        let loss = net.train_batch(&x, &labels, nn::cross_entropy)?.item()?;
        optimizer.step()?;
        Ok(loss)
    };
    step()?;
    let profiler = Profiler::start(&devices)?;
    step()?;
    let profile = profiler.stop();
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for event in profile.events() {
        *counts.entry(&event.device).or_default() += 1;
    }
    for device in &devices {
        assert!(counts.get(device.name()).is_some_and(|count| *count > 5), "{device}: {counts:?}");
    }
    Ok(())
}

#[test]
fn kernels_of_users_are_in_it() -> Result<()> {
    let _alone = alone();
    let source = "
        @group(0) @binding(0) var<storage, read_write> y: array<f32>;
        @compute @workgroup_size(64) fn fill(@builtin(global_invocation_id) id: vec3<u32>) {
            if id.x < arrayLength(&y) { y[id.x] = 1.0; }
        }";
    let kernel = WgslKernel::new(source, "fill")?;
    for device in anygpu::testing::adapters() {
        let profiler = Profiler::start(std::slice::from_ref(&device))?;
        let output = kernel.on(&device).output("y", ([1000], anygpu::DType::F32));
        drop(output.dispatch(1000)?);
        let profile = profiler.stop();
        let [event] = profile.events() else { panic!("{profile}") };
        assert_eq!((&*event.op, &*event.kernel, event.bytes), ("fill", "fill", 4000), "{device}");
    }
    Ok(())
}

#[test]
fn a_device_has_one_profiler_at_a_time() -> Result<()> {
    let _alone = alone();
    let cpu = Device::new("cpu/7")?;
    let first = Profiler::start(std::slice::from_ref(&cpu))?;
    let second = Profiler::start(std::slice::from_ref(&cpu));
    assert!(matches!(&second, Err(Error::InvalidArgument { detail, .. }) if detail.contains("cpu/7")), "{second:?}");
    drop(first);
    let twice = Profiler::start(&[cpu.clone(), cpu.clone()]);
    assert!(twice.is_err());
    let third = Profiler::start(std::slice::from_ref(&cpu))?; // the second one, which failed, holds no device
    Tensor::ones([4], &cpu)?.exp()?;
    assert_eq!(third.stop().events().len(), 1);
    Tensor::ones([4], &cpu)?.exp()?;
    Ok(())
}

#[test]
fn the_loss_of_a_device_leaves_the_rest_of_the_profile() -> Result<()> {
    let _alone = alone();
    let Some(adapter) = anygpu::testing::adapters().into_iter().find(|device| device.info().api != "GL") else {
        return Ok(());
    };
    let (lost, cpu) = (Device::new(&format!("chaos:{adapter}?lose=30"))?, Device::new("cpu/6")?);
    let profiler = Profiler::start(&[lost.clone(), cpu.clone()])?;
    Tensor::ones([4], &cpu)?.exp()?;
    let x = Tensor::ones([4], &lost)?;
    while x.cumsum(0).and_then(|y| y.to_vec::<f32>()).is_ok() {}
    let profile = profiler.stop();
    let [error] = profile.errors() else { panic!("{profile}") };
    assert!(error.is_device_lost() && profile.missed() > 0, "{profile}");
    assert_eq!(of(profile.events(), &cpu).count(), 1);
    assert!(profile.to_string().contains("is lost"));
    Ok(())
}
