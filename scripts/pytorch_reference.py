#!/usr/bin/env python3
"""Writes tests/data/pytorch.json: results of PyTorch for ops without a simple oracle. tests/nn/pytorch/ compares with them.

    python3 -m venv v && v/bin/pip install torch && v/bin/python scripts/pytorch_reference.py

Each case is an op with its arguments and inputs, the outputs, and where it has one the gradient of each float input for
the loss sum(output * weights). Values are computed in f64 from inputs that are exact in f32. Besides: the table of type
promotions, and the printed form of tensors.
"""

import itertools
import json
import math
import pathlib

import torch
from torch.nn import functional as F

ROOT = pathlib.Path(__file__).resolve().parent.parent
DTYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i32": torch.int32,
    "u32": torch.uint32,
    "u8": torch.uint8,
    "bool": torch.bool,
}
CASES = []
GENERATOR = torch.Generator().manual_seed(3)


def rand(*shape, lo=-1.0, hi=1.0):
    """Uniform and exact in f32, with few digits so that the file stays small."""
    steps = torch.randint(0, 4097, shape, generator=GENERATOR, dtype=torch.float64)
    return lo + (hi - lo) * steps / 4096


def whole(*shape, hi):
    return torch.randint(0, hi, shape, generator=GENERATOR)


def number(v):
    if isinstance(v, bool) or isinstance(v, int):
        return int(v)
    if math.isnan(v):
        return "nan"
    if math.isinf(v):
        return "inf" if v > 0 else "-inf"
    if v == 0 and math.copysign(1, v) < 0:
        return "-0"
    short = float(f"{v:.8g}")
    return int(short) if short == int(short) and abs(short) < 1e9 else short


def dump(t):
    kind = "bool" if t.dtype == torch.bool else "f32" if t.is_floating_point() else "u32"
    if kind == "u32" and t.numel() and t.min() < 0:
        kind = "i32"
    return {"dtype": kind, "shape": list(t.shape), "data": [number(v) for v in t.flatten().tolist()]}


def case(op, f, *inputs, grad=True, **args):
    leaves = [x.detach().clone().requires_grad_(grad and x.is_floating_point()) for x in inputs]
    outputs = f(*leaves)
    outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    one = {"op": op, "args": args, "inputs": [dump(x) for x in inputs], "outputs": [dump(y.detach()) for y in outputs]}
    if grad and outputs[0].requires_grad:
        weights = rand(*outputs[0].shape)
        (outputs[0] * weights).sum().backward()
        one["weights"] = dump(weights)
        zeros = lambda x: torch.zeros_like(x) if x.grad is None else x.grad
        one["grads"] = [dump(zeros(x)) if x.requires_grad else None for x in leaves]
    CASES.append(one)


def f32(values):
    return torch.tensor(values, dtype=torch.float32).double()


EDGES = f32(
    [0.0, -0.0, 1e-8, -1e-8, 1e-4, -1e-4, 0.3, -0.3, 0.5, -0.5, 0.8, -0.8, 1.0, -1.0, 1.5, -1.5, 2.0, -2.0, 2.5, -2.5, 2.9, -2.9]
    + [3.0, -3.0, 3.5, -3.5, 4.2, -4.2, 6.0, -6.0, 9.5, -9.5, 20.0, -20.0, 50.0, -50.0, 88.0, -88.0, 1e3, -1e3, 1e6, -1e6, 1e30]
    + [-1e30, math.inf, -math.inf, math.nan]
)


def elementwise():
    gelu = lambda form: lambda x: F.gelu(x, approximate=form)
    for op, f in {
        "gelu": gelu("none"),
        "gelu_tanh": gelu("tanh"),
        "erf": torch.erf,
        "silu": F.silu,
        "softplus": F.softplus,
        "hardswish": F.hardswish,
        "elu": F.elu,
        "leaky_relu": F.leaky_relu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "abs": torch.abs,
        "sign": torch.sign,
        "square": torch.square,
        "relu": F.relu,
    }.items():
        # Where the value overflows f32, the f64 of the oracle does not; the gradient is checked where it is finite.
        case(op, f, EDGES, grad=False)
        case(op, f, rand(40, lo=-5, hi=5) + 1 / 8192)
    for op in ["exp", "exp2", "log", "log2", "log1p", "sqrt", "rsqrt", "recip", "floor", "ceil", "round", "trunc"]:
        f = getattr(torch, {"recip": "reciprocal"}.get(op, op))
        case(op, f, EDGES, grad=False)
    for op in ["sin", "cos", "tan"]:
        case(op, getattr(torch, op), torch.cat([EDGES[EDGES.abs() <= 1e3], f32([math.inf, math.nan])]), grad=False)
    corners = f32([0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 2.5, -2.5, 7.0, -7.0, math.inf, -math.inf, math.nan])
    for op, f in {
        "atan2": torch.atan2,
        "pow": torch.pow,
        "rem": torch.remainder,
        "maximum": torch.maximum,
        "minimum": torch.minimum,
        "div": torch.div,
        "lt": torch.lt,
        "le": torch.le,
        "gt": torch.gt,
        "ge": torch.ge,
        "eq": torch.eq,
        "ne": torch.ne,
    }.items():
        case(op, f, corners[:, None], corners, grad=False)
    for op, f in {"atan2": torch.atan2, "pow": torch.pow, "rem": torch.remainder, "maximum": torch.maximum}.items():
        case(op, f, rand(6, 1, lo=0.5, hi=3) + 1 / 8192, rand(5, lo=0.5, hi=3))


