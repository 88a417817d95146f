#!/usr/bin/env python3
"""A LeNet trained by PyTorch, as files of torch.save: tests/data/lenet.pt, with inputs and logits, and small files.

    python3 -m venv v && v/bin/pip install torch numpy safetensors
    v/bin/python scripts/pytorch_checkpoints.py                  # writes tests/data/lenet.pt, pytorch_old.pth, pytorch_kinds.pt
    v/bin/python scripts/pytorch_checkpoints.py --check FILE     # loads our .safetensors, prints the logits' difference

The weights are rounded to f16, which halves the file; logits are those of the rounded weights, in f32. FILE is what
`cargo run --release --example save_and_load FILE` writes: a training checkpoint with images and the logits of anygpu.
"""

import argparse
import collections
import gzip
import pathlib

import numpy
import torch
from torch import nn

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "tests/data"
DIGITS = ROOT / "assets/mnist-5k"


def lenet():
    """As anygpu::nn::models::lenet."""
    layers = [
        ("conv1", nn.Conv2d(1, 20, 3)), ("relu1", nn.ReLU()), ("pool1", nn.AvgPool2d(2)),
        ("conv2", nn.Conv2d(20, 50, 5)), ("relu2", nn.ReLU()), ("pool2", nn.AvgPool2d(2)),
        ("flatten", nn.Flatten()),
        ("fc1", nn.Linear(800, 128)), ("relu3", nn.ReLU()), ("fc2", nn.Linear(128, 10)),
    ]
    return nn.Sequential(collections.OrderedDict(layers))


def digits(part, mean=None, std=None):
    """Images standardised as anygpu's loaders do it: by the training set's mean and deviation."""
    raw = gzip.decompress((DIGITS / f"{part}-images-idx3-ubyte.gz").read_bytes())
    images = numpy.frombuffer(raw, numpy.uint8, offset=16).reshape(-1, 1, 28, 28) / 255.0
    labels = gzip.decompress((DIGITS / f"{part}-labels-idx1-ubyte.gz").read_bytes())
    labels = torch.tensor(numpy.frombuffer(labels, numpy.uint8, offset=8).astype(numpy.int64))
    mean, std = (images.mean(), images.std()) if mean is None else (mean, std)
    return torch.tensor((images - mean) / std, dtype=torch.float32), labels, mean, std


def train():
    torch.manual_seed(0)
    net = lenet()
    images, labels, mean, std = digits("train")
    sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(6):
        for chosen in torch.randperm(len(labels)).split(64):
            sgd.zero_grad()
            nn.functional.cross_entropy(net(images[chosen]), labels[chosen]).backward()
            sgd.step()
    test, labels, _, _ = digits("t10k", mean, std)
    with torch.no_grad():
        net.half().float()
        accuracy = (net(test).argmax(1) == labels).float().mean().item()
        logits = net(test[:8])
    print(f"accuracy {accuracy:.3f} of the 1 000 held-out digits")
    return net, test[:8].clone(), logits, accuracy  # a slice alone would be saved with all of its storage


def kinds():
    """A tensor of every type that is read, views of one storage, and what scripts keep beside a model."""
    base = torch.arange(24, dtype=torch.float32)
    names = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
             "uint16", "uint32", "uint64"]
    typed = {name: torch.tensor([0, 1, 2, 100]).to(getattr(torch, name)) for name in names}
    layer = nn.Linear(3, 2)
    adam = torch.optim.Adam(layer.parameters())
    layer(torch.ones(4, 3)).sum().backward()
    adam.step()
    noted, parameter = torch.full((2,), 3.0), nn.Parameter(torch.full((2,), 4.0))
    noted.note = parameter.note = "attributes are passed over"
    return {
        "typed": typed,
        "views": {
            "transposed": base.view(4, 6).t(),
            "sliced": base.view(4, 6)[1:3, ::2],
            "expanded": base[3:5].view(2, 1).expand(2, 3),
            "scalar": base[7],
            "empty": torch.zeros(0, 5),
            "whole": base,
        },
        "parameter": nn.Parameter(torch.ones(2)),
        "noted": [noted, parameter],
        "model": collections.OrderedDict(("module." + name, value) for name, value in layer.state_dict().items()),
        "optimizer": adam.state_dict(),
        "numbers": [1, -1, 2**40, 0.5, True, None, (1, 2), {3}],
        "text": "π",
        "bytes": b"\x00\xff",
        "counts": collections.Counter({2: 1}),
        "default": collections.defaultdict(dict, a={}),
        "device": torch.device("cpu"),
        "dtype": torch.float32,
        "size": torch.Size([2, 3]),
    }


def write():
    net, images, logits, accuracy = train()
    half = collections.OrderedDict((name, value.half()) for name, value in net.state_dict().items())
    state = {"state_dict": half, "images": images, "logits": logits, "accuracy": accuracy, "torch": torch.__version__}
    torch.save(state, DATA / "lenet.pt")
    torch.manual_seed(1)
    torch.save(kinds(), DATA / "pytorch_kinds.pt")
    torch.save(kinds(), DATA / "pytorch_old.pth", _use_new_zipfile_serialization=False)


def check(path):
    from safetensors.torch import load_file

    tensors = load_file(path)
    part = lambda prefix: {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
    net = lenet()
    net.load_state_dict(part("model."))
    test = part("extra.test.")
    with torch.no_grad():
        difference = (net(test["images"]) - test["logits"]).abs().max().item()
    print(f"{path}: {len(tensors)} tensors, largest difference of logits {difference:.2e}")
    assert difference < 1e-4


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", metavar="FILE", help="a .safetensors file that anygpu wrote")
    arguments = parser.parse_args()
    check(arguments.check) if arguments.check else write()


if __name__ == "__main__":
    main()
