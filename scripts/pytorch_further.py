#!/usr/bin/env python3
"""Results and gradients of further functions and layers of PyTorch: tests/data/further.json.

    python3 -m venv v && v/bin/pip install torch && v/bin/python scripts/pytorch_further.py

Element i of a tensor is sin(i + k) / 2, with another k for each, as in scripts/pytorch_layers.py. tests/nn/pytorch_further makes the
same. The loss of a gradient is the sum of the results, each multiplied by an element of the wave 50. Everything is computed in
f64.
"""

import json
import math
import pathlib

import torch
from torch import nn
from torch.nn import functional as F

ROOT = pathlib.Path(__file__).resolve().parent.parent
torch.set_default_dtype(torch.float64)
CASES = {}


def wave(shape, k):
    return (torch.sin(torch.arange(math.prod(shape), dtype=torch.float64) + k) / 2).reshape(shape)


def keep(name, tensor):
    values = [round(v, 8) if isinstance(v, float) else v for v in tensor.detach().flatten().tolist()]
    CASES[name] = {"shape": list(tensor.shape), "values": values}


def case(name, out, leaves):
    """The result, and the gradients of leaves by name."""
    keep(name, out)
    if not leaves:
        return
    (out * wave(out.shape, 50)).sum().backward()
    for leaf, tensor in leaves.items():
        keep(f"{name} d{leaf}", tensor.grad)


def leaf(shape, k):
    return wave(shape, k).requires_grad_()


def ops():
    x = torch.tensor([3, 1, 0, 3, 3, 7])
    keep("bincount", torch.bincount(x, minlength=10))
    keep("bincount weights", torch.bincount(x, weights=wave([6], 1)))
    edges = torch.sort(wave([9], 2)).values
    values = torch.cat([wave([12], 3), edges[2:5]])
    for right in [False, True]:
        keep(f"searchsorted {right}", torch.searchsorted(edges, values, right=right))
    rows = torch.sort(wave([3, 5], 4), dim=1).values
    keep("searchsorted rows", torch.searchsorted(rows, wave([3, 4], 5)))
    nan = torch.tensor([-1.0, 2.0, float("nan")])
    keep("searchsorted nan", torch.searchsorted(nan, torch.tensor([float("nan"), 5.0, 2.0]), right=True))
    x = leaf([2, 3], 6)
    case("repeat_interleave", x.repeat_interleave(2, 1), {"x": x})
    x = leaf([3, 2], 6)
    case("repeat_interleave_by", x.repeat_interleave(torch.tensor([2, 0, 3]), 0), {"x": x})
    a, b = leaf([3], 7), leaf([2], 8)
    grid = torch.meshgrid(a, b, indexing="ij")
    case("meshgrid", torch.stack(grid), {"a": a, "b": b})
    keep("meshgrid xy", torch.stack(torch.meshgrid(a, b, indexing="xy")))
    for p in [0.0, 1.0, 1.5, 2.0, math.inf]:
        x, y = leaf([2, 4, 3], 9), leaf([2, 5, 3], 10)
        case(f"cdist {p}", torch.cdist(x, y, p), {"x": x, "y": y} if p else {})
    x = leaf([3, 2], 9)  # distances of 0
    case("cdist itself", torch.cdist(x, x, 2.0), {"x": x})


def filled(module):
    with torch.no_grad():
        for k, (_, p) in enumerate(module.named_parameters()):
            p.copy_(wave(p.shape, k))
    return module


def layer(name, module, x):
    filled(module)
    case(name, module(x), {"x": x} | dict(module.named_parameters()))


