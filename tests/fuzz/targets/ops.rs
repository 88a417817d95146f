//! Random sequences of ops on `cpu` and on an adapter: results, gradients and kinds of errors are the same.

use std::mem::discriminant;
use std::sync::LazyLock;

use anygpu::testing::adapter;
use anygpu::{Attention, Conv, DType, Device, Interpolation, Padding, Pool, Result, Tensor};

use super::text::Bytes;

/// The types that every device computes with. Each has its number in the corpus.
const TYPES: [DType; 7] = [DType::F32, DType::F16, DType::BF16, DType::I32, DType::U32, DType::U8, DType::Bool];

/// The adapter: `ANYGPU_FUZZ_DEVICE`, or the machine's first.
static ADAPTER: LazyLock<Device> = LazyLock::new(|| match std::env::var("ANYGPU_FUZZ_DEVICE") {
    Ok(name) => Device::new(&name).expect("ANYGPU_FUZZ_DEVICE is a device"),
    Err(_) => adapter().unwrap_or_else(Device::cpu), // cpu is compared with itself
});

/// Opens the adapter.
pub fn prepare() {
    run(&[0; 32]);
}

/// An op and its arguments.
#[derive(Clone, Copy, Debug)]
struct Step {
    op: u8,
    x: usize,
    y: usize,
    a: i64,
    b: i64,
    gradient: bool,
}

impl Step {
    fn read(bytes: &mut Bytes) -> Option<Step> {
        let op = bytes.byte()?;
        let operands = bytes.byte()?;
        let mut argument = || Some(i64::from(bytes.byte()? % 8) - 2);
        let (a, b) = (argument()?, argument()?);
        let [x, y] = [operands % 8, operands / 8 % 8].map(usize::from);
        Some(Step { op, x, y, a, b, gradient: operands & 128 != 0 })
    }

    fn apply(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let Step { a, b, .. } = *self;
        let (ua, ub) = (a.max(0) as usize, b.max(0) as usize);
        let keep = b % 2 == 0;
        let half = Some(1.0);
        match self.op % 96 {
            0 => x.add(y),
            1 => x.sub(y),
            2 => x.mul(y),
            3 => x.div(y),
            4 => x.maximum(y),
            5 => x.minimum(y),
            6 => x.pow(&y.clamp(Some(0.0), Some(2.0))?),
            7 => x.atan2(y),
            8 => x.eq(y),
            9 => x.lt(y),
            10 => x.ge(y),
            11 => x.logical_and(y),
            12 => x.div_floor(y),
            13 => x.rem(y),
            14 => x.add_scalar(a as f32),
            15 => x.mul_scalar(b as i32),
            16 => x.neg(),
            17 => x.abs(),
            18 => x.square(),
            19 => x.sign(),
            20 => x.floor(),
            21 => x.round(),
            22 => x.exp(),
            23 => x.log(),
            24 => x.sqrt(),
            25 => x.sin(),
            26 => x.cos(),
            27 => x.tanh(),
            28 => x.sigmoid(),
            29 => x.erf(),
            30 => x.gelu(),
            31 => x.silu(),
            32 => x.relu(),
            33 => x.clamp(Some(-1.0), half),
            34 => x.softplus(1.0, 20.0),
            35 => x.elu(1.0),
            36 => x.leaky_relu(0.1),
            37 => x.hardswish(),
            38 => x.isfinite(),
            39 => x.logical_not(),
            40 => x.to_dtype(TYPES[ub % TYPES.len()]),
            41 => x.sum(a, keep),
            42 => x.mean(a, keep),
            43 => x.max(a, keep),
            44 => x.min(a, keep),
            45 => x.var(a, 1.0, keep),
            46 => x.std(a, 0.0, keep),
            47 => x.clamp(Some(-1.0), half)?.prod(a, keep),
            48 => x.any(a, keep),
            49 => x.all(a, keep),
            50 => x.logsumexp(a, keep),
            51 => x.norm(2.0, a, keep),
            52 => x.argmax(a),
            53 => x.argmin(a),
            54 => x.softmax(a),
            55 => x.log_softmax(a),
            56 => x.cumsum(a),
            57 => x.clamp(Some(-1.0), half)?.cumprod(a),
            58 => x.sort(a, keep).map(|(values, _)| values),
            59 => x.argsort(a, keep),
            60 => x.topk(ub, a, true, true).map(|(values, _)| values),
            61 => x.matmul(y),
            62 => x.mv(y),
            63 => x.dot(y),
            64 => x.outer(y),
            65 => x.attention(y, y, &Attention::new()),
            66 => x.conv2d(y, None, Conv::new().padding([ua % 3, ub % 3])),
            67 => x.conv1d(y, None, Conv::new().stride(1 + ua % 3)),
            68 => x.conv_transpose2d(y, None, Conv::new().stride([1 + ua % 2, 1 + ub % 2])),
            69 => x.max_pool2d(Pool::new([ua, ub])),
            70 => x.avg_pool2d(Pool::new([ua, ub]).padding([ub / 2, ua / 2])),
            71 => x.adaptive_avg_pool2d([ua, ub]),
            72 => x.adaptive_max_pool2d([ua, ub]),
            73 => x.interpolate([ua, ub], Interpolation::Linear { align_corners: keep }),
            74 => x.interpolate([ub], Interpolation::Nearest),
            75 => x.pad(&[(ua, ub)], Padding::Constant(1.5)),
            76 => x.pad(&[(ub, ua)], [Padding::Reflect, Padding::Replicate, Padding::Circular][ua % 3]),
            77 => x.transpose(a, b),
            78 => x.narrow(a, ub, 2),
            79 => x.slice(a, ub, 7, 2),
            80 => x.flip(a),
            81 => x.roll(b, a),
            82 => x.unsqueeze(a),
            83 => x.squeeze(a),
            84 => x.broadcast_to([&[2][..], x.shape()].concat()),
            85 => x.flatten(a),
            86 => Tensor::cat(&[x, y, x], a),
            87 => Tensor::stack(&[x, y], a),
            88 => x.repeat(vec![2; x.rank()]),
            89 => x.tril(b),
            90 => x.diagonal(b, a, 0),
            // An index that is out of range is an error on cpu at once, and on adapters later; 0 and 1 are within any other size.
            91 if x.shape().iter().all(|&size| size >= 2) => x.index_select(a, &index(y)?),
            91 => index(x)?.one_hot(2 + ua),
            92 => x.masked_fill(&x.gt(y)?, 0.5),
            93 => x.layer_norm(&x.shape()[x.rank().min(ua)..], None, None, 1e-5),
            94 => x.rms_norm(&x.shape()[x.rank().min(ua)..], None, 1e-5),
            _ => match ua % 6 {
                one @ (0 | 1) => Tensor::einsum(["ij->ji", "ii"][one], &[x]),
                two => Tensor::einsum(["ij,jk->ik", "i,i->", "bij,bjk", "ij,j"][two - 2], &[x, y]),
            },
        }
    }

