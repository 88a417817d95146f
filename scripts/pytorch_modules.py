#!/usr/bin/env python3
"""The outputs of PyTorch's MultiheadAttention for given weights, and the bounds of its init rules: tests/data/modules.json.

    python3 -m venv v && v/bin/pip install torch && v/bin/python scripts/pytorch_modules.py

Element i of a tensor is sin(i + k) / 2, with another k for each: tests/nn/modules.rs makes the same.
"""

import json
import math
import pathlib

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTH, HEADS = 6, 2


def wave(shape, k):
    count = math.prod(shape)
    return (torch.sin(torch.arange(count, dtype=torch.float64) + k) / 2).reshape(shape)


def rounded(tensor):
    return [round(v, 9) for v in tensor.detach().flatten().tolist()]


def attention():
    layer = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        for k, (_, p) in enumerate(layer.named_parameters()):
            p.copy_(wave(p.shape, k))
    names = [name for name, _ in layer.named_parameters()]
    x, y = wave((2, 3, WIDTH), 10).requires_grad_(), wave((2, 4, WIDTH), 11)
    future = torch.ones(3, 3, dtype=torch.bool).triu(1)
    padding = torch.tensor([[False, False, False, True], [False, False, True, True]])  # True: hidden
    plain, _ = layer(x, x, x)
    causal, _ = layer(x, x, x, attn_mask=future, is_causal=True)
    cross, _ = layer(x, y, y, key_padding_mask=padding)
    causal.square().sum().backward()
    return {
        "names": names,
        "plain": rounded(plain),
        "causal": rounded(causal),
        "cross": rounded(cross),
        "causal_grad_x": rounded(x.grad),
        "causal_grad_in_proj_weight": rounded(layer.in_proj_weight.grad),
    }


def inits():
    """Bound or deviation of each rule for each shape: the largest of many values, and the deviation, as drawn."""
    gains = {
        "linear": torch.nn.init.calculate_gain("linear"),
        "sigmoid": torch.nn.init.calculate_gain("sigmoid"),
        "tanh": torch.nn.init.calculate_gain("tanh"),
        "relu": torch.nn.init.calculate_gain("relu"),
        "leaky_relu_0.2": torch.nn.init.calculate_gain("leaky_relu", 0.2),
        "selu": torch.nn.init.calculate_gain("selu"),
    }
    fans = [
        {"shape": shape, "fans": torch.nn.init._calculate_fan_in_and_fan_out(torch.empty(shape))}
        for shape in ([100, 300], [64, 32, 3, 3], [8, 4, 5])
    ]
    torch.manual_seed(0)
    drawn = {}
    for name, rule in {
        "xavier_uniform": lambda t: torch.nn.init.xavier_uniform_(t, gain=2.0),
        "xavier_normal": lambda t: torch.nn.init.xavier_normal_(t, gain=2.0),
        "kaiming_uniform_in": lambda t: torch.nn.init.kaiming_uniform_(t, a=0.2, mode="fan_in"),
        "kaiming_uniform_out": lambda t: torch.nn.init.kaiming_uniform_(t, mode="fan_out", nonlinearity="relu"),
        "kaiming_normal_in": lambda t: torch.nn.init.kaiming_normal_(t, mode="fan_in", nonlinearity="tanh"),
        "kaiming_normal_out": lambda t: torch.nn.init.kaiming_normal_(t, mode="fan_out", nonlinearity="relu"),
    }.items():
        t = rule(torch.empty(64, 32, 3, 3))
        drawn[name] = {"most": round(t.abs().max().item(), 6), "std": round(t.std().item(), 6)}
    return {"gains": gains, "fans": fans, "drawn": drawn}


def main():
    text = json.dumps({"torch": torch.__version__, "attention": attention(), "inits": inits()}, indent=None)
    (ROOT / "tests/data/modules.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
