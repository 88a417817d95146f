//! Training: the losses and parameters for one seed on every device and every mix of devices are compared.

use std::sync::Arc;

use anygpu::nn::{self, Linear, Module, Sequential};
use anygpu::optim::SGD;
use anygpu::parallel::{self, ReduceOp, Shares};
use anygpu::{DataParallel, Device, Error, Result, Tensor, data, manual_seed, no_grad};

use crate::common::{alone, device, devices_in_turn, values};

const BATCH: usize = 32;
const STEPS: usize = 10;

/// The same LeNet every time.
fn lenet() -> Result<Sequential> {
    manual_seed(0);
    nn::models::lenet()
}

/// The first `count` batches of the embedded digits.
fn batches(count: usize) -> Result<Vec<(Tensor, Tensor)>> {
    data::mnist_5k()?.loaders(BATCH, 0)?.0.epoch(0).take(count).collect()
}

/// The losses of the first steps, and the parameters after them.
fn train(net: DataParallel, steps: usize) -> Result<(Vec<f64>, Vec<Vec<f64>>)> {
    let mut sgd = SGD::new(net.parameters(), 0.05).momentum(0.9);
    let mut losses = Vec::new();
    for (images, labels) in batches(steps)? {
        losses.push(f64::from(net.train_batch(&images, &labels, nn::cross_entropy)?.item::<f32>()?));
        sgd.step()?;
    }
    Ok((losses, net.parameters().iter().map(values).collect::<Result<_>>()?))
}

#[track_caller]
fn assert_like(what: &str, got: &[f64], expected: &[f64], relative: f64) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let close = |(g, e): (&f64, &f64)| (g - e).abs() <= relative * e.abs();
    assert!(got.iter().zip(expected).all(close), "{what}:\n{got:?}, expected\n{expected:?}");
}

/// The largest difference between two sets of parameters, in units of the largest of their tensor.
fn apart(got: &[Vec<f64>], expected: &[Vec<f64>]) -> f64 {
    let tensor = |(g, e): (&Vec<f64>, &Vec<f64>)| {
        let most = e.iter().fold(1e-3, |m: f64, v| m.max(v.abs()));
        g.iter().zip(e).fold(0.0, |m: f64, (g, e)| m.max((g - e).abs())) / most
    };
    got.iter().zip(expected).map(tensor).fold(0.0, f64::max)
}

/// The mixes of devices that a machine has: those of several drivers, with the host, and two logical ones.
fn mixes() -> Vec<Vec<Device>> {
    let names = [&["soft:0", "soft:1"][..], &["soft:0", "cpu"], &["soft:0/0", "soft:0/1"], &["cpu/0", "cpu/1"]];
    names.iter().filter_map(|mix| mix.iter().map(|name| device(name)).collect()).collect()
}

#[test]
fn ten_steps_are_the_same_on_every_device() -> Result<()> {
    let _alone = alone();
    let (expected, _) = train(DataParallel::new(lenet()?, &[Device::cpu()])?, STEPS)?;
    assert!(expected[STEPS - 1] < 0.9 * expected[0], "the loss falls: {expected:?}");
    for device in devices_in_turn().into_iter().filter(|d| !d.is_cpu()) {
        let (losses, _) = train(DataParallel::new(lenet()?, std::slice::from_ref(&device))?, STEPS)?;
        assert_like(&format!("losses on {device}"), &losses, &expected, 1e-3);
    }
    Ok(())
}

#[test]
fn ten_steps_are_the_same_on_every_mix() -> Result<()> {
    let _alone = alone();
    let (expected, _) = train(DataParallel::new(lenet()?, &[Device::cpu()])?, STEPS)?;
    for mix in mixes() {
        let (losses, _) = train(DataParallel::new(lenet()?, &mix)?, STEPS)?;
        assert_like(&format!("losses on {mix:?}"), &losses, &expected, 1e-3);
    }
    Ok(())
}

