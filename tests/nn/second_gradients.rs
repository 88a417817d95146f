//! `grad`: gradients as results, and gradients of gradients, against differences of first gradients.

use anygpu::nn::{Conv2d, Linear, Module, ReLU, Sequential, Tanh};
use anygpu::{Conv, Device, Error, GradOptions, Result, Tensor, custom_grad, grad, no_grad};

use crate::common::devices_in_turn;

type Function = fn(&Tensor) -> Result<Tensor>;

/// The gradient of Σ w ∘ f(x), with weights that are not alike.
fn first(f: Function, x: &Tensor, options: &GradOptions) -> Result<Tensor> {
    let y = f(x)?;
    let weights = numbers(y.shape(), y.device())?;
    Ok(grad(&y.mul(&weights)?.sum_all()?, &[x], options)?.remove(0))
}

/// Numbers between −2 and 2 that are not alike.
fn numbers(shape: &[usize], device: &Device) -> Result<Tensor> {
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|i| ((i * 7919 + 13) % 1009) as f32 / 252.25 - 2.0).collect();
    Tensor::from_vec(values, shape, device)
}

/// Compares the gradient of Σ v ∘ g(x), for the first gradient g, with the difference of g along v.
fn check(name: &str, f: Function, x: &Tensor) -> Result<()> {
    let x = x.requires_grad();
    let g = first(f, &x, &GradOptions::new().create_graph()).unwrap_or_else(|error| panic!("{name}: {error}"));
    let v = numbers(g.shape(), x.device())?.mul(0.5)?.add(0.1)?;
    let got = grad(&g.mul(&v)?.sum_all()?, &[&x], &GradOptions::new().allow_unused())?.remove(0);
    // The Hessian matrix is symmetric: H v is the difference of the gradient along v.
    let h = 1.0 / 128.0;
    let at = |sign: f32| {
        let moved = no_grad(|| x.detach().add(&v.mul(sign * h)?))?.requires_grad();
        first(f, &moved, &GradOptions::new())
    };
    let expected = at(1.0)?.sub(&at(-1.0)?)?.div(2.0 * h)?;
    let (got, expected) = (got.to_vec::<f32>()?, expected.to_vec::<f32>()?);
    let scale = expected.iter().fold(1f32, |most, x| most.max(x.abs()));
    for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
        assert!(
            (got - expected).abs() < 4e-3 * scale,
            "{name} on {}: element {i} is {got}, not {expected}",
            x.device()
        );
    }
    Ok(())
}

#[test]
fn functions_of_one_element() -> Result<()> {
    // The domains leave out the places where pieces of functions meet.
    let wide: &[(&str, Function)] = &[
        ("neg", Tensor::neg),
        ("abs", Tensor::abs),
        ("square", Tensor::square),
        ("exp", Tensor::exp),
        ("exp2", Tensor::exp2),
        ("expm1", Tensor::expm1),
        ("sin", Tensor::sin),
        ("cos", Tensor::cos),
        ("atan", Tensor::atan),
        ("sinh", Tensor::sinh),
        ("cosh", Tensor::cosh),
        ("asinh", Tensor::asinh),
        ("tanh", Tensor::tanh),
        ("sigmoid", Tensor::sigmoid),
        ("erf", Tensor::erf),
        ("relu", Tensor::relu),
        ("leaky_relu", |x| x.leaky_relu(0.1)),
        ("elu", |x| x.elu(0.7)),
        ("gelu", Tensor::gelu),
        ("gelu_tanh", Tensor::gelu_tanh),
        ("silu", Tensor::silu),
        ("mish", Tensor::mish),
        ("softplus", |x| x.softplus(1.5, 20.0)),
        ("log_sigmoid", Tensor::log_sigmoid),
        ("hardswish", Tensor::hardswish),
        ("hardsigmoid", Tensor::hardsigmoid),
        ("softsign", Tensor::softsign),
        ("clamp", |x| x.clamp(Some(-0.7), Some(0.9))),
        ("hardtanh", |x| x.hardtanh(-0.7, 0.9)),
        ("floor", Tensor::floor),
    ];
    let positive: &[(&str, Function)] = &[
        ("recip", Tensor::recip),
        ("log", Tensor::log),
        ("log2", Tensor::log2),
        ("log1p", Tensor::log1p),
        ("sqrt", Tensor::sqrt),
        ("rsqrt", Tensor::rsqrt),
        ("pow", |x| x.pow(2.5)),
        ("pow of a tensor", |x| x.pow(&Tensor::full([1], 3.5, x.device())?)),
        ("acosh", |x| x.add(1.0)?.acosh()),
    ];
    let narrow: &[(&str, Function)] =
        &[("tan", Tensor::tan), ("asin", Tensor::asin), ("acos", Tensor::acos), ("atanh", Tensor::atanh)];
    for device in devices_in_turn() {
        let x = numbers(&[5, 7], &device)?;
        let away = x.add(&x.sign()?.mul(0.03)?)?; // from 0
        for (name, f) in wide {
            check(name, *f, &away)?;
        }
        for (name, f) in positive {
            check(name, *f, &x.abs()?.add(0.6)?)?;
        }
        for (name, f) in narrow {
            check(name, *f, &x.mul(0.3)?)?;
        }
    }
    Ok(())
}

