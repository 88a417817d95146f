//! Pipelines whose stages fail, and arguments that do not fit: typed errors with the device's name, and nothing hangs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anygpu::nn::{self, Linear, Module, ReLU, Sequential};
use anygpu::parallel::PipelineSchedule::{GPipe, OneForwardOneBackward};
use anygpu::{DType, Device, Error, Pipeline, Result, Tensor, no_grad};

use crate::common::{alone, devices};

/// What the layer does from its third call on, until it is told to stop.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Error,
    Panic,
    Hang,
}

/// The identity, with a fault.
#[derive(Clone)]
struct Faulty {
    fault: Fault,
    calls: Arc<AtomicUsize>,
    faulty: Arc<AtomicBool>,
}

impl Module for Faulty {
    anygpu::children!();

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let faulty = || self.faulty.load(Ordering::Acquire);
        if self.calls.fetch_add(1, Ordering::AcqRel) < 2 || !faulty() {
            return Ok(x.clone());
        }
        match self.fault {
            Fault::Error => x.reshape([7]),
            Fault::Panic => panic!("on purpose"),
            Fault::Hang => {
                while faulty() {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Ok(x.clone())
            }
        }
    }
}

fn batch() -> Result<(Tensor, Tensor)> {
    Ok((Tensor::rand([9, 4], None)?, Tensor::from_slice(&[0u32, 1, 2].repeat(3), 9, None)?))
}

fn linear(name: &str, outputs: usize) -> Result<Sequential> {
    Ok(Sequential::new().add(name, Linear::new(4, outputs)?))
}

/// Three stages, of which one has a fault.
fn faulty(fault: Fault, stage: usize, devices: &[Device]) -> Result<(Pipeline, Arc<AtomicBool>)> {
    let on = Arc::new(AtomicBool::new(true));
    let mut stages = vec![linear("a", 4)?, linear("b", 4)?, linear("c", 3)?];
    let layer = Faulty { fault, calls: Arc::default(), faulty: on.clone() };
    stages[stage] = Sequential::new().add("fault", layer).add("rest", stages[stage].clone());
    Ok((Pipeline::new(stages, devices)?.with_micro_batches(4)?, on))
}

fn has_gradients(net: &Pipeline) -> bool {
    net.parameters().iter().any(|parameter| parameter.grad().is_some())
}

