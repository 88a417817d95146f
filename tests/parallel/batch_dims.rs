//! Batches whose samples are not in dimension 0, and outputs that are joined in other dimensions, on several devices.

use anygpu::nn::{self, LSTM, Linear, Module};
use anygpu::parallel::Shares;
use anygpu::{DataParallel, Device, Pipeline, Result, Tensor};

fn devices() -> Result<Vec<Device>> {
    ["cpu/0", "cpu/1"].iter().map(|name| Device::new(name)).collect()
}

/// Scores of the last step of a sequence `[T, N, 3]`.
#[derive(Clone)]
struct Reader {
    layer: LSTM,
    last: Linear,
}

impl Module for Reader {
    anygpu::children!(layer, last);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let outputs = self.layer.forward(x)?;
        self.last.forward(&outputs.select(0, outputs.shape()[0] - 1)?)
    }
}

fn reader() -> Result<Reader> {
    Ok(Reader { layer: LSTM::new(3, 5)?, last: Linear::new(5, 4)? })
}

#[test]
fn sequences_first_train_as_on_one_device() -> Result<()> {
    let (x, labels) = (Tensor::rand([8, 6, 3], None)?, Tensor::try_from([0u32, 1, 2, 3, 0, 1])?);
    let net = DataParallel::new(reader()?, &devices()?)?.with_shares(Shares::Fixed(vec![1.0, 2.0]))?;
    let net = net.with_batch_dims(&[1, 0])?.with_output_dims(&[0])?;
    let loss = net.train_batch(&x, &labels, nn::cross_entropy)?;
    let alone = reader()?;
    alone.load_state_dict(&net.state_dict(), true)?;
    let expected = nn::cross_entropy(&alone.forward(&x)?, &labels)?;
    expected.backward()?;
    assert!((loss.item::<f32>()? - expected.item::<f32>()?).abs() < 1e-6);
    for (got, expected) in net.parameters().iter().zip(alone.parameters()) {
        let [got, expected] = [got, &expected].map(|parameter| parameter.grad().unwrap().to_vec::<f32>().unwrap());
        assert!(got.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6));
    }
    let (got, expected) = (net.predict(&x)?.to_vec::<f32>()?, alone.forward(&x)?.to_vec::<f32>()?);
    assert!(got.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6));
    Ok(())
}

/// Lengths are a second input, whose parts are those of the sequences.
#[test]
fn sequences_of_several_lengths_train_as_on_one_device() -> Result<()> {
    fn last(net: &dyn Module, x: &Tensor, lengths: &Tensor) -> Result<Tensor> {
        let layer = net.downcast_ref::<LSTM>().expect("the layer");
        layer.forward_with_lengths(x, lengths, None)?.1.0.select(0, 1)
    }
    let lengths = Tensor::new([8u32, 3, 1, 8, 5, 2], None)?;
    for first in [false, true] {
        let x = Tensor::rand(if first { [6, 8, 3] } else { [8, 6, 3] }, None)?;
        let labels = Tensor::try_from([0u32, 1, 2, 3, 0, 1])?;
        let layer = LSTM::new(3, 4)?.bidirectional()?;
        let layer = if first { layer.batch_first() } else { layer };
        let net = DataParallel::new(layer.clone(), &devices()?)?.with_shares(Shares::Fixed(vec![1.0, 2.0]))?;
        let net = if first { net } else { net.with_batch_dims(&[1, 0])? };
        let net = net.with_output_dims(&[0])?;
        let loss = net
            .step(&[&x, &lengths, &labels], |net, part| nn::cross_entropy(&last(net, &part[0], &part[1])?, &part[2]))?;
        let expected = nn::cross_entropy(&last(&layer, &x, &lengths)?, &labels)?;
        expected.backward()?;
        assert!((loss.item::<f32>()? - expected.item::<f32>()?).abs() < 1e-6);
        for (got, expected) in net.parameters().iter().zip(layer.parameters()) {
            let [got, expected] = [got, &expected].map(|p| p.grad().unwrap().to_vec::<f32>().unwrap());
            assert!(got.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6));
        }
        let got = net.predict_with(&[&x, &lengths], |net, part| Ok(vec![last(net, &part[0], &part[1])?]))?;
        assert!(got[0].allclose(&last(&layer, &x, &lengths)?, 1e-5, 1e-6)?);
    }
    Ok(())
}