#[test]
fn pairs_products_sums_and_shapes() -> Result<()> {
    let all: &[(&str, Function)] = &[
        ("mul", |x| x.mul(x)?.mul(&x.narrow(1, 0, 1)?)),
        ("div", |x| x.div(&x.square()?.add(1.0)?)),
        ("number over", |x| 2.0 / x.square()?.add(1.0)?),
        ("maximum", |x| x.maximum(&x.flip([1])?)?.mul(x)),
        ("matmul", |x| x.matmul(&x.t()?)?.matmul(x)),
        ("softmax", |x| x.softmax(-1)?.square()),
        ("log_softmax", |x| x.log_softmax(-1)),
        ("mean", |x| x.mean(0, true)?.mul(x)?.sum(1, false)?.exp()),
        ("max", |x| x.max(1, true)?.mul(x)),
        ("norm", |x| x.square()?.sum(1, false)?.add(0.1)?.sqrt()),
        ("shapes", |x| {
            let y = x.reshape([7, 5])?.permute([1, 0])?;
            Tensor::cat(&[&y.narrow(1, 1, 3)?, &y.select(1, 0)?.unsqueeze(1)?], 1)?.square()?.mul(&y.narrow(1, 0, 4)?)
        }),
        ("where", |x| x.gt(0.2)?.where_cond(&x.square()?, &x.exp()?)),
        ("indices", |x| {
            let picks = Tensor::try_from([3u32, 0, 3])?.to(x.device())?;
            x.index_select(0, &picks)?.square()?.mul(&x.narrow(0, 1, 3)?)
        }),
        ("conv2d", |x| {
            let (image, weight) =
                (x.reshape([1, 1, 5, 7])?, x.narrow(1, 0, 3)?.narrow(0, 0, 2)?.reshape([1, 1, 2, 3])?);
            image.conv2d(&weight, None, Conv::new().padding(1))?.tanh()
        }),
        ("conv2d with groups and a stride", |x| {
            let image = x.reshape([1, 5, 7])?.unsqueeze(2)?.repeat([1, 1, 2, 1])?.narrow(1, 0, 4)?;
            let weight = numbers(&[4, 2, 2, 3], x.device())?.mul(&x.narrow(1, 0, 1)?.narrow(0, 0, 1)?.reshape([1])?)?;
            image.conv2d(&weight, None, Conv::new().stride(2).padding(1).groups(2))?.square()
        }),
    ];
    for device in devices_in_turn() {
        let x = numbers(&[5, 7], &device)?;
        for (name, f) in all {
            check(name, *f, &x)?;
        }
    }
    Ok(())
}

#[test]
fn gradients_of_inner_tensors_and_of_several_inputs() -> Result<()> {
    for device in devices_in_turn() {
        let (a, b) = (numbers(&[3], &device)?.requires_grad(), numbers(&[1], &device)?.requires_grad());
        let unused = numbers(&[2], &device)?.requires_grad();
        let inner = a.mul(&b)?;
        let y = inner.square()?.sum_all()?;
        let all = grad(&y, &[&b, &inner, &y, &a], &GradOptions::new().retain_graph())?;
        assert_eq!(all.iter().map(|g| g.shape().len()).collect::<Vec<_>>(), [1, 1, 0, 1]);
        let (av, bv) = (a.to_vec::<f32>()?, b.to_vec::<f32>()?[0]);
        let sums: f32 = av.iter().map(|a| 2.0 * a * a * bv).sum();
        assert!((all[0].to_vec::<f32>()?[0] - sums).abs() < 1e-5 * sums.abs());
        assert_eq!(all[1].to_vec::<f32>()?, inner.mul(2.0)?.to_vec::<f32>()?);
        assert_eq!(all[2].item::<f32>()?, 1.0);
        assert!(a.grad().is_none() && b.grad().is_none(), "grad() adds to nothing");
        assert!(all.iter().all(|g| !g.is_tracked()));
        // Unused inputs; outputs of several elements.
        assert!(matches!(grad(&y, &[&unused], &GradOptions::new().retain_graph()), Err(Error::Autograd(_))));
        let options = GradOptions::new().retain_graph().allow_unused();
        assert_eq!(grad(&y, &[&unused], &options)?[0].to_vec::<f32>()?, [0.0, 0.0]);
        assert!(matches!(grad(&inner, &[&a], &options), Err(Error::Autograd(_))));
        let wrong = options.clone().output_grad(&unused);
        assert!(matches!(grad(&inner, &[&a], &wrong), Err(Error::ShapeMismatch { .. })));
        let rows = grad(&inner, &[&a], &options.output_grad(&Tensor::try_from([1.0, 0.0, 2.0])?.to(&device)?))?;
        assert_eq!(rows[0].to_vec::<f32>()?, [bv, 0.0, 2.0 * bv]);
        // The graph is freed by default.
        grad(&y, &[&a], &GradOptions::new())?;
        assert!(matches!(grad(&y, &[&a], &GradOptions::new()), Err(Error::Autograd(_))));
    }
    Ok(())
}

