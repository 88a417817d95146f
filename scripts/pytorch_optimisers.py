#!/usr/bin/env python3
"""Twenty steps of PyTorch's optimisers, in f64: tests/data/optimisers.json, which tests/nn/optimisers.rs compares.

    python3 -m venv v && v/bin/pip install torch && v/bin/python scripts/pytorch_optimisers.py

The loss is sum(c (p - 1/4)^2) with p = (1, -2, 1/2) at the start and c = (1, 1/2, 3). A second parameter q of one element, 2
at the start with the loss q^2, takes part in every second step only (it has no gradient in the others).
"""

import json
import pathlib

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUNS = [
    ("sgd", {}),
    ("sgd", {"weight_decay": 0.1}),
    ("sgd", {"momentum": 0.9}),
    ("sgd", {"momentum": 0.9, "weight_decay": 0.05}),
    ("sgd", {"momentum": 0.9, "dampening": 0.5}),
    ("sgd", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.05}),
    ("adam", {}),
    ("adam", {"betas": [0.8, 0.95], "eps": 1e-3}),
    ("adam", {"weight_decay": 0.1}),
    ("adamw", {}),
    ("adamw", {"weight_decay": 0.3}),
    ("rmsprop", {}),
    ("rmsprop", {"momentum": 0.9, "weight_decay": 0.05, "alpha": 0.9}),
    ("adam", {"amsgrad": True, "betas": [0.5, 0.6], "weight_decay": 0.1}),
    ("adamw", {"amsgrad": True, "betas": [0.5, 0.6], "weight_decay": 0.3}),
    ("adagrad", {}),
    ("adagrad", {"lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-3}),
    ("adadelta", {}),
    ("adadelta", {"rho": 0.7, "weight_decay": 0.1, "eps": 1e-3}),
]
CLASSES = {
    "sgd": "SGD",
    "adam": "Adam",
    "adamw": "AdamW",
    "rmsprop": "RMSprop",
    "adagrad": "Adagrad",
    "adadelta": "Adadelta",
}


def walk(name, args):
    p = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    slopes = torch.tensor([1.0, 0.5, 3.0], dtype=torch.float64)
    optimiser = getattr(torch.optim, CLASSES[name])([p, q], lr=0.05, **args)
    path = []
    for step in range(20):
        optimiser.zero_grad(set_to_none=True)
        loss = (slopes * (p - 0.25) ** 2).sum()
        if step % 2 == 0:
            loss = loss + (q**2).sum()
        loss.backward()
        optimiser.step()
        path.append([round(v, 9) for v in p.tolist() + q.tolist()])
    return {"optimiser": name, "args": args, "path": path}


def main():
    runs = [json.dumps(walk(name, args), separators=(",", ":")) for name, args in RUNS]
    text = f'{{"torch":"{torch.__version__}","runs":[\n' + ",\n".join(runs) + "\n]}\n"
    (ROOT / "tests/data/optimisers.json").write_text(text)


if __name__ == "__main__":
    main()