/// However the batch is cut, a step moves the parameters as one device over the whole batch does.
#[test]
fn a_step_of_many_is_a_step_of_one() -> Result<()> {
    let _alone = alone();
    let (loss, expected) = train(DataParallel::new(lenet()?, &[Device::cpu()])?, 1)?;
    for mix in mixes() {
        for shares in [Shares::Even, Shares::Fixed(vec![1.0, 6.0]), Shares::Fixed(vec![1.0, 1e-6])] {
            let what = format!("{shares:?} on {mix:?}");
            let (got, parameters) = train(DataParallel::new(lenet()?, &mix)?.with_shares(shares)?, 1)?;
            assert_like(&what, &got, &loss, 1e-4);
            let apart = apart(&parameters, &expected);
            assert!(parameters.len() == expected.len() && apart < 1e-4, "{what}: {apart}");
        }
    }
    Ok(())
}

/// Without `DataParallel`: forward, backward and step by hand, after `to`.
#[test]
fn a_net_that_is_moved_trains_the_same() -> Result<()> {
    let _alone = alone();
    let (expected, _) = train(DataParallel::new(lenet()?, &[Device::cpu()])?, 3)?;
    for device in devices_in_turn() {
        let mut net = lenet()?;
        net.to_(&device)?;
        assert!(net.parameters().iter().all(|p| p.device() == &device && p.is_tracked()));
        let mut sgd = SGD::new(net.parameters(), 0.05).momentum(0.9);
        let mut losses = Vec::new();
        for (images, labels) in batches(3)? {
            sgd.zero_grad();
            let loss = nn::cross_entropy(&net.forward(&images.to(&device)?)?, &labels.to(&device)?)?;
            loss.backward()?;
            sgd.step()?;
            losses.push(f64::from(loss.item::<f32>()?));
        }
        assert_like(&format!("losses on {device}"), &losses, &expected, 1e-3);
    }
    Ok(())
}

#[test]
fn a_batch_smaller_than_the_devices() -> Result<()> {
    let _alone = alone();
    for mix in mixes() {
        let net = DataParallel::new(lenet()?, &mix)?;
        let (images, labels) = batches(1)?.remove(0);
        let loss = net.train_batch(&images.narrow(0, 0, 1)?, &labels.narrow(0, 0, 1)?, nn::cross_entropy)?;
        assert!(loss.item::<f32>()?.is_finite());
        assert!(net.parameters().iter().all(|p| p.grad().is_some()), "{mix:?}");
    }
    Ok(())
}

#[test]
fn collectives_over_every_device() -> Result<()> {
    let _alone = alone();
    let all = devices_in_turn();
    let x = Tensor::arange(0.0, 33.0 * 3.0, 1.0, None)?.reshape([33, 3])?;
    let parts = parallel::scatter(&x, &all)?;
    assert!(parts.iter().zip(&all).all(|(part, device)| part.device() == device));
    assert_eq!(parallel::gather(&parts, &all[0])?.to_vec::<f32>()?, x.to_vec::<f32>()?);
    let copies = parallel::broadcast(&x, &all)?;
    assert!(copies.iter().zip(&all).all(|(copy, device)| copy.device() == device && copy.shape() == [33, 3]));
    let owned: Vec<Tensor> = all.iter().map(|d| Tensor::full([5], 2.0, d)).collect::<Result<_>>()?;
    parallel::all_reduce(&owned, ReduceOp::Sum)?;
    for tensor in &owned {
        assert_eq!(tensor.to_vec::<f32>()?, [2.0 * all.len() as f32; 5], "{}", tensor.device());
    }
    Ok(())
}

