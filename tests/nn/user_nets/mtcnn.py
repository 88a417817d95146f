"""The nets of MTCNN (Zhang et al., 2016), which finds faces: boxes, and with the last net landmarks."""

from torch import nn


class PNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 10, 3),
            nn.PReLU(10),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.Conv2d(10, 16, 3),
            nn.PReLU(16),
            nn.Conv2d(16, 32, 3),
            nn.PReLU(32),
        )
        self.face = nn.Conv2d(32, 2, 1)
        self.boxes = nn.Conv2d(32, 4, 1)

    def forward(self, x):
        x = self.features(x)
        return self.face(x).softmax(1), self.boxes(x)


class RNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 28, 3),
            nn.PReLU(28),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
            nn.Conv2d(28, 48, 3),
            nn.PReLU(48),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
            nn.Conv2d(48, 64, 2),
            nn.PReLU(64),
            nn.Flatten(),
            nn.Linear(576, 128),
            nn.PReLU(128),
        )
        self.face = nn.Linear(128, 2)
        self.boxes = nn.Linear(128, 4)

    def forward(self, x):
        x = self.features(x)
        return self.face(x).softmax(1), self.boxes(x)


class ONet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 3),
            nn.PReLU(32),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
            nn.Conv2d(32, 64, 3),
            nn.PReLU(64),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
            nn.Conv2d(64, 64, 3),
            nn.PReLU(64),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.Conv2d(64, 128, 2),
            nn.PReLU(128),
            nn.Flatten(),
            nn.Linear(1152, 256),
            nn.PReLU(256),
        )
        self.face = nn.Linear(256, 2)
        self.boxes = nn.Linear(256, 4)
        self.landmarks = nn.Linear(256, 10)

    def forward(self, x):
        x = self.features(x)
        return self.face(x).softmax(1), self.boxes(x), self.landmarks(x)
