//! Pipelines: steps and outputs are those of one device, for every kind of device at every place.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anygpu::nn::{self, BatchNorm1d, Conv2d, Dropout, Flatten, Linear, MaxPool2d, Module, ReLU, Sequential, Tanh};
use anygpu::optim::{Adam, SGD, clip_grad_norm};
use anygpu::parallel::PipelineSchedule::{self, GPipe, OneForwardOneBackward};
use anygpu::{DataParallel, Device, Error, Pipeline, Result, Tensor, manual_seed, no_grad, random_state};

use crate::common::{alone, device, devices, values};

/// Three stages, with the same values every time.
fn stages() -> Result<Vec<Sequential>> {
    manual_seed(3);
    Ok(vec![
        Sequential::new().push(Conv2d::new(1, 4, 3)?).push(ReLU).push(MaxPool2d::new(2)),
        Sequential::new().push(Flatten).push(Dropout::new(0.3)?).push(Linear::new(36, 20)?),
        Sequential::new().push(Dropout::new(0.1)?).push(Tanh).push(Linear::new(20, 5)?),
    ])
}

/// All layers of some stages in one net.
fn joined(stages: &[Sequential]) -> Result<Sequential> {
    let mut layers = stages.iter().flat_map(Sequential::iter).enumerate();
    let mut net = Sequential::new();
    layers.try_for_each(|(i, (_, layer))| net.add_module(i.to_string(), layer.clone_box()))?;
    Ok(net)
}

/// Images and labels, others for each step.
fn batch(samples: usize, step: usize) -> Result<(Tensor, Tensor)> {
    let values = (0..64 * samples).map(|i| ((i * 37 + step * 11) % 101) as f32 / 50.5 - 1.0).collect();
    let labels = (0..samples).map(|i| ((i * 3 + step) % 5) as u32).collect();
    Ok((Tensor::from_vec(values, [samples, 1, 8, 8], None)?, Tensor::from_vec(labels, samples, None)?))
}

/// Three devices: every kind at every place, logical ones of the host, and one device twice.
fn mixes() -> Vec<Vec<Device>> {
    let all = devices();
    let rotated = |i: usize| (0..3).map(|k| all[(i + k) % all.len()].clone()).collect();
    let named = [["cpu/0", "cpu/1", "cpu/2"], ["cpu", "soft:0", "soft:2"], ["soft:0", "cpu", "soft:0"]];
    let named = named.iter().filter_map(|mix| mix.iter().map(|name| device(name)).collect());
    named.chain((0..all.len()).map(rotated)).collect()
}

fn on_host() -> Result<Vec<Device>> {
    Device::list("cpu/0,cpu/1,cpu/2")
}

/// The largest difference between tensors, in units of the largest value of each.
#[track_caller]
fn assert_like(what: &str, got: &[Vec<f64>], expected: &[Vec<f64>], relative: f64) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert_eq!(got.len(), expected.len(), "{what}: {i}");
        let most = expected.iter().fold(1e-6, |most: f64, v| most.max(v.abs()));
        let worst = got.iter().zip(expected).fold(0.0, |worst: f64, (g, e)| worst.max((g - e).abs()));
        assert!(worst <= relative * most, "{what}: tensor {i} differs by {worst}, of {most}");
    }
}

fn all(tensors: &[Tensor]) -> Result<Vec<Vec<f64>>> {
    tensors.iter().map(values).collect()
}

fn gradients(parameters: &[Tensor]) -> Result<Vec<Vec<f64>>> {
    parameters.iter().map(|parameter| parameter.grad().map_or(Ok(Vec::new()), |grad| values(&grad))).collect()
}

/// Output, loss and gradients of a step.
type Step = Vec<Vec<f64>>;

fn step_of_one(stages: &[Sequential], samples: usize) -> Result<Step> {
    let net = DataParallel::new(joined(stages)?, &[Device::cpu()])?;
    let (x, y) = batch(samples, 0)?;
    let loss = net.train_batch(&x, &y, nn::cross_entropy)?;
    Ok([all(&[net.predict(&x)?, loss])?, gradients(&net.parameters())?].concat())
}

fn step_of(net: &Pipeline, samples: usize) -> Result<Step> {
    let (x, y) = batch(samples, 0)?;
    let loss = net.train_batch(&x, &y, nn::cross_entropy)?;
    let last = net.devices().last().cloned();
    let output = net.predict(&x)?;
    assert!(Some(loss.device()) == last.as_ref() && Some(output.device()) == last.as_ref());
    Ok([all(&[output, loss])?, gradients(&net.parameters())?].concat())
}

