#!/usr/bin/env python3
"""ResNet-18 in PyTorch: its first losses, which tests/train/resnet18.rs compares, and its speed, for docs/benchmarks.md.

    python3 -m venv v && v/bin/pip install torch
    v/bin/python scripts/pytorch_resnet18.py            # writes tests/data/resnet18_losses.json
    v/bin/python scripts/pytorch_resnet18.py --bench    # images/s of training steps, as `anygpu bench resnet18` takes them

The net is torchvision's (BasicBlock, [2, 2, 2, 2]) under its names. Weights are a function of their position, the images
are the first test digits that are built into the crate, so that both sides make the same without a file of 45 MB.

With other choices the losses say little: on a digit's even background, one ReLU that rounding turns over turns over for
thousands of pixels, so that PyTorch's own f32 and f64 are 5e-3 apart in the first gradient. Hence the noise on the images,
and the small weights of the last batch norm of each block. So chosen, f32 and f64 stay within 1e-6 of each other.
"""

import argparse
import gzip
import json
import math
import pathlib
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

ROOT = pathlib.Path(__file__).resolve().parent.parent
DIGITS = ROOT / "assets/mnist-5k"
STEPS, BATCHES, SIDE = 5, [8, 4], 96
NOISE, SEED, LAST = 1.0, 99, 0.02
LR, MOMENTUM = 0.002, 0.9


def convolution(inputs, outputs, kernel, stride):
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = convolution(inputs, outputs, 3, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = convolution(outputs, outputs, 3, 1)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + shortcut)


class ResNet18(nn.Module):
    def __init__(self, channels, classes):
        super().__init__()
        self.conv1 = convolution(channels, 64, 7, 2)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        sizes = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        for i, (inputs, outputs, stride) in enumerate(sizes, 1):
            blocks = nn.Sequential(BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1))
            setattr(self, f"layer{i}", blocks)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, classes)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def hashed(count, seed):
    """Numbers in [-1, 1), exact in f32, from the finaliser of MurmurHash3 over the position. The products stay below 2^63."""
    mask = 0xFFFFFFFF
    h = (torch.arange(count, dtype=torch.int64) + seed * 0x9E3779B9) & mask
    for shift, factor in [(16, 0x5EBCA6B), (13, 0x42B2AE35), (16, 1)]:
        h = ((h ^ (h >> shift)) * factor) & mask
    return ((h >> 8) - (1 << 23)).to(torch.float32) / (1 << 23)


def fill(net):
    """Weights in [-b, b): b = sqrt(6 / (OC KH KW)) in a convolution, 1 / sqrt(inputs) in the last layer; LAST in the weights of bn2."""
    with torch.no_grad():
        for i, (name, p) in enumerate(net.named_parameters()):
            if p.dim() == 4:
                bound = math.sqrt(6 / (p.shape[0] * p.shape[2] * p.shape[3]))
            elif name.startswith("fc."):
                bound = 1 / math.sqrt(net.fc.in_features)
            else:
                if name.endswith("bn2.weight"):
                    p.fill_(LAST)
                continue
            p.copy_((hashed(p.numel(), i) * torch.tensor(bound, dtype=torch.float32)).reshape(p.shape))


def digits(count):
    """The first test digits, [count, 1, 96, 96], in [-1, 1] but for some noise, and their labels."""
    pixels = gzip.decompress((DIGITS / "t10k-images-idx3-ubyte.gz").read_bytes())[16:]
    labels = gzip.decompress((DIGITS / "t10k-labels-idx1-ubyte.gz").read_bytes())[8:]
    x = torch.frombuffer(bytearray(pixels), dtype=torch.uint8)[: count * 784].reshape(count, 1, 28, 28)
    x = (x.to(torch.float32) / 255 - 0.5) / 0.5
    x = F.interpolate(x, size=(SIDE, SIDE), mode="bilinear", align_corners=False)
    x = x + hashed(x.numel(), SEED).reshape(x.shape) * torch.tensor(NOISE, dtype=torch.float32)
    return x, torch.tensor(list(labels[:count]), dtype=torch.int64)


def losses(dtype, batch):
    net = ResNet18(1, 10)
    fill(net)
    net = net.to(dtype)
    x, labels = digits(STEPS * batch)
    sgd = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)
    found = []
    for step in range(STEPS):
        part = slice(step * batch, (step + 1) * batch)
        sgd.zero_grad()
        loss = F.cross_entropy(net(x[part].to(dtype)), labels[part])
        loss.backward()
        sgd.step()
        found.append(loss.item())
    return found


def bench(channels, batch, repeats):
    torch.manual_seed(0)
    net = ResNet18(channels, 10)
    sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    x, labels = torch.rand(batch, channels, SIDE, SIDE), torch.arange(batch) % 10
    rates, busy = [], []
    for step in range(2 + repeats):
        start, before = time.perf_counter(), time.process_time()
        sgd.zero_grad()
        F.cross_entropy(net(x), labels).backward()
        sgd.step()
        if step >= 2:
            rates.append(batch / (time.perf_counter() - start))
            busy.append(time.process_time() - before)
    rates.sort()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, batch {batch} of {channels}x{SIDE}x{SIDE}: "
          f"{statistics.median(rates):.1f} images/s ({rates[0]:.1f} ... {rates[-1]:.1f}), "
          f"{statistics.median(busy):.3f} s of CPU time a step")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bench", action="store_true")
    parser.add_argument("--repeats", type=int, default=10)
    args = parser.parse_args()
    if args.bench:
        return bench(3, 32, args.repeats)
    runs = []
    for batch in BATCHES:
        single, double = losses(torch.float32, batch), losses(torch.float64, batch)
        print(f"batch {batch}: {double}, f32 is off by at most {max(abs(a - b) for a, b in zip(single, double)):.1e}")
        runs.append({"batch": batch, "losses": double})
    text = json.dumps({"torch": torch.__version__, "lr": LR, "momentum": MOMENTUM, "runs": runs})
    (ROOT / "tests/data/resnet18_losses.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