def products():
    for equation, shapes in {
        "ij,jk->ik": [(3, 4), (4, 5)],
        "bij,bjk->bik": [(2, 3, 4), (2, 4, 5)],
        "bhid,bhjd->bhij": [(2, 2, 3, 4), (2, 2, 5, 4)],
        "i,j->ij": [(3,), (4,)],
        "i,i->": [(5,), (5,)],
        "ii->i": [(4, 4)],
        "ii->": [(4, 4)],
        "ij->ji": [(3, 5)],
        "ij->": [(3, 5)],
        "ijk->j": [(2, 3, 4)],
        "ij,j": [(3, 4), (4,)],
        "ba": [(3, 4)],
        "ij,jk,kl->il": [(2, 3), (3, 4), (4, 5)],
        "bn,anm,bm->ba": [(2, 3), (4, 3, 5), (2, 5)],
        "...ij,...jk->...ik": [(2, 1, 3, 4), (3, 4, 2)],
        "ij,ij->ij": [(3, 4), (3, 4)],
        "i,->i": [(3,), ()],
    }.items():
        case("einsum", lambda *x, e=equation: torch.einsum(e, *x), *[rand(*s) for s in shapes], equation=equation)
    for a, b in [((3, 4), (4, 2)), ((2, 1, 3, 4), (3, 4, 2)), ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 1))]:
        case("matmul", torch.matmul, rand(*a), rand(*b))


def convolutions():
    def conv(op, f, x, w, bias, **args):
        tensors = [rand(*x), rand(*w)] + ([rand(bias)] if bias else [])
        case(op, lambda *t: f(*t, **args), *tensors, **args)

    conv("conv1d", F.conv1d, (2, 4, 9), (6, 2, 3), 6, stride=2, padding=1, dilation=2, groups=2)
    conv("conv2d", F.conv2d, (2, 4, 7, 6), (6, 2, 3, 2), 6, stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2)
    conv("conv2d", F.conv2d, (1, 3, 6, 6), (3, 1, 3, 3), None, stride=1, padding=1, dilation=1, groups=3)
    conv("conv_transpose2d", F.conv_transpose2d, (2, 3, 4, 3), (3, 2, 3, 3), 2, stride=1, padding=0)
    args = dict(stride=(2, 3), padding=(1, 0), output_padding=(1, 2), groups=2, dilation=(1, 2))
    conv("conv_transpose2d", F.conv_transpose2d, (2, 4, 4, 3), (4, 3, 3, 2), 6, **args)
    conv("conv_transpose1d", F.conv_transpose1d, (2, 4, 5), (4, 2, 3), None, stride=2, padding=1, output_padding=1, groups=2)


def pools():
    for size in [(3, 4), (1, 1), (5, 7), (2, 3)]:
        for kind in ["avg", "max"]:
            f = getattr(F, f"adaptive_{kind}_pool2d")
            case(f"adaptive_{kind}_pool2d", lambda x: f(x, size), rand(1, 2, 7, 9), size=size)
    for ceil, count in itertools.product([False, True], [False, True]):
        args = dict(kernel_size=(3, 2), stride=(2, 2), padding=(1, 1), ceil_mode=ceil)
        avg = dict(args, count_include_pad=count)
        case("avg_pool2d", lambda x: F.avg_pool2d(x, **avg), rand(1, 2, 6, 7), **avg)
        if count:
            case("max_pool2d", lambda x: F.max_pool2d(x, **args), rand(1, 2, 6, 7), **args)
    dilated = dict(kernel_size=(2, 3), stride=(1, 2), padding=(1, 1), dilation=(2, 3))
    case("max_pool2d", lambda x: F.max_pool2d(x, **dilated), rand(2, 2, 6, 9), **dilated)
    for size in [(7, 10), (3, 2), (4, 5), (1, 1), (9, 3)]:
        x = rand(1, 2, 4, 5)
        case("interpolate", lambda x: F.interpolate(x, size=size, mode="nearest"), x, size=size, mode="nearest")
        for corners in [False, True]:
            args = dict(size=size, mode="bilinear", align_corners=corners)
            case("interpolate", lambda x: F.interpolate(x, **args), x, **args)
    for mode in ["constant", "reflect", "replicate"]:
        value = 1.5 if mode == "constant" else 0.0
        pads = [2, 1, 0, 3]
        case("pad", lambda x: F.pad(x, pads, mode, value), rand(2, 2, 5, 4), pads=pads, mode=mode, value=value)


