//! Learning that would not happen: an optimiser made before a move, copies that share parameters, and penalties whose gradient
//! lacks a part. The numbers are PyTorch 2.15's, by the lines of Python above each test, with
//!
//! ```python
//! def n(shape, a):
//!     return torch.sin(torch.arange(math.prod(shape), dtype=torch.float32) * 0.7 + a).reshape(shape)
//! ```

use anygpu::nn::{self, BatchNorm1d, CrossEntropyLoss, Linear, Module, ModuleClone, Reduction, Sequential};
use anygpu::optim::{Adam, AdamW, Optimizer, ParamGroups, RMSprop, SGD};
use anygpu::{Attention, DataParallel, Device, Error, GradOptions, Result, Tensor, grad, no_grad};

use crate::common::devices_in_turn;

fn n(shape: &[usize], a: f32, device: &Device) -> Result<Tensor> {
    let count: usize = shape.iter().product();
    Tensor::arange(0.0, count as f32, 1.0, None)?.mul(0.7)?.add(a)?.sin()?.reshape(shape)?.to(device)
}

fn close(what: &str, got: &Tensor, expected: &[f32]) -> Result<()> {
    let got = got.to_vec::<f32>()?;
    let near = |(got, expected): (&f32, &f32)| (got - expected).abs() < 2e-4 * expected.abs().max(1.0);
    assert!(got.len() == expected.len() && got.iter().zip(expected).all(near), "{what}: {got:?}, not {expected:?}");
    Ok(())
}

/// A layer whose parameters are the same numbers on every device, made on the host.
fn layer() -> Result<Linear> {
    let layer = Linear::new(3, 2)?;
    no_grad(|| -> Result<()> {
        layer.weight().copy_(&n(&[2, 3], 0.3, &Device::cpu())?)?;
        layer.parameters()[1].copy_(&n(&[2], 0.9, &Device::cpu())?)?;
        Ok(())
    })?;
    Ok(layer)
}

/// ```python
/// x = n((1, 3, 4), 0.1).requires_grad_(); w = [n((4, 4), 1.0 + i).requires_grad_() for i in range(3)]
/// with sdpa_kernel(SDPBackend.MATH):  # the others raise "derivative for … is not implemented"
///     y = F.scaled_dot_product_attention(x @ w[0], x @ w[1], x @ w[2], is_causal=causal)
/// slope, = torch.autograd.grad((y * n((1, 3, 4), 0.5)).sum(), x, create_graph=True)
/// (slope.norm(dim=-1) - 1).square().sum().backward(); print([p.grad[0] for p in w])
/// ```
#[test]
fn a_gradient_penalty_through_attention() -> Result<()> {
    let plain = [
        [0.914969, 0.741444, 0.219206, -0.406127],
        [0.558422, 1.26366, 1.37458, 0.839011],
        [-0.0914671, -1.15395, -1.67372, -1.40631],
    ];
    let causal = [
        [1.45291, 1.27356, 0.495236, -0.516008],
        [0.481731, 1.02948, 1.09306, 0.642545],
        [-0.579629, -2.48498, -3.2216, -2.44305],
    ];
    for device in devices_in_turn() {
        for (options, value, expected) in
            [(Attention::new(), 1.477725, plain), (Attention::new().causal(), 3.187514, causal)]
        {
            let x = n(&[1, 3, 4], 0.1, &device)?.requires_grad();
            let w = [1.0, 2.0, 3.0].map(|a| n(&[4, 4], a, &device).map(|w| w.requires_grad()));
            let [q, k, v] = w;
            let (q, k, v) = (q?, k?, v?);
            let y = x.matmul(&q)?.attention(&x.matmul(&k)?, &x.matmul(&v)?, &options)?;
            let score = y.mul(&n(&[1, 3, 4], 0.5, &device)?)?.sum_all()?;
            let slope = grad(&score, &[&x], &GradOptions::new().create_graph())?.remove(0);
            let penalty = slope.norm(2.0, [2], false)?.sub(1.0)?.square()?.sum_all()?;
            close("penalty", &penalty, &[value])?;
            penalty.backward()?;
            for (i, w) in [q, k, v].iter().enumerate() {
                let first = w.grad().expect("a gradient").select(0, 0)?;
                close(&format!("weight {i} on {device}"), &first, &expected[i])?;
            }
        }
    }
    Ok(())
}

