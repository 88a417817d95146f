//! Losses that are not means over samples, on every mix of devices and in pipelines: the loss and the gradients of one device over
//! the whole batch.
//!
//! `ANYGPU_LOSS_DRAWS` sets the number of draws of each test; the default is small.

use std::sync::atomic::{AtomicUsize, Ordering};

use anygpu::nn::{self, CrossEntropyLoss, Linear, Module, Reduction, Sequential};
use anygpu::parallel::{Shares, batch_mean};
use anygpu::{DataParallel, Device, Pipeline, Result, Tensor};

use crate::common::{device, devices_in_turn};

const CLASSES: usize = 4;
const INPUTS: usize = 5;
const STEPS: usize = 3;

/// Numbers that look random (SplitMix64).
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    fn chance(&mut self, of: f32) -> bool {
        self.unit() < of
    }

    fn floats(&mut self, shape: &[usize]) -> Tensor {
        let values = (0..shape.iter().product()).map(|_| 2.0 * self.unit() - 1.0).collect();
        Tensor::from_vec(values, shape, None).unwrap()
    }
}

/// A loss of one part of a batch, from the net's output `[n, CLASSES · STEPS]` and the part's inputs.
type LossFn = dyn Fn(&Tensor, &[Tensor]) -> Result<Tensor> + Send + Sync;

struct Case {
    name: String,
    summed: bool,
    /// The inputs after x, which are split with it.
    inputs: Vec<Tensor>,
    loss: std::sync::Arc<LossFn>,
}

/// Logits `[n, C, T]` of an output `[n, C · T]`.
fn tokens(output: &Tensor) -> Result<Tensor> {
    output.reshape([-1, CLASSES as i64, STEPS as i64])
}

/// The logits of the first step.
fn first(output: &Tensor) -> Result<Tensor> {
    tokens(output)?.select(2, 0)
}

fn labels(draw: &mut Draw, shape: &[usize], ignored: Option<(f32, i32)>) -> Tensor {
    let count = shape.iter().product::<usize>();
    let label = |draw: &mut Draw| match ignored {
        Some((chance, label)) if draw.chance(chance) => label,
        _ => draw.below(CLASSES) as i32,
    };
    let mut labels: Vec<i32> = (0..count).map(|_| label(draw)).collect();
    labels[draw.below(count)] = 1; // at least one counts
    Tensor::from_vec(labels, shape, None).unwrap()
}