def norms():
    x = rand(2, 6, 2, 3)
    for groups in [1, 2, 3, 6]:
        f = lambda x, w, b: F.group_norm(x, groups, w, b, eps=1e-5)
        case("group_norm", f, x, rand(6), rand(6), groups=groups, eps=1e-5)
    case("layer_norm", lambda x, w, b: F.layer_norm(x, (5,), w, b, 1e-5), rand(3, 4, 5), rand(5), rand(5), dims=1, eps=1e-5)
    two = (4, 5)
    case("layer_norm", lambda x, w, b: F.layer_norm(x, two, w, b, 1e-3), rand(3, 4, 5), rand(*two), rand(*two), dims=2, eps=1e-3)
    case("rms_norm", lambda x, w: F.rms_norm(x, (5,), w, 1e-5), rand(3, 4, 5), rand(5), eps=1e-5)
    f = lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True, eps=1e-5)
    case("batch_norm_train", f, x, rand(6), rand(6), eps=1e-5)
    f = lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, training=False, eps=1e-5)
    case("batch_norm_eval", f, x, rand(6), rand(6, lo=0.5, hi=2), rand(6), rand(6), grad=False, eps=1e-5)


def losses():
    logits, labels = rand(7, 5, lo=-3, hi=3), whole(7, hi=5)
    for reduction in ["mean", "sum", "none"]:
        for smoothing, ignore in [(0.0, -100), (0.1, -100), (0.0, int(labels[0])), (0.25, int(labels[0]))]:
            args = dict(reduction=reduction, label_smoothing=smoothing, ignore_index=ignore)
            case("cross_entropy", lambda x, y: F.cross_entropy(x, y, **args), logits, labels, **args)
        f = lambda x, y: F.nll_loss(x, y, reduction=reduction)
        case("nll_loss", f, f32(logits.log_softmax(1).tolist()), labels, reduction=reduction)
        a, b = rand(4, 3), rand(4, 3)
        case("mse_loss", lambda x, y: F.mse_loss(x, y, reduction=reduction), a, b, reduction=reduction)
        case("l1_loss", lambda x, y: F.l1_loss(x, y, reduction=reduction), a, b, reduction=reduction)
        f = lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction=reduction)
        case("bce_with_logits", f, rand(4, 3, lo=-60, hi=60), rand(4, 3, lo=0, hi=1), reduction=reduction)
    for reduction, log_target in itertools.product(["mean", "sum", "none", "batchmean"], [False, True]):
        q, p = rand(4, 5).log_softmax(1), rand(4, 5).softmax(1)
        p = p.log() if log_target else p
        q, p = f32(q.tolist()), f32(p.tolist())
        args = dict(reduction=reduction, log_target=log_target)
        case("kl_div", lambda q, p: F.kl_div(q, p, **args), q, p, **args)
    zero = f32([[0.0, 0.25, 0.75]])
    # The gradient at a probability of 0 is NaN there, and of no use to anyone.
    case("kl_div", lambda q, p: F.kl_div(q, p, reduction="none"), f32([[-1.0, -2.0, -0.5]]), zero, grad=False, reduction="none", log_target=False)


def attention():
    q, k, v = rand(1, 2, 4, 3), rand(1, 2, 6, 3), rand(1, 2, 6, 5)
    sdpa = F.scaled_dot_product_attention
    case("sdpa", sdpa, q, k, v, mask="none")
    square = [rand(1, 2, 6, 3), k, v]
    case("sdpa", lambda q, k, v: sdpa(q, k, v, is_causal=True), *square, mask="causal")
    mask = whole(4, 6, hi=2) > 0
    mask[:, 0] = True
    case("sdpa", lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), q, k, v, mask, mask="bool")
    case("sdpa", lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), q, k, v, rand(4, 6), mask="float")


