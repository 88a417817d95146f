//! `ParamGroups`: the same numbers as an optimiser for each group, schedules, PyTorch's names, errors that change nothing.

use anygpu::optim::{Adam, LRScheduler, Optimizer, ParamGroups, Parameters, SGD, Schedule, StepLR};
use anygpu::{Device, Error, Result, Tensor};

use crate::common::devices_in_turn;

fn leaves(device: &Device) -> Result<Vec<Tensor>> {
    [3usize, 70, 1, 5].iter().map(|&size| Ok(Tensor::arange(0.0, size as f32, 1.0, device)?.requires_grad())).collect()
}

/// A loss with other gradients at each step.
fn lower(all: &[Tensor]) -> Result<()> {
    let parts = all.iter().enumerate().map(|(i, p)| p.sub(i as f32 - 1.5)?.square()?.sum_all());
    let mut loss = Tensor::zeros((), all[0].device())?;
    for part in parts {
        loss = loss.add(&part?)?;
    }
    loss.backward()
}

fn values(all: &[Tensor]) -> Result<Vec<Vec<f32>>> {
    all.iter().map(Tensor::to_vec).collect()
}

fn groups(all: &[Tensor]) -> Result<ParamGroups<Adam>> {
    ParamGroups::new(vec![
        Adam::new(&all[..2], 0.01),
        Adam::new(&all[2..3], 0.1).weight_decay(0.1),
        Adam::new(&all[3..], 0.02).betas(0.8, 0.99),
    ])
}

#[test]
fn groups_are_as_optimisers_of_their_own() -> Result<()> {
    for device in devices_in_turn() {
        let (together, apart) = (leaves(&device)?, leaves(&device)?);
        let mut one = groups(&together)?;
        let mut several = groups(&apart)?;
        for _ in 0..5 {
            one.zero_grad();
            lower(&together)?;
            one.step()?;
            several.zero_grad();
            lower(&apart)?;
            several.groups_mut().iter_mut().try_for_each(Adam::step)?;
        }
        assert_eq!(values(&together)?, values(&apart)?, "{device}");
        assert_ne!(values(&together)?, values(&leaves(&device)?)?);
    }
    Ok(())
}

#[test]
fn schedules_keep_the_ratios() -> Result<()> {
    let mut all = groups(&leaves(&Device::cpu())?)?;
    let rates = |all: &ParamGroups<Adam>| all.groups().iter().map(Adam::lr).collect::<Vec<_>>();
    let near = |rates: Vec<f32>, expected: [f32; 3]| {
        assert!(rates.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6 * b), "{rates:?} for {expected:?}");
    };
    let mut schedule = StepLR::new(1, 0.5)?.start(&mut all);
    schedule.step(&mut all);
    near(rates(&all), [0.005, 0.05, 0.01]);
    all.set_lr(0.0);
    assert_eq!(rates(&all), [0.0; 3]);
    all.set_lr(0.02);
    near(rates(&all), [0.02, 0.2, 0.04]);
    // A rate that the caller sets is another ratio.
    all.groups_mut()[1].set_lr(0.02);
    all.set_lr(0.01);
    near(rates(&all), [0.01, 0.01, 0.02]);
    Ok(())
}

#[test]
fn a_state_has_the_names_of_pytorch_and_continues_a_run() -> Result<()> {
    for device in devices_in_turn() {
        let run = leaves(&device)?;
        let mut adam = groups(&run)?;
        for _ in 0..3 {
            adam.zero_grad();
            lower(&run)?;
            adam.step()?;
        }
        let state = adam.state_dict()?;
        for name in
            ["state.0.exp_avg", "state.3.exp_avg_sq", "state.2.step", "param_groups.2.lr", "param_groups.0.params"]
        {
            assert!(state.get(name).is_some(), "{name}");
        }
        assert_eq!(state.get("param_groups.1.params").expect("indices").to_vec::<u32>()?, [2]);
        assert_eq!(state.get("state.2.exp_avg").expect("a state").shape(), [1]);

        let later = run.iter().map(|p| Ok(p.copy()?.requires_grad())).collect::<Result<Vec<_>>>()?;
        let mut resumed = groups(&later)?;
        resumed.set_lr(0.5);
        resumed.load_state_dict(&state)?;
        for (all, adam) in [(&run, &mut adam), (&later, &mut resumed)] {
            adam.zero_grad();
            lower(all)?;
            adam.step()?;
        }
        assert_eq!(values(&run)?, values(&later)?, "{device}");
    }
    Ok(())
}

