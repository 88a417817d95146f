//! Lion by its formula; the state of all new optimisers, in files too; averages of weights.

use anygpu::checkpoint::TrainingState;
use anygpu::nn::{BatchNorm1d, Linear, Module, Sequential};
use anygpu::optim::{Adadelta, Adagrad, Adam, AdamW, Ema, Lion, Optimizer, ParamGroups};
use anygpu::{Device, Result, Tensor, no_grad};

use super::common::devices_in_turn;
use super::{assert_is, wave};

type Make = fn(Vec<Tensor>) -> Box<dyn Optimizer>;

/// Each with all that it may remember, and another of its kind, whose settings must come from the state.
const MAKERS: [(&str, Make, Make); 6] = [
    ("amsgrad", |p| Box::new(Adam::new(p, 0.05).betas(0.5, 0.6).amsgrad()), |p| Box::new(Adam::new(p, 9.0))),
    ("AdamW", |p| Box::new(AdamW::new(p, 0.05).amsgrad()), |p| Box::new(AdamW::new(p, 9.0).weight_decay(1.0))),
    ("Adam and AdamW", |p| Box::new(Adam::decoupled(p, 0.05)), |p| Box::new(AdamW::new(p, 9.0).weight_decay(1.0))),
    ("Adagrad", |p| Box::new(Adagrad::new(p, 0.05).lr_decay(0.1)), |p| Box::new(Adagrad::new(p, 9.0))),
    ("Adadelta", |p| Box::new(Adadelta::new(p, 0.5).rho(0.7)), |p| Box::new(Adadelta::new(p, 9.0))),
    ("Lion", |p| Box::new(Lion::new(p, 0.01).weight_decay(0.1)), |p| Box::new(Lion::new(p, 9.0))),
];

fn net(device: &Device) -> Result<Sequential> {
    let net = Sequential::new().add("a", Linear::new(3, 70)?).add("b", Linear::new(70, 2)?).to(device)?;
    super::fill(&net)?;
    Ok(net)
}

/// A step with other gradients at each; in every third, the last layer takes no part.
fn step(net: &Sequential, optimizer: &mut dyn Optimizer, i: usize) -> Result<()> {
    optimizer.zero_grad();
    let x = wave(&[4, 3], i as f64, net.parameters()[0].device())?;
    net.forward(&x)?.square()?.mean_all()?.backward()?;
    if i % 3 == 2 {
        net.parameters()[2..].iter().for_each(|p| p.set_grad(None));
    }
    optimizer.step()
}

fn all(module: &impl Module) -> Result<Vec<f32>> {
    Ok(module.parameters().iter().map(Tensor::to_vec::<f32>).collect::<Result<Vec<_>>>()?.concat())
}

#[test]
fn every_new_optimiser_goes_on_from_its_state() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.safetensors");
    for (name, make, other) in MAKERS {
        for from in devices_in_turn() {
            let first = net(&from)?;
            let before = all(&first)?;
            let mut optimizer = make(first.parameters());
            for i in 0..4 {
                step(&first, &mut *optimizer, i)?;
            }
            TrainingState::new().module(&first).optimizer(&*optimizer)?.save(&path)?;
            for i in 4..8 {
                step(&first, &mut *optimizer, i)?;
            }
            let expected = all(&first)?;
            assert_ne!(expected, before);
            for to in [&from, &Device::cpu()] {
                let second = net(to)?;
                let mut optimizer = other(second.parameters());
                TrainingState::load(&path)?.restore_module(&second)?.restore_optimizer(&mut *optimizer)?;
                for i in 4..8 {
                    step(&second, &mut *optimizer, i)?;
                }
                let got = all(&second)?;
                let apart = got.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                // A sign of what is nearly 0 may differ between devices.
                let most = if from == *to {
                    0.0
                } else if name == "Lion" {
                    0.05
                } else {
                    1e-4
                };
                assert!(apart <= most, "{name} from {from} to {to}: {apart}");
            }
        }
    }
    Ok(())
}

