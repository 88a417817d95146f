"""Writes tests/ops/infinities.txt: PyTorch's values and gradients of functions at NaN, infinities, zeros and where the pieces
of functions meet. A line is a function, its operands, its value and the gradient of each operand.

Each point comes 64 times, so that PyTorch's vectorised loops compute it: those for the last few elements differ.

    python scripts/pytorch_infinities.py > tests/ops/infinities.txt        (made with torch 2.15 on the CPU)
"""

import itertools

import torch
import torch.nn.functional as F

INF, NAN = float("inf"), float("nan")

ONE = {
    **{name: getattr(torch, name) for name in """
    neg abs sign square exp exp2 expm1 log log2 log1p sqrt rsqrt sin cos tan tanh sigmoid erf floor ceil round trunc
    """.split()},
    "recip": torch.reciprocal,
    **{name: getattr(F, name) for name in "relu relu6 gelu silu mish hardswish hardsigmoid softsign elu softplus".split()},
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "log_sigmoid": F.logsigmoid,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.5),
    "hardtanh": F.hardtanh,
    "clamp": lambda x: torch.clamp(x, -1, 1),
    "clamp_min": lambda x: torch.clamp(x, min=0),
}
POINTS = [NAN, INF, -INF, 0.0, -0.0, -3.0, 3.0, 6.0, -1.0, 1.0]

TWO = {name: getattr(torch, name) for name in "add sub mul div fmod pow maximum minimum atan2".split()}
TWO["rem"] = torch.remainder
OPERANDS = [NAN, INF, -INF, 0.0, -0.0, 1.0, -2.0, 0.5]


def rows(functions, points):
    for name, function in functions.items():
        for point in points:
            operands = [torch.full([64], value, requires_grad=True) for value in point]
            result = function(*operands)
            result.sum().backward()
            numbers = [*point, result[0].item(), *(x.grad[0].item() for x in operands)]
            print(name, *(f"{number:.8g}" for number in numbers))


rows(ONE, [(point,) for point in POINTS])
rows(TWO, list(itertools.product(OPERANDS, OPERANDS)))