/// Draws a loss for a batch of n samples.
fn case(draw: &mut Draw, n: usize) -> Case {
    let weight = Tensor::from_vec((0..CLASSES).map(|_| 0.2 + draw.unit()).collect(), CLASSES, None).unwrap();
    let smoothing = if draw.chance(0.5) { 0.3 * draw.unit() } else { 0.0 };
    let summed = draw.chance(0.2);
    let reduction = if summed { Reduction::Sum } else { Reduction::Mean };
    let chance = [0.2, 0.6, 0.95][draw.below(3)];
    let mut loss = CrossEntropyLoss::new().label_smoothing(smoothing).reduction(reduction);
    let ignores = draw.chance(0.7);
    if ignores {
        loss = loss.ignore_index(-100);
    }
    let weighs = draw.chance(0.5);
    if weighs {
        loss = loss.weight(weight.clone());
    }
    let ignored = ignores.then_some((chance, -100));
    let kind = draw.below(9);
    let of = |name: &str, inputs: Vec<Tensor>, loss: std::sync::Arc<LossFn>| Case {
        name: format!(
            "{name}, {n} samples, {reduction:?}, ignores {ignored:?}, weighs {weighs}, smoothing {smoothing}"
        ),
        summed,
        inputs,
        loss,
    };
    let target = draw.floats(&[n, CLASSES * STEPS]);
    match kind {
        0 => {
            let labels = labels(draw, &[n], ignored);
            of("cross entropy", vec![labels], std::sync::Arc::new(move |y, part| loss.forward(&first(y)?, &part[0])))
        }
        1 => {
            let labels = labels(draw, &[n, STEPS], ignored);
            of("tokens", vec![labels], std::sync::Arc::new(move |y, part| loss.forward(&tokens(y)?, &part[0])))
        }
        2 => {
            let mask = labels(draw, &[n, CLASSES * STEPS], None).eq(1).unwrap();
            let loss =
                move |y: &Tensor, part: &[Tensor]| reduction.reduce_weighted(&(y - &part[0])?.square()?, &part[1]);
            of("masked errors", vec![target, mask], std::sync::Arc::new(loss))
        }
        3 => {
            // The positions that count are selected, so that parts have other numbers of elements.
            let mask = labels(draw, &[n, CLASSES * STEPS], None).eq(1).unwrap();
            let loss = move |y: &Tensor, part: &[Tensor]| {
                nn::l1_loss(&y.masked_select(&part[1])?, &part[0].masked_select(&part[1])?, reduction)
            };
            of("selected errors", vec![target, mask], std::sync::Arc::new(loss))
        }
        4 => {
            let labels = labels(draw, &[n], ignored);
            let both = move |y: &Tensor, part: &[Tensor]| {
                let scores = loss.forward(&first(y)?, &part[0])?;
                scores.add(&nn::huber_loss(y, &part[1], 0.5, reduction)?.mul_scalar(0.3)?)
            };
            of("two losses", vec![labels, target], std::sync::Arc::new(both))
        }
        5 => {
            let [a, b] = [0.3, 0.9].map(|chance| labels(draw, &[n], Some((chance, -1))));
            let loss = loss.ignore_index(-1);
            let both = move |y: &Tensor, part: &[Tensor]| {
                let [x, y] = [0, 1].map(|step| tokens(y).and_then(|y| y.select(2, step)));
                loss.forward(&x?, &part[0])?.add(&loss.forward(&y?, &part[1])?)
            };
            of("two weighted losses", vec![a, b], std::sync::Arc::new(both))
        }
        6 => {
            let ones = target.gt(0.0).unwrap().to_dtype(anygpu::DType::F32).unwrap();
            let positive = Tensor::from_vec(vec![1.7], 1, None).unwrap();
            let loss = move |y: &Tensor, part: &[Tensor]| nn::bce_with_logits(y, &part[0], Some(&positive), reduction);
            of("binary cross entropy", vec![ones], std::sync::Arc::new(loss))
        }
        7 => {
            let labels = labels(draw, &[n, STEPS], None);
            let loss = move |y: &Tensor, part: &[Tensor]| {
                let likelihood = tokens(y)?.log_softmax(1)?;
                nn::nll_loss(&likelihood, &part[0], reduction)?.add(&nn::smooth_l1_loss(y, &part[1], 0.7, reduction)?)
            };
            of("likelihood and smooth errors", vec![labels, target], std::sync::Arc::new(loss))
        }
        _ => {
            let target = target.softmax(1).unwrap();
            let loss = move |y: &Tensor, part: &[Tensor]| {
                nn::kl_div(&y.log_softmax(1)?, &part[0], reduction)?.add(&nn::mse_loss(y, &part[0], reduction)?)
            };
            of("divergence", vec![target], std::sync::Arc::new(loss))
        }
    }
}

fn devices() -> Vec<Device> {
    ["cpu/0", "cpu/1", "soft:0", "soft:1", "soft:2", "soft:3"].iter().filter_map(|name| device(name)).collect()
}

fn draws() -> u64 {
    std::env::var("ANYGPU_LOSS_DRAWS").ok().and_then(|draws| draws.parse().ok()).unwrap_or(60)
}

/// The layers of the net, with the same values in each call.
fn layers() -> Result<[Linear; 2]> {
    let [a, b] = [Linear::new(INPUTS, 7)?, Linear::new(7, CLASSES * STEPS)?];
    let mut draw = Draw(7);
    anygpu::no_grad(|| {
        for parameter in a.parameters().iter().chain(&b.parameters()) {
            parameter.copy_(&draw.floats(parameter.shape()))?;
        }
        Ok::<(), anygpu::Error>(())
    })?;
    Ok([a, b])
}

fn net() -> Result<Sequential> {
    let [a, b] = layers()?;
    Ok(Sequential::new().add("a", a).add("tanh", nn::Tanh).add("b", b))
}

fn numbers(loss: &Tensor, parameters: &[Tensor]) -> Result<Vec<f32>> {
    let mut all = vec![loss.item::<f32>()?];
    for parameter in parameters {
        match parameter.grad() {
            Some(grad) => all.extend(grad.to_vec::<f32>()?),
            None => panic!("a parameter has no gradient"),
        }
    }
    Ok(all)
}

fn alone(case: &Case, x: &Tensor) -> Result<Vec<f32>> {
    let net = net()?;
    let loss = (case.loss)(&net.forward(x)?, &case.inputs)?;
    loss.backward()?;
    numbers(&loss, &net.parameters())
}