#[test]
fn lion_is_its_formula() -> Result<()> {
    let (lr, betas, decay) = (0.125f32, [0.75f32, 0.5], 0.25f32);
    for d in devices_in_turn() {
        let start: Vec<f32> = (0..70).map(|i| (i as f32 - 30.0) / 8.0).collect();
        let p = Tensor::from_vec(start.clone(), 70, &d)?.requires_grad();
        let mut lion = Lion::new(vec![p.clone()], lr).betas(betas[0], betas[1]).weight_decay(decay);
        let (mut w, mut m) = (start, vec![0.0f32; 70]);
        for step in 0..6 {
            // Powers of two and small numbers: without rounding, so that signs are certain.
            let g: Vec<f32> = (0..70i16).map(|i| f32::from((i + step * 7) % 5 - 2) / 4.0).collect();
            p.set_grad(Some(Tensor::from_vec(g.clone(), 70, &d)?));
            lion.step()?;
            for ((w, m), g) in w.iter_mut().zip(&mut m).zip(g) {
                let direction = betas[0] * *m + (1.0 - betas[0]) * g;
                *w -= lr * decay * *w;
                *w -= lr * if direction == 0.0 { 0.0 } else { direction.signum() };
                *m = betas[1] * *m + (1.0 - betas[1]) * g;
            }
        }
        let apart = p.to_vec::<f32>()?.iter().zip(&w).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart < 1e-5, "{apart} on {d}");
    }
    Ok(())
}

#[test]
fn groups_of_new_optimisers_are_as_their_own() -> Result<()> {
    for d in devices_in_turn() {
        let (one, two) = (net(&d)?, net(&d)?);
        let make =
            |all: Vec<Tensor>| [AdamW::new(&all[..1], 0.01).amsgrad(), AdamW::new(&all[1..], 0.1).weight_decay(0.0)];
        let mut groups = ParamGroups::new(make(one.parameters()).into())?;
        let [mut a, mut b] = make(two.parameters());
        for i in 0..3 {
            step(&one, &mut groups, i)?;
            two.parameters().iter().for_each(|p| p.set_grad(None));
            let x = wave(&[4, 3], i as f64, &d)?;
            two.forward(&x)?.square()?.mean_all()?.backward()?;
            if i % 3 == 2 {
                two.parameters()[2..].iter().for_each(|p| p.set_grad(None));
            }
            a.step()?;
            b.step()?;
        }
        assert_eq!(all(&one)?, all(&two)?);
        let state = groups.state_dict()?;
        assert!(state.get("state.0.max_exp_avg_sq").is_some() && state.get("param_groups.1.amsgrad").is_some());
    }
    Ok(())
}

#[test]
fn averages_are_pytorchs() -> Result<()> {
    for d in devices_in_turn() {
        for moved in [false, true] {
            let mut layer = Linear::new(3, 2)?;
            if moved || !d.is_cpu() {
                layer.to_(&d)?; // one buffer
            }
            super::fill(&layer)?;
            let mut ema = Ema::new(&layer, 0.9)?;
            let mut resumed = Ema::new(&layer, 0.9)?;
            for step in 0..4 {
                no_grad(|| layer.weight().copy_(&wave(&[2, 3], 10.0 + f64::from(step), &d)?))?;
                no_grad(|| layer.bias().expect("a bias").copy_(&wave(&[2], 20.0 + f64::from(step), &d)?))?;
                if step == 2 {
                    resumed.load_state_dict(&ema.state_dict()?)?;
                }
                ema.update()?;
                if step >= 2 {
                    resumed.update()?;
                }
            }
            let now = all(&layer)?;
            for ema in [&mut ema, &mut resumed] {
                assert_eq!(ema.num_updates(), 4);
                let other = Linear::new(3, 2)?;
                ema.copy_to(&other)?;
                assert_is("Ema weight", other.weight())?;
                assert_is("Ema bias", other.bias().expect("a bias"))?;
            }
            ema.swap()?;
            assert_is("Ema weight", layer.weight())?;
            ema.swap()?;
            assert_eq!(all(&layer)?, now);
        }
    }
    Ok(())
}

#[test]
fn averages_keep_buffers_and_refuse_other_states() -> Result<()> {
    let net = BatchNorm1d::new(2)?;
    let mut ema = Ema::new(&net, 0.5)?;
    net.forward(&Tensor::try_from([[1.0, 2.0], [3.0, 6.0]])?)?;
    ema.update()?;
    let state = ema.state_dict()?;
    let mean = state.get("running_mean").expect("a buffer").to_vec::<f32>()?;
    assert!((mean[0] - 0.2).abs() < 1e-6 && (mean[1] - 0.4).abs() < 1e-6, "{mean:?}");
    let mut wrong = state.clone();
    wrong.insert("weight", Tensor::zeros(3, None)?);
    wrong.remove("bias");
    for (state, what) in [(wrong, "weight is [3]"), (Linear::new(2, 2)?.state_dict(), "n_averaged")] {
        let error = ema.load_state_dict(&state).expect_err("another module").to_string();
        assert!(error.contains(what) && error.contains("unchanged"), "{error}");
    }
    Ok(())
}
