//! The nets of MTCNN (Zhang et al., 2016), which finds faces: boxes, and with the last net landmarks.

use anygpu::prelude::*;

module! {
    pub struct PNet() {
        features: nn::Sequential = nn::Sequential::new()
            .push(nn::Conv2d::new(3, 10, 3)?)
            .push(nn::PReLU::new(10)?)
            .push(nn::MaxPool2d::new(2).ceil_mode(true))
            .push(nn::Conv2d::new(10, 16, 3)?)
            .push(nn::PReLU::new(16)?)
            .push(nn::Conv2d::new(16, 32, 3)?)
            .push(nn::PReLU::new(32)?),
        face: nn::Conv2d = nn::Conv2d::new(32, 2, 1)?,
        boxes: nn::Conv2d = nn::Conv2d::new(32, 4, 1)?,
    }

    fn forward(&self, x: &Tensor) -> anygpu::Result<(Tensor, Tensor)> {
        let x = x.apply(&self.features)?;
        Ok((x.apply(&self.face)?.softmax(1)?, x.apply(&self.boxes)?))
    }
}

module! {
    pub struct RNet() {
        features: nn::Sequential = nn::Sequential::new()
            .push(nn::Conv2d::new(3, 28, 3)?)
            .push(nn::PReLU::new(28)?)
            .push(nn::MaxPool2d::new(3).stride(2).ceil_mode(true))
            .push(nn::Conv2d::new(28, 48, 3)?)
            .push(nn::PReLU::new(48)?)
            .push(nn::MaxPool2d::new(3).stride(2).ceil_mode(true))
            .push(nn::Conv2d::new(48, 64, 2)?)
            .push(nn::PReLU::new(64)?)
            .push(nn::Flatten)
            .push(nn::Linear::new(576, 128)?)
            .push(nn::PReLU::new(128)?),
        face: nn::Linear = nn::Linear::new(128, 2)?,
        boxes: nn::Linear = nn::Linear::new(128, 4)?,
    }

    fn forward(&self, x: &Tensor) -> anygpu::Result<(Tensor, Tensor)> {
        let x = x.apply(&self.features)?;
        Ok((x.apply(&self.face)?.softmax(1)?, x.apply(&self.boxes)?))
    }
}

module! {
    pub struct ONet() {
        features: nn::Sequential = nn::Sequential::new()
            .push(nn::Conv2d::new(3, 32, 3)?)
            .push(nn::PReLU::new(32)?)
            .push(nn::MaxPool2d::new(3).stride(2).ceil_mode(true))
            .push(nn::Conv2d::new(32, 64, 3)?)
            .push(nn::PReLU::new(64)?)
            .push(nn::MaxPool2d::new(3).stride(2).ceil_mode(true))
            .push(nn::Conv2d::new(64, 64, 3)?)
            .push(nn::PReLU::new(64)?)
            .push(nn::MaxPool2d::new(2).ceil_mode(true))
            .push(nn::Conv2d::new(64, 128, 2)?)
            .push(nn::PReLU::new(128)?)
            .push(nn::Flatten)
            .push(nn::Linear::new(1152, 256)?)
            .push(nn::PReLU::new(256)?),
        face: nn::Linear = nn::Linear::new(256, 2)?,
        boxes: nn::Linear = nn::Linear::new(256, 4)?,
        landmarks: nn::Linear = nn::Linear::new(256, 10)?,
    }

    fn forward(&self, x: &Tensor) -> anygpu::Result<(Tensor, Tensor, Tensor)> {
        let x = x.apply(&self.features)?;
        Ok((x.apply(&self.face)?.softmax(1)?, x.apply(&self.boxes)?, x.apply(&self.landmarks)?))
    }
}