/// ```python
/// x = n((4, 3), 0.2).requires_grad_(); labels = torch.tensor([0, 2, 1, 2]); weight = torch.tensor([1.0, 0.5, 2.0])
/// y = F.cross_entropy(x, labels, weight, ignore_index=1, reduction="none")   # and F.nll_loss
/// g, = torch.autograd.grad(y.square().sum(), x, create_graph=True); g.square().sum().backward(); print(g, x.grad)
/// ```
#[test]
fn a_penalty_on_the_gradient_of_a_loss_by_labels() -> Result<()> {
    let slopes = [-2.58492, 1.15326, 1.43166, 8.22725, 4.49456, -12.7218, 0.0, 0.0, 0.0, 1.31946, 2.35319, -3.67266];
    let second = [-13.9933, 5.88742, 8.10586, 216.84, 84.9063, -301.746, 0.0, 0.0, 0.0, 15.0039, 31.6238, -46.6277];
    for device in devices_in_turn() {
        let labels = Tensor::try_from([0u32, 2, 1, 2])?.to(&device)?;
        let x = n(&[4, 3], 0.2, &device)?.requires_grad();
        let weight = Tensor::try_from([1.0, 0.5, 2.0])?.to(&device)?;
        let loss = CrossEntropyLoss::new().weight(weight).ignore_index(1).reduction(Reduction::None);
        let both = |y: Tensor| -> Result<[Tensor; 2]> {
            let g = grad(&y.square()?.sum_all()?, &[&x], &GradOptions::new().create_graph())?.remove(0);
            let second = grad(&g.square()?.sum_all()?, &[&x], &GradOptions::new())?.remove(0);
            Ok([g, second])
        };
        let [g, again] = both(loss.forward(&x, &labels)?)?;
        close(&format!("cross_entropy on {device}"), &g, &slopes)?;
        close(&format!("cross_entropy on {device}"), &again, &second)?;
        let [g, again] = both(nn::nll_loss(&x, &labels, Reduction::None)?)?;
        let values = x.to_vec::<f32>()?;
        let picked = |scale: f32| -> Vec<f32> {
            (0..12).map(|i| if [0, 2, 1, 2][i / 3] == i % 3 { scale * values[i] } else { 0.0 }).collect()
        };
        close(&format!("nll_loss on {device}"), &g, &picked(2.0))?;
        close(&format!("nll_loss on {device}"), &again, &picked(8.0))?;
    }
    Ok(())
}

/// ```python
/// net = torch.nn.Linear(3, 2); net.weight, net.bias = n((2, 3), 0.3), n((2,), 0.9)
/// target = copy.deepcopy(net); x = n((5, 3), 0.6); opt = torch.optim.SGD(net.parameters(), 0.1)
/// for _ in range(3):
///     opt.zero_grad(); (net(x) - 0.5 * target(x).detach() - 1).square().mean().backward(); opt.step()
/// ```
#[test]
fn a_target_network_stays_as_it_was() -> Result<()> {
    for device in devices_in_turn() {
        let net = layer()?.to(&device)?;
        let target = net.deep_copy()?;
        let x = n(&[5, 3], 0.6, &device)?;
        let mut sgd = SGD::new(net.parameters(), 0.1);
        for _ in 0..3 {
            sgd.zero_grad();
            let goal = no_grad(|| target.forward(&x)?.mul(0.5)?.add(1.0))?;
            net.forward(&x)?.sub(&goal)?.square()?.mean_all()?.backward()?;
            sgd.step()?;
        }
        let weights = |net: &Linear| net.parameters()[0].reshape([6]);
        close("net", &weights(&net)?, &[0.264306, 0.734117, 0.858661, 0.667017, 0.0636198, -0.569699])?;
        close("target", &weights(&target)?, &[0.29552, 0.841471, 0.991665, 0.675463, 0.0415808, -0.611858])?;
        close("net", &net.parameters()[1], &[0.92455, 1.11736])?;
        close("target", &target.parameters()[1], &[0.783327, 0.999574])?;
    }
    Ok(())
}

/// Two layers with one weight, and a norm with buffers.
#[derive(Clone)]
struct Tied {
    there: Tensor,
    back: Tensor,
    norm: BatchNorm1d,
}

impl Module for Tied {
    anygpu::children!(there, back, norm);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.norm.forward(&x.matmul(&self.there)?.matmul(&self.back.t()?)?)
    }
}

