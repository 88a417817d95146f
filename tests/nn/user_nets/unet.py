"""A U-Net (Ronneberger et al., 2015) of four levels; the sides of images are multiples of 16."""

import torch
from torch import nn


def double_conv(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


class UNet(nn.Module):
    def __init__(self, channels, classes, width=64):
        super().__init__()
        self.down1 = double_conv(channels, width)
        self.down2 = double_conv(width, 2 * width)
        self.down3 = double_conv(2 * width, 4 * width)
        self.down4 = double_conv(4 * width, 8 * width)
        self.bottom = double_conv(8 * width, 16 * width)
        self.up4 = nn.ConvTranspose2d(16 * width, 8 * width, 2, stride=2)
        self.join4 = double_conv(16 * width, 8 * width)
        self.up3 = nn.ConvTranspose2d(8 * width, 4 * width, 2, stride=2)
        self.join3 = double_conv(8 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.join2 = double_conv(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.join1 = double_conv(2 * width, width)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        x1 = self.down1(x)
        x2 = self.down2(self.pool(x1))
        x3 = self.down3(self.pool(x2))
        x4 = self.down4(self.pool(x3))
        x = self.bottom(self.pool(x4))
        x = self.join4(torch.cat([x4, self.up4(x)], dim=1))
        x = self.join3(torch.cat([x3, self.up3(x)], dim=1))
        x = self.join2(torch.cat([x2, self.up2(x)], dim=1))
        x = self.join1(torch.cat([x1, self.up1(x)], dim=1))
        return self.head(x)