    /// The result, and the gradient of its sum, weighted, with respect to `x`.
    fn run(&self, x: &Tensor, y: &Tensor) -> Result<(Tensor, Option<Tensor>)> {
        if !self.gradient || !x.dtype().is_float() {
            return Ok((self.apply(x, y)?, None));
        }
        let x = x.detach().requires_grad();
        let out = self.apply(&x, y)?;
        if !out.is_tracked() || !out.dtype().is_float() || out.elem_count() == 0 {
            return Ok((out, None));
        }
        let count = out.elem_count();
        let weights: Vec<f32> = (0..count).map(|i| ((i * 7 + 3) % 5) as f32 * 0.5 - 1.0).collect();
        let weights = Tensor::from_slice(&weights, out.shape(), out.device())?;
        out.to_dtype(DType::F32)?.mul(&weights)?.sum_all()?.backward()?;
        Ok((out.detach(), x.grad()))
    }
}

/// Zeros and ones: an index of a dimension of two elements or more.
fn index(y: &Tensor) -> Result<Tensor> {
    y.flatten(0)?.ge(0.5f32)?.to_dtype(DType::U32)
}

fn floats(x: &Tensor) -> Vec<f32> {
    x.to_dtype(DType::F32).and_then(|x| x.to_vec()).expect("the elements of a result")
}

/// How far elements may be apart: by rounding to the type, and by other orders of sums.
fn tolerance(dtype: DType) -> f32 {
    match dtype {
        DType::F16 => 4e-3,
        DType::BF16 => 3e-2,
        DType::F32 => 2e-4,
        _ => 0.0,
    }
}

