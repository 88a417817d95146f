//! Optimisers and whole runs that resume from a file: on the same device, on another one, and on several.

use std::path::Path;

use anygpu::checkpoint::{self, TrainingState};
use anygpu::data::{DataLoader, LoaderState, mnist_5k};
use anygpu::nn::models::lenet;
use anygpu::nn::{self, Linear, Module, Sequential, StateDict};
use anygpu::optim::{Adam, AdamW, Muon, Optimizer, Parameters, RMSprop, SGD};
use anygpu::{DataParallel, Device, RandomState, Result, Tensor, random_state, set_random_state};

use crate::common::{alone, device, devices_in_turn, values};

type Make = fn(Vec<Tensor>) -> Box<dyn Optimizer>;

/// Every optimiser, with all that it may remember.
const MAKERS: [(&str, Make); 7] = [
    ("plain", |p| Box::new(SGD::new(p, 0.1))),
    ("momentum", |p| Box::new(SGD::new(p, 0.1).momentum(0.9).dampening(0.25).weight_decay(0.01))),
    ("nesterov", |p| Box::new(SGD::new(p, 0.1).momentum(0.9).nesterov())),
    ("adam", |p| Box::new(Adam::new(p, 0.05).betas(0.8, 0.95).weight_decay(0.01))),
    ("adamw", |p| Box::new(AdamW::new(p, 0.05))),
    ("rms", |p| Box::new(RMSprop::new(p, 0.01).momentum(0.5).alpha(0.9))),
    ("muon", |p| Box::new(Muon::new(matrices(p), 0.05).momentum(0.5).ns_steps(4))),
];

fn matrices(all: Vec<Tensor>) -> Vec<Tensor> {
    all.into_iter().filter(|p| p.rank() == 2).collect()
}

/// Another of the kind, whose settings must come from the state.
fn other(name: &str, p: Vec<Tensor>) -> Box<dyn Optimizer> {
    match name {
        "plain" | "momentum" | "nesterov" => Box::new(SGD::new(p, 9.0)),
        "adam" | "adamw" => Box::new(Adam::new(p, 9.0)),
        "muon" => Box::new(Muon::new(matrices(p), 9.0)),
        _ => Box::new(RMSprop::new(p, 9.0)),
    }
}

fn net(device: &Device) -> Result<Sequential> {
    let line = |rows: usize, columns: usize| {
        let mut layer = Linear::new(columns, rows)?;
        let numbers = |count: usize| (0..count).map(|i| ((i * 7 % 11) as f32 - 5.0) / 10.0).collect::<Vec<_>>();
        layer.visit_mut(&mut |_, p| {
            let shape = p.shape().to_vec();
            *p = Tensor::from_vec(numbers(p.elem_count()), shape, None).expect("values").requires_grad();
        });
        Ok::<_, anygpu::Error>(layer)
    };
    let mut net = Sequential::new().add("a", line(5, 3)?).add("b", line(2, 5)?);
    net.to_(device)?;
    Ok(net)
}

/// A step; in every third, the last layer takes no part.
fn step(net: &Sequential, optimizer: &mut dyn Optimizer, i: usize) -> Result<()> {
    let device = net.parameters()[0].device().clone();
    let x = Tensor::full([2, 3], 0.5 + i as f32 / 8.0, &device)?;
    optimizer.zero_grad();
    net.forward(&x)?.square()?.mean_all()?.backward()?;
    if i % 3 == 2 {
        net.parameters()[2..].iter().for_each(|p| p.set_grad(None));
    }
    optimizer.step()
}

fn all(net: &impl Module) -> Vec<f64> {
    net.parameters().iter().flat_map(|p| values(p).expect("values")).collect()
}

