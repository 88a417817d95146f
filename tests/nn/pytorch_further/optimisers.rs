//! L-BFGS and Muon as PyTorch's; Lion by its formula; the state of all new optimisers, in files too; averages of weights.

use anygpu::checkpoint::TrainingState;
use anygpu::nn::{self, BatchNorm1d, Linear, Module, Sequential};
use anygpu::optim::{
    Adadelta, Adagrad, Adam, AdamW, Ema, GradScaler, LBFGS, Lion, Muon, MuonRate, Optimizer, ParamGroups, Parameters,
};
use anygpu::{DType, DataParallel, Device, Result, Tensor, autocast, no_grad};

use super::{assert_is, leaf, reference, wave};
use crate::common::devices_in_turn;

type Make = fn(Vec<Tensor>) -> Box<dyn Optimizer>;

/// Each with all that it may remember, and another of its kind, whose settings must come from the state.
const MAKERS: [(&str, Make, Make); 6] = [
    ("amsgrad", |p| Box::new(Adam::new(p, 0.05).betas(0.5, 0.6).amsgrad()), |p| Box::new(Adam::new(p, 9.0))),
    ("AdamW", |p| Box::new(AdamW::new(p, 0.05).amsgrad()), |p| Box::new(AdamW::new(p, 9.0).weight_decay(1.0))),
    // As in PyTorch, the state says whether the decay is decoupled.
    ("AdamW and Adam", |p| Box::new(AdamW::new(p, 0.05)), |p| Box::new(Adam::new(p, 9.0).weight_decay(1.0))),
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

/// The loss of the script, of the elements of p and q.
fn valley(p: &Tensor, q: &Tensor) -> Result<Tensor> {
    p.set_grad(None);
    q.set_grad(None);
    let x = Tensor::cat(&[p, q], 0)?;
    let steep = x.narrow(0, 1, 4)?.sub(&x.narrow(0, 0, 4)?.square()?)?.square()?.sum_all()?.mul(3.0)?;
    let loss = steep.add(&x.sub(1.0)?.square()?.sum_all()?)?.add(&x.square()?.square()?.sum_all()?.mul(0.25)?)?;
    loss.backward()?;
    Ok(loss)
}

/// The options of the script, each with its number of steps.
type Options = (usize, fn(Vec<Tensor>) -> LBFGS);

const LBFGS_OPTIONS: [Options; 10] = [
    (3, |p| LBFGS::new(p, 0.1).max_iter(3)),
    (3, |p| LBFGS::new(p, 1.0).max_iter(3).strong_wolfe()),
    (3, |p| LBFGS::new(p, 1.0).max_iter(2).strong_wolfe().history_size(2)),
    (2, |p| LBFGS::new(p, 3.0).max_iter(3).strong_wolfe()),
    (5, |p| LBFGS::new(p, 0.5).max_iter(2).history_size(1)),
    (2, |p| LBFGS::new(p, 1.0).strong_wolfe().max_eval(5)),
    (1, |p| LBFGS::new(p, 1.0).strong_wolfe()),
    (2, |p| LBFGS::new(p, 1.0).tolerance_change(0.02)),
    (2, |p| LBFGS::new(p, 1.0).tolerance_grad(0.5)),
    (2, |p| LBFGS::new(p, 100.0).max_iter(3).strong_wolfe()),
];

#[test]
fn lbfgs_is_pytorchs() -> Result<()> {
    for d in devices_in_turn() {
        for (i, (steps, make)) in LBFGS_OPTIONS.into_iter().enumerate() {
            let (p, q) = (leaf(&[3], 1.0, &d)?, leaf(&[2], 4.0, &d)?);
            // A parameter that occurs twice is one.
            let mut lbfgs = make(vec![p.clone(), q.clone(), p.clone()]);
            let (mut path, mut evaluations) = (Vec::new(), 0);
            for _ in 0..steps {
                let loss = lbfgs.step(|| {
                    evaluations += 1;
                    valley(&p, &q)
                })?;
                path.push(Tensor::cat(&[loss.reshape(1)?, p.detach(), q.detach()], 0)?);
            }
            assert_is(&format!("LBFGS {i}"), &Tensor::stack(&path, 0)?)?;
            let expected = &reference(&format!("LBFGS {i} evaluations")).1;
            assert_eq!(f64::from(evaluations), expected[0], "LBFGS {i} on {d}");
        }
    }
    Ok(())
}

#[test]
fn lbfgs_goes_on_from_its_state() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.safetensors");
    let layer = |d: &Device| -> Result<Linear> {
        let layer = Linear::new(3, 2)?.to(d)?;
        super::fill(&layer)?;
        Ok(layer)
    };
    let step = |layer: &Linear, lbfgs: &mut LBFGS| -> Result<()> {
        lbfgs.step(|| {
            layer.parameters().iter().for_each(|p| p.set_grad(None));
            let x = wave(&[4, 3], 7.0, layer.weight().device())?;
            let loss = layer.forward(&x)?.sub(1.0)?.square()?.square()?.mean_all()?;
            loss.backward()?;
            Ok(loss)
        })?;
        Ok(())
    };
    for from in devices_in_turn() {
        for search in [false, true] {
            let first = layer(&from)?;
            let lbfgs = LBFGS::new(first.parameters(), 0.5).max_iter(2).history_size(3);
            let mut lbfgs = if search { lbfgs.strong_wolfe() } else { lbfgs };
            for _ in 0..4 {
                step(&first, &mut lbfgs)?;
            }
            TrainingState::new().module(&first).optimizer(&lbfgs)?.save(&path)?;
            let state = lbfgs.state_dict()?;
            for name in
                ["d", "t", "old_dirs.0", "old_stps.2", "ro.1", "H_diag", "prev_flat_grad", "prev_loss", "n_iter"]
            {
                assert!(state.get(&format!("state.0.{name}")).is_some(), "{name} in {state:?}");
            }
            for _ in 0..2 {
                step(&first, &mut lbfgs)?;
            }
            for to in [&from, &Device::cpu()] {
                let second = layer(to)?;
                let mut resumed = LBFGS::new(second.parameters(), 9.0);
                TrainingState::load(&path)?.restore_module(&second)?.restore_optimizer(&mut resumed)?;
                for _ in 0..2 {
                    step(&second, &mut resumed)?;
                }
                let apart = all(&first)?.iter().zip(all(&second)?).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(apart <= if from == *to { 0.0 } else { 1e-4 }, "from {from} to {to}: {apart}");
            }
            // Nothing of another state is taken over.
            let mut other = LBFGS::new(vec![leaf(&[3], 1.0, &from)?, leaf(&[2], 1.0, &from)?], 0.25);
            let error = other.load_state_dict(&state).expect_err("another size").to_string();
            assert!(error.contains("state.0.d is [8], but the parameters have 5 elements"), "{error}");
            let mut cut = state.clone();
            cut.remove("state.0.prev_loss");
            let error = resumed_error(&first, &cut);
            assert!(error.contains("state.0.prev_loss is missing") && error.contains("unchanged"), "{error}");
            let error = resumed_error(&first, &Adam::new(first.parameters(), 0.1).state_dict()?.add_prefix("x."));
            assert!(error.contains("x.param_groups"), "{error}");
            assert_eq!((other.lr(), other.state_dict()?.get("state.0.d").is_some()), (0.25, false));
        }
    }
    Ok(())
}

