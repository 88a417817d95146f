//! Mistakes of the first hour with modules, data loaders and optimisers: the message says what is wrong, where, and what
//! to do.

use anygpu::data::{DataLoader, TensorDataset};
use anygpu::nn::*;
use anygpu::optim::{Adam, RMSprop, SGD};
use anygpu::{DType, DataParallel, Device, Result, Tensor};

/// Checks that a call fails, with a message of these parts.
#[track_caller]
fn fails<T>(result: Result<T>, parts: &[&str]) {
    let text = result.map(drop).expect_err("a mistake").to_string();
    for part in parts {
        assert!(text.contains(part), "'{part}' is not in: {text}");
    }
}

fn ones(shape: &[usize]) -> Result<Tensor> {
    Tensor::ones(shape, None)
}

#[test]
fn an_input_that_does_not_fit_a_layer() -> Result<()> {
    let images = ones(&[2, 1, 8, 8])?;
    fails(Linear::new(64, 10)?.forward(&images), &["Linear", "[2, 1, 8, 8]", "from 64 to 10 features", "flatten(1)"]);
    fails(Linear::new(4, 2)?.forward(&ones(&[3, 5])?), &["Linear", "from 4 to 2 features", "last dimension is 5"]);
    let integers = ones(&[3, 4])?.to_dtype(DType::I32)?;
    fails(Linear::new(4, 2)?.forward(&integers), &["Linear", "i32", "to_dtype(DType::F32)"]);
    fails(Conv2d::new(3, 8, 3)?.forward(&images), &["Conv2d", "1 channels", "for 3"]);
    fails(Conv2d::new(1, 8, 9)?.forward(&images), &["Conv2d", "kernel [9, 9]", "[8, 8]"]);
    fails(Conv2d::new(1, 8, 3)?.forward(&ones(&[1, 8, 8])?), &["Conv2d", "[1, 8, 8]", "[N, C, H, W]"]);
    fails(MaxPool2d::new(2).forward(&ones(&[8, 8])?), &["MaxPool2d", "[8, 8]", "[N, C, H, W]"]);
    fails(BatchNorm2d::new(3)?.forward(&images), &["BatchNorm2d", "for 3 channels", "has 1"]);
    fails(BatchNorm2d::new(3)?.forward(&ones(&[2, 3])?), &["BatchNorm2d", "[N, C, H, W]", "[2, 3]"]);
    fails(BatchNorm1d::new(3)?.forward(&ones(&[1, 3])?), &["BatchNorm1d", "training needs at least 2"]);
    fails(GroupNorm::new(2, 4)?.forward(&ones(&[2, 6, 5])?), &["GroupNorm", "for 4 channels", "has 6"]);
    fails(LayerNorm::new([8])?.forward(&ones(&[2, 7])?), &["LayerNorm", "[2, 7] and [8]"]);
    fails(Embedding::new(5, 2)?.forward(&ones(&[3])?), &["Embedding", "f32", "to_dtype(DType::U32)"]);
    let ids = Tensor::from_slice(&[5u32], 1, None)?;
    fails(Embedding::new(5, 2)?.forward(&ids), &["Embedding", "index 5", "dimension of 5"]);
    fails(Upsample::new(0).forward(&images), &["Upsample", "the factor is 0"]);
    Ok(())
}

#[test]
fn the_layer_of_a_net_is_named() -> Result<()> {
    let net = models::lenet()?;
    fails(net.forward(&ones(&[2, 1, 32, 32])?), &["Linear", "[2, 1250]", "from 800 to 128 features", "(layer 'fc1')"]);
    let body = Sequential::new().add("fc1", Linear::new(4, 8)?).add("fc2", Linear::new(9, 2)?);
    let net = Sequential::new().add("body", body).add("relu", ReLU);
    fails(net.forward(&ones(&[3, 4])?), &["from 9 to 2 features", "last dimension is 8", "(layer 'body.fc2')"]);
    Ok(())
}

#[test]
fn a_model_on_one_device_and_data_on_another() -> Result<()> {
    let elsewhere = Device::new("cpu/1")?;
    let places = ["cpu and cpu/1", "same device", "move one with .to(&device)"];
    fails(Linear::new(4, 2)?.to(&elsewhere)?.forward(&ones(&[3, 4])?), &[&places[..], &["Linear"]].concat());
    fails(Conv2d::new(1, 2, 3)?.to(&elsewhere)?.forward(&ones(&[3, 1, 4, 4])?), &[&places[..], &["Conv2d"]].concat());
    fails(BatchNorm1d::new(4)?.to(elsewhere)?.forward(&ones(&[3, 4])?), &[&places[..], &["BatchNorm1d"]].concat());
    Ok(())
}

