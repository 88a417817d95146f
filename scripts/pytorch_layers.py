#!/usr/bin/env python3
"""The outputs and gradients of PyTorch's recurrent and transformer layers for given weights: tests/data/layers.json.

    python3 -m venv v && v/bin/pip install torch && v/bin/python scripts/pytorch_layers.py

Element i of a tensor is sin(i + k) / 2, with another k for each: parameters have their number, the input 100, the states 101 and
102, the memory of a decoder 103. tests/nn/pytorch_layers/ makes the same. The loss is the sum of the squared outputs, of the last
h and of twice the last c.
"""

import json
import math
import pathlib

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
torch.set_default_dtype(torch.float64)


def wave(shape, k):
    return (torch.sin(torch.arange(math.prod(shape), dtype=torch.float64) + k) / 2).reshape(shape)


def rounded(tensor):
    return [round(v, 8) for v in tensor.detach().flatten().tolist()]


def filled(module):
    with torch.no_grad():
        for k, (_, p) in enumerate(module.named_parameters()):
            p.copy_(wave(p.shape, k))
    return module


def tensors(named):
    return {name: {"shape": list(t.shape), "values": rounded(t)} for name, t in named if t is not None}


def gradients(module, leaves):
    """The gradients of parameters, and of inputs by name."""
    named = list(module.named_parameters()) + list(leaves.items())
    return tensors((name, t.grad) for name, t in named)


def recurrent(kind, shape, hidden, states=False, **options):
    module = filled(getattr(torch.nn, kind)(shape[-1], hidden, **options))
    leaves = {"x": wave(shape, 100).requires_grad_()}
    count = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    batch = [] if len(shape) == 2 else [shape[0] if options.get("batch_first") else shape[1]]
    given = None
    if states:
        names = ["h0", "c0"] if kind == "LSTM" else ["h0"]
        for k, name in enumerate(names):
            leaves[name] = wave([count, *batch, hidden], 101 + k).requires_grad_()
        given = tuple(leaves[name] for name in names)
        given = given if kind == "LSTM" else given[0]
    out, last = module(leaves["x"], given)
    h, c = last if kind == "LSTM" else (last, None)
    loss = out.square().sum() + h.sum() + (0 if c is None else 2 * c.sum())
    loss.backward()
    results = tensors([("outputs", out), ("h", h), ("c", c)])
    case = {"kind": kind, "x": shape, "hidden": hidden, "states": states, "options": options}
    return case | {"results": results, "gradients": gradients(module, leaves)}


def cell(kind, hidden, **options):
    module = filled(getattr(torch.nn, kind)(3, hidden, **options))
    leaves = {"x": wave([2, 3], 100).requires_grad_(), "h0": wave([2, hidden], 101).requires_grad_()}
    given = leaves["h0"]
    if kind == "LSTMCell":
        leaves["c0"] = wave([2, hidden], 102).requires_grad_()
        given = (leaves["h0"], leaves["c0"])
    out = module(leaves["x"], given)
    h, c = out if kind == "LSTMCell" else (out, None)
    (h.square().sum() + (0 if c is None else 2 * c.sum())).backward()
    results = tensors([("h", h), ("c", c)])
    case = {"kind": kind, "hidden": hidden, "options": options}
    return case | {"results": results, "gradients": gradients(module, leaves)}


def transformer(kind, layers=None, **options):
    width, heads = 6, 2
    layer = getattr(torch.nn, f"Transformer{kind}Layer")(
        width, heads, dim_feedforward=5, dropout=0.0, batch_first=True, **options
    )
    module = layer
    if layers is not None:
        norm = torch.nn.LayerNorm(width)
        more = {"enable_nested_tensor": False} if kind == "Encoder" else {}
        module = getattr(torch.nn, f"Transformer{kind}")(layer, layers, norm, **more)
    module = filled(module)
    leaves = {"x": wave([2, 3, width], 100).requires_grad_()}
    future = torch.ones(3, 3, dtype=torch.bool).triu(1)  # True: hidden
    if kind == "Encoder":
        padding = torch.tensor([[False, False, False], [False, False, True]])
        out = module(leaves["x"], src_key_padding_mask=padding)
    else:
        leaves["memory"] = wave([2, 4, width], 103).requires_grad_()
        padding = torch.tensor([[False, False, False, True], [False, False, True, True]])
        out = module(leaves["x"], leaves["memory"], tgt_mask=future, memory_key_padding_mask=padding)
    out.square().mul(wave(out.shape, 7)).sum().backward()
    case = {"kind": kind, "layers": layers, "options": options, "names": [n for n, _ in module.named_parameters()]}
    return case | {"results": tensors([("outputs", out)]), "gradients": gradients(module, leaves)}


def main():
    data = {
        "torch": torch.__version__.split("+")[0],
        "recurrent": [
            recurrent("RNN", [4, 2, 3], 5),
            recurrent("RNN", [5, 3], 2, nonlinearity="relu", states=True),
            recurrent("RNN", [2, 4, 3], 2, batch_first=True, bidirectional=True, num_layers=2, states=True),
            recurrent("LSTM", [1, 1, 1], 1),
            recurrent("LSTM", [5, 2, 3], 4, states=True),
            recurrent("LSTM", [2, 3, 3], 2, num_layers=2, bidirectional=True, batch_first=True, states=True),
            recurrent("LSTM", [4, 3], 2, bias=False, bidirectional=True, states=True),
            recurrent("GRU", [5, 2, 3], 4, states=True),
            recurrent("GRU", [2, 3, 3], 2, num_layers=2, bidirectional=True, batch_first=True),
            recurrent("GRU", [4, 3], 2, bias=False, states=True),
        ],
        "cells": [
            cell("RNNCell", 4),
            cell("RNNCell", 3, nonlinearity="relu", bias=False),
            cell("LSTMCell", 4),
            cell("GRUCell", 4),
        ],
        "transformers": [
            transformer("Encoder"),
            transformer("Encoder", norm_first=True, activation="gelu"),
            transformer("Encoder", layers=2),
            transformer("Decoder"),
            transformer("Decoder", norm_first=True, activation="gelu", layer_norm_eps=1e-2),
            transformer("Decoder", layers=2, norm_first=True),
        ],
    }
    lines = json.dumps(data).replace('{"kind"', '\n{"kind"')
    (ROOT / "tests/data/layers.json").write_text(lines + "\n")


main()
