//! What layers do beside PyTorch's numbers: halves, training, padding, wrong arguments.

use anygpu::nn::{Embedding, GRU, GRUCell, LSTM, LSTMCell, Module, PReLU, RNN};
use anygpu::optim::Adam;
use anygpu::{DType, DataParallel, Device, Result, Tensor, autocast, nn, no_grad};

use crate::common::devices_in_turn;

/// A layer of many steps is its cell in a loop, in halves and in autocast too.
#[test]
fn recurrent_layers_are_loops_of_cells() -> Result<()> {
    for device in devices_in_turn() {
        let (layer, cell) = (GRU::new(3, 7)?.to(&device)?, GRUCell::new(3, 7)?.to(&device)?);
        for (from, to) in layer.parameters().iter().zip(cell.parameters()) {
            no_grad(|| to.copy_(from))?;
        }
        let x = Tensor::rand([12, 5, 3], &device)?;
        let mut h = cell.forward(&x.select(0, 0)?)?;
        for t in 1..12 {
            h = cell.forward_with_state(&x.select(0, t)?, Some(&h))?;
        }
        let (outputs, last) = layer.forward_with_state(&x, None)?;
        assert!(last.squeeze(0)?.allclose(&h, 1e-5, 1e-5)?, "{device}");
        for half in [DType::F16, DType::BF16] {
            let lowered = autocast(half, || layer.forward(&x))?;
            assert_eq!(lowered.dtype(), half);
            assert!(lowered.to_dtype(DType::F32)?.allclose(&outputs, 2e-2, 2e-2)?, "{half} on {device}");
            lowered.to_dtype(DType::F32)?.sum_all()?.backward()?;
            assert!(layer.parameters()[1].grad().is_some_and(|grad| grad.dtype() == DType::F32));
        }
    }
    Ok(())
}

#[test]
fn recurrent_layers_refuse_wrong_arguments() -> Result<()> {
    let layer = LSTM::new(3, 4)?.num_layers(2)?;
    let x = Tensor::zeros([5, 2, 3], None)?;
    let told = |result: Result<Tensor>, parts: &[&str]| {
        let error = result.expect_err("an error").to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    };
    told(layer.forward(&Tensor::zeros([5, 2, 4], None)?), &["LSTM", "[5, 2, 4]", "I = 3"]);
    told(layer.forward(&Tensor::zeros([3], None)?), &["LSTM", "[3]"]);
    told(layer.forward(&Tensor::zeros([0, 2, 3], None)?), &["LSTM", "no elements"]);
    told(layer.forward(&x.to_dtype(DType::I32)?), &["LSTM", "i32"]);
    let wrong = Tensor::zeros([1, 2, 4], None)?;
    told(layer.forward_with_state(&x, Some((&wrong, &wrong))).map(|(y, _)| y), &["LSTM", "[1, 2, 4]", "[2, 2, 4]"]);
    assert_eq!(layer.forward(&Tensor::zeros([5, 0, 3], None)?)?.shape(), [5, 0, 4]);
    assert!(LSTM::new(0, 4).is_err() && RNN::new(3, 0).is_err() && GRU::new(3, 4)?.num_layers(0).is_err());
    assert!(GRU::new(3, 4)?.dropout(1.5).is_err() && LSTMCell::new(0, 1).is_err());
    told(GRUCell::new(3, 4)?.forward(&x), &["GRUCell", "[5, 2, 3]"]);
    Ok(())
}

/// Dropout is between layers, in training; a net of one layer has none.
#[test]
fn recurrent_dropout_is_between_layers() -> Result<()> {
    let x = Tensor::rand([6, 4, 3], None)?;
    let two = RNN::new(3, 8)?.num_layers(2)?.dropout(0.5)?;
    assert_ne!(two.forward(&x)?.to_vec::<f32>()?, two.forward(&x)?.to_vec::<f32>()?);
    two.eval();
    assert_eq!(two.forward(&x)?.to_vec::<f32>()?, two.forward(&x)?.to_vec::<f32>()?);
    let one = RNN::new(3, 8)?.dropout(0.5)?;
    assert_eq!(one.forward(&x)?.to_vec::<f32>()?, one.forward(&x)?.to_vec::<f32>()?);
    Ok(())
}

#[derive(Clone)]
struct Tagger {
    words: Embedding,
    lstm: LSTM,
}

impl Module for Tagger {
    anygpu::children!(words, lstm);

    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        self.lstm.forward(&self.words.forward(ids)?)?.mean(1, false)
    }
}