def layers():
    for d, shape in [(1, [2, 3, 5]), (2, [2, 3, 2, 4]), (3, [2, 3, 2, 2, 3])]:
        kind = getattr(nn, f"InstanceNorm{d}d")
        layer(f"InstanceNorm{d}d", kind(3), leaf(shape, 100))
        layer(f"InstanceNorm{d}d affine", kind(3, affine=True, eps=1e-3), leaf(shape, 100))
    layer("PixelShuffle", nn.PixelShuffle(2), leaf([2, 12, 2, 3], 100))
    layer("PixelUnshuffle", nn.PixelUnshuffle(2), leaf([2, 3, 4, 6], 100))
    for mode in ["sum", "mean", "max"]:
        bag = filled(nn.EmbeddingBag(6, 3, mode=mode))
        case(f"EmbeddingBag {mode}", bag(torch.tensor([[1, 2, 2], [5, 0, 1]])), dict(bag.named_parameters()))
        bag = filled(nn.EmbeddingBag(6, 3, mode=mode))
        ids, offsets = torch.tensor([1, 2, 4, 5, 4, 3, 2]), torch.tensor([0, 3, 3, 6])
        case(f"EmbeddingBag {mode} offsets", bag(ids, offsets), dict(bag.named_parameters()))
    bag = filled(nn.EmbeddingBag(6, 3, mode="sum"))
    weights = leaf([7], 30)
    out = bag(ids, offsets, per_sample_weights=weights)
    case("EmbeddingBag weights", out, dict(bag.named_parameters()) | {"weights": weights})
    for name, inner, x in [("Linear", nn.Linear(3, 4), [5, 3]), ("Conv2d", nn.Conv2d(2, 3, 2), [1, 2, 3, 4])]:
        filled(inner)
        module = nn.utils.weight_norm(inner)
        with torch.no_grad():
            module.weight_g.mul_(1.5)
        x = leaf(x, 100)
        case(f"WeightNorm {name}", module(x), {"x": x} | dict(module.named_parameters()))


def losses():
    for reduction in ["mean", "sum", "none"]:
        x, p = leaf([3, 4, 2], 20), leaf([3, 4, 2], 21)
        case(f"soft_cross_entropy {reduction}", F.cross_entropy(x, p, reduction=reduction), {"x": x, "p": p})
    targets = torch.tensor([[1, 2, 2], [3, 1, 3], [2, 3, 1]])
    for name, blank, lengths, counts, options in [
        ("mean", 0, [6, 5, 4], [3, 2, 1], {}),
        ("sum", 0, [6, 6, 6], [3, 3, 3], {"reduction": "sum"}),
        ("none", 4, [6, 4, 6], [2, 1, 0], {"reduction": "none"}),
        ("zero", 0, [3, 6, 2], [3, 3, 2], {"reduction": "none", "zero_infinity": True}),
    ]:
        x = leaf([6, 3, 5], 22)
        log_probs = (4 * x).log_softmax(2)
        loss = F.ctc_loss(log_probs, targets, torch.tensor(lengths), torch.tensor(counts), blank=blank, **options)
        case(f"ctc_loss {name}", loss, {"x": x})


def attention():
    padding = torch.tensor([[False, False, False, True], [False, True, True, True]])
    module = filled(nn.MultiheadAttention(6, 2, batch_first=True))
    q, k = leaf([2, 3, 6], 100), leaf([2, 4, 6], 101)
    out, _ = module(q, k, k, key_padding_mask=padding)
    case("MultiheadAttention", out, {"q": q, "k": k} | dict(module.named_parameters()))
    x = leaf([2, 4, 6], 100)
    hidden = torch.triu(torch.ones(4, 4, dtype=torch.bool), 1)
    out, _ = module(x, x, x, key_padding_mask=padding, attn_mask=hidden)
    case("MultiheadAttention causal", out, {"x": x})
    module = filled(nn.TransformerEncoderLayer(6, 2, 5, dropout=0.0, batch_first=True))
    x = leaf([2, 4, 6], 100)
    case("TransformerEncoderLayer", module(x, src_key_padding_mask=padding), {"x": x})