#[test]
fn a_step_is_that_of_one_device() -> Result<()> {
    let _alone = alone();
    for samples in [1, 7, 12] {
        let expected = step_of_one(&stages()?, samples)?;
        for micro_batches in [1, 2, 3, 5, 100] {
            let step = |schedule: PipelineSchedule| {
                let net = Pipeline::new(stages()?, &on_host()?)?.with_micro_batches(micro_batches)?;
                step_of(&net.with_schedule(schedule), samples)
            };
            let (one, all) = (step(OneForwardOneBackward)?, step(GPipe)?);
            assert_eq!(one, all, "{samples} samples in {micro_batches}: the schedules give the same bits");
            assert_like(&format!("{samples} samples in {micro_batches}"), &one, &expected, 1e-5);
        }
    }
    Ok(())
}

#[test]
fn a_step_is_that_of_one_device_on_every_mix() -> Result<()> {
    let _alone = alone();
    let expected = step_of_one(&stages()?, 11)?;
    for mix in mixes() {
        for (schedule, micro_batches) in [(OneForwardOneBackward, 4), (GPipe, 3)] {
            let net = Pipeline::new(stages()?, &mix)?.with_micro_batches(micro_batches)?.with_schedule(schedule);
            assert_eq!(net.devices(), mix);
            let parameters = net.parameters();
            let places: Vec<&Device> = parameters.chunks(2).map(|pair| pair[0].device()).collect();
            assert_eq!(places, mix.iter().collect::<Vec<_>>());
            assert_like(&format!("{schedule:?} on {mix:?}"), &step_of(&net, 11)?, &expected, 1e-5);
        }
    }
    Ok(())
}

/// The optimisers update parameters on several devices, and so does clipping.
#[test]
fn five_steps_are_those_of_one_device() -> Result<()> {
    let _alone = alone();
    type Update = Box<dyn FnMut() -> Result<()>>;
    fn run(step: impl Fn(&Tensor, &Tensor) -> Result<Tensor>, mut update: Update) -> Result<Vec<f64>> {
        let mut losses = Vec::new();
        for i in 0..5 {
            let (x, y) = batch(11, i)?;
            losses.push(f64::from(step(&x, &y)?.item::<f32>()?));
            update()?;
        }
        Ok(losses)
    }
    fn update(kind: &str, parameters: anygpu::optim::Parameters) -> Update {
        if kind == "Adam" {
            let mut adam = Adam::new(parameters, 0.01);
            return Box::new(move || adam.step());
        }
        let mut sgd = SGD::new(&parameters, 0.1).momentum(0.9);
        Box::new(move || {
            clip_grad_norm(&parameters, 0.5)?;
            sgd.step()
        })
    }
    for kind in ["SGD", "Adam"] {
        let one = DataParallel::new(joined(&stages()?)?, &[Device::cpu()])?;
        let losses = run(|x, y| one.train_batch(x, y, nn::cross_entropy), update(kind, one.parameters()))?;
        for mix in mixes() {
            let what = format!("{kind} on {mix:?}");
            let net = Pipeline::new(stages()?, &mix)?.with_micro_batches(3)?;
            let got = run(|x, y| net.train_batch(x, y, nn::cross_entropy), update(kind, net.parameters()))?;
            assert_like(&what, &[got], std::slice::from_ref(&losses), 1e-5);
            assert_like(&what, &all(&net.parameters())?, &all(&one.parameters())?, 1e-4);
        }
    }
    Ok(())
}

/// Frozen layers at the start need no backward pass, and others pass gradients on.
#[test]
fn frozen_stages_are_those_of_one_device() -> Result<()> {
    let _alone = alone();
    for frozen in [vec![0], vec![1], vec![0, 1], vec![1, 2], vec![0, 1, 2]] {
        let freeze = || -> Result<Vec<Sequential>> {
            let mut stages = stages()?;
            frozen.iter().for_each(|&k: &usize| stages[k].requires_grad_(false));
            Ok(stages)
        };
        let expected = step_of_one(&freeze()?, 7);
        let net = Pipeline::new(freeze()?, &on_host()?)?.with_micro_batches(3)?;
        match (expected, step_of(&net, 7)) {
            (Ok(expected), Ok(got)) => assert_like(&format!("{frozen:?}"), &got, &expected, 1e-5),
            (Err(expected), Err(got)) => {
                assert!(frozen.len() == 3 && got.to_string().ends_with(&expected.to_string()), "{got}")
            }
            other => panic!("{frozen:?}: {other:?}"),
        }
    }
    Ok(())
}