#[test]
fn a_batch_that_is_split_along_time_is_an_error() -> Result<()> {
    let x = Tensor::rand([8, 6, 3], None)?;
    let net = DataParallel::new(reader()?, &devices()?)?.with_shares(Shares::Even)?; // 6 sequences are no multiple of 4 steps
    let labels = Tensor::from_vec(vec![0u32; 8], 8, None)?;
    for error in [net.train_batch(&x, &labels, nn::cross_entropy).unwrap_err(), net.predict(&x).unwrap_err()] {
        assert!(error.to_string().contains("with_batch_dims"), "{error}");
    }
    // A net that begins with such a layer is refused whatever the sizes.
    let first = nn::Sequential::new().push(LSTM::new(3, 5)?).push(Linear::new(5, 2)?);
    let net = DataParallel::new(first, &devices()?)?;
    assert!(net.predict(&Tensor::rand([8, 8, 3], None)?).unwrap_err().to_string().contains("with_batch_dims"));
    assert_eq!(net.with_batch_dims(&[1])?.predict(&Tensor::rand([8, 8, 3], None)?)?.shape(), [8, 8, 2]);
    // Without several devices, nothing is split.
    DataParallel::new(reader()?, &[Device::cpu()])?.predict(&x)?;
    // Batches first are not concerned.
    let net = DataParallel::new(LSTM::new(3, 5)?.batch_first(), &devices()?)?;
    assert_eq!(net.predict(&x)?.shape(), [8, 6, 5]);
    Ok(())
}

#[test]
fn outputs_without_samples_are_errors_that_say_what_to_do() -> Result<()> {
    let x = Tensor::rand([6, 3], None)?;
    let net = DataParallel::new(Linear::new(3, 2)?, &devices()?)?.with_shares(Shares::Even)?;
    let scalar = net.predict_with(&[&x], |net, part| Ok(vec![net.forward(&part[0])?.mean_all()?])).unwrap_err();
    assert!(scalar.to_string().contains("with_output_dims"), "{scalar}");
    // Several entries for each sample are joined.
    let tokens = net.predict_with(&[&x], |net, part| Ok(vec![net.forward(&part[0])?.reshape([-1])?]))?;
    assert_eq!(tokens[0].shape(), [12]);
    let states = |net: &dyn Module, part: &[Tensor]| {
        let y = net.forward(&part[0])?;
        Ok(vec![y.clone(), y.unsqueeze(0)?.repeat([2, 1, 1])?])
    };
    assert!(net.predict_with(&[&x], states).unwrap_err().to_string().contains("[2, 3, 2]"));
    let net = net.with_output_dims(&[0, 1])?;
    let outputs = net.predict_with(&[&x], states)?;
    assert_eq!((outputs[0].shape(), outputs[1].shape()), (&[6, 2][..], &[2, 6, 2][..]));
    assert_eq!(outputs[1].select(0, 1)?.to_vec::<f32>()?, outputs[0].to_vec::<f32>()?);

    for error in [
        DataParallel::new(Linear::new(3, 2)?, &devices()?)?.with_batch_dims(&[]).unwrap_err(),
        DataParallel::new(Linear::new(3, 2)?, &devices()?)?.with_output_dims(&[]).unwrap_err(),
        DataParallel::new(Linear::new(3, 2)?, &devices()?)?.with_batch_dims(&[2])?.predict(&x).unwrap_err(),
    ] {
        assert!(error.to_string().contains("dimension"), "{error}");
    }
    Ok(())
}

#[test]
fn pipelines_cut_and_join_along_the_same_dimensions() -> Result<()> {
    let stage = |from, to| -> Result<nn::Sequential> { Ok(nn::Sequential::new().push(Linear::new(from, to)?)) };
    let net = Pipeline::new(vec![stage(3, 4)?, stage(4, 2)?], &devices()?)?.with_micro_batches(3)?;
    let net = net.with_batch_dims(&[1])?;
    let (x, y) = (Tensor::rand([5, 6, 3], None)?, Tensor::rand([5, 6, 2], None)?);
    let loss = net.train_batch(&x, &y, |output, y| nn::mse_loss(output, y, nn::Reduction::Mean))?.item::<f32>()?;
    let output = net.predict(&x)?.to(Device::cpu())?;
    assert_eq!(output.shape(), [5, 6, 2]);
    assert!((nn::mse_loss(&output, &y, nn::Reduction::Mean)?.item::<f32>()? - loss).abs() < 1e-6);
    let error = net.with_output_dim(0).predict(&x).unwrap_err().to_string();
    assert!(error.contains("samples"), "{error}");
    Ok(())
}