#[test]
fn a_deep_copy_keeps_ties_flags_and_modes() -> Result<()> {
    for device in devices_in_turn() {
        let weight = n(&[3, 3], 0.1, &Device::cpu())?.requires_grad();
        let tied = Tied { there: weight.clone(), back: weight, norm: BatchNorm1d::new(3)? };
        let mut net = Sequential::new().add("tied", tied).add("fc", Linear::new(3, 2)?).to(&device)?;
        net["fc"].requires_grad_(false);
        net["tied"].keep_eval(true);
        net.parameters()[0].set_grad(Some(Tensor::ones([3, 3], &device)?));
        for what in ["value", "object"] {
            let copy: Box<dyn Module> = match what {
                "value" => Box::new(net.deep_copy()?),
                _ => net.clone_box().deep_copy()?,
            };
            let (own, from) = (copy.named_parameters(), net.named_parameters());
            assert_eq!(own.len(), 5, "{what}: the tie is kept");
            for ((name, own), (_, from)) in own.iter().zip(&from) {
                assert_eq!(own.is_tracked(), from.is_tracked(), "{name}");
                assert_eq!((own.to_vec::<f32>()?, own.device()), (from.to_vec::<f32>()?, from.device()), "{name}");
                assert!(!own.is_same(from) && own.grad().is_none(), "{name}");
            }
            let x = n(&[4, 3], 0.4, &device)?;
            close(what, &copy.forward(&x)?, &net.forward(&x)?.to_vec::<f32>()?)?;
            // Each changes alone: parameters, buffers and modes.
            let mean = |net: &dyn Module| net.get("tied.norm.running_mean").expect("a buffer").to_vec::<f32>();
            let before = (own[0].1.to_vec::<f32>()?, mean(&*copy)?);
            net["tied"].keep_eval(false);
            net.forward(&x)?;
            no_grad(|| net.parameters()[0].add(1.0).and_then(|more| net.parameters()[0].copy_(&more)))?;
            assert_eq!((copy.parameters()[0].to_vec::<f32>()?, mean(&*copy)?), before, "{what} on {device}");
            assert_ne!(mean(&net)?, before.1, "{what} on {device}");
            net["tied"].keep_eval(true);
        }
        // A clone has the same parameters.
        assert!(net.clone().parameters()[0].is_same(&net.parameters()[0]));
    }
    Ok(())
}

/// Three steps of `(net(x) - 1).square().mean()`.
fn train(net: &dyn Module, optimizer: &mut dyn Optimizer) -> Result<f32> {
    let x = n(&[5, 3], 0.6, net.parameters()[0].device())?;
    let loss = || net.forward(&x)?.sub(1.0)?.square()?.mean_all();
    for _ in 0..3 {
        optimizer.zero_grad();
        loss()?.backward()?;
        optimizer.step()?;
    }
    loss()?.item()
}

fn refused(result: Result<f32>, parts: &[&str]) {
    let Err(Error::InvalidArgument { op, detail }) = &result else { panic!("{result:?}") };
    assert!(parts.iter().all(|part| detail.contains(part)), "{op}: {detail}");
}

/// Another device than the parameters are on: PyTorch moves parameters in place, and here they are replaced.
fn elsewhere() -> Result<Device> {
    Device::new("cpu/1")
}

/// ```python
/// opt = torch.optim.SGD(net.parameters(), 0.1); net = net.to(device); …; (net(x) - 1).square().mean()  # 0.609635
/// ```
/// Makes an optimiser of parameters.
type Make = fn(Vec<Tensor>) -> Box<dyn Optimizer>;

#[test]
fn an_optimiser_made_before_a_move_is_an_error() -> Result<()> {
    for device in devices_in_turn().into_iter().chain([elsewhere()?]) {
        // After the move, it trains as PyTorch's does.
        let net = layer()?.to(&device)?;
        let loss = train(&net, &mut SGD::new(net.parameters(), 0.1))?;
        assert!((loss - 0.609_635).abs() < 1e-4, "{device}: {loss}");
        if device == Device::cpu() {
            continue; // the move does nothing
        }
        let make: [Make; 5] = [
            |p| Box::new(SGD::new(p, 0.1)),
            |p| Box::new(Adam::new(p, 0.1)),
            |p| Box::new(AdamW::new(p, 0.1)),
            |p| Box::new(RMSprop::new(p, 0.1)),
            |p| Box::new(ParamGroups::new(vec![SGD::new(&p[..1], 0.1), SGD::new(&p[1..], 0.1)]).expect("groups")),
        ];
        for make in make {
            let net = layer()?;
            let mut optimizer = make(net.parameters());
            let net = net.to(&device)?;
            refused(train(&net, &mut *optimizer), &["parameter 0", "was moved", "net.parameters() after that"]);
            // Somebody else has the old parameters, so that they could still get gradients.
            let net = layer()?;
            let old = net.parameters();
            let mut optimizer = make(old.clone());
            let net = net.to(&device)?;
            refused(train(&net, &mut *optimizer), &["none of the", "has a gradient", "after the move"]);
            drop(old);
        }
    }
    Ok(())
}