/// The largest difference, relative to the largest number where that is above 1.
fn apart(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    let scale = expected.iter().fold(1.0f32, |most, value| most.max(value.abs()));
    let differences = got.iter().zip(expected).map(|(a, b)| (a - b).abs() / scale);
    differences.fold(0.0, |worst, d| if d.is_nan() { f32::INFINITY } else { worst.max(d) })
}

#[test]
fn every_loss_on_every_mix_is_that_of_one_device() -> Result<()> {
    let devices = devices();
    let mut worst = (0.0, String::new());
    for seed in 0..draws() {
        let mut draw = Draw(seed);
        let n = 2 + draw.below(20);
        let (x, case) = (draw.floats(&[n, INPUTS]), case(&mut draw, n));
        let mut mix: Vec<Device> = devices.iter().filter(|_| draw.chance(0.5)).cloned().collect();
        if mix.len() < 2 {
            mix = devices[..2].to_vec();
        }
        let shares = Shares::Fixed(mix.iter().map(|_| 0.1 + f64::from(draw.unit())).collect());
        let what = format!("seed {seed}: {}, {mix:?}, {shares:?}", case.name);
        let expected = alone(&case, &x)?;
        let mut parallel = DataParallel::new(net()?, &mix)?.with_shares(shares)?;
        if case.summed {
            parallel = parallel.with_summed_losses();
        }
        let inputs: Vec<&Tensor> = [&x].into_iter().chain(&case.inputs).collect();
        for _ in 0..2 {
            let loss_fn = case.loss.clone();
            let loss = parallel.step(&inputs, move |net, part| loss_fn(&net.forward(&part[0])?, &part[1..]))?;
            let difference = apart(&numbers(&loss, &parallel.parameters())?, &expected);
            assert!(difference <= 1e-5, "{what}: {difference}");
            if difference > worst.0 {
                worst = (difference, what.clone());
            }
        }
        assert!(parallel.left_out().is_empty(), "{what}");
    }
    println!("worst of {} draws: {:.1e} ({})", draws(), worst.0, worst.1);
    Ok(())
}

/// All inputs of a step as one tensor, since a pipeline has one tensor of labels.
fn packed(inputs: &[Tensor]) -> Result<Tensor> {
    let columns = |input: &Tensor| input.to_dtype(anygpu::DType::F32)?.reshape([input.shape()[0] as i64, -1]);
    let columns = inputs.iter().map(columns).collect::<Result<Vec<_>>>()?;
    Tensor::cat(&columns.iter().collect::<Vec<_>>(), 1)
}

fn unpacked(packed: &Tensor, like: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut start = 0;
    let part = |input: &Tensor| {
        let width: usize = input.shape()[1..].iter().product();
        let columns = packed.narrow(1, start, width)?.to_dtype(input.dtype())?;
        start += width;
        let shape: Vec<i64> = [-1].into_iter().chain(input.shape()[1..].iter().map(|&n| n as i64)).collect();
        columns.reshape(&shape[..])
    };
    like.iter().map(part).collect()
}

#[test]
fn every_loss_in_a_pipeline_is_that_of_one_device() -> Result<()> {
    let devices = devices();
    let mut worst = (0.0, String::new());
    for seed in 0..draws() {
        let mut draw = Draw(seed + 1_000_000);
        let n = 2 + draw.below(20);
        let (x, case) = (draw.floats(&[n, INPUTS]), case(&mut draw, n));
        let [a, b] = [0, 1].map(|_| devices[draw.below(devices.len())].clone());
        let micro_batches = 1 + draw.below(6);
        let what = format!("seed {seed}: {}, {a} and {b}, {micro_batches} micro-batches", case.name);
        let expected = alone(&case, &x)?;
        let [one, two] = layers()?;
        let stages = vec![Sequential::new().add("a", one).add("tanh", nn::Tanh), Sequential::new().add("b", two)];
        let mut pipeline = Pipeline::new(stages, &[a, b])?.with_micro_batches(micro_batches)?;
        if case.summed {
            pipeline = pipeline.with_summed_losses();
        }
        let labels = packed(&case.inputs)?;
        for _ in 0..2 {
            let (loss_fn, like) = (case.loss.clone(), case.inputs.clone());
            let loss = pipeline.train_batch(&x, &labels, move |y, labels| loss_fn(y, &unpacked(labels, &like)?))?;
            let difference = apart(&numbers(&loss, &pipeline.parameters())?, &expected);
            assert!(difference <= 1e-5, "{what}: {difference}");
            if difference > worst.0 {
                worst = (difference, what.clone());
            }
        }
    }
    println!("worst of {} draws: {:.1e} ({})", draws(), worst.0, worst.1);
    Ok(())
}

