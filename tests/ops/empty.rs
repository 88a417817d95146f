//! Normalisations with a size of 0: values, gradients, and no panic. As in PyTorch, where that has no error.

use anygpu::{Result, Tensor};

use crate::common::devices;

type Normalised<'a> = Box<dyn Fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor> + 'a>;

#[test]
fn every_normalisation_of_nothing() -> Result<()> {
    for device in devices() {
        for shape in [[3, 0, 2], [3, 4, 0], [0, 4, 2], [0, 0, 0], [0, 4, 0], [3, 0, 0]] {
            let running = (Tensor::zeros([shape[1]], &device)?, Tensor::ones([shape[1]], &device)?);
            let all: [(&str, &[usize], Normalised); 10] = [
                (
                    "layer_norm over 1",
                    &shape[2..],
                    Box::new(|x, w, b| x.layer_norm(&shape[2..], Some(w), Some(b), 1e-5)),
                ),
                (
                    "layer_norm over 2",
                    &shape[1..],
                    Box::new(|x, w, b| x.layer_norm(&shape[1..], Some(w), Some(b), 1e-5)),
                ),
                ("layer_norm over 3", &shape, Box::new(|x, w, b| x.layer_norm(&shape, Some(w), Some(b), 1e-5))),
                ("rms_norm over 1", &shape[2..], Box::new(|x, w, _| x.rms_norm(&shape[2..], Some(w), 1e-5))),
                ("rms_norm over 2", &shape[1..], Box::new(|x, w, _| x.rms_norm(&shape[1..], Some(w), 1e-5))),
                ("group_norm", &shape[1..2], Box::new(|x, w, b| x.group_norm(2, Some(w), Some(b), 1e-5))),
                (
                    "batch_norm",
                    &shape[1..2],
                    Box::new(|x, w, b| x.batch_norm(None, Some(w), Some(b), false, 0.1, 1e-5)),
                ),
                (
                    "batch_norm_relu",
                    &shape[1..2],
                    Box::new(|x, w, b| x.batch_norm_relu(None, Some(w), Some(b), false, 0.1, 1e-5)),
                ),
                (
                    "batch_norm_add_relu",
                    &shape[1..2],
                    Box::new(|x, w, b| x.batch_norm_add_relu(x, None, Some(w), Some(b), false, 0.1, 1e-5)),
                ),
                (
                    "batch_norm, running",
                    &shape[1..2],
                    Box::new(|x, w, b| {
                        x.batch_norm(Some((&running.0, &running.1)), Some(w), Some(b), false, 0.1, 1e-5)
                    }),
                ),
            ];
            for (what, features, f) in &all {
                if *what == "group_norm" && shape[1] == 0 {
                    let (x, w) = (Tensor::zeros(shape, &device)?, Tensor::ones([0], &device)?);
                    assert!(f(&x, &w, &w).is_err(), "{shape:?} on {device}");
                    continue;
                }
                let leaf = |t: Tensor| t.requires_grad();
                let x = leaf(Tensor::zeros(shape, &device)?);
                let (w, b) = (leaf(Tensor::ones(*features, &device)?), leaf(Tensor::zeros(*features, &device)?));
                let y = f(&x, &w, &b)?;
                assert_eq!(y.shape(), shape, "{what} on {device}");
                y.sum_all()?.backward()?;
                assert_eq!(x.grad().expect("a gradient").shape(), shape, "{what} on {device}");
                for parameter in [w, b].iter().filter(|p| p.grad().is_some()) {
                    let grad = parameter.grad().expect("a gradient");
                    assert_eq!(grad.shape(), *features, "{what} of {shape:?} on {device}");
                    assert!(grad.to_vec::<f32>()?.iter().all(|&g| g == 0.0), "{what} of {shape:?} on {device}");
                }
            }
            let training = Tensor::zeros(shape, &device)?.batch_norm(None, None, None, true, 0.1, 1e-5);
            assert_eq!(training.is_err(), shape[0] * shape[2] < 2, "{shape:?} on {device}");
        }
    }
    Ok(())
}