#[test]
fn a_failing_stage_is_named_and_the_next_call_works() -> Result<()> {
    let _alone = alone();
    let (x, y) = batch()?;
    let mut mixes = vec![Device::list("cpu/0,cpu/1,cpu/2")?];
    mixes.extend(devices().into_iter().map(|device| vec![Device::cpu(), device, Device::new("cpu/1").expect("cpu/1")]));
    for mix in mixes {
        for (fault, stage) in (0..3).flat_map(|stage| [(Fault::Error, stage), (Fault::Panic, stage)]) {
            for schedule in [OneForwardOneBackward, GPipe] {
                let what = format!("{fault:?} in stage {stage} of {mix:?}, {schedule:?}");
                let (net, on) = faulty(fault, stage, &mix)?;
                let net = net.with_schedule(schedule);
                let error = net.train_batch(&x, &y, nn::cross_entropy).unwrap_err();
                let typed = match fault {
                    Fault::Error => matches!(&error, Error::Replica { device, .. } if device == mix[stage].name()),
                    _ => matches!(&error, Error::WorkerPanic { device, .. } if device == mix[stage].name()),
                };
                assert!(typed && !has_gradients(&net), "{what}: {error}");
                assert!(net.predict(&x).is_err(), "{what}");
                on.store(false, Ordering::Release);
                assert!(net.train_batch(&x, &y, nn::cross_entropy)?.item::<f32>()?.is_finite(), "{what}");
                assert!(has_gradients(&net) && net.predict(&x)?.shape() == [9, 3], "{what}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_stage_that_hangs_ends_the_call() -> Result<()> {
    let _alone = alone();
    let (x, y) = batch()?;
    for stage in 0..3 {
        let devices = Device::list("cpu/0,cpu/1,cpu/2")?;
        let (net, on) = faulty(Fault::Hang, stage, &devices)?;
        let net = net.with_time_limit(Duration::from_secs(1));
        let start = Instant::now();
        let error = net.train_batch(&x, &y, nn::cross_entropy).unwrap_err().to_string();
        assert!(error.contains(&format!("{} has not ended its part of the step for 1 s", devices[stage])), "{error}");
        let again = net.train_batch(&x, &y, nn::cross_entropy).unwrap_err().to_string();
        assert_eq!(again, error, "it hangs still");
        assert!(start.elapsed() < Duration::from_secs(9) && !has_gradients(&net));
        on.store(false, Ordering::Release);
        let works = (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            net.train_batch(&x, &y, nn::cross_entropy).is_ok()
        });
        assert!(works, "stage {stage}");
    }
    Ok(())
}

/// A lost device, in each stage, after any number of kernels.
#[test]
fn a_lost_device_is_named() -> Result<()> {
    let _alone = alone();
    let adapters = devices().into_iter().filter(|device| !device.is_cpu() && device.info().api != "GL");
    let adapters = adapters.filter(|device| !device.name().contains('/'));
    let (x, y) = batch()?;
    for adapter in adapters {
        for (run, kernels) in [1, 9, 20, 31, 45].into_iter().enumerate() {
            let lost = Device::new(&format!("chaos:{adapter}?lose={kernels}"))?;
            let mut mix = vec![lost.clone(), Device::cpu(), Device::new("cpu/1")?];
            mix.rotate_right(run % 3);
            let net = Pipeline::new(vec![linear("a", 4)?, linear("b", 4)?, linear("c", 3)?], &mix);
            let steps = net.and_then(|net| {
                for _ in 0..100 {
                    let step = net.train_batch(&x, &y, nn::cross_entropy);
                    let read = step.and_then(|loss| loss.item::<f32>());
                    if let Err(error) = read.and_then(|_| net.predict(&x)).map(drop) {
                        assert!(net.train_batch(&x, &y, nn::cross_entropy).is_err_and(|error| error.is_device_lost()));
                        assert!(!has_gradients(&net));
                        return Err(error);
                    }
                }
                Ok(())
            });
            let error = steps.unwrap_err();
            assert!(error.is_device_lost() && error.to_string().contains(adapter.name()), "{lost}: {error}");
        }
    }
    Ok(())
}

#[test]
fn a_loss_function_that_uses_its_own_pipeline_is_an_error() -> Result<()> {
    let _alone = alone();
    let (x, y) = batch()?;
    let devices = Device::list("cpu/0,cpu/1")?;
    let net = Arc::new(Pipeline::new(vec![linear("a", 4)?, linear("b", 3)?], &devices)?);
    let (inner, input) = (net.clone(), x.clone());
    let error = net.train_batch(&x, &y, move |_, _| inner.predict(&input)?.mean_all()).unwrap_err().to_string();
    assert!(error.contains("called by a loss function or a layer of the same Pipeline"), "{error}");
    let (inner, state) = (net.clone(), net.state_dict());
    let loss = move |output: &Tensor, y: &Tensor| {
        inner.load_state_dict(&state, true)?;
        nn::cross_entropy(output, y)
    };
    assert!(net.train_batch(&x, &y, loss).unwrap_err().to_string().contains("load_state_dict: called by"));
    net.train_batch(&x, &y, nn::cross_entropy)?;
    Ok(())
}

#[test]
fn what_does_not_fit_is_an_error() -> Result<()> {
    let _alone = alone();
    let (x, y) = batch()?;
    let devices = Device::list("cpu/0,cpu/1")?;
    let refused = |stages: Vec<Sequential>, devices: &[Device]| match Pipeline::new(stages, devices) {
        Err(Error::InvalidArgument { detail, .. }) => detail,
        other => panic!("{other:?}"),
    };
    assert!(refused(vec![], &[]).contains("0 stages and 0 devices"));
    assert!(refused(vec![linear("a", 4)?], &devices).contains("1 stages and 2 devices"));
    assert!(refused(vec![linear("a", 4)?, linear("a", 3)?], &devices).contains("there already is a layer 'a'"));
    let bad_name = Sequential::new().add("a.b", ReLU);
    assert!(refused(vec![linear("a", 4)?, bad_name], &devices).contains("'a.b' is not a valid layer name"));
    let tied = Linear::new(4, 4)?;
    let [first, second] = ["a", "b"].map(|name| Sequential::new().add(name, tied.clone()));
    let shared = refused(vec![first.clone(), second.clone()], &devices);
    assert!(shared.starts_with("a.weight of stage 0 and b.weight of stage 1 are one tensor"), "{shared}");
    let together = Sequential::new().add("first", first).add("second", second);
    let tied = Pipeline::new(vec![together, Sequential::new()], &devices)?;
    assert_eq!((tied.parameters().len(), tied.predict(&x)?.shape()), (2, &[9, 4][..]));

    let net = Pipeline::new(vec![linear("a", 4)?, linear("b", 3)?], &devices)?;
    let none = Pipeline::new(vec![linear("a", 4)?], &devices[..1])?.with_micro_batches(0).unwrap_err();
    assert!(matches!(none, Error::InvalidArgument { op: "with_micro_batches", .. }), "{none}");
    let error = |x: &Tensor, y: &Tensor| net.train_batch(x, y, nn::cross_entropy).unwrap_err();
    let few = error(&x, &y.narrow(0, 0, 3)?);
    assert!(matches!(few, Error::ShapeMismatch { op: "train_batch", .. }), "{few}");
    let empty = error(&x.narrow(0, 0, 0)?, &y.narrow(0, 0, 0)?);
    assert!(matches!(empty, Error::InvalidArgument { op: "train_batch", .. }), "{empty}");
    let wide = error(&Tensor::ones([9, 5], None)?, &y).to_string();
    assert!(wide.starts_with("replica on cpu: ") && wide.contains("from 4 to 4 features"), "{wide}");
    let labels = error(&x, &y.to_dtype(DType::F32)?.reshape([9, 1])?).to_string();
    assert!(labels.starts_with("replica on cpu/1: "), "{labels}");
    let not_scalar = net.train_batch(&x, &y, |output, _| Ok(output.clone())).unwrap_err().to_string();
    assert!(not_scalar.contains("backward: needs one value"), "{not_scalar}");
    let scalar = net.predict(&Tensor::scalar(1.0, None)?).unwrap_err().to_string();
    assert!(scalar.contains("is a scalar"), "{scalar}");
    let outside = no_grad(|| net.train_batch(&x, &y, nn::cross_entropy)).unwrap_err().to_string();
    assert!(outside.contains("depends on no tensor with requires_grad") && !has_gradients(&net), "{outside}");
    net.train_batch(&x, &y, nn::cross_entropy)?;
    Ok(())
}
