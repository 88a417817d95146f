#!/usr/bin/env python3
"""The U-Net of examples/unet.rs in PyTorch, on the same kind of images: for comparing the two programs, line by line.

    python3 -m venv v && v/bin/pip install torch && v/bin/python scripts/pytorch_unet.py
"""

import torch
from torch import nn

SIZE, BATCH, STEPS = 32, 8, 30

# The model begins here.


class Skip(nn.Module):
    """What it is given, and what the layers make of it, side by side."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return torch.cat([x, self.inner(x)], 1)


def double_conv(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


def unet(channels, classes):
    bottom = nn.Sequential(
        nn.MaxPool2d(2),
        double_conv(16, 32),
        nn.ConvTranspose2d(32, 16, 2, stride=2),
    )
    middle = nn.Sequential(
        nn.MaxPool2d(2),
        double_conv(8, 16),
        Skip(bottom),
        double_conv(32, 16),
        nn.ConvTranspose2d(16, 8, 2, stride=2),
    )
    return nn.Sequential(
        double_conv(channels, 8),
        Skip(middle),
        double_conv(16, 8),
        nn.Conv2d(8, classes, 1),
    )


# The model ends here.


def discs():
    place = (torch.rand(2, BATCH, 1, 1) * 0.4 + 0.3) * SIZE
    radius = (torch.rand(BATCH, 1, 1) * 0.15 + 0.15) * SIZE
    line = torch.arange(SIZE)
    inside = (line.reshape(SIZE, 1) - place[0]) ** 2 + (line.reshape(1, SIZE) - place[1]) ** 2 < radius**2
    return (inside + 0.5 * torch.randn(BATCH, SIZE, SIZE)).unsqueeze(1), inside.long()


def main():
    torch.manual_seed(0)
    net = unet(1, 2)
    print(sum(p.numel() for p in net.parameters()), "parameters")
    adam = torch.optim.Adam(net.parameters(), 0.01)
    for step in range(STEPS):
        images, masks = discs()
        adam.zero_grad()
        loss = nn.functional.cross_entropy(net(images), masks)
        loss.backward()
        adam.step()
        if step % 5 == 0 or step + 1 == STEPS:
            print(f"step {step:2}: loss {loss.item():.3f}")
    net.eval()
    images, masks = discs()
    right = (net(images).argmax(1) == masks).float().mean().item()
    print(f"{100 * right:.1f} % of the pixels of new images are right")


if __name__ == "__main__":
    main()
