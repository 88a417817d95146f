//! Layers and losses.

use anygpu::nn::{
    self, BagMode, CTCLoss, Conv2d, EmbeddingBag, GRU, InstanceNorm1d, InstanceNorm2d, InstanceNorm3d, LSTM, Linear,
    Module, MultiheadAttention, PixelShuffle, PixelUnshuffle, RNN, Reduction, TransformerEncoderLayer, WeightNorm,
};
use anygpu::{Attention, Device, Result, Tensor, no_grad};

use super::{assert_case, fill, leaf};
use crate::common::devices_in_turn;

/// Compares the output of a layer and all gradients.
#[track_caller]
fn check(name: &str, layer: impl Module, shape: &[usize], device: &Device) -> Result<()> {
    let layer = layer.to(device)?;
    fill(&layer)?;
    check_filled(name, &layer, shape, device)
}

#[track_caller]
fn check_filled(name: &str, layer: &impl Module, shape: &[usize], device: &Device) -> Result<()> {
    let x = leaf(shape, 100.0, device)?;
    let parameters = layer.named_parameters();
    let mut leaves = vec![("x", &x)];
    leaves.extend(parameters.iter().map(|(name, parameter)| (name.as_str(), parameter)));
    assert_case(name, &layer.forward(&x)?, &leaves)
}

#[test]
fn instance_norms_and_shuffles() -> Result<()> {
    for d in &devices_in_turn() {
        check("InstanceNorm1d", InstanceNorm1d::new(3)?, &[2, 3, 5], d)?;
        check("InstanceNorm1d affine", InstanceNorm1d::new(3)?.affine()?.eps(1e-3), &[2, 3, 5], d)?;
        check("InstanceNorm2d", InstanceNorm2d::new(3)?, &[2, 3, 2, 4], d)?;
        check("InstanceNorm2d affine", InstanceNorm2d::new(3)?.affine()?.eps(1e-3), &[2, 3, 2, 4], d)?;
        check("InstanceNorm3d", InstanceNorm3d::new(3)?, &[2, 3, 2, 2, 3], d)?;
        check("InstanceNorm3d affine", InstanceNorm3d::new(3)?.affine()?.eps(1e-3), &[2, 3, 2, 2, 3], d)?;
        check("PixelShuffle", PixelShuffle::new(2), &[2, 12, 2, 3], d)?;
        check("PixelUnshuffle", PixelUnshuffle::new(2), &[2, 3, 4, 6], d)?;
    }
    Ok(())
}

/// A layer of any kind for sequences of several lengths: outputs and last states.
type WithLengths<'a> = &'a dyn Fn(&Tensor, &Tensor, &[Tensor]) -> Result<Vec<Tensor>>;

/// Compares outputs, states and gradients, also with a padding that is no number.
#[track_caller]
fn check_packed(
    name: &str,
    layer: &dyn Module,
    first: bool,
    states: usize,
    run: WithLengths,
    d: &Device,
) -> Result<()> {
    let lengths = Tensor::new([3u32, 5, 1, 5], None)?;
    let shape: &[usize] = if first { &[4, 6, 4] } else { &[6, 4, 4] };
    let rows = run(&leaf(shape, 0.0, d)?, &lengths, &[])?.last().expect("a state").shape()[0];
    for given in [false, true] {
        let name = format!("{name} {}", if given { "True" } else { "False" });
        let leaves = || -> Result<_> {
            let states = (0..if given { states } else { 0 }).map(|k| leaf(&[rows, 4, 3], 110.0 + k as f64, d));
            Ok((leaf(shape, 100.0, d)?, states.collect::<Result<Vec<_>>>()?))
        };
        let joined = |results: Vec<Tensor>| {
            Tensor::cat(&results.iter().map(|result| result.reshape([-1])).collect::<Result<Vec<_>>>()?, 0)
        };
        fill(layer)?;
        let (x, state) = leaves()?;
        let out = joined(run(&x, &lengths, &state)?)?;
        let parameters = layer.named_parameters();
        parameters.iter().for_each(|(_, parameter)| parameter.set_grad(None));
        let mut all = vec![("x", &x)];
        all.extend(["state 0", "state 1"].into_iter().zip(&state));
        all.extend(parameters.iter().map(|(name, parameter)| (name.as_str(), parameter)));
        assert_case(&name, &out, &all)?;

        // A padding that is no number, and lengths of another type where the layer is.
        parameters.iter().for_each(|(_, parameter)| parameter.set_grad(None));
        let past = Tensor::new([3i32, 5, 1, 5], d)?;
        let (_, state) = leaves()?;
        let steps = Tensor::iota(6, d)?.unsqueeze(1)?.to_dtype(anygpu::DType::I32)?;
        let padding = steps.ge(&past.unsqueeze(0)?)?.unsqueeze(2)?;
        let padding = if first { padding.transpose(0, 1)? } else { padding };
        let odd = x.detach().masked_fill(&padding.broadcast_to(shape)?, f32::NAN)?.requires_grad();
        let out = joined(run(&odd, &past, &state)?)?;
        let mut all = vec![("x", &odd)];
        all.extend(parameters.iter().map(|(name, parameter)| (name.as_str(), parameter)));
        assert_case(&name, &out, &all)?;
    }
    Ok(())
}