#[test]
fn wrong_groups_and_states_are_errors() -> Result<()> {
    let all = leaves(&Device::cpu())?;
    let refused = |result: Result<ParamGroups<SGD>>| assert!(matches!(result, Err(Error::InvalidArgument { .. })));
    refused(ParamGroups::new(Vec::new()));
    refused(ParamGroups::new(vec![SGD::new(&all[..2], 0.1), SGD::new(&all[1..], 0.1)]));

    let mut adam = groups(&all)?;
    lower(&all)?;
    adam.step()?;
    let (state, before) = (adam.state_dict()?, values(&all)?);
    let two = ParamGroups::new(vec![Adam::new(&all[..2], 0.1), Adam::new(&all[2..], 0.1)])?;
    assert!(adam.load_state_dict(&two.state_dict()?).is_err());
    // The last group's state is wrong: the first ones are as they were.
    let mut wrong = anygpu::nn::StateDict::new();
    for (name, tensor) in state.iter() {
        let tensor = if name == "state.3.exp_avg" { Tensor::zeros([9], None)? } else { tensor.clone() };
        let tensor = if name == "param_groups.0.lr" { Tensor::scalar(9.0, None)? } else { tensor };
        wrong.insert(name.to_owned(), tensor);
    }
    assert!(adam.load_state_dict(&wrong).is_err());
    assert_eq!(adam.lr(), 0.01);
    // A gradient of the last group does not fit: no group is updated.
    all[3].set_grad(Some(Tensor::zeros([2], None)?));
    assert!(matches!(adam.step(), Err(Error::ShapeMismatch { .. })));
    assert_eq!(values(&all)?, before);
    Ok(())
}

#[test]
fn groups_train_a_net_on_several_devices() -> Result<()> {
    use anygpu::{DataParallel, nn};
    let devices = devices_in_turn();
    let two = [Device::cpu(), devices[devices.len() - 1].clone()];
    let net = DataParallel::new(nn::models::mlp(&[4, 3, 2])?, &two)?;
    let of = |rank: usize| net.parameters().filter(move |p| p.rank() == rank);
    let mut sgd = ParamGroups::new(vec![SGD::new(of(2), 0.1).momentum(0.9), SGD::new(of(1), 0.01)])?;
    let (x, y) = (Tensor::ones([6, 4], None)?, Tensor::from_vec(vec![0u32, 1, 1, 0, 1, 1], 6, None)?);
    let loss = || net.train_batch(&x, &y, |logits, labels| logits.cross_entropy(labels))?.item::<f32>();
    let first = loss()?;
    sgd.step()?;
    let second = loss()?;
    assert!(second < first, "{first} {second}");
    Ok(())
}

#[test]
fn groups_of_replicas_update_each() -> Result<()> {
    let (a, b) = (leaves(&Device::cpu())?, leaves(&Device::cpu())?);
    let part =
        |range: std::ops::Range<usize>| Parameters::replicated(vec![a[range.clone()].to_vec(), b[range].to_vec()]);
    let mut sgd = ParamGroups::new(vec![SGD::new(part(0..2)?, 0.1), SGD::new(part(2..4)?, 0.01)])?;
    assert_eq!((sgd.parameters().num_replicas(), sgd.parameters().len()), (2, 8));
    assert!(sgd.parameters()[4].is_same(&b[0]));
    lower(&a)?;
    lower(&b)?;
    sgd.step()?;
    assert_eq!(values(&a)?, values(&b)?);
    assert_ne!(values(&a)?, values(&leaves(&Device::cpu())?)?);
    let one = SGD::new(leaves(&Device::cpu())?, 0.1);
    assert!(ParamGroups::new(vec![one, SGD::new(part(0..1)?, 0.1)]).is_err());
    Ok(())
}
