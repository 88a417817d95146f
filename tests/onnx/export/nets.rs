//! Layers and nets.

use super::*;

#[test]
fn nets() -> Result<()> {
    net("mlp", models::mlp(&[6, 5, 4])?, &[6])?;
    net("lenet", models::lenet()?, &[1, 28, 28])?;
    net("resnet18", trained(models::resnet18(3, 10)?, &[3, 32, 32])?, &[3, 32, 32])
}

#[test]
fn convolutions() -> Result<()> {
    net("conv1d", of(Conv1d::new(3, 4, 3)?.stride(2).padding(1)), &[3, 11])?;
    net("conv_same", of(Conv2d::new(3, 4, 4)?.padding(ConvPadding::Same)), &[3, 9, 7])?;
    net("conv_groups", of(Conv2d::new(4, 6, [3, 2])?.groups(2)?.dilation([1, 2]).without_bias()), &[4, 9, 7])?;
    net("conv3d", of(Conv3d::new(2, 3, 2)?.padding(1)), &[2, 4, 5, 3])?;
    net("conv_transpose1d", of(ConvTranspose1d::new(3, 2, 3)?.stride(2).output_padding(1)), &[3, 5])?;
    let layer = ConvTranspose2d::new(4, 6, [3, 2])?.stride([2, 3]).padding([1, 0]).output_padding([1, 2]).groups(2)?;
    net("conv_transpose2d", of(layer), &[4, 5, 4])?;
    net("conv_transpose3d", of(ConvTranspose3d::new(2, 2, 2)?.stride(2)), &[2, 2, 3, 2])
}

#[test]
fn pools() -> Result<()> {
    net("max_pool", of(MaxPool2d::new([3, 2]).stride(2).padding([1, 0]).ceil_mode(true)), &[2, 6, 7])?;
    net("max_pool_dilated", of(MaxPool2d::new(2).stride(1).dilation(2)), &[2, 6, 7])?;
    net("avg_pool", of(AvgPool2d::new(3).stride(2).padding(1).ceil_mode(true)), &[2, 6, 8])?;
    net("avg_pool_inside", of(AvgPool2d::new(3).stride(2).padding(1).count_include_pad(false)), &[2, 6, 8])?;
    net("max_pool1d", of(MaxPool1d::new(2)), &[2, 7])?;
    net("avg_pool3d", of(AvgPool3d::new(2)), &[2, 4, 5, 6])?;
    net("adaptive", of(AdaptiveAvgPool2d::new([3, 1])), &[2, 7, 5])?;
    net("adaptive_max", of(AdaptiveMaxPool2d::new([3, 2])), &[2, 7, 4])?;
    functions("max_pool_positions", &[2, 6, 7], |x| {
        let (values, positions) = x.max_pool2d_with_indices(Pool::new(3).stride(2).padding(1))?;
        Ok(vec![values, positions])
    })
}

#[test]
fn normalisations() -> Result<()> {
    net("batch_norm1d", trained(of(BatchNorm1d::new(5)?), &[5])?, &[5])?;
    net("batch_norm_sequence", trained(of(BatchNorm1d::new(5)?), &[5, 3])?, &[5, 3])?;
    net("layer_norm", of(LayerNorm::new([4, 5])?), &[3, 4, 5])?;
    net("group_norm", of(GroupNorm::new(2, 4)?), &[4, 5, 3])?;
    net("rms_norm", of(RMSNorm::new([6])?), &[3, 6])?;
    functions("norms_without_parameters", &[4, 6], |x| {
        Ok(vec![
            x.layer_norm(&[6], None, None, 1e-5)?,
            x.group_norm(4, None, None, 1e-5)?,
            x.rms_norm(&[6], None, 1e-5)?,
        ])
    })
}

#[test]
fn attention_and_transformers() -> Result<()> {
    net("attention", of(MultiheadAttention::new(8, 2)?), &[5, 8])?;
    net("attention_causal", of(MultiheadAttention::new(8, 2)?.causal()), &[5, 8])?;
    let layer = TransformerEncoderLayer::new(8, 2)?.dim_feedforward(12)?.gelu().norm_first();
    net("encoder", of(TransformerEncoder::new(&layer, 2)?), &[5, 8])?;
    let mask = Tensor::try_from([[true, false, true], [true, true, false], [false, true, true]])?;
    functions("attention_mask", &[3, 4], |x| Ok(vec![x.attention(x, x, &Attention::new().mask(&mask))?]))
}

#[test]
fn recurrent_layers() -> Result<()> {
    net("lstm", of(LSTM::new(3, 4)?.num_layers(2)?.bidirectional()?.batch_first()), &[5, 3])?;
    net("gru", of(GRU::new(3, 4)?.batch_first()), &[5, 3])?;
    net("rnn", of(RNN::new(3, 4)?.batch_first().without_bias()), &[5, 3])
}

#[test]
fn ids_and_text() -> Result<()> {
    let net = Sequential::new().add("embed", Embedding::new(11, 6)?).add("out", Linear::new(6, 3)?);
    for (name, dtype) in [("embedding_i32", DType::I32), ("embedding_u32", DType::U32)] {
        let ids = |n: usize| {
            let ids: Vec<u32> = (0..n * 5).map(|i| (i * 7 % 11) as u32).collect();
            Ok(vec![Tensor::from_slice(&ids, [n, 5], None)?.to_dtype(dtype)?])
        };
        check(name, &net, ids, |net, x| Ok(vec![net.forward(&x[0])?]))?;
    }
    Ok(())
}

#[test]
fn halves() -> Result<()> {
    let net = Sequential::new().add("conv", Conv2d::new(2, 3, 3)?).add("relu", ReLU).add("flat", Flatten);
    let net = net.add("fc", Linear::new(12, 4)?);
    let mut halves = net.clone();
    halves.visit_mut(&mut |_, parameter| *parameter = parameter.to_dtype(DType::F16).expect("halves"));
    let inputs = |n: usize| Ok(vec![numbers(&[n, 2, 4, 4])?.to_dtype(DType::F16)?]);
    check("halves", &halves, inputs, |net, x| Ok(vec![net.forward(&x[0])?]))
}
