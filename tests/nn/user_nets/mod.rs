//! Nets as a user of the crate writes them, in `*.rs` here, beside the same in PyTorch, in `*.py`: they take about as many
//! lines, have the same parameters, and train on every device.

mod encoder;
mod mtcnn;
mod several;
mod unet;

use anygpu::prelude::*;
use anygpu::{Result, optim};

use encoder::Encoder;
use mtcnn::{ONet, PNet, RNet};
use unet::UNet;

use crate::common::devices_in_turn;

/// Lines of code: without blank lines, comments, documentation and imports.
fn code(text: &str) -> usize {
    let is_code = |line: &&str| {
        let line = line.trim();
        let other = ["//", "#", "use ", "import ", "from ", "\"\"\""];
        !line.is_empty() && !other.iter().any(|start| line.starts_with(start))
    };
    text.lines().filter(is_code).count()
}

#[test]
fn nets_take_as_many_lines_as_in_pytorch() {
    let nets = [
        ("MTCNN", include_str!("mtcnn.rs"), include_str!("mtcnn.py")),
        ("encoder", include_str!("encoder.rs"), include_str!("encoder.py")),
        ("U-Net", include_str!("unet.rs"), include_str!("unet.py")),
    ];
    for (name, rust, python) in nets {
        let (ours, theirs) = (code(rust), code(python));
        println!("{name}: {ours} lines, {theirs} in PyTorch");
        assert!(theirs > 5 && ours as f64 <= 1.2 * theirs as f64, "{name}: {ours} lines, and {theirs} in PyTorch");
        let longest = rust.lines().map(|line| line.chars().count()).max();
        assert!(longest <= Some(120), "{name}: a line of {longest:?} characters");
    }
}

/// Trains a net for three steps towards outputs of zeros: the loss falls, and every parameter has a finite gradient.
fn train<M: Module>(net: &M, outputs: impl Fn(&M) -> Result<Vec<Tensor>>) -> Result<()> {
    let mut adam = optim::Adam::new(net.parameters(), 1e-3);
    let mut losses = Vec::new();
    for _ in 0..3 {
        adam.zero_grad();
        let squares = outputs(net)?.iter().map(|y| y.square()?.mean_all()).collect::<Result<Vec<Tensor>>>()?;
        let loss = Tensor::stack(&squares.iter().collect::<Vec<_>>(), 0)?.sum_all()?;
        loss.backward()?;
        for (name, parameter) in net.named_parameters() {
            let gradient = parameter.grad().map(|gradient| gradient.to_vec::<f32>()).transpose()?;
            assert!(gradient.is_some_and(|gradient| gradient.iter().all(|v| v.is_finite())), "{name}");
        }
        adam.step()?;
        losses.push(loss.item::<f32>()?);
    }
    assert!(losses[2] < losses[0], "{losses:?}");
    Ok(())
}

fn shapes(tensors: &[&Tensor]) -> Vec<Vec<usize>> {
    tensors.iter().map(|tensor| tensor.shape().to_vec()).collect()
}

/// PyTorch's numbers of parameters are those of `sum(p.numel() for p in net.parameters())`.
#[test]
fn the_nets_of_mtcnn() -> Result<()> {
    for device in &devices_in_turn() {
        manual_seed(0);
        let (p, r, o) = (PNet::new()?.to(device)?, RNet::new()?.to(device)?, ONet::new()?.to(device)?);
        assert_eq!([p.num_parameters(), r.num_parameters(), o.num_parameters()], [6632, 100_178, 389_040]);

        let x = Tensor::rand([2, 3, 25, 20], device)?;
        let (face, boxes) = p.forward(&x)?;
        assert_eq!(shapes(&[&face, &boxes]), [[2, 2, 8, 5], [2, 4, 8, 5]], "{device}");
        assert_eq!(x.apply(&p)?.shape(), [2, 2, 8, 5], "as a layer, the first result");
        train(&p, |p| p.forward(&x).map(|(face, boxes)| vec![face, boxes]))?;

        let x = Tensor::rand([3, 3, 24, 24], device)?;
        let (face, boxes) = r.forward(&x)?;
        assert_eq!(shapes(&[&face, &boxes]), [[3, 2], [3, 4]], "{device}");
        train(&r, |r| r.forward(&x).map(|(face, boxes)| vec![face, boxes]))?;

        let x = Tensor::rand([3, 3, 48, 48], device)?;
        let (face, boxes, landmarks) = o.forward(&x)?;
        assert_eq!(shapes(&[&face, &boxes, &landmarks]), [[3, 2], [3, 4], [3, 10]], "{device}");
        assert!(face.sum(1, false)?.to_vec::<f32>()?.iter().all(|sum| (sum - 1.0).abs() < 1e-5), "{device}");
        train(&o, |o| o.forward(&x).map(|(face, boxes, landmarks)| vec![face, boxes, landmarks]))?;
    }
    Ok(())
}

#[test]
fn the_encoder() -> Result<()> {
    for device in &devices_in_turn() {
        manual_seed(0);
        let net = Encoder::new(100, 16, 32, 3)?.to(device)?;
        assert_eq!(net.num_parameters(), 8099);
        let tokens = Tensor::randint(0, 100, [4, 7], device)?;
        assert_eq!(net.forward(&tokens)?.shape(), [4, 3], "{device}");
        train(&net, |net| net.forward(&tokens).map(|y| vec![y]))?;
    }
    Ok(())
}

#[test]
fn the_unet() -> Result<()> {
    for device in &devices_in_turn() {
        manual_seed(0);
        let net = UNet::new(1, 2, 4)?.to(device)?;
        assert_eq!(net.num_parameters(), 122_026);
        let x = Tensor::rand([2, 1, 32, 48], device)?;
        assert_eq!(net.forward(&x)?.shape(), [2, 2, 32, 48], "{device}");
        train(&net, |net| net.forward(&x).map(|y| vec![y]))?;
    }
    Ok(())
}