/// A report: six labels of which three are ignored, so that parts have two, one or none that count.
#[test]
fn parts_without_labels_that_count_add_nothing() -> Result<()> {
    let mut draw = Draw(3);
    let x = draw.floats(&[6, INPUTS]);
    let labels = Tensor::try_from([0, 1, -100, 3, -100, -100])?;
    let loss = || CrossEntropyLoss::new().ignore_index(-100);
    let one = net()?;
    let alone = loss().forward(&first(&one.forward(&x)?)?, &labels)?;
    alone.backward()?;
    let expected = numbers(&alone, &one.parameters())?;
    for count in [2, 3] {
        let devices: Vec<Device> = (0..count).map(|i| Device::new(&format!("cpu/{i}"))).collect::<Result<_>>()?;
        let parallel = DataParallel::new(net()?, &devices)?.with_shares(Shares::Even)?;
        let loss = parallel.train_batch(&x, &labels, move |y, labels| loss().forward(&first(y)?, labels))?;
        assert!(apart(&numbers(&loss, &parallel.parameters())?, &expected) < 1e-6, "{count} devices");
    }
    // If no label counts at all, the loss is NaN as on one device, and no error.
    let none = Tensor::try_from([-100; 6])?;
    let devices = [Device::new("cpu/0")?, Device::new("cpu/1")?];
    let parallel = DataParallel::new(net()?, &devices)?;
    assert!(parallel.train_batch(&x, &none, move |y, l| loss().forward(&first(y)?, l))?.item::<f32>()?.is_nan());
    Ok(())
}

#[test]
fn sums_are_added_or_refused() -> Result<()> {
    let devices = [Device::new("cpu/0")?, Device::new("cpu/1")?];
    let mut draw = Draw(5);
    let (x, y) = (draw.floats(&[6, INPUTS]), draw.floats(&[6, CLASSES * STEPS]));
    let loss = |output: &Tensor, y: &Tensor| nn::mse_loss(output, y, Reduction::Sum);
    let refused = DataParallel::new(net()?, &devices)?.train_batch(&x, &y, loss).unwrap_err().to_string();
    assert!(refused.contains("with_summed_losses"), "{refused}");

    // A sum of one's own beside one of the crate, as a variational auto-encoder has it.
    let both = move |output: &Tensor, y: &Tensor| loss(output, y)?.add(&output.square()?.sum_all()?);
    let one = net()?;
    let alone = both(&one.forward(&x)?, &y)?;
    alone.backward()?;
    let expected = numbers(&alone, &one.parameters())?;
    let parallel =
        DataParallel::new(net()?, &devices)?.with_shares(Shares::Fixed(vec![1.0, 2.5]))?.with_summed_losses();
    let loss = parallel.train_batch(&x, &y, both)?;
    assert!(apart(&numbers(&loss, &parallel.parameters())?, &expected) < 1e-6);
    Ok(())
}