/// An error names the replica's device, leaves no gradient, and the next step works.
#[test]
fn a_failing_replica_is_named() -> Result<()> {
    let _alone = alone();
    for mix in mixes() {
        let net = DataParallel::new(Linear::new(3, 2)?, &mix)?.with_shares(Shares::Even)?;
        let (x, y) = (Tensor::ones([4, 3], None)?, Tensor::from_slice(&[0u32, 1, 0, 1], 4, None)?);
        let second = mix[1].clone();
        let error = net
            .train_batch(&x, &y, move |out, y| match out.device() == &second {
                true => out.reshape([7]),
                false => nn::cross_entropy(out, y),
            })
            .unwrap_err();
        assert!(matches!(error, Error::Replica { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(&format!("replica on {}", mix[1])) && text.contains("[2, 2] and [7]"), "{text}");
        assert!(net.parameters().iter().all(|p| p.grad().is_none()));
        let panicked = net.train_batch(&x, &y, move |_, _| panic!("on purpose"));
        assert!(matches!(panicked, Err(Error::WorkerPanic { .. })), "{panicked:?}");
        assert!(net.left_out().is_empty(), "a loss function that panics on all devices is no failure of a device");
        assert!(net.train_batch(&x, &y, nn::cross_entropy)?.item::<f32>()?.is_finite(), "it works on");
    }
    Ok(())
}

/// A replica's thread computes in the state of the thread that calls: here without a graph.
#[test]
fn a_step_outside_the_graph_is_refused_on_every_mix() -> Result<()> {
    let _alone = alone();
    for mix in mixes().into_iter().chain([vec![Device::cpu()]]) {
        let net = DataParallel::new(Linear::new(3, 2)?, &mix)?;
        let (x, y) = (Tensor::ones([4, 3], None)?, Tensor::from_slice(&[0u32, 1, 0, 1], 4, None)?);
        let error = no_grad(|| net.train_batch(&x, &y, nn::cross_entropy)).unwrap_err().to_string();
        assert!(error.contains("depends on no tensor with requires_grad"), "{mix:?}: {error}");
        assert!(net.train_batch(&x, &y, nn::cross_entropy)?.item::<f32>()?.is_finite(), "{mix:?}");
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_said_with_both_shapes() -> Result<()> {
    let _alone = alone();
    let net = DataParallel::new(Linear::new(3, 2)?, &[Device::cpu()])?;
    let (x, y) = (Tensor::ones([4, 3], None)?, Tensor::from_slice(&[0u32, 1], 2, None)?);
    let error = net.train_batch(&x, &y, nn::cross_entropy).unwrap_err();
    assert!(matches!(error, Error::ShapeMismatch { op: "train_batch", .. }), "{error:?}");
    assert!(error.to_string().contains("[4, 3] and [2]"), "{error}");

    let error = Linear::new(3, 2)?.forward(&Tensor::ones([4, 5], None)?).unwrap_err();
    assert!(matches!(error, Error::ShapeMismatch { op: "Linear", .. }), "{error:?}");
    assert!(error.to_string().contains("[4, 5] and [2, 3]"), "{error}");

    let error = net.train_batch(&x.narrow(0, 0, 0)?, &y.narrow(0, 0, 0)?, nn::cross_entropy).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error:?}");
    let none = DataParallel::new(Linear::new(3, 2)?, &[]).unwrap_err();
    assert!(matches!(none, Error::InvalidArgument { .. }), "{none:?}");
    Ok(())
}

/// What a list of GPUs becomes on a machine without any. The message has devices that work when they are pasted.
#[test]
fn a_device_listed_twice_is_an_error_with_devices_that_work() -> Result<()> {
    let _alone = alone();
    let error = DataParallel::new(Linear::new(3, 2)?, &[Device::cpu(), Device::cpu()]).unwrap_err().to_string();
    assert_eq!(
        error,
        "DataParallel: device cpu occurs again at position 1, and a device has one replica. List it once, as \
         try_all_gpus() does, or list its logical devices: Device::new(\"cpu/0\")?, Device::new(\"cpu/1\")?"
    );
    let names = error.split('"').skip(1).step_by(2);
    let devices = names.map(Device::new).collect::<Result<Vec<_>>>()?;
    assert_eq!(DataParallel::new(Linear::new(3, 2)?, &devices)?.devices(), devices);
    Ok(())
}

/// As PyTorch's: the mode stays, the output is on the output device, and with one device it is in the graph.
#[test]
fn forward_is_that_of_the_net() -> Result<()> {
    let _alone = alone();
    let net = Sequential::new().add("fc", Linear::new(3, 2)?).add("norm", nn::BatchNorm1d::new(2)?);
    let (x, y) = (Tensor::rand([6, 3], None)?, Tensor::from_slice(&[0u32, 1, 0, 1, 0, 1], 6, None)?);
    for mix in mixes().into_iter().chain(devices_in_turn().into_iter().map(|device| vec![device])) {
        let what = format!("{mix:?}");
        let expected = no_grad(|| net.clone().forward(&x))?;
        let net = DataParallel::new(net.clone(), &mix)?.with_shares(Shares::Even)?;
        assert_eq!(net.output_device(), mix[0], "{what}");
        let output = no_grad(|| net.forward(&x))?;
        assert_eq!((output.device(), output.shape()), (&mix[0], &[6, 2][..]), "{what}");
        assert_like(&what, &values(&output)?, &values(&expected)?, 1e-3);
        net.eval();
        let evaluated = no_grad(|| net.forward(&x))?;
        assert_like(&what, &values(&evaluated)?, &values(&net.predict(&x)?)?, 1e-5);
        net.train();
        match (net.forward(&x), mix.len()) {
            (Ok(logits), 1) => {
                nn::cross_entropy(&logits, &y.to(&mix[0])?)?.backward()?;
                assert!(net.parameters().iter().all(|p| p.grad().is_some()), "{what}");
            }
            (Err(error), 2) => assert!(error.to_string().contains("train_batch(&x, &y, loss_fn)"), "{what}: {error}"),
            (other, _) => panic!("{what}: {other:?}"),
        }
    }
    Ok(())
}

/// A call of the same net would wait for the step that it is a part of; another net may be used.
#[test]
fn a_loss_function_that_uses_its_own_net_is_an_error() -> Result<()> {
    let _alone = alone();
    let with_adapter = device("soft:0/0").map(|soft| vec![Device::cpu(), soft]);
    for devices in std::iter::once(vec![Device::cpu()]).chain(with_adapter) {
        let (send, answers) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let make = || Ok::<_, Error>(Arc::new(DataParallel::new(Linear::new(2, 2)?, &devices)?));
            let (net, teacher) = (make()?, make()?);
            let (x, y) = (Tensor::rand([8, 2], None)?, Tensor::zeros([8, 2], None)?);
            let own: [fn(&DataParallel, &Tensor) -> Result<()>; 4] = [
                |net, y| net.predict(y).map(drop),
                |net, y| net.train_batch(y, y, |a, b| a.sub(b)?.square()?.mean_all()).map(drop),
                |net, y| net.accumulate_batch(y, y, |a, b| a.sub(b)?.square()?.mean_all()).map(drop),
                |net, _| net.load_state_dict(&net.state_dict(), true).map(drop),
            ];
            for call in own {
                let inner = net.clone();
                let result = net.train_batch(&x, &y, move |out, y| {
                    call(&inner, y)?;
                    out.sum_all()
                });
                let _ = send.send(result.map(drop));
            }
            let inner = net.clone();
            let distilled = net.train_batch(&x, &y, move |out, y| {
                assert!(inner.shares().len() == inner.devices().len() && !format!("{inner:?}").is_empty());
                let target = teacher.predict(y)?.to(out.device())?;
                out.sub(&target)?.square()?.mean_all()
            });
            let _ = send.send(distilled.and_then(|_| net.predict(&x)).map(drop));
            Ok::<_, Error>(())
        });
        let next = || answers.recv_timeout(std::time::Duration::from_secs(60)).expect("no call hangs");
        for _ in 0..4 {
            let error = next().unwrap_err().to_string();
            assert!(error.contains("called by a loss function"), "{error}");
        }
        assert_eq!(next(), Ok(()));
    }
    Ok(())
}