#[test]
fn third_derivatives() -> Result<()> {
    for device in devices_in_turn() {
        let x = Tensor::try_from([0.3, -1.2, 2.0])?.to(&device)?.requires_grad();
        let next =
            |y: &Tensor| Ok::<_, Error>(grad(&y.sum_all()?, &[&x], &GradOptions::new().create_graph())?.remove(0));
        let third = next(&next(&next(&x.tanh()?)?)?)?;
        for (x, got) in x.to_vec::<f32>()?.iter().zip(third.to_vec::<f32>()?) {
            let t = x.tanh();
            let expected = (1.0 - t * t) * (6.0 * t * t - 2.0);
            assert!((got - expected).abs() < 1e-5, "{device}: {got} for {expected}");
        }
    }
    Ok(())
}

/// A penalty on the gradient of a critic, which trains its weights (Gulrajani et al., 2017).
#[test]
fn a_gradient_penalty_trains_weights() -> Result<()> {
    for device in devices_in_turn() {
        let conv = Sequential::new().add("conv", Conv2d::new(1, 3, 3)?.padding(1)).add("tanh", Tanh);
        let head = Sequential::new().add("fc1", Linear::new(48, 5)?).add("relu", ReLU).add("fc2", Linear::new(5, 1)?);
        let (conv, head) = (conv.to(&device)?, head.to(&device)?);
        // With random weights, a step may cross a corner of relu, where the penalty jumps.
        for weight in conv.parameters().iter().chain(&head.parameters()) {
            no_grad(|| weight.copy_(&numbers(weight.shape(), &device)?.mul(0.2)?))?;
        }
        let x = numbers(&[2, 1, 4, 4], &device)?.requires_grad();
        let penalty = || -> Result<Tensor> {
            let scores = head.forward(&conv.forward(&x)?.flatten(1)?)?;
            let slope = grad(&scores.sum_all()?, &[&x], &GradOptions::new().create_graph())?.remove(0);
            slope.flatten(1)?.square()?.sum(1, false)?.sqrt()?.sub(1.0)?.square()?.mean_all()
        };
        let weight = conv.parameters()[0].clone();
        penalty()?.backward()?;
        let got = weight.grad().expect("a gradient").to_vec::<f32>()?;
        assert!(got.iter().any(|got| got.abs() > 0.05), "{device}: {got:?}");
        let h = 1.0 / 64.0;
        for i in [0, 4, 13, 26] {
            let at = |sign: f32| {
                let mut values = weight.to_vec::<f32>()?;
                values[i] += sign * h;
                let before = weight.copy()?;
                no_grad(|| weight.copy_(&Tensor::from_vec(values, weight.shape(), &device)?))?;
                let value = penalty()?.item::<f32>();
                no_grad(|| weight.copy_(&before))?;
                value
            };
            let expected = (at(1.0)? - at(-1.0)?) / (2.0 * h);
            assert!((got[i] - expected).abs() < 5e-3, "{device}: weight {i} has {}, not {expected}", got[i]);
        }
    }
    Ok(())
}

#[test]
fn what_has_no_second_gradient_is_an_error() -> Result<()> {
    for device in devices_in_turn() {
        let x = numbers(&[2, 3, 4, 4], &device)?.requires_grad();
        let create = GradOptions::new().create_graph();
        let all: &[(&str, Function)] =
            &[("layer_norm", |x| x.layer_norm(&[4], None, None, 1e-5)), ("max_pool2d", |x| x.max_pool2d(2)?.square())];
        for (name, f) in all {
            let second = first(*f, &x, &create).and_then(|g| grad(&g.sum_all()?, &[&x], &GradOptions::new()));
            assert!(matches!(second, Err(Error::Autograd(_))), "{name} on {device}: {second:?}");
        }
        let layer = anygpu::nn::LSTM::new(4, 3)?.to(&device)?;
        let states = layer.forward(&x.reshape([6, 4, 4])?)?;
        let first = grad(&states.sum_all()?, &[&x], &create);
        assert!(matches!(first, Err(Error::Autograd(_))), "LSTM on {device}: {first:?}");
    }
    Ok(())
}

#[test]
fn custom_gradients_have_gradients_of_ops() -> Result<()> {
    let x = Tensor::try_from([0.5, -1.5])?.requires_grad();
    let cube = custom_grad(
        &[&x],
        |x| x[0].mul(&x[0])?.mul(&x[0]),
        |b| Ok(vec![Some(b.inputs()[0].square()?.mul(3.0)?.mul(b.grad())?)]),
    )?;
    let once = grad(&cube.sum_all()?, &[&x], &GradOptions::new().create_graph())?.remove(0);
    let twice = grad(&once.sum_all()?, &[&x], &GradOptions::new())?.remove(0);
    assert_eq!(twice.to_vec::<f32>()?, [3.0, -9.0]);
    Ok(())
}