/// Losses of one's own: a mean over samples is right on any split, and what is not a mean is an error, not another number.
#[test]
fn losses_that_depend_on_the_split_are_refused() -> Result<()> {
    type Loss = fn(&Tensor, &Tensor) -> Result<Tensor>;
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    fn errors(output: &Tensor, y: &Tensor) -> Result<Tensor> {
        output.sub(y)?.square()
    }
    // Function pointers have one type, and only the first function of a type is compared: so each has a net of its own.
    let wrong: [(&str, Loss); 6] = [
        ("with_summed_losses", |output, y| errors(output, y)?.sum_all()),
        ("reduce()", |output, y| errors(output, y)?.mean_all()?.sqrt()),
        ("reduce_weighted()", |output, y| {
            let mask = y.gt(0.2)?.to_dtype(anygpu::DType::F32)?;
            errors(output, y)?.mul(&mask)?.sum_all()?.div(&mask.sum_all()?)
        }),
        ("with_summed_losses", |output, y| errors(output, y)?.sum_all()?.div_scalar(9.0)),
        ("reduce()", |output, y| errors(output, y)?.mean_all()?.square()),
        // One part has no element of the mask.
        ("reduce_weighted()", |output, y| {
            let mask = y.abs()?.gt(4.0)?.to_dtype(anygpu::DType::F32)?;
            errors(output, y)?.mul(&mask)?.sum_all()?.div(&mask.sum_all()?)
        }),
    ];
    let right: [Loss; 10] = [
        |output, y| errors(output, y)?.mean_all(),
        |output, y| errors(output, y)?.sum(1, false)?.mean_all()?.mul_scalar(0.25)?.add_scalar(3.0),
        |output, _| output.sub(output)?.mean_all(),
        |output, y| errors(output, y)?.sum_all()?.div_scalar(y.shape()[0] as f32),
        |output, y| Reduction::Mean.reduce_weighted(&errors(output, y)?, &y.gt(0.2)?),
        |output, y| errors(output, y)?.dropout(0.5, true)?.mean_all(),
        |output, y| errors(output, &batch_mean(&y.mean(0, true)?)?.broadcast_to(y.shape())?)?.mean_all(),
        |output, y| match y.shape()[0] {
            1 | 2 => Err(anygpu::Error::InvalidArgument { op: "own", detail: "so few".to_owned() }),
            _ => errors(output, y)?.mean_all(),
        },
        |output, y| {
            assert!(y.shape()[0] > 1, "no panic of a comparison leaves a device out");
            errors(output, y)?.mean_all()
        },
        // With numbers that change from call to call, such as those of another crate.
        |output, y| errors(output, y)?.mean_all()?.add_scalar(CALLS.fetch_add(1, Ordering::Relaxed) as f32),
    ];
    let mut draw = Draw(7);
    // The samples differ, or the root of their mean error would hardly.
    let rows = Tensor::from_vec((1..10).map(|row| row as f32).collect(), [9, 1], None)?;
    let (x, y) = (draw.floats(&[9, INPUTS]), draw.floats(&[9, CLASSES * STEPS]).mul(&rows)?);
    let mut mixes = vec![vec![Device::new("cpu/0")?, Device::new("cpu/1")?]];
    mixes.extend(
        devices_in_turn().into_iter().filter(|device| !device.is_cpu()).map(|device| vec![device, Device::cpu()]),
    );
    for devices in mixes {
        let several = || DataParallel::new(net()?, &devices)?.with_shares(Shares::Fixed(vec![2.0, 1.0]));
        for (remedy, loss) in wrong {
            let several = several()?;
            for _ in 0..2 {
                let error =
                    several.train_batch(&x, &y, loss).map(|loss| loss.to_string()).expect_err(remedy).to_string();
                assert!(error.contains("train_batch: the loss of") && error.contains(remedy), "{error}");
            }
            assert!(several.parameters().iter().all(|parameter| parameter.grad().is_none()));
            assert_eq!(several.left_out().len(), 0);
            // On one device, every loss is that of the whole batch.
            DataParallel::new(net()?, &[Device::cpu()])?.train_batch(&x, &y, loss)?;
        }
        for loss in right {
            let several = several()?;
            several.train_batch(&x, &y, loss)?;
            assert!(several.left_out().is_empty());
        }
        let sums = several()?.with_summed_losses();
        sums.train_batch(&x, &y, |output, y| errors(output, y)?.sum_all())?;
        let error = sums.train_batch(&x, &y, |output, y| errors(output, y)?.mean_all()).unwrap_err().to_string();
        assert!(error.contains("has to be a sum"), "{error}");
    }
    let stages = vec![net()?, Sequential::new().push(nn::ReLU)];
    let pipeline = Pipeline::new(stages, &[Device::new("cpu/0")?, Device::new("cpu/1")?])?.with_micro_batches(3)?;
    let error = pipeline.train_batch(&x, &y, |output, y| errors(output, y)?.sum_all()).unwrap_err().to_string();
    assert!(error.contains("with_summed_losses"), "{error}");
    Ok(())
}