#[test]
fn sequences_of_several_lengths() -> Result<()> {
    for d in &devices_in_turn() {
        let one = |name: &str, layer: RNN| {
            let layer = layer.to(d)?;
            let run = |x: &Tensor, lengths: &Tensor, states: &[Tensor]| {
                let (outputs, h) = layer.forward_with_lengths(x, lengths, states.first())?;
                Ok(vec![outputs, h])
            };
            check_packed(name, &layer, false, 1, &run, d)
        };
        one("packed 0", RNN::new(4, 3)?)?;
        one("packed 1", RNN::new(4, 3)?.bidirectional()?.relu().without_bias())?;
        for (name, layer, first) in [
            ("packed 2", LSTM::new(4, 3)?.batch_first(), true),
            ("packed 3", LSTM::new(4, 3)?.num_layers(2)?.bidirectional()?, false),
        ] {
            let layer = layer.to(d)?;
            let run = |x: &Tensor, lengths: &Tensor, states: &[Tensor]| {
                let state = states.first().zip(states.get(1));
                let (outputs, (h, c)) = layer.forward_with_lengths(x, lengths, state)?;
                Ok(vec![outputs, h, c])
            };
            check_packed(name, &layer, first, 2, &run, d)?;
        }
        for (name, layer, first) in [
            ("packed 4", GRU::new(4, 3)?, false),
            ("packed 5", GRU::new(4, 3)?.num_layers(2)?.bidirectional()?.batch_first(), true),
        ] {
            let layer = layer.to(d)?;
            let run = |x: &Tensor, lengths: &Tensor, states: &[Tensor]| {
                let (outputs, h) = layer.forward_with_lengths(x, lengths, states.first())?;
                Ok(vec![outputs, h])
            };
            check_packed(name, &layer, first, 1, &run, d)?;
        }
        // Full lengths are those of no lengths.
        let layer = LSTM::new(4, 3)?.bidirectional()?.to(d)?;
        let x = leaf(&[6, 2, 4], 1.0, d)?;
        let (full, (h, c)) = layer.forward_with_lengths(&x, &Tensor::new([6i64, 6], None)?, None)?;
        let (plain, (h_plain, c_plain)) = layer.forward_with_state(&x, None)?;
        for (a, b) in [(full, plain), (h, h_plain), (c, c_plain)] {
            assert_eq!(a.to_vec::<f32>()?, b.to_vec::<f32>()?, "{d}");
        }
    }
    let (layer, x) = (GRU::new(4, 3)?, leaf(&[6, 2, 4], 1.0, &Device::cpu())?);
    for (lengths, words) in [
        (Tensor::new([6u32, 0], None)?, ["sequence 1", "from 1 to 6"]),
        (Tensor::new([7u32, 2], None)?, ["sequence 0", "from 1 to 6"]),
        (Tensor::new([-1, 2], None)?, ["sequence 0", "length -1"]),
        (Tensor::new([6u32, 2, 2], None)?, ["GRU", "each of 2 sequences"]),
        (Tensor::new([6.0f32, 2.0], None)?, ["GRU", "integers"]),
    ] {
        let error = layer.forward_with_lengths(&x, &lengths, None).expect_err("wrong lengths").to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
    let one = layer.forward_with_lengths(&x.select(1, 0)?, &Tensor::new([6u32], None)?, None);
    assert!(one.expect_err("no batch").to_string().contains("a batch"));
    Ok(())
}

#[test]
fn bags() -> Result<()> {
    for d in &devices_in_turn() {
        let equal = Tensor::new([[1u32, 2, 2], [5, 0, 1]], d)?;
        let (ids, offsets) = (Tensor::new([1, 2, 4, 5, 4, 3, 2], d)?, Tensor::new([0, 3, 3, 6], d)?);
        for (name, mode) in [("sum", BagMode::Sum), ("mean", BagMode::Mean), ("max", BagMode::Max)] {
            let bag = || -> Result<EmbeddingBag> {
                let bag = EmbeddingBag::new(6, 3)?.mode(mode).to(d)?;
                fill(&bag)?;
                Ok(bag)
            };
            let of = bag()?;
            assert_case(&format!("EmbeddingBag {name}"), &of.forward(&equal)?, &[("weight", of.weight())])?;
            let of = bag()?;
            let out = of.forward_with_offsets(&ids, &offsets)?;
            assert_case(&format!("EmbeddingBag {name} offsets"), &out, &[("weight", of.weight())])?;
        }
        let bag = EmbeddingBag::new(6, 3)?.mode(BagMode::Sum).to(d)?;
        fill(&bag)?;
        let weights = leaf(&[7], 30.0, d)?;
        let out = bag.forward_weighted(&ids, &offsets, &weights)?;
        assert_case("EmbeddingBag weights", &out, &[("weight", bag.weight()), ("weights", &weights)])?;
    }
    Ok(())
}

#[test]
fn weight_norms() -> Result<()> {
    for d in &devices_in_turn() {
        let longer = |normed: &dyn Module| -> Result<()> {
            let g = normed.get("weight_g").expect("a length");
            no_grad(|| g.mul_(1.5))
        };
        let linear = Linear::new(3, 4)?.to(d)?;
        fill(&linear)?;
        let normed = WeightNorm::new(linear.clone())?;
        longer(&normed)?;
        check_filled("WeightNorm Linear", &normed, &[5, 3], d)?;
        let plain = normed.clone().into_inner()?;
        let x = leaf(&[5, 3], 100.0, d)?;
        assert!(plain.forward(&x)?.allclose(&normed.forward(&x)?, 0.0, 0.0)?);
        assert!(!linear.forward(&x)?.allclose(&normed.forward(&x)?, 1e-3, 1e-3)?, "the given layer keeps its weight");
        let conv = Conv2d::new(2, 3, 2)?.to(d)?;
        fill(&conv)?;
        let normed = WeightNorm::new(conv)?;
        longer(&normed)?;
        check_filled("WeightNorm Conv2d", &normed, &[1, 2, 3, 4], d)?;
    }
    // A layer that is moved afterwards.
    let other = devices_in_turn().pop().expect("a device");
    let linear = Linear::new(3, 4)?;
    fill(&linear)?;
    let normed = WeightNorm::new(linear)?.to(&other)?;
    no_grad(|| normed.get("weight_g").expect("a length").mul_(1.5))?;
    check_filled("WeightNorm Linear", &normed, &[5, 3], &other)
}

#[test]
fn soft_targets() -> Result<()> {
    for d in &devices_in_turn() {
        for (name, reduction) in [("mean", Reduction::Mean), ("sum", Reduction::Sum), ("none", Reduction::None)] {
            let (x, p) = (leaf(&[3, 4, 2], 20.0, d)?, leaf(&[3, 4, 2], 21.0, d)?);
            let loss = nn::soft_cross_entropy(&x, &p, reduction)?;
            assert_case(&format!("soft_cross_entropy {name}"), &loss, &[("x", &x), ("p", &p)])?;
        }
    }
    Ok(())
}

#[test]
fn sequences_without_alignment() -> Result<()> {
    let loss = CTCLoss::new();
    type Run = (&'static str, CTCLoss, [usize; 3], [usize; 3]);
    let runs: [Run; 4] = [
        ("mean", loss, [6, 5, 4], [3, 2, 1]),
        ("sum", loss.reduction(Reduction::Sum), [6, 6, 6], [3, 3, 3]),
        ("none", loss.reduction(Reduction::None).blank(4), [6, 4, 6], [2, 1, 0]),
        ("zero", loss.reduction(Reduction::None).zero_infinity(), [3, 6, 2], [3, 3, 2]),
    ];
    for d in &devices_in_turn() {
        let targets = Tensor::new([[1u32, 2, 2], [3, 1, 3], [2, 3, 1]], d)?;
        for (name, loss, inputs, labels) in &runs {
            let x = leaf(&[6, 3, 5], 22.0, d)?;
            let log_probs = x.mul(4.0)?.log_softmax(2)?;
            let value = loss.forward(&log_probs, &targets, inputs, labels)?;
            assert_case(&format!("ctc_loss {name}"), &value, &[("x", &x)])?;
        }
    }
    Ok(())
}

#[test]
fn padding_is_hidden() -> Result<()> {
    for d in &devices_in_turn() {
        let padding = Tensor::new([[false, false, false, true], [false, true, true, true]], d)?;
        let options = Attention::new().key_padding_mask(&padding);
        let layer = MultiheadAttention::new(6, 2)?.to(d)?;
        fill(&layer)?;
        let (q, k) = (leaf(&[2, 3, 6], 100.0, d)?, leaf(&[2, 4, 6], 101.0, d)?);
        let parameters = layer.named_parameters();
        let mut leaves = vec![("q", &q), ("k", &k)];
        leaves.extend(parameters.iter().map(|(name, parameter)| (name.as_str(), parameter)));
        assert_case("MultiheadAttention", &layer.attend(&q, &k, &k, &options)?, &leaves)?;
        // With a mask of its own, of bool and of floats, and causal.
        let seen = Tensor::full([4, 4], true, d)?.tril(0)?;
        let hidden = seen.where_cond(0.0, f32::NEG_INFINITY)?;
        for options in [options.clone().causal(), options.clone().mask(&seen), options.clone().mask(&hidden)] {
            let x = leaf(&[2, 4, 6], 100.0, d)?;
            assert_case("MultiheadAttention causal", &layer.attend(&x, &x, &x, &options)?, &[("x", &x)])?;
        }
        let layer = TransformerEncoderLayer::new(6, 2)?.dim_feedforward(5)?.dropout(0.0)?.to(d)?;
        fill(&layer)?;
        let x = leaf(&[2, 4, 6], 100.0, d)?;
        assert_case("TransformerEncoderLayer", &layer.forward_with(&x, &options)?, &[("x", &x)])?;
    }
    Ok(())
}