fn resumed_error(layer: &Linear, state: &nn::StateDict) -> String {
    let mut lbfgs = LBFGS::new(layer.parameters(), 0.5);
    let error = lbfgs.load_state_dict(state).expect_err("a wrong state");
    assert_eq!(lbfgs.lr(), 0.5);
    error.to_string()
}

/// The function of a step is one of `DataParallel`; replicas of a program follow the first.
#[test]
fn lbfgs_trains_on_several_devices() -> Result<()> {
    let alone = Linear::new(3, 2)?;
    super::fill(&alone)?;
    let (x, labels) = (wave(&[6, 3], 5.0, &Device::cpu())?, Tensor::new([0u32, 1, 0, 1, 1, 0], None)?);
    let mut lbfgs = LBFGS::new(alone.parameters(), 1.0).max_iter(4).strong_wolfe();
    for _ in 0..2 {
        lbfgs.step(|| {
            alone.parameters().iter().for_each(|p| p.set_grad(None));
            let loss = nn::cross_entropy(&alone.forward(&x)?, &labels)?;
            loss.backward()?;
            Ok(loss)
        })?;
    }
    let expected = all(&alone)?;
    let mut mixes = vec![vec![Device::new("cpu/0")?, Device::new("cpu/1")?]];
    mixes.extend(devices_in_turn().into_iter().map(|d| vec![d]));
    for mix in mixes {
        let layer = Linear::new(3, 2)?;
        super::fill(&layer)?;
        let net = DataParallel::new(layer, &mix)?;
        let mut lbfgs = LBFGS::new(net.parameters(), 1.0).max_iter(4).strong_wolfe();
        for _ in 0..2 {
            lbfgs.step(|| net.train_batch(&x, &labels, nn::cross_entropy))?;
        }
        let got = net.parameters().iter().map(Tensor::to_vec::<f32>).collect::<Result<Vec<_>>>()?.concat();
        assert!(got.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-4), "{mix:?}: {got:?}, not {expected:?}");
    }
    let twins = [leaf(&[2], 1.0, &Device::cpu())?, leaf(&[2], 1.0, &devices_in_turn()[0])?];
    let mut lbfgs = LBFGS::new(Parameters::replicated(twins.iter().map(|p| vec![p.clone()]).collect())?, 1.0);
    lbfgs.step(|| {
        let losses = twins.iter().map(|p| {
            p.set_grad(None);
            let loss = p.sub(3.0)?.square()?.sum_all()?;
            loss.backward()?;
            Ok(loss)
        });
        Ok(losses.collect::<Result<Vec<_>>>()?.swap_remove(0))
    })?;
    assert_eq!(twins[0].to_vec::<f32>()?, twins[1].to_vec::<f32>()?);
    assert!(twins[0].to_vec::<f32>()?.iter().all(|p| (p - 3.0).abs() < 1e-4));
    Ok(())
}