/// A net with an embedding and an LSTM trains on several devices; its padding stays zeros.
#[test]
fn a_recurrent_net_trains() -> Result<()> {
    let net = Tagger { words: Embedding::new(9, 6)?.padding_idx(0)?, lstm: LSTM::new(6, 4)?.batch_first() };
    let names: Vec<String> = net.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names[..2], ["words.weight", "lstm.weight_ih_l0"]);
    let ids: Vec<u32> = (0..16 * 5).map(|i| (i * i + i / 5) % 9).collect();
    let labels: Vec<u32> = ids.chunks(5).map(|words| words[3] % 4).collect();
    let (ids, labels) = (Tensor::from_vec(ids, [16, 5], None)?, Tensor::from_vec(labels, [16], None)?);
    let trained = DataParallel::new(net, &Device::list("cpu,cpu/1").unwrap_or_else(|_| vec![Device::cpu()]))?;
    let mut optimiser = Adam::new(trained.parameters(), 0.05);
    let mut losses = Vec::new();
    for _ in 0..60 {
        losses.push(trained.train_batch(&ids, &labels, nn::cross_entropy)?.item::<f32>()?);
        optimiser.step()?;
    }
    assert!(losses[59] < 0.5 * losses[0], "{losses:?}");
    let words = trained.module().get("words.weight").expect("a weight").to_vec::<f32>()?;
    assert_eq!(words[..6], [0.0; 6]);
    assert!(words[6..].iter().all(|v| *v != 0.0));
    Ok(())
}

#[test]
fn padding_of_an_embedding_gets_no_gradient() -> Result<()> {
    for device in devices_in_turn() {
        let table = Embedding::new(5, 3)?.padding_idx(2)?.to(&device)?;
        assert_eq!(table.weight().narrow(0, 2, 1)?.to_vec::<f32>()?, [0.0; 3]);
        no_grad(|| table.weight().fill_(7.0))?; // such as by a state dict
        for ids in
            [Tensor::from_slice(&[2u32, 1, 2, 4], [2, 2], &device)?, Tensor::from_slice(&[2i32, 1, 2, 4], 4, &device)?]
        {
            table.weight().set_grad(None);
            let vectors = table.forward(&ids)?;
            assert_eq!(vectors.to_vec::<f32>()?, [7.0; 12]);
            vectors.sum_all()?.backward()?;
            let sums = table.weight().grad().expect("a gradient").sum(1, false)?;
            assert_eq!(sums.to_vec::<f32>()?, [0.0, 3.0, 0.0, 0.0, 3.0], "{device}");
        }
    }
    assert!(Embedding::new(5, 3)?.padding_idx(5).is_err());
    Ok(())
}

/// The slope counts at 0 too, as in PyTorch, and NaN and infinities pass.
#[test]
fn prelu_is_pytorchs() -> Result<()> {
    for device in devices_in_turn() {
        let layer = PReLU::new(2)?.to(&device)?;
        no_grad(|| layer.weight().copy_(&Tensor::try_from([0.5, -2.0])?.to(&device)?))?;
        let x = Tensor::from_slice(&[-4.0f32, 0.0, 3.0, f32::NEG_INFINITY, -1.0, f32::INFINITY], [1, 2, 3], &device)?;
        let x = x.requires_grad();
        let y = layer.forward(&x)?;
        assert_eq!(y.to_vec::<f32>()?, [-2.0, 0.0, 3.0, f32::INFINITY, 2.0, f32::INFINITY], "{device}");
        y.sum_all()?.backward()?;
        assert_eq!(x.grad().expect("a gradient").to_vec::<f32>()?, [0.5, 0.5, 1.0, -2.0, -2.0, 1.0], "{device}");
        let slopes = layer.weight().grad().expect("a gradient").to_vec::<f32>()?;
        assert_eq!(slopes, [-4.0, f32::NEG_INFINITY], "{device}");
        assert!(layer.forward(&Tensor::full([1, 2], f32::NAN, &device)?)?.to_vec::<f32>()?.iter().all(|v| v.is_nan()));
        let half = PReLU::new(1)?.to(&device)?.forward(&x.detach().to_dtype(DType::F16)?)?;
        assert_eq!(half.dtype(), DType::F16);
    }
    assert!(PReLU::new(0).is_err() && PReLU::new(3)?.forward(&Tensor::zeros([2, 2], None)?).is_err());
    assert!(PReLU::new(1)?.forward(&Tensor::from_slice(&[1u32], 1, None)?).is_err());
    Ok(())
}
