"""Writes tests/data/resize.json: images resized by PyTorch, bilinear, with and without antialiasing.

    python scripts/pytorch_resize.py > tests/data/resize.json        (made with torch 2.15 on the CPU)
"""

import json

import torch
import torch.nn.functional as F

torch.manual_seed(0)
cases = []
for channels, size, target in [
    (1, (28, 28), (96, 96)),
    (3, (7, 9), (5, 4)),
    (2, (16, 5), (4, 10)),
    (1, (33, 31), (32, 8)),
    (1, (3, 3), (1, 1)),
]:
    image = torch.randint(0, 256, (1, channels, *size)).float() / 255
    for antialias in (True, False):
        out = F.interpolate(image, target, mode="bilinear", align_corners=False, antialias=antialias)
        # 28 → 96 is long: every 37th pixel says as much.
        step = 37 if out.numel() > 1000 else 1
        cases.append({
            "shape": [channels, *size],
            "bytes": (image * 255).round().to(torch.uint8).flatten().tolist(),
            "target": list(target),
            "antialias": antialias,
            "step": step,
            "expected": [round(v, 7) for v in out.flatten()[::step].tolist()],
        })
print("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]")