#[test]
fn what_lbfgs_cannot_do_is_an_error_and_changes_nothing() -> Result<()> {
    for d in devices_in_turn() {
        let (p, q) = (leaf(&[3], 1.0, &d)?, leaf(&[2], 4.0, &d)?);
        let before = p.to_vec::<f32>()?;
        let both = || vec![p.clone(), q.clone()];
        let mut lbfgs = LBFGS::new(both(), 1.0).strong_wolfe();
        let mut calls = 0;
        let failing = lbfgs.step(|| {
            calls += 1;
            if calls == 3 { p.reshape([7]) } else { valley(&p, &q) }
        });
        assert!(failing.is_err() && calls == 3);
        assert_eq!(p.to_vec::<f32>()?, before);
        assert!(lbfgs.state_dict()?.names().all(|name| name.starts_with("param_groups.0.")));
        let error = lbfgs.step(|| p.square()).expect_err("no scalar").to_string();
        assert!(error.contains("LBFGS") && error.contains("[3]"), "{error}");
        lbfgs.zero_grad();
        let error = lbfgs.step(|| p.sum_all()).expect_err("no gradient").to_string();
        assert!(error.contains("none of the 2 parameters has a gradient"), "{error}");
        let optimizer: &mut dyn Optimizer = &mut lbfgs;
        let error = optimizer.step().expect_err("no function").to_string();
        assert!(error.contains("LBFGS::step"), "{error}");
        valley(&p, &q)?;
        assert!(GradScaler::new().step(&mut lbfgs).is_err());
        for mut wrong in [
            LBFGS::new(both(), f32::NAN),
            LBFGS::new(both(), 1.0).history_size(0),
            LBFGS::new(both(), 1.0).tolerance_grad(-1.0),
            LBFGS::new(Vec::new(), 1.0),
            LBFGS::new(vec![p.mul(2.0)?], 1.0),
        ] {
            assert!(wrong.step(|| valley(&p, &q)).is_err());
        }
    }
    Ok(())
}