def averages():
    module = filled(nn.Linear(3, 2))
    average = torch.optim.swa_utils.AveragedModel(
        module, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=False
    )
    for step in range(4):
        with torch.no_grad():
            module.weight.copy_(wave([2, 3], 10 + step))
            module.bias.copy_(wave([2], 20 + step))
        average.update_parameters(module)
    keep("Ema weight", average.module.weight)
    keep("Ema bias", average.module.bias)


# Options of LBFGS, each with a number of steps. tests/nn/pytorch_further/optimisers.rs has the same list.
LBFGS = [
    (3, {"lr": 0.1, "max_iter": 3}),
    (3, {"lr": 1, "max_iter": 3, "line_search_fn": "strong_wolfe"}),
    (3, {"lr": 1, "max_iter": 2, "line_search_fn": "strong_wolfe", "history_size": 2}),
    (2, {"lr": 3, "max_iter": 3, "line_search_fn": "strong_wolfe"}),
    (5, {"lr": 0.5, "max_iter": 2, "history_size": 1}),
    (2, {"lr": 1, "line_search_fn": "strong_wolfe", "max_eval": 5}),
    (1, {"lr": 1, "line_search_fn": "strong_wolfe"}),
    (2, {"lr": 1, "tolerance_change": 0.02}),
    (2, {"lr": 1, "tolerance_grad": 0.5}),
    (2, {"lr": 100, "max_iter": 3, "line_search_fn": "strong_wolfe"}),
]


def lbfgs():
    for i, (steps, options) in enumerate(LBFGS):
        p, q = leaf([3], 1), leaf([2], 4)
        optimiser = torch.optim.LBFGS([p, q], **options)
        evaluations = 0

        def closure():
            nonlocal evaluations
            evaluations += 1
            optimiser.zero_grad()
            x = torch.cat([p, q])
            valley = ((x[1:] - x[:-1] ** 2) ** 2).sum()
            loss = 3 * valley + ((x - 1) ** 2).sum() + (x**4).sum() / 4
            loss.backward()
            return loss

        path = []
        for _ in range(steps):
            loss = optimiser.step(closure)
            path.append(torch.cat([loss.detach().reshape(1), p.detach(), q.detach()]))
        keep(f"LBFGS {i}", torch.stack(path))
        keep(f"LBFGS {i} evaluations", torch.tensor(evaluations))


# Options of Muon. tests/nn/pytorch_further/optimisers.rs has the same list.
MUON = [
    {"lr": 0.02},
    {"lr": 0.05, "nesterov": False, "weight_decay": 0.0, "momentum": 0.5, "adjust_lr_fn": "match_rms_adamw"},
    {"lr": 0.05, "momentum": 0.2, "ns_steps": 3, "adjust_lr_fn": "spectral_unclamped"},
    {"lr": 0.05, "ns_coefficients": (2.0, -1.5, 0.5), "eps": 10.0},
]


def muon():
    """In f32, since the iterations round the gradient to bf16."""
    for i, options in enumerate(MUON):
        parameters = [wave(shape, 60 + k).float().requires_grad_() for k, shape in enumerate([[6, 4], [3, 5], [1, 7]])]
        optimiser = torch.optim.Muon(parameters, **options)
        for step in range(4):
            for k, p in enumerate(parameters):
                # The second one has no gradient in every third step.
                p.grad = None if (k, step % 3) == (1, 2) else wave(p.shape, 70 + 3 * step + k).float()
            optimiser.step()
        for k, p in enumerate(parameters):
            keep(f"Muon {i} {k}", p)