#[test]
fn a_part_that_was_moved_or_unfrozen_is_an_error_too() -> Result<()> {
    let net = || Ok::<_, Error>(Sequential::new().add("a", Linear::new(3, 3)?).add("b", Linear::new(3, 2)?));
    // Only the first layer was replaced.
    let mut first = net()?;
    let mut sgd = SGD::new(first.parameters(), 0.1);
    first["a"].to_(&elsewhere()?)?;
    first["b"].parameters()[0].set_grad(Some(Tensor::ones([2, 3], None)?));
    refused(sgd.step().map(|()| 0.0), &["parameter 0", "cpu", "was moved"]);
    let mut groups = ParamGroups::new(vec![SGD::new(net()?.parameters(), 0.1)])?;
    groups.parameters()[0].set_grad(Some(Tensor::ones([3, 3], None)?));
    groups.step()?; // nobody has these, but they were not replaced

    // Frozen when the optimiser was made.
    let mut later = net()?;
    later["a"].requires_grad_(false);
    let mut sgd = SGD::new(later.parameters(), 0.1);
    train(&later, &mut sgd)?;
    later["a"].requires_grad_(true);
    refused(train(&later, &mut sgd), &["parameter 0", "was frozen"]);

    // Frozen for a while: the optimiser goes on.
    let mut pauses = net()?;
    let mut sgd = SGD::new(pauses.parameters(), 0.1);
    train(&pauses, &mut sgd)?;
    let before = pauses.parameters()[0].to_vec::<f32>()?;
    pauses["a"].requires_grad_(false);
    train(&pauses, &mut sgd)?;
    assert_eq!(pauses.parameters()[0].to_vec::<f32>()?, before);
    pauses["a"].requires_grad_(true);
    train(&pauses, &mut sgd)?;
    assert_ne!(pauses.parameters()[0].to_vec::<f32>()?, before);

    // All frozen; no backward; a net that DataParallel has copied.
    let mut frozen = net()?;
    frozen.requires_grad_(false);
    refused(SGD::new(frozen.parameters(), 0.1).step().map(|()| 0.0), &["none of the 4", "frozen"]);
    refused(Adam::new(net()?.parameters(), 0.1).step().map(|()| 0.0), &["none of the 4", "backward()"]);
    let single = net()?;
    let mut adam = Adam::new(single.parameters(), 0.1);
    let net = DataParallel::new(single, &[Device::cpu()])?;
    let (x, y) = (n(&[4, 3], 0.1, &Device::cpu())?, Tensor::try_from([0u32, 1, 1, 0])?);
    net.train_batch(&x, &y, nn::cross_entropy)?;
    refused(adam.step().map(|()| 0.0), &["DataParallel::new"]);
    Ok(())
}

#[test]
fn steps_that_are_right_stay_right() -> Result<()> {
    // A clone that was moved leaves the optimiser of the net alone, even of parameters that a loss does not use.
    let net = Sequential::new().add("used", Linear::new(3, 2)?).add("other", Linear::new(2, 2)?);
    let mut adam = Adam::new(net.parameters(), 0.1);
    let moved = net.clone().to(&elsewhere()?)?;
    for _ in 0..2 {
        adam.zero_grad();
        net["used"].forward(&n(&[5, 3], 0.2, &Device::cpu())?)?.square()?.mean_all()?.backward()?;
        adam.step()?;
    }
    assert_ne!(moved.parameters()[0].to_vec::<f32>()?, net.parameters()[0].to_vec::<f32>()?);
    // A group without gradients beside one that has some.
    let of = |name: &str| net[name].parameters();
    let mut groups = ParamGroups::new(vec![SGD::new(of("used"), 0.1), SGD::new(of("other"), 0.1)])?;
    groups.step()?;
    groups.zero_grad();
    let error = groups.step().expect_err("no gradients").to_string();
    assert!(error.contains("ParamGroups") && error.contains("none of the 4"), "{error}");
    Ok(())
}