def reductions():
    x = rand(2, 3, 4)
    for dims, keepdim in [([0], False), ([1], True), ([0, 2], False), ([0, 1, 2], False)]:
        for correction in [0, 1, 2]:
            args = dict(dims=dims, correction=correction, keepdim=keepdim)
            for op in ["var", "std"]:
                f = getattr(torch, op)
                case(op, lambda x: f(x, dims, correction=correction, keepdim=keepdim), x, **args)
        case("logsumexp", lambda x: torch.logsumexp(x, dims, keepdim), x, dims=dims, keepdim=keepdim)
        for p in [1.0, 2.0, 3.0, math.inf, -math.inf, 0.0]:
            f = lambda x: torch.linalg.vector_norm(x, p, dims, keepdim)
            case("norm", f, x, grad=p in (1.0, 2.0, 3.0), p=number(p), dims=dims, keepdim=keepdim)
    minus = f32([[-math.inf, -math.inf, -math.inf], [-math.inf, 0.0, 1.0], [math.inf, 1.0, 2.0], [math.nan, 1.0, 2.0]])
    case("logsumexp", lambda x: torch.logsumexp(x, [1], False), minus, grad=False, dims=[1], keepdim=False)
    case("softmax", lambda x: torch.softmax(x, 1), minus, grad=False, dim=1)
    case("log_softmax", lambda x: torch.log_softmax(x, 1), minus, grad=False, dim=1)
    zeros = rand(4, 3)
    zeros[0, 0] = zeros[1, 1] = zeros[2, 1] = 0
    case("prod", lambda x: torch.prod(x, 0), zeros, dims=[0], keepdim=False)
    case("cumsum", lambda x: torch.cumsum(x, 1), x, dim=1)
    case("cumsum", lambda x: torch.cumsum(x, 0), f32([1.0, math.inf, 2.0, -math.inf, 3.0]), grad=False, dim=0)
    holes = f32([[3.0, math.nan, 1.0, math.nan, 2.0], [1.0, 1.0, -math.inf, math.inf, 1.0], [0.0, -0.0, 5.0, 5.0, -1.0]])
    for op, f in {"max": torch.amax, "min": torch.amin}.items():
        case(op, lambda x: f(x, [1]), holes, grad=False, dims=[1], keepdim=False)
    for op in ["argmax", "argmin"]:
        f = getattr(torch, op)
        case(op, lambda x: f(x, 1), holes, grad=False, dim=1)
    for descending in [False, True]:
        f = lambda x: torch.sort(x, dim=1, descending=descending, stable=True)
        case("sort", f, holes, grad=False, dim=1, descending=descending)
        case("sort", f, x, dim=1, descending=descending)
    # Of equal elements torch.topk may take any: these are distinct.
    distinct = f32([[3.0, math.nan, 1.0, 7.0, 2.0], [4.0, 1.5, -math.inf, math.inf, 1.0]])
    for largest in [True, False]:
        f = lambda x: torch.topk(x, 3, 1, largest, True)
        case("topk", f, distinct, grad=False, k=3, dim=1, largest=largest)
        case("topk", f, x, k=3, dim=1, largest=largest)


def indexing():
    x = rand(4, 5)
    index = whole(3, 5, hi=4)
    case("gather", lambda x, i: torch.gather(x, 0, i), x, index, dim=0)
    case("scatter_add", lambda x, i, s: torch.scatter_add(x, 0, i, s), x, index, rand(3, 5), dim=0)
    rows = torch.tensor([2, 0, 2])
    case("index_select", lambda x, i: torch.index_select(x, 0, i), x, rows, dim=0)
    case("index_add", lambda x, i, s: torch.index_add(x, 0, i, s), x, rows, rand(3, 5), dim=0)
    case("embedding", lambda w, i: F.embedding(i, w), x, whole(2, 3, hi=4))
    mask = whole(4, 5, hi=2) > 0
    case("masked_fill", lambda x, m: x.masked_fill(m, -2.5), x, mask, value=-2.5)
    case("where", lambda m, a, b: torch.where(m, a, b), mask, x, rand(5))
    for diagonal in [-1, 0, 2]:
        case("tril", lambda x: torch.tril(x, diagonal), x, diagonal=diagonal)
        case("triu", lambda x: torch.triu(x, diagonal), x, diagonal=diagonal)
    case("roll", lambda x: torch.roll(x, -7, 1), x, shift=-7, dim=1)
    case("flip", lambda x: torch.flip(x, [0, 1]), x, dims=[0, 1])
    case("one_hot", lambda i: F.one_hot(i, 4), whole(2, 3, hi=4), grad=False, classes=4)