# Layers for sequences of several lengths. tests/nn/pytorch_further/layers.rs has the same list.
PACKED = [
    ("RNN", {}),
    ("RNN", {"nonlinearity": "relu", "bidirectional": True, "bias": False}),
    ("LSTM", {"batch_first": True}),
    ("LSTM", {"num_layers": 2, "bidirectional": True}),
    ("GRU", {}),
    ("GRU", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
]


def packed():
    steps, lengths = 6, torch.tensor([3, 5, 1, 5])
    for i, (kind, options) in enumerate(PACKED):
        for states in [False, True]:
            module = filled(getattr(nn, kind)(4, 3, **options))
            first = options.get("batch_first", False)
            x = leaf([4, steps, 4] if first else [steps, 4, 4], 100)
            shape = [module.num_layers * (2 if module.bidirectional else 1), 4, 3]
            given = [leaf(shape, 110), leaf(shape, 111)][: 2 if kind == "LSTM" else 1] if states else []
            pack = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=False)
            state = None if not given else tuple(given) if kind == "LSTM" else given[0]
            out, last = module(pack, state)
            out, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=first, total_length=steps)
            results = [out, *(last if kind == "LSTM" else [last])]
            all = torch.cat([result.flatten() for result in results])
            leaves = {"x": x} | {f"state {k}": state for k, state in enumerate(given)}
            case(f"packed {i} {states}", all, leaves | dict(module.named_parameters()))


def near(shape, k):
    """A wave and a matrix: a wave alone has rank 2."""
    x = leaf(shape, k)
    return x, x + 2 * torch.eye(*shape[-2:])


def linalg():
    a, matrix = near([2, 3, 3], 60)
    b = leaf([3, 2], 61)
    case("solve", torch.linalg.solve(matrix, b), {"a": a, "b": b})
    a, matrix = near([2, 3, 3], 60)
    b = leaf([2, 3], 61)
    case("solve vectors", torch.linalg.solve(matrix, b), {"a": a, "b": b})
    for name, f in [("inv", torch.linalg.inv), ("det", torch.linalg.det), ("slogdet", lambda x: torch.linalg.slogdet(x)[1])]:
        a, matrix = near([2, 3, 3], 62)
        case(name, f(-matrix), {"a": a})
    keep("slogdet sign", torch.linalg.slogdet(-matrix)[0])
    _, matrix = near([2, 4, 4], 63)
    positive = (matrix @ matrix.mT).detach().requires_grad_()
    case("cholesky", torch.linalg.cholesky(positive), {"a": positive})
    for shape in [[2, 4, 3], [4, 4], [2, 3, 5]]:
        for i, name in enumerate(["Q", "R"]):
            a, matrix = near(shape, 64)
            case(f"qr {name} {shape[-2]} {shape[-1]}", torch.linalg.qr(matrix)[i], {"a": a})
        a, matrix = near(shape, 65)
        case(f"svd S {shape[-2]} {shape[-1]}", torch.linalg.svd(matrix, full_matrices=False)[1], {"a": a})
        # What the signs of the vectors do not change.
        a, matrix = near(shape, 65)
        u, s, vt = torch.linalg.svd(matrix, full_matrices=False)
        weights = wave([s.shape[-1]], 66) * s
        case(f"svd {shape[-2]} {shape[-1]}", (u * weights.unsqueeze(-2)) @ vt, {"a": a})


def fourier():
    real = torch.view_as_real
    for n in [None, 3, 8]:
        for name in ["fft", "ifft"]:
            for dim in [0, 1]:
                x = leaf([4, 5, 2], 70)
                case(f"{name} {n} {dim}", real(getattr(torch.fft, name)(torch.view_as_complex(x), n, dim)), {"x": x})
        for dim in [0, 1]:
            x = leaf([4, 5], 71)
            case(f"rfft {n} {dim}", real(torch.fft.rfft(x, n, dim)), {"x": x})
            x = leaf([4, 5, 2], 72)
            case(f"irfft {n} {dim}", torch.fft.irfft(torch.view_as_complex(x), n, dim), {"x": x})


def main():
    for part in [ops, layers, losses, attention, averages, lbfgs, muon, packed, linalg, fourier]:
        part()
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in CASES.items())
    (ROOT / "tests/data/further.json").write_text(f'{{"torch": "{torch.__version__}", "cases": {{\n{rows}\n}}}}\n')


if __name__ == "__main__":
    main()
