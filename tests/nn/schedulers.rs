//! Every scheduler's rates equal PyTorch's over fifty steps (tests/data/schedules.json, by
//! scripts/pytorch_schedules.py), and every scheduler resumes from its state.

use anygpu::optim::{
    CosineAnnealingLR, ExponentialLR, LRScheduler, LambdaLR, LinearLR, MultiStepLR, OneCycleLR, Optimizer,
    ReduceLROnPlateau, SGD, Schedule, SequentialLR, StepLR,
};
use anygpu::{Result, Tensor};
use serde_json::Value;

const STEPS: usize = 50;

fn reference() -> Value {
    serde_json::from_str(include_str!("../data/schedules.json")).expect("JSON")
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("numbers").iter().map(|v| v.as_f64().expect("a number")).collect()
}

fn sgd() -> Result<SGD> {
    Ok(SGD::new(vec![Tensor::zeros([1], None)?.requires_grad()], 0.1))
}

/// A scheduler for an optimiser of lr 0.1, and what a plateau's metrics are given by.
type Make = fn(&mut dyn Optimizer) -> Result<Box<dyn LRScheduler>>;

fn schedules() -> Vec<(&'static str, Make)> {
    vec![
        ("step", |o| Ok(Box::new(StepLR::new(7, 0.3)?.start(o)))),
        ("multi_step", |o| Ok(Box::new(MultiStepLR::new(&[5, 20, 21, 40], 0.5).start(o)))),
        ("exponential", |o| Ok(Box::new(ExponentialLR::new(0.93).start(o)))),
        ("cosine", |o| Ok(Box::new(CosineAnnealingLR::new(20)?.eta_min(0.01).start(o)))),
        ("linear", |o| Ok(Box::new(LinearLR::new(0.2, 0.9, 15).start(o)))),
        ("one_cycle", |o| Ok(Box::new(OneCycleLR::new(0.5, 50)?.start(o)))),
        ("one_cycle_early", |o| {
            let cycle = OneCycleLR::new(0.5, 50)?.pct_start(0.1)?.div_factor(10.0).final_div_factor(100.0);
            Ok(Box::new(cycle.start(o)))
        }),
        ("lambda", |o| Ok(Box::new(LambdaLR::new(|step| 1.0 / (1 + step) as f64).start(o)))),
        ("warm_up_cosine", |o| Ok(Box::new(CosineAnnealingLR::new(45)?.warmup(5, 0.1).start(o)))),
        ("three_parts", |o| {
            let parts = SequentialLR::new(LinearLR::new(0.1, 1.0, 8)).then(8, ExponentialLR::new(0.9));
            Ok(Box::new(parts.then(30, StepLR::new(5, 0.5)?).start(o)))
        }),
    ]
}

fn plateaus() -> Vec<(&'static str, ReduceLROnPlateau)> {
    let new = ReduceLROnPlateau::new;
    vec![
        ("plateau", new().factor(0.5).patience(3)),
        ("plateau_max", new().greater_is_better().factor(0.5).patience(6).cooldown(2).min_lr(0.002)),
        ("plateau_abs", new().patience(2).absolute_threshold(0.055).cooldown(4)),
    ]
}

#[track_caller]
fn assert_rates(name: &str, got: &[f64], expected: &[f64]) {
    assert_eq!(got.len(), expected.len(), "{name}");
    for (step, (got, expected)) in got.iter().zip(expected).enumerate() {
        let away = (got - expected).abs();
        assert!(away <= 1e-6 * expected.abs() + 1e-9, "{name}, step {step}: {got}, PyTorch's is {expected}");
    }
}

#[test]
fn fifty_rates_are_pytorchs() -> Result<()> {
    let reference = reference();
    for (name, make) in schedules() {
        let mut sgd = sgd()?;
        let mut scheduler = make(&mut sgd)?;
        let mut rates = Vec::new();
        for _ in 0..STEPS {
            rates.push(f64::from(sgd.lr()));
            scheduler.step(&mut sgd);
        }
        assert_rates(name, &rates, &numbers(&reference[name]));
    }
    Ok(())
}

#[test]
fn plateaus_are_pytorchs() -> Result<()> {
    let reference = reference();
    let metrics = numbers(&reference["metrics"]);
    for (name, mut scheduler) in plateaus() {
        let mut sgd = sgd()?;
        let mut rates = Vec::new();
        for &metric in &metrics {
            rates.push(f64::from(sgd.lr()));
            scheduler.step(&mut sgd); // nothing was observed: nothing happens
            scheduler.observe(metric).step(&mut sgd);
        }
        assert_rates(name, &rates, &numbers(&reference[name]));
    }
    Ok(())
}

#[test]
fn a_schedule_goes_on_from_its_state() -> Result<()> {
    let reference = reference();
    for (name, make) in schedules() {
        let mut before = sgd()?;
        let mut scheduler = make(&mut before)?;
        (0..17).for_each(|_| scheduler.step(&mut before));
        let state = scheduler.state();

        let mut after = sgd()?;
        after.set_lr(0.7); // the base is part of the state
        let mut resumed = make(&mut after)?;
        resumed.load_state(&state)?;
        after.set_lr(before.lr());
        // In whatever order: start sets a rate, and resume the right one.
        let mut other = sgd()?;
        make(&mut other)?.resume(&state, &mut other)?;
        assert_eq!(other.lr(), before.lr(), "{name}");
        let mut rates = Vec::new();
        for _ in 17..STEPS {
            rates.push(f64::from(after.lr()));
            resumed.step(&mut after);
        }
        assert_rates(name, &rates, &numbers(&reference[name])[17..]);
    }
    let metrics = numbers(&reference["metrics"]);
    for (name, mut scheduler) in plateaus() {
        let (mut sgd, fresh) = (sgd()?, scheduler.clone());
        let mut rates = Vec::new();
        for &metric in &metrics {
            rates.push(f64::from(sgd.lr()));
            scheduler.observe(metric).step(&mut sgd);
            let state = scheduler.state();
            scheduler = fresh.clone();
            scheduler.load_state(&state)?;
        }
        assert_rates(name, &rates, &numbers(&reference[name]));
    }
    Ok(())
}

#[test]
fn what_cannot_be_is_an_error() -> Result<()> {
    assert!(StepLR::new(0, 0.1).is_err() && CosineAnnealingLR::new(0).is_err() && OneCycleLR::new(1.0, 0).is_err());
    let mut scheduler = StepLR::new(2, 0.1)?.start(&mut sgd()?);
    let state = |steps: f64| [("base_lr".to_string(), 0.1), ("steps".to_string(), steps)];
    for steps in [-1.0, 0.5, f64::NAN, f64::INFINITY] {
        assert!(scheduler.load_state(&state(steps)).is_err(), "{steps}");
    }
    let error = scheduler.load_state(&state(3.0)[..1]).unwrap_err().to_string();
    assert_eq!(error, "load_state: there is no number 'steps' among [base_lr]");
    scheduler.load_state(&state(3.0))?;
    assert_eq!(scheduler.lr(), 0.01);
    for part in [-0.1, 1.1, f64::NAN] {
        assert!(OneCycleLR::new(1.0, 3)?.pct_start(part).is_err(), "{part}");
    }
    // Rates that are no numbers come out of nothing.
    for cycle in
        [OneCycleLR::new(1.0, 1)?, OneCycleLR::new(1.0, 3)?.pct_start(0.0)?, OneCycleLR::new(1.0, 3)?.pct_start(1.0)?]
    {
        assert!((0..5).all(|step| cycle.lr(0.1, step).is_finite()), "{cycle:?}");
    }
    Ok(())
}