def promotions():
    def result(a, b):
        try:
            got = torch.promote_types(DTYPES[a], DTYPES[b])
        except RuntimeError:
            return None
        names = [name for name, dtype in DTYPES.items() if dtype == got]
        return names[0] if names else str(got)

    return [[a, b, result(a, b)] for a in DTYPES for b in DTYPES]


def prints():
    shown = []

    def show(dtype, shape, values, ramp=None):
        t = torch.tensor(values, dtype=torch.float64).to(DTYPES[dtype]).reshape(shape)
        text = str(t)
        for name, known in DTYPES.items():
            text = text.replace(f"dtype={known}", f"dtype={name}")
        data = {"data": [number(v) for v in values]} if ramp is None else {"ramp": ramp}
        shown.append({"dtype": dtype, "shape": list(shape), **data, "text": text})

    def ramp(dtype, shape, scale=1.0, shift=0.0):
        """Elements i * scale + shift, each exact."""
        show(dtype, shape, [i * scale + shift for i in range(math.prod(shape))], [scale, shift])

    for values in [
        [1.0, 2.0, 3.0],
        [1.5, -2.25, 3.0],
        [0.0, -0.0],
        [1e-5, 1.0],
        [1e-3, 1.0],
        [0.00011, 0.5],
        [9e-5, 0.05],
        [1.0, 1000.0],
        [1.0, 1000.5],
        [1.0, 1001.5],
        [1.0, 1001.0],
        [1.0, 20000.0],
        [1.0, 99999.0, 100001.0],
        [1e8, 1.0],
        [1.1e8, 2e8],
        [123456.789, 1.0],
        [123456.789, 123000.0],
        [1e10, -1e-10],
        [math.nan, 1.0],
        [math.nan, math.inf, -math.inf],
        [math.nan, 1.5, -math.inf],
        [math.inf, 1e-7],
        [0.1, 0.25, 100.125],
        [-1.0, 10.0, 100.0],
        [3.4e38, 1.2e-38],
        [1e-45, 0.0],
        [99999999.0, 5.0],
        [0.99999, 0.5],
        [0.999999, 0.5],
        [2.00005, -3.0],
    ]:
        show("f32", (len(values),), values)
    for value in [1.5, 3.0, -0.0, 1e-9, 1e9, 123456.5, math.nan, math.inf]:
        show("f32", (), [value])
    show("f32", (0,), [])
    show("f32", (2, 0), [])
    ramp("f32", (2, 3), 0.5)
    ramp("f32", (2, 1, 2))
    ramp("f32", (1, 2, 2, 2), -0.25)
    ramp("f32", (30,))
    ramp("f32", (30,), 0.375, -3.0)
    ramp("f32", (2, 17), 1.25)
    ramp("f32", (1001,))
    ramp("f32", (1001,), 0.125)
    ramp("f32", (1000,))
    ramp("f32", (40, 30), 0.5)
    ramp("f32", (3, 400))
    ramp("f32", (8, 13, 10))
    ramp("f32", (7, 2, 9, 9))
    ramp("f32", (2, 600, 1))
    show("i32", (3,), [1, -20, 300])
    show("i32", (), [-7])
    show("i32", (2, 2), [1, 2, 3, -400])
    ramp("i32", (1500,))
    show("i32", (0,), [])
    ramp("i32", (24,), 1.0, 100000.0)
    show("u32", (2,), [1, 4000000000])
    show("u8", (2, 3), [0, 255, 3, 4, 50, 6])
    show("bool", (3,), [1, 0, 1])
    show("bool", (2, 2), [1, 0, 0, 0])
    show("bool", (), [1])
    show("f16", (3,), [1.5, -2.0, 65504.0])
    show("f16", (2,), [0.1, 0.2])
    show("bf16", (3,), [1.0, 2.0, 3.0])
    show("bf16", (2,), [0.1, 300.5])
    return shown


def main():
    for family in [elementwise, products, convolutions, pools, norms, losses, attention, reductions, indexing]:
        family()
    parts = {"torch": torch.__version__, "cases": CASES, "promotions": promotions(), "prints": prints()}
    rows = [f"{json.dumps(k)}:" + (lines(v) if k in ("cases", "prints") else compact(v)) for k, v in parts.items()]
    path = ROOT / "tests/data/pytorch.json"
    path.write_text("{" + ",\n".join(rows) + "}\n")
    print(f"{path}: {len(CASES)} cases, {path.stat().st_size} bytes")


def compact(value):
    return json.dumps(value, separators=(",", ":"))


def lines(values):
    return "[\n" + ",\n".join(compact(v) for v in values) + "]"


if __name__ == "__main__":
    main()
