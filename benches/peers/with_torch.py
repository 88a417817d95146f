"""The workloads of `anygpu bench` in PyTorch, eager, f32 without TensorFloat-32."""

import importlib.util
import pathlib

import torch
from torch import nn
from torch.nn import functional as F

import shapes

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NAME = "PyTorch"
VERSION = torch.__version__


def setup(threads):
    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)


def device_for(name):
    """The device of PyTorch that is the one of this crate with this name, or None."""
    if not name.startswith("gpu"):
        return "cpu"
    number = name.split(":")[1].split("/")[0]
    if torch.cuda.is_available() and int(number) < torch.cuda.device_count():
        return f"cuda:{number}"
    if hasattr(torch, "xpu") and torch.xpu.is_available() and int(number) < torch.xpu.device_count():
        return f"xpu:{number}"
    if torch.backends.mps.is_available():
        return "mps"
    return None


def describe(device):
    """The device with the name of its card, which may be another one than that of this crate with the same number."""
    kind = device.split(":")[0]
    if kind in ("cuda", "xpu"):
        return f"`{device}` ({getattr(torch, kind).get_device_name(device)})"
    return f"`{device}`"


def waits(device):
    """What waits for this device; without a device, `synchronize` waits for the current one, which is number 0."""
    kind = device.split(":")[0]
    if kind in ("cuda", "xpu"):
        return lambda: getattr(torch, kind).synchronize(device)
    return torch.mps.synchronize if kind == "mps" else lambda: None


def resnet18():
    """The net of scripts/pytorch_resnet18.py."""
    path = ROOT / "scripts/pytorch_resnet18.py"
    spec = importlib.util.spec_from_file_location("pytorch_resnet18", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ResNet18(3, 10)


def lenet():
    layers = [nn.Conv2d(1, 20, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(20, 50, 5), nn.ReLU(), nn.AvgPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, d = x.shape
        heads = [y.view(b, t, shapes.HEADS, -1).transpose(1, 2) for y in self.qkv(self.ln1(x)).split(d, dim=2)]
        seen = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.proj(seen.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class Transformer(nn.Module):
    def __init__(self, context, layers, width):
        super().__init__()
        self.tok, self.pos = nn.Embedding(shapes.VOCABULARY, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.ln, self.head = nn.LayerNorm(width), nn.Linear(width, shapes.VOCABULARY)

    def forward(self, tokens):
        return self.head(self.ln(self.blocks(self.tok(tokens) + self.pos.weight)))


def net_and_batch(line):
    """The net of a line, its inputs and labels on the host."""
    if line["workload"] == "transformer":
        sequences, tokens, layers, width = shapes.transformer(line)
        x, y = (torch.randint(shapes.VOCABULARY, (sequences, tokens)) for _ in range(2))
        return Transformer(tokens, layers, width), x, y
    batch, image = shapes.batch_and_image(line)
    net = resnet18() if line["workload"] == "resnet18" else lenet()
    return net, torch.rand(batch, *image), torch.arange(batch) % 10


def training(line, device):
    net, x, y = net_and_batch(line)
    net = net.to(device).train()
    sgd = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def step():
        logits = net(x.to(device))
        loss = F.cross_entropy(logits.flatten(0, -2), y.to(device).flatten())
        sgd.zero_grad()
        loss.backward()
        sgd.step()

    return step


def predictions(line, device):
    net, x, _ = net_and_batch(line)
    net, x = net.to(device).eval(), x.to(device)
    return lambda: net(x)


def chain(line, device):
    one, count = torch.ones(4, device=device), shapes.numbers(line["shape"])[0]

    def run():
        x = one
        for _ in range(count):
            x = x + one

    return run


def transfer(line, device):
    host = torch.ones(shapes.numbers(line["shape"])[0] * 2**18)
    there = host.to(device)
    if line["shape"].endswith("to device"):
        return lambda: host.to(device, copy=True)
    return lambda: there.to("cpu", copy=True)


def plain(line, device):
    """An op of tensors of the line's shape."""
    shape = shapes.numbers(line["shape"])
    if line["workload"] == "matmul":
        m, k, n = shape
        a, b = torch.rand(m, k, device=device), torch.rand(k, n, device=device)
        return lambda: a @ b
    if line["workload"] == "conv2d":
        images, weights, padding = shapes.convolution(line)
        x, w = torch.rand(*images, device=device), torch.rand(*weights, device=device)
        return lambda: F.conv2d(x, w, padding=padding)
    x, y, z = (torch.rand(*shape, device=device) - 0.5 for _ in range(3))
    return {
        "copy": lambda: x.clone(),
        "relu": lambda: torch.relu(x),
        "add": lambda: x + y,
        "sum": lambda: x.sum(),
        "sum rows": lambda: x.sum(1),
        "softmax": lambda: x.softmax(1),
        "layer_norm": lambda: F.layer_norm(x, shape[1:]),
        "attention": lambda: F.scaled_dot_product_attention(x, y, z, is_causal=True),
    }.get(line["workload"])


def prepare(line, device):
    """One run of the line's workload and what waits for it, or None."""
    if line["workload"] in ("lenet", "resnet18", "transformer"):
        run = (training if shapes.is_training(line) else predictions)(line, device)
    else:
        run = {"chain": chain, "transfer": transfer}.get(line["workload"], plain)(line, device)
    if run is None:
        return None
    grad = torch.set_grad_enabled
    needed = shapes.is_training(line)

    def with_mode():
        with grad(needed):
            run()

    return with_mode, waits(device)