#[test]
fn batch_norm_is_that_of_each_micro_batch() -> Result<()> {
    let _alone = alone();
    let stages = || -> Result<Vec<Sequential>> {
        manual_seed(4);
        let first = Sequential::new().push(Flatten).push(Linear::new(64, 10)?.without_bias());
        Ok(vec![first, Sequential::new().push(BatchNorm1d::new(10)?).push(Linear::new(10, 5)?)])
    };
    let (x, y) = batch(11, 0)?;
    let one = joined(&stages()?)?;
    for (start, len) in [(0, 4), (4, 4), (8, 3)] {
        let loss = nn::cross_entropy(&one.forward(&x.narrow(0, start, len)?)?, &y.narrow(0, start, len)?)?;
        loss.mul(len as f64 / 11.0)?.backward()?;
    }
    for device in devices() {
        let net = Pipeline::new(stages()?, &[Device::cpu(), device.clone()])?.with_micro_batches(3)?;
        net.train_batch(&x, &y, nn::cross_entropy)?;
        let what = format!("{device}");
        assert_like(&what, &gradients(&net.parameters())?, &gradients(&one.parameters())?, 1e-5);
        let state = |state: nn::StateDict| state.iter().map(|(_, tensor)| values(tensor)).collect::<Result<Vec<_>>>();
        assert_like(&what, &state(net.state_dict())?, &state(one.state_dict())?, 1e-5);
    }
    Ok(())
}

#[test]
fn names_and_values_are_those_of_one_net() -> Result<()> {
    let _alone = alone();
    let one = joined(&stages()?)?;
    let net = Pipeline::new(stages()?, &on_host()?)?;
    assert!(net.state_dict().names().eq(one.state_dict().names()));
    assert_eq!(net.stages().iter().map(Sequential::len).collect::<Vec<_>>(), [3, 3, 3]);
    let other =
        one.state_dict().iter().map(|(name, tensor)| Ok((name.into(), tensor.mul(0.5)?))).collect::<Result<_>>()?;
    net.load_state_dict(&other, true)?;
    one.load_state_dict(&net.state_dict(), true)?;
    let (x, _) = batch(6, 0)?;
    one.eval();
    assert_like("predictions", &[values(&net.predict(&x)?)?], &[values(&no_grad(|| one.forward(&x))?)?], 1e-6);
    let in_training = no_grad(|| (net.train(), net.forward(&x)).1)?;
    assert_ne!(values(&in_training)?, values(&net.predict(&x)?)?, "dropout drops in training mode");
    assert_eq!(values(&no_grad(|| net.forward(&x))?)?, values(&net.predict(&x)?)?);
    assert_eq!(net.predict(&x.narrow(0, 0, 0)?)?.shape(), [0, 5]);
    assert!(net.forward(&x).unwrap_err().to_string().contains("train_batch(&x, &y, loss_fn)"));
    Ok(())
}

/// The most bytes that each device held in a step of three stages and 16 micro-batches. Each micro-batch has six activations of
/// 16 KiB in each stage.
fn peaks(devices: &[Device], schedule: PipelineSchedule) -> Result<Vec<f64>> {
    let (x, y) = (Tensor::rand([1024, 64], None)?, Tensor::rand([1024, 64], None)?);
    let stage = || (0..6).fold(Sequential::new(), |stage, _| stage.push(Tanh));
    let first = Sequential::new().add("fc", Linear::new(64, 64)?).add("body", stage());
    let others = ["second", "third"].map(|name| Sequential::new().add(name, stage()));
    let stages = [first].into_iter().chain(others).collect();
    let net = Pipeline::new(stages, devices)?.with_micro_batches(16)?.with_schedule(schedule);
    devices.iter().for_each(Device::reset_peak_memory);
    let before: Vec<u64> = devices.iter().map(|device| device.memory().live).collect();
    net.train_batch(&x, &y, |output, y| output.sub(y)?.square()?.mean_all())?.item::<f32>()?;
    let peak = |(device, before): (&Device, &u64)| (device.memory().peak - before) as f64;
    Ok(devices.iter().zip(&before).map(peak).collect())
}

/// With one forward and one backward pass, a stage keeps the micro-batches of the stages from itself on; else all.
#[test]
fn one_forward_one_backward_keeps_fewer_micro_batches() -> Result<()> {
    let _alone = alone();
    const ALL: f64 = (16 * 6 * 16384) as f64;
    // Beside the activations, there are gradients and the input of the backward pass under way.
    let mut lists: Vec<(String, Vec<[f64; 2]>)> = Vec::new();
    for adapter in devices().into_iter().filter(|device| !device.is_cpu() && !device.name().contains('/')) {
        let names = [11, 12, 13].map(|i| format!("{adapter}/{i}")).join(",");
        let parts = (0..3).map(|k| [f64::from(3 - k) + 2.0, 16.0]).collect();
        lists.push((names, parts));
    }
    // The devices of the host count together.
    lists.push(("cpu/11,cpu/12,cpu/13".into(), vec![[3.0 + 2.0 + 1.0 + 2.0, 48.0]; 3]));
    for (names, parts) in lists {
        let Ok(devices) = Device::list(&names) else { continue }; // an adapter that has no further devices
        let (one, all) = (peaks(&devices, OneForwardOneBackward)?, peaks(&devices, GPipe)?);
        for (k, [live, whole]) in parts.into_iter().enumerate() {
            let (one, all) = (one[k], all[k]);
            assert!(one <= all * live / whole, "stage {k} of {names}: {one} bytes instead of {all}");
            assert!(all >= ALL * whole / 16.0, "stage {k} of {names}: {all} bytes for 16 micro-batches");
        }
    }
    Ok(())
}