/// A prediction that computes losses gathers them, and changes nothing about them.
#[test]
fn losses_of_predictions_are_left_alone() -> Result<()> {
    let devices = [Device::new("cpu/0")?, Device::new("cpu/1")?];
    let parallel = DataParallel::new(net()?, &devices)?.with_shares(Shares::Even)?;
    let mut draw = Draw(9);
    let (x, y) = (draw.floats(&[4, INPUTS]), draw.floats(&[4, CLASSES * STEPS]));
    let outputs = parallel.predict_with(&[&x, &y], |net, part| {
        let sum = nn::mse_loss(&net.forward(&part[0])?, &part[1], Reduction::Sum)?;
        Ok(vec![sum.reshape([1])?.broadcast_to([part[0].shape()[0]])?])
    })?;
    let whole = nn::mse_loss(&net()?.forward(&x)?, &y, Reduction::Sum)?.item::<f32>()?;
    let sums = outputs[0].to_vec::<f32>()?;
    assert!((sums[0] + sums[2] - whole).abs() < 1e-4, "{sums:?} {whole}");
    Ok(())
}

#[test]
fn gradients_add_up_over_calls() -> Result<()> {
    let devices = [Device::new("cpu/0")?, Device::new("cpu/1")?];
    let mut draw = Draw(11);
    let x = draw.floats(&[8, INPUTS]);
    let labels = labels(&mut draw, &[8], Some((0.5, -100)));
    let loss = |y: &Tensor, labels: &Tensor| CrossEntropyLoss::new().ignore_index(-100).forward(&first(y)?, labels);
    let one = net()?;
    let parallel = DataParallel::new(net()?, &devices)?;
    let [a, b] = layers()?;
    let stages = vec![Sequential::new().add("a", a).add("tanh", nn::Tanh), Sequential::new().add("b", b)];
    let pipeline = Pipeline::new(stages, &devices)?.with_micro_batches(2)?;
    for part in 0..2 {
        let (x, labels) = (x.narrow(0, 4 * part, 4)?, labels.narrow(0, 4 * part, 4)?);
        loss(&one.forward(&x)?, &labels)?.backward()?;
        parallel.accumulate_batch(&x, &labels, loss)?;
        pipeline.accumulate_batch(&x, &labels, loss)?;
    }
    let zero = Tensor::zeros((), None)?;
    let expected = numbers(&zero, &one.parameters())?;
    assert!(apart(&numbers(&zero, &parallel.parameters())?, &expected) < 1e-6);
    assert!(apart(&numbers(&zero, &pipeline.parameters())?, &expected) < 1e-6);

    // An error leaves what was there.
    let wrong = |_: &Tensor, _: &Tensor| Err(anygpu::Error::Autograd("on purpose".into()));
    assert!(
        parallel.accumulate_batch(&x, &labels, wrong).is_err()
            && pipeline.accumulate_batch(&x, &labels, wrong).is_err()
    );
    assert!(apart(&numbers(&zero, &parallel.parameters())?, &expected) < 1e-6);
    assert!(apart(&numbers(&zero, &pipeline.parameters())?, &expected) < 1e-6);
    Ok(())
}

/// A layer that computes a loss of its own in its forward pass.
#[derive(Clone)]
struct Balanced {
    layer: Linear,
}

impl Module for Balanced {
    anygpu::children!(layer);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.layer.forward(x)?;
        let balance = Reduction::Mean.reduce_weighted(&y.square()?, &y.detach().gt(0.0)?)?;
        y.add(&balance.mul(0.1)?)
    }
}

#[test]
fn layers_of_a_pipeline_may_compute_losses() -> Result<()> {
    let devices = [Device::new("cpu/0")?, Device::new("cpu/1")?];
    let mut draw = Draw(13);
    let (x, labels) = (draw.floats(&[8, INPUTS]), labels(&mut draw, &[8], Some((0.5, -100))));
    let stages = || -> Result<_> {
        let first = Sequential::new().add("a", Balanced { layer: Linear::new(INPUTS, 6)? });
        Ok(vec![first, Sequential::new().add("b", Linear::new(6, CLASSES)?)])
    };
    let pipeline = Pipeline::new(stages()?, &devices)?.with_micro_batches(3)?;
    let pipeline = pipeline.with_time_limit(std::time::Duration::from_secs(60));
    for _ in 0..2 {
        let loss = |y: &Tensor, labels: &Tensor| CrossEntropyLoss::new().ignore_index(-100).forward(y, labels);
        assert!(pipeline.train_batch(&x, &labels, loss)?.item::<f32>()?.is_finite());
    }
    // The parts of a batch compute the same losses, or the step is an error.
    let error = pipeline.train_batch(&x, &labels, |y, labels| match labels.shape()[0] {
        2 => y.mean_all(),
        _ => CrossEntropyLoss::new().ignore_index(-100).forward(y, labels),
    });
    assert!(error.unwrap_err().to_string().contains("losses"));
    Ok(())
}
