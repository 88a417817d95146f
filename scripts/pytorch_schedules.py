#!/usr/bin/env python3
"""Fifty learning rates of each of PyTorch's schedulers: tests/data/schedules.json, which tests/nn/schedulers.rs compares.

    python3 -m venv v && v/bin/pip install torch && v/bin/python scripts/pytorch_schedules.py

The learning rate is 0.1. ReduceLROnPlateau sees the metrics that are stored with it.
"""

import json
import pathlib
import warnings

import torch
from torch.optim import lr_scheduler as lr

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEPS = 50
METRICS = [max(1 - 0.05 * i, 0.4) + (0.01 if i % 7 == 3 else 0) for i in range(STEPS)]

SCHEDULES = {
    "step": lambda o: lr.StepLR(o, 7, 0.3),
    "multi_step": lambda o: lr.MultiStepLR(o, [5, 20, 21, 40], 0.5),
    "exponential": lambda o: lr.ExponentialLR(o, 0.93),
    "cosine": lambda o: lr.CosineAnnealingLR(o, 20, 0.01),
    "linear": lambda o: lr.LinearLR(o, 0.2, 0.9, 15),
    "one_cycle": lambda o: lr.OneCycleLR(o, 0.5, STEPS),
    "one_cycle_early": lambda o: lr.OneCycleLR(o, 0.5, STEPS, pct_start=0.1, div_factor=10, final_div_factor=100),
    "lambda": lambda o: lr.LambdaLR(o, lambda step: 1 / (1 + step)),
    "warm_up_cosine": lambda o: lr.SequentialLR(
        o, [lr.LinearLR(o, 0.1, 1.0, 5), lr.CosineAnnealingLR(o, 45)], milestones=[5]
    ),
    "three_parts": lambda o: lr.SequentialLR(
        o, [lr.LinearLR(o, 0.1, 1.0, 8), lr.ExponentialLR(o, 0.9), lr.StepLR(o, 5, 0.5)], milestones=[8, 30]
    ),
}
PLATEAUS = {
    "plateau": {"factor": 0.5, "patience": 3},
    "plateau_max": {"mode": "max", "factor": 0.5, "patience": 6, "cooldown": 2, "min_lr": 0.002},
    "plateau_abs": {"factor": 0.1, "patience": 2, "threshold": 0.055, "threshold_mode": "abs", "cooldown": 4},
}


def rates(make, step):
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    scheduler, all_rates = make(optimiser), []
    for i in range(STEPS):
        all_rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        if i + 1 < STEPS:  # OneCycleLR refuses a step beyond its last
            step(scheduler, i)
    return all_rates


def main():
    warnings.simplefilter("ignore")
    runs = {name: rates(make, lambda s, i: s.step()) for name, make in SCHEDULES.items()}
    for name, options in PLATEAUS.items():
        runs[name] = rates(lambda o: lr.ReduceLROnPlateau(o, **options), lambda s, i: s.step(METRICS[i]))
    lines = [f'"{name}":{json.dumps([float(f"{v:.9g}") for v in run])}' for name, run in runs.items()]
    text = f'{{"torch":"{torch.__version__}","metrics":{json.dumps(METRICS)},\n' + ",\n".join(lines) + "}\n"
    (ROOT / "tests/data/schedules.json").write_text(text)


if __name__ == "__main__":
    main()