fn assert_same(what: &str, step: &Step, got: &Tensor, expected: &Tensor) {
    assert_eq!((got.shape(), got.dtype()), (expected.shape(), expected.dtype()), "{what} of {step:?}");
    let most = tolerance(got.dtype());
    let (values, reference) = (floats(got), floats(expected));
    let largest = reference.iter().filter(|v| v.is_finite()).fold(1.0f32, |most, v| most.max(v.abs()));
    for (i, (a, b)) in values.iter().zip(&reference).enumerate() {
        let near = a == b || (a - b).abs() <= most * largest || (a.is_nan() && b.is_nan());
        // At the edge of the range, the order of a sum decides.
        let huge = |v: f32| !v.is_finite() || v.abs() > 1e4;
        assert!(near || (most > 0.0 && huge(*a) && huge(*b)), "{what} of {step:?}: element {i} is {a}, on cpu {b}");
    }
}

/// The same elements on both devices: small and finite, so that differences do not grow from op to op.
fn tamed(x: &Tensor) -> Result<[Tensor; 2]> {
    let tame = |v: f32| if v.is_finite() { (v.clamp(-8.0, 8.0) * 64.0).round() / 64.0 } else { 1.0 };
    let values: Vec<f32> = floats(x).into_iter().map(tame).collect();
    let on = |device: &Device| Tensor::from_slice(&values, x.shape(), device)?.to_dtype(x.dtype());
    Ok([on(&Device::cpu())?, on(&ADAPTER)?])
}

/// Runs a step in 64 bits too, on `cpu`. What has a form for them has the same result, in the wider type; other steps are an error, and
/// none of them computes in 32 bits instead.
fn in_64_bits(step: &Step, x: &Tensor, y: &Tensor) {
    let (narrow, wide) = match x.dtype() {
        _ if step.op % 96 == 40 => return, // a conversion says its type
        DType::F32 => (DType::F32, DType::F64),
        DType::I32 => (DType::I32, DType::I64),
        _ => return,
    };
    let of = |x: &Tensor, dtype| x.to_dtype(dtype).expect("a small tensor");
    let Ok(got) = step.apply(&of(x, wide), &of(y, wide)) else { return };
    let expected = match step.apply(&of(x, narrow), &of(y, narrow)) {
        Ok(expected) => expected,
        Err(error) => panic!("{step:?} of {wide} {:?} and {:?} is none of {narrow}: {error}", x.shape(), y.shape()),
    };
    let dtype = if expected.dtype() == narrow { wide } else { expected.dtype() };
    assert_eq!(got.dtype(), dtype, "{step:?} of {wide}");
    assert_same("64 bits", step, &of(&got, expected.dtype()), &expected);
}

/// A few tensors, then ops on them and on their results.
pub fn run(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let mut tensors: Vec<[Tensor; 2]> = Vec::new();
    for _ in 0..3 {
        let (Some(kind), Some(first)) = (bytes.byte(), bytes.byte()) else { return };
        let shape: Vec<usize> = (0..kind % 5).map_while(|_| Some(usize::from(bytes.byte()? % 6))).collect();
        let dtype = TYPES[usize::from(kind / 5) % TYPES.len()];
        let value = |i: usize| [0.0f32, 1.0, -1.0, 2.0, 0.5, -3.0, 1.5][(i * 3 + usize::from(first)) % 7];
        let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
        let x = Tensor::from_slice(&values, shape, None).and_then(|x| x.to_dtype(dtype)).expect("small");
        tensors.push(tamed(&x).expect("small"));
    }
    for _ in 0..12 {
        let Some(step) = Step::read(&mut bytes) else { return };
        let ([x, x_there], [y, y_there]) = (&tensors[step.x % tensors.len()], &tensors[step.y % tensors.len()]);
        in_64_bits(&step, x, y);
        match (step.run(x, y), step.run(x_there, y_there)) {
            (Ok((here, grad)), Ok((there, grad_there))) => {
                assert_same("the result", &step, &there, &here);
                match (&grad_there, &grad) {
                    (Some(there), Some(here)) => assert_same("the gradient", &step, there, here),
                    (there, here) => assert_eq!(there.is_some(), here.is_some(), "a gradient of {step:?}"),
                }
                if here.elem_count() <= 1 << 11 && here.rank() <= 6 {
                    tensors.push(tamed(&here).expect("a small tensor"));
                }
            }
            (Err(here), Err(there)) => {
                assert_eq!(discriminant(&here), discriminant(&there), "errors of {step:?}: {there}; on cpu {here}");
            }
            (here, there) => {
                let text =
                    |result: Result<_>| result.map_or_else(|error| error.to_string(), |_| "no error".to_string());
                let (of, and) = ((x.dtype(), x.shape()), (y.dtype(), y.shape()));
                panic!("{step:?} of {of:?} and {and:?}: {}; on cpu {}", text(there), text(here));
            }
        }
    }
}