#[test]
fn a_state_of_another_net() -> Result<()> {
    let layer = Linear::new(4, 2)?;
    fails(layer.load_state_dict(&Linear::new(5, 2)?.state_dict(), true), &["weight: [2, 4] in the module, [2, 5]"]);
    fails(layer.load_state_dict(&models::lenet()?.state_dict(), true), &["missing in the state (2): weight, bias"]);
    fails(models::lenet()?.set("fc9", ReLU), &["no layer 'fc9'", "fc1, relu3, fc2"]);
    Ok(())
}

#[test]
fn settings_of_optimisers() -> Result<()> {
    let p = || -> Result<Vec<Tensor>> {
        let p = ones(&[3])?.requires_grad();
        p.square()?.sum_all()?.backward()?;
        Ok(vec![p])
    };
    SGD::new(p()?, 0.0).step()?; // as in PyTorch
    fails(SGD::new(p()?, -0.5).step(), &["SGD", "lr is -0.5", "at least 0"]);
    fails(SGD::new(p()?, f32::NAN).step(), &["SGD", "lr is NaN"]);
    fails(SGD::new(p()?, 0.1).momentum(-1.0).step(), &["SGD", "momentum is -1"]);
    fails(SGD::new(p()?, 0.1).nesterov().step(), &["SGD", ".momentum(0.9).nesterov()"]);
    fails(Adam::new(p()?, 0.1).betas(0.9, 1.0).step(), &["Adam", "betas is 1", "less than 1"]);
    fails(Adam::new(p()?, 0.1).eps(-1.0).step(), &["Adam", "eps is -1"]);
    fails(RMSprop::new(p()?, f32::INFINITY).step(), &["RMSprop", "lr is inf"]);
    fails(SGD::new(Vec::new(), 0.1).step(), &["SGD", "no parameters", "net.parameters()"]);
    let computed = p()?[0].mul(2.0)?;
    fails(SGD::new(vec![computed], 0.1).step(), &["SGD", "parameter 0 is the result of an op", "requires_grad()"]);
    let refused = p()?;
    let before = refused[0].to_vec::<f32>()?;
    assert!(SGD::new(refused.clone(), -1.0).step().is_err() && refused[0].to_vec::<f32>()? == before);
    Ok(())
}

#[test]
fn loaders_and_steps() -> Result<()> {
    let loader = |parts: &[&Tensor]| DataLoader::new(TensorDataset::new(parts)?, 2);
    let (x, y) = (ones(&[4, 3])?, Tensor::from_slice(&[0u32, 1, 0, 9], 4, None)?);
    let first = |loader: DataLoader| loader.epoch(0).next().expect("a batch");
    fails(first(loader(&[&x])?), &["1 parts", ".items::<Tensor>()"]);
    fails(first(loader(&[&x, &x, &y])?), &["3 parts", ".items::<(Tensor, Tensor, Tensor)>()"]);
    fails(loader(&[&x, &ones(&[3])?]), &["TensorDataset", "[4, 3] and [3]", "the first dimensions"]);
    fails(DataLoader::new(TensorDataset::new(&[&x])?, 0), &["batch size must be at least 1"]);
    let two = vec![Device::cpu(), Device::new("cpu/1")?];
    for (devices, of) in [(vec![Device::cpu()], "label 9 of row 3 is"), (two, " in a device's part of the batch is")] {
        let net = DataParallel::new(Linear::new(3, 2)?, &devices)?;
        fails(net.train_batch(&x, &y, cross_entropy), &[of, "2 classes"]);
        fails(
            net.train_batch(&x, &y.narrow(0, 0, 3)?, cross_entropy),
            &["the same number of samples", "[4, 3] and [3]"],
        );
        fails(net.train_batch(&ones(&[4, 5])?, &y, cross_entropy), &["Linear", "last dimension is 5"]);
        let none = DataLoader::new(TensorDataset::new(&[&x.narrow(0, 0, 0)?, &y.narrow(0, 0, 0)?])?, 2)?;
        fails(net.evaluate(&none), &["evaluate", "no samples"]);
    }
    Ok(())
}