#[test]
fn muon_is_pytorchs() -> Result<()> {
    let options: [fn(Vec<Tensor>) -> Muon; 4] = [
        |p| Muon::new(p, 0.02),
        |p| Muon::new(p, 0.05).nesterov(false).weight_decay(0.0).momentum(0.5).adjust_lr(MuonRate::MatchRmsAdamW),
        |p| Muon::new(p, 0.05).momentum(0.2).ns_steps(3).adjust_lr(MuonRate::SpectralUnclamped),
        |p| Muon::new(p, 0.05).ns_coefficients(2.0, -1.5, 0.5).eps(10.0),
    ];
    for d in devices_in_turn() {
        for (i, make) in options.into_iter().enumerate() {
            let shapes: [&[usize]; 3] = [&[6, 4], &[3, 5], &[1, 7]];
            let all = shapes.iter().enumerate().map(|(k, shape)| leaf(shape, 60.0 + k as f64, &d));
            let all = all.collect::<Result<Vec<_>>>()?;
            let mut muon = make(all.clone());
            for step in 0..4 {
                for (k, p) in all.iter().enumerate() {
                    let grad = wave(p.shape(), 70.0 + (3 * step + k) as f64, &d)?;
                    p.set_grad(if (k, step % 3) == (1, 2) { None } else { Some(grad) });
                }
                // Products within are bf16, whatever those of the program are.
                autocast(DType::F16, || muon.step())?;
            }
            for (k, p) in all.iter().enumerate() {
                assert_is(&format!("Muon {i} {k}"), p)?;
            }
        }
    }
    Ok(())
}

/// Matrices by Muon and the others by AdamW, of one net on several devices.
#[test]
fn muon_trains_on_several_devices() -> Result<()> {
    let (x, labels) = (wave(&[6, 3], 5.0, &Device::cpu())?, Tensor::new([0u32, 1, 0, 1, 1, 0], None)?);
    let mut expected: Option<Vec<f32>> = None;
    for mix in [vec![Device::cpu()], vec![Device::new("cpu/0")?, Device::new("cpu/1")?]] {
        let layer = Linear::new(3, 2)?;
        super::fill(&layer)?;
        let net = DataParallel::new(layer, &mix)?;
        let mut muon = Muon::new(net.parameters().filter(|p| p.rank() == 2), 0.02);
        let mut adamw = AdamW::new(net.parameters().filter(|p| p.rank() != 2), 0.02);
        for _ in 0..3 {
            net.train_batch(&x, &labels, nn::cross_entropy)?;
            muon.step()?;
            adamw.step()?;
        }
        let got = net.parameters().iter().map(Tensor::to_vec::<f32>).collect::<Result<Vec<_>>>()?.concat();
        let expected = expected.get_or_insert_with(|| got.clone());
        // A gradient that is rounded otherwise may be another one in bf16.
        assert!(got.iter().zip(&*expected).all(|(a, b)| (a - b).abs() < 2e-3), "{mix:?}: {got:?}, not {expected:?}");
    }
    Ok(())
}

#[test]
fn what_muon_does_not_take_is_an_error() -> Result<()> {
    let (matrix, vector) = (leaf(&[2, 3], 1.0, &Device::cpu())?, leaf(&[3], 1.0, &Device::cpu())?);
    matrix.set_grad(Some(wave(&[2, 3], 2.0, &Device::cpu())?));
    let error = Muon::new(vec![matrix.clone(), vector], 0.1).step().expect_err("a vector").to_string();
    assert!(error.contains("parameter 1 has the shape [3]") && error.contains("AdamW"), "{error}");
    for (mut muon, what) in [
        (Muon::new(vec![matrix.clone()], 0.1).ns_steps(100), "ns_steps"),
        (Muon::new(vec![matrix.clone()], 0.1).ns_coefficients(1.0, f32::NAN, 1.0), "ns_coefficients"),
        (Muon::new(vec![matrix.clone()], -0.1), "lr"),
    ] {
        let error = muon.step().expect_err("a wrong setting").to_string();
        assert!(error.contains(what), "{error}");
    }
    // PyTorch takes Nesterov's momentum of 0, which is none.
    Muon::new(vec![matrix.clone()], 0.1).momentum(0.0).step()?;
    let mut muon = Muon::new(vec![matrix], 0.1).adjust_lr(MuonRate::MatchRmsAdamW).ns_steps(3);
    muon.step()?;
    let state = muon.state_dict()?;
    let number = |name: &str| state.get(&format!("param_groups.0.{name}")).expect("a setting").to_vec_f64();
    assert_eq!((number("adjust_lr_fn")?, number("ns_steps")?), (vec![1.0], vec![3.0]));
    assert_eq!(number("ns_coefficients")?.len(), 3);
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