/// Counts the stages that compute at the same time.
#[derive(Clone)]
struct Slow {
    running: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Module for Slow {
    anygpu::children!();

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let running = self.running.fetch_add(1, Ordering::AcqRel) + 1;
        self.most.fetch_max(running, Ordering::AcqRel);
        std::thread::sleep(Duration::from_millis(15));
        self.running.fetch_sub(1, Ordering::AcqRel);
        x.mul(2.0)
    }
}

#[test]
fn stages_compute_at_the_same_time() -> Result<()> {
    let _alone = alone();
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let slow = Slow { running, most: most.clone() };
    let stages = || ["a", "b", "c"].map(|name| Sequential::new().add(name, slow.clone())).to_vec();
    let x = Tensor::ones([8, 2], None)?;
    let net = Pipeline::new(stages(), &on_host()?)?.with_micro_batches(8)?;
    assert_eq!(net.predict(&x)?.to_vec::<f32>()?, [8.0; 16]);
    assert_eq!(most.swap(0, Ordering::AcqRel), 3);
    for schedule in [OneForwardOneBackward, GPipe] {
        let scale = Tensor::ones(2, None)?.requires_grad();
        let first = Sequential::new().add("scale", Scale { scale });
        let net = Pipeline::new([vec![first], stages()].concat(), &Device::list("cpu/0,cpu/1,cpu/2,cpu/3")?)?;
        let net = net.with_micro_batches(8)?.with_schedule(schedule);
        net.train_batch(&x, &x, |output, _| output.mean_all())?;
        assert_eq!(gradients(&net.parameters())?, [[4.0, 4.0]]);
        assert!(most.swap(0, Ordering::AcqRel) >= 2, "{schedule:?}");
    }
    Ok(())
}

#[derive(Clone)]
struct Scale {
    scale: Tensor,
}

impl Module for Scale {
    anygpu::children!(scale);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.mul(&self.scale)
    }
}

#[test]
fn a_net_is_cut_by_measured_times() -> Result<()> {
    let _alone = alone();
    for mix in [on_host()?, devices()] {
        let net = || -> Result<Sequential> {
            manual_seed(5);
            let net = Sequential::new().add("flat", Flatten).add("fc1", Linear::new(64, 400)?).add("relu1", ReLU);
            let net = net.add("norm", BatchNorm1d::new(400)?).add("fc2", Linear::new(400, 400)?);
            Ok(net.add("drop", Dropout::new(0.2)?).add("fc3", Linear::new(400, 5)?))
        };
        let (original, (x, y)) = (net()?, batch(24, 0)?);
        let (before, state) = (random_state(), original.state_dict().copied()?);
        let cut = Pipeline::cut(original.clone(), &mix, &x.narrow(0, 0, 6)?)?;
        assert_eq!(random_state(), before, "no random number was drawn");
        for ((name, now), (_, before)) in original.state_dict().iter().zip(state.iter()) {
            assert_eq!(values(now)?, values(before)?, "{name} was not changed");
        }
        assert!(cut.stages().iter().all(|stage| !stage.is_empty()) && cut.stages().len() <= mix.len(), "{cut:?}");
        assert!(cut.state_dict().names().eq(original.state_dict().names()));
        let in_order = cut.devices().iter().map(|d| mix.iter().position(|other| other == d)).collect::<Vec<_>>();
        assert!(in_order.is_sorted(), "{cut:?}");
        original.eval();
        assert_like("outputs", &[values(&cut.predict(&x)?)?], &[values(&original.forward(&x)?.detach())?], 1e-5);
        assert!(cut.train_batch(&x, &y, nn::cross_entropy)?.item::<f32>()?.is_finite());
    }
    let error = Pipeline::cut(Sequential::new(), &[Device::cpu()], &Tensor::ones([1], None)?).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { op: "Pipeline::cut", .. }), "{error}");
    let error =
        Pipeline::cut(Sequential::new().add("fc", Linear::new(3, 2)?), &[Device::cpu()], &Tensor::ones([1, 4], None)?);
    assert!(error.unwrap_err().to_string().contains("(layer 'fc')"));
    Ok(())
}