fn apart(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

/// A file with the model and the optimiser after five steps, and the parameters after ten.
fn run(make: Make, device: &Device, path: &Path) -> Result<Vec<f64>> {
    let net = net(device)?;
    let mut optimizer = make(net.parameters());
    for i in 0..10 {
        if i == 5 {
            TrainingState::new().module(&net).optimizer(&*optimizer)?.save(path)?;
        }
        step(&net, &mut *optimizer, i)?;
    }
    Ok(all(&net))
}

#[test]
fn every_optimiser_goes_on_from_its_state() -> Result<()> {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.safetensors");
    for (name, make) in MAKERS {
        for from in devices_in_turn() {
            let expected = run(make, &from, &path)?;
            for to in devices_in_turn() {
                let net = net(&to)?;
                let mut optimizer = other(name, net.parameters());
                TrainingState::load(&path)?.restore_module(&net)?.restore_optimizer(&mut *optimizer)?;
                for i in 5..10 {
                    step(&net, &mut *optimizer, i)?;
                }
                let apart = apart(&all(&net), &expected);
                // A sum that is rounded to bf16 may be another one on another device.
                let most = if name == "muon" { 2e-3 } else { 1e-5 };
                assert!(apart <= if from == to { 0.0 } else { most }, "{name} from {from} to {to}: {apart}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_state_before_the_first_step_is_the_beginning() -> Result<()> {
    let _alone = alone();
    let net = net(&Device::cpu())?;
    for (name, make) in MAKERS {
        let state = make(net.parameters()).state_dict()?;
        assert!(state.names().all(|name| name.starts_with("param_groups.0.")), "{name}");
        let mut optimizer = other(name, net.parameters());
        optimizer.load_state_dict(&state)?;
        assert_eq!(optimizer.lr(), make(Vec::new()).lr());
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_named_and_changes_nothing() -> Result<()> {
    let _alone = alone();
    let one = net(&Device::cpu())?;
    let mut adam = Adam::new(one.parameters(), 0.1);
    step(&one, &mut adam, 0)?;
    let state = adam.state_dict()?;
    let refused = |state: &StateDict, optimizer: &mut dyn Optimizer| {
        let lr = optimizer.lr();
        let error = optimizer.load_state_dict(state).expect_err("an error").to_string();
        assert_eq!(optimizer.lr(), lr);
        assert!(error.contains("unchanged"), "{error}");
        error
    };
    let error = refused(&state, &mut SGD::new(one.parameters(), 0.7));
    assert!(error.contains("state.0.exp_avg"), "{error}");
    let error = refused(&state, &mut Adam::new(one.parameters()[..3].to_vec(), 0.7));
    assert!(error.contains("has 4 parameters, but this optimiser has 3"), "{error}");
    let error = refused(&state, &mut Adam::new(one.parameters()[..2].to_vec(), 0.7));
    assert!(error.contains("has 4 parameters"), "no replicas: {error}");
    let mut swapped = one.parameters();
    swapped.swap(0, 2);
    let error = refused(&state, &mut Adam::new(swapped, 0.7));
    assert!(error.contains("state.0.exp_avg is [5, 3]"), "{error}");
    let mut cut = state.clone();
    cut.remove("state.1.exp_avg_sq");
    let error = refused(&cut, &mut Adam::new(one.parameters(), 0.7));
    assert!(error.contains("state.1.exp_avg_sq is missing"), "{error}");
    let mut odd = state.clone();
    odd.insert("param_groups.0.maximize", Tensor::scalar(1.0f32, None)?);
    assert!(refused(&odd, &mut Adam::new(one.parameters(), 0.7)).contains("maximize"));
    let error = refused(&StateDict::new(), &mut adam);
    assert!(error.contains("param_groups.0.params") && error.contains("missing"), "{error}");
    let mut groups = state.clone();
    groups.insert("param_groups.1.lr", Tensor::scalar(0.1f32, None)?);
    let error = refused(&groups, &mut adam);
    assert!(error.contains("param_groups.1.lr") && error.contains("second parameter group"), "{error}");
    Ok(())
}

/// Adam of PyTorch after a step, read from its file.
#[test]
fn the_state_of_a_pytorch_optimiser_is_taken_over() -> Result<()> {
    let _alone = alone();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pytorch_kinds.pt");
    let file = checkpoint::load_pickle(file, Device::cpu())?;
    for device in devices_in_turn() {
        let mut layer = Linear::new(3, 2)?;
        layer.to_(&device)?;
        let mut adam = Adam::new(layer.parameters(), 0.5);
        adam.load_state_dict(&file.get("optimizer").expect("a state").flatten()?)?;
        assert_eq!(adam.lr(), 1e-3);
        let state = adam.state_dict()?;
        // The gradient of a sum over 4 samples of ones: 4 everywhere; m = 0.1 · 4, v = 0.001 · 16.
        let close = |name: &str, expected: f64| {
            let values = values(state.get(name).expect("a memory")).expect("values");
            values.iter().all(|v| (v - expected).abs() < 1e-6)
        };
        assert!(close("state.0.exp_avg", 0.4) && close("state.1.exp_avg_sq", 0.016) && close("state.1.step", 1.0));
    }
    Ok(())
}

/// Two replicas of the net with one gradient each step, and then as many as there are devices.
#[test]
fn the_state_of_replicas_is_that_of_one() -> Result<()> {
    let _alone = alone();
    let replicas = |devices: &[Device]| devices.iter().map(net).collect::<Result<Vec<_>>>();
    let parameters = |nets: &[Sequential]| Parameters::replicated(nets.iter().map(Module::parameters).collect());
    let step = |nets: &[Sequential], optimizer: &mut Adam, i: usize| -> Result<()> {
        optimizer.zero_grad();
        for net in nets {
            let x = Tensor::full([2, 3], 0.5 + i as f32 / 8.0, net.parameters()[0].device())?;
            net.forward(&x)?.square()?.mean_all()?.backward()?;
        }
        optimizer.step()
    };
    let alone = net(&Device::cpu())?;
    let mut expected = Adam::new(alone.parameters(), 0.1);
    let two = replicas(&[Device::cpu(), Device::cpu()])?;
    let mut adam = Adam::new(parameters(&two)?, 0.1);
    for i in 0..3 {
        step(std::slice::from_ref(&alone), &mut expected, i)?;
        step(&two, &mut adam, i)?;
    }
    let state = adam.state_dict()?;
    assert_eq!(state.names().collect::<Vec<_>>(), expected.state_dict()?.names().collect::<Vec<_>>());
    assert_eq!(state.get("param_groups.0.params").map(Tensor::elem_count), Some(4));

    let many = replicas(&devices_in_turn())?;
    let mut later = Adam::new(parameters(&many)?, 9.0);
    later.load_state_dict(&state)?;
    many.iter().try_for_each(|net| net.load_state_dict(&two[0].state_dict(), true).map(drop))?;
    step(std::slice::from_ref(&alone), &mut expected, 3)?;
    step(&many, &mut later, 3)?;
    for (net, device) in many.iter().zip(devices_in_turn()) {
        let apart = apart(&all(net), &all(&alone));
        assert!(apart <= 1e-5, "{device}: {apart}");
    }
    Ok(())
}

/// Ten steps of LeNet with a loader; saved at the fifth, and gone on from there on other devices.
fn train(devices: &[Device], loader: &DataLoader, path: &Path, load: bool) -> Result<Vec<f64>> {
    let net = DataParallel::new(lenet()?, devices)?;
    let mut sgd = SGD::new(net.parameters(), 0.05).momentum(0.9);
    if load {
        let run = TrainingState::load(path)?;
        run.restore_module(&net)?.restore_optimizer(&mut sgd)?;
        loader.set_state(run.loader_state()?);
    }
    let mut losses = Vec::new();
    for batch in loader {
        let (images, labels) = batch?;
        losses.push(f64::from(net.train_batch(&images, &labels, nn::cross_entropy)?.item::<f32>()?));
        sgd.step()?;
        if losses.len() == 5 && !load {
            TrainingState::new().module(&net).optimizer(&sgd)?.loader(loader.state()).save(path)?;
        }
        if losses.len() == if load { 5 } else { 10 } {
            break;
        }
    }
    Ok(losses)
}

#[test]
fn one_device_goes_on_as_several_and_back() -> Result<()> {
    let _alone = alone();
    let Some(several) = ["soft:0", "soft:1", "cpu"].map(device).into_iter().collect::<Option<Vec<_>>>() else {
        return Ok(());
    };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.safetensors");
    let (loader, _) = mnist_5k()?.loaders(32, 0)?;
    let one = [Device::cpu()];
    for from in [&one[..], &several[..]] {
        loader.set_state(LoaderState::default());
        let expected = train(from, &loader, &path, false)?;
        let tensors = TrainingState::load(&path)?;
        drop(tensors);
        let bytes = std::fs::metadata(&path).expect("a file").len();
        assert!(bytes < 2 * 4 * 129_068 + 20_000, "of several replicas, one is kept: {bytes} bytes");
        for to in [&one[..], &several[1..], &several[..]] {
            let losses = train(to, &loader, &path, true)?;
            let apart = apart(&losses, &expected[5..]);
            assert!(apart < 1e-3, "from {from:?} to {to:?}: {apart}");
            if from.len() == 1 && to.len() == 1 {
                assert_eq!(losses, expected[5..], "the same device");
            }
        }
    }
    Ok(())
}

#[test]
fn numbers_text_and_random_states_come_back_exactly() -> Result<()> {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.safetensors");
    let random = random_state();
    set_random_state(RandomState { seed: u64::MAX, drawn: u64::MAX - 7 });
    let at = LoaderState { epoch: u64::MAX, batches: 3 };
    let extra: StateDict = [("x".to_string(), Tensor::ones([2], None)?)].into_iter().collect();
    let state = TrainingState::new().number("best", 0.1 + 0.2).number("odd", f64::NAN).number("none", f64::INFINITY);
    let state = state.numbers("scheduler", [("last_epoch", 3.0), ("base_lr", -0.0)]).text("note", "a \"π\"\n");
    state.loader(at).tensors("ema", &extra).tensors("none", &StateDict::new()).save(&path)?;
    set_random_state(random);

    let read = TrainingState::load(&path)?;
    assert_eq!(read.get("best")?, 0.1 + 0.2);
    assert!(read.get("odd")?.is_nan() && read.get("none")? == f64::INFINITY);
    let numbers = read.get_numbers("scheduler");
    assert_eq!(numbers, [("base_lr".to_string(), -0.0), ("last_epoch".to_string(), 3.0)]);
    assert!(numbers[0].1.is_sign_negative());
    assert_eq!((read.get_text("note")?, read.loader_state()?), ("a \"π\"\n", at));
    assert_eq!(read.get_tensors("ema")?.names().collect::<Vec<_>>(), ["x"]);
    assert!(read.get_tensors("none")?.is_empty(), "added, and empty");
    let mut adam = Adam::new(Vec::new(), 0.1);
    let lacking = [read.get_tensors("ma").map(drop), read.restore_optimizer(&mut adam).map(drop)];
    for missing in [read.get("x").map(drop), read.get_text("best").map(drop)].into_iter().chain(lacking) {
        assert!(missing.unwrap_err().to_string().contains("run.safetensors: there is no"));
    }
    read.restore_random_state();
    assert_eq!(random_state(), RandomState { seed: u64::MAX, drawn: u64::MAX - 7 });
    set_random_state(random);
    Ok(())
}

#[test]
fn the_model_of_a_run_is_read_by_itself() -> Result<()> {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.safetensors");
    let net = net(&Device::cpu())?;
    let mut adam = Adam::new(net.parameters(), 0.1);
    step(&net, &mut adam, 0)?;
    TrainingState::new().module(&net).optimizer(&adam)?.number("epoch", 3.0).text("note", "größe").save(&path)?;
    let (state, texts) = checkpoint::load_with_metadata(&path, Device::cpu())?;
    assert_eq!(texts.into_iter().collect::<Vec<_>>(), [("note".to_string(), "größe".to_string())]);
    assert_eq!(state.names().collect::<Vec<_>>(), ["a.weight", "a.bias", "b.weight", "b.bias"]);
    net.load_state_dict(&state, true)?;
    checkpoint::save(&net.state_dict(), &path)?;
    let error = TrainingState::load(&path).unwrap_err().to_string();
    assert!(error.contains("no training checkpoint"), "{error}");
    assert!(TrainingState::new().save(path.with_extension("pt")).is_err());
    Ok(())
}

#[test]
fn nothing_takes_the_place_of_another_in_a_file() -> Result<()> {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.safetensors");
    let net = net(&Device::cpu())?;
    let adam = Adam::new(net.parameters(), 0.1);
    let error = TrainingState::new().optimizer(&adam)?.optimizer(&adam).unwrap_err().to_string();
    assert!(error.contains("second .optimizer") && error.contains(".tensors("), "{error}");
    let error = TrainingState::new().module(&net).module(&Linear::new(2, 2)?).save(&path).unwrap_err().to_string();
    assert!(error.contains("second .module") && !path.exists(), "{error}");
    Ok(())
}

/// Groups whose names overlap are kept apart where reading can tell them apart, and refused otherwise.
#[test]
fn groups_of_tensors_are_kept_apart_or_refused() -> Result<()> {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.safetensors");
    let group = |names: &[&str], value: f32| -> StateDict {
        names.iter().map(|name| (name.to_string(), Tensor::full([1], value, None).expect("room"))).collect()
    };
    let refused = |groups: [(&str, &StateDict); 2], words: &[&str]| {
        for [(a, x), (b, y)] in [groups, [groups[1], groups[0]]] {
            let state = TrainingState::new().tensors(a, x).tensors(b, y);
            let errors =
                [state.save(&path).unwrap_err(), state.copied().unwrap_err(), state.get_tensors(a).unwrap_err()];
            for error in errors.map(|error| error.to_string()) {
                assert!(words.iter().all(|word| error.contains(word)) && !path.exists(), "{error}");
            }
        }
    };
    let w = group(&["w"], 1.0);
    refused([("ema", &group(&["x.w"], 2.0)), ("ema.x", &w)], &["\"ema\"", "\"ema.x\"", "\"x.w\""]);
    refused([("ema", &group(&["x.y.v"], 2.0)), ("ema.x.y", &w)], &["\"ema\"", "\"ema.x.y\""]);
    refused([("ema", &w), ("ema", &group(&["v"], 2.0))], &["second .tensors(\"ema\""]);
    let twice = TrainingState::new().numbers("a", [("b.c", 1.0)]).numbers("a.b", [("c", 2.0)]);
    assert!(twice.save(&path).unwrap_err().to_string().contains("\"a.b.c\""));

    let parts =
        [("ema", &["w", "c.w"][..]), ("ema.b", &["w", "v"]), ("ema.b.a", &["w"]), ("emab", &["w"]), ("", &["e"])];
    for reversed in [false, true] {
        let mut order: Vec<_> = parts.iter().enumerate().collect();
        if reversed {
            order.reverse();
        }
        let add = |state: TrainingState, (i, (name, names)): (usize, &(&str, &[&str]))| {
            state.tensors(name, &group(names, i as f32))
        };
        order.into_iter().fold(TrainingState::new(), add).save(&path)?;
        let read = TrainingState::load(&path)?;
        for (i, (name, names)) in parts.iter().enumerate() {
            let found = read.get_tensors(name)?;
            assert_eq!(found.len(), names.len(), "{name}: {found:?}");
            assert!(found.iter().all(|(key, t)| names.contains(&key) && t.item::<f32>() == Ok(i as f32)), "{name}");
        }
        assert!(read.get_tensors("ema.c").is_err(), "no group");
    }
    Ok(())
}

#[test]
fn a_copied_state_stays_as_it_is() -> Result<()> {
    let _alone = alone();
    let net = net(&Device::cpu())?;
    let mut adam = Adam::new(net.parameters(), 0.1);
    step(&net, &mut adam, 0)?;
    let (before, rate) = (all(&net), adam.lr());
    let kept = TrainingState::new().module(&net).optimizer(&adam)?.copied()?;
    step(&net, &mut adam, 1)?;
    let after = all(&net);
    adam.set_lr(0.7);
    assert_ne!(before, after);
    kept.restore_module(&net)?.restore_optimizer(&mut adam)?;
    assert_eq!((all(&net), adam.lr()), (before, rate));
    step(&net, &mut adam, 1)?;
    assert_eq!(all(&net), after, "the moments are those of then");
    Ok(())
}
