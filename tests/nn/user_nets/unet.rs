//! A U-Net (Ronneberger et al., 2015) of four levels; the sides of images are multiples of 16.

use anygpu::prelude::*;

fn double_conv(inputs: usize, outputs: usize) -> anygpu::Result<nn::Sequential> {
    Ok(nn::Sequential::new()
        .push(nn::Conv2d::new(inputs, outputs, 3)?.padding(1).without_bias())
        .push(nn::BatchNorm2d::new(outputs)?)
        .push(nn::ReLU)
        .push(nn::Conv2d::new(outputs, outputs, 3)?.padding(1).without_bias())
        .push(nn::BatchNorm2d::new(outputs)?)
        .push(nn::ReLU))
}

module! {
    pub struct UNet(channels: usize, classes: usize, width: usize) {
        down1: nn::Sequential = double_conv(channels, width)?,
        down2: nn::Sequential = double_conv(width, 2 * width)?,
        down3: nn::Sequential = double_conv(2 * width, 4 * width)?,
        down4: nn::Sequential = double_conv(4 * width, 8 * width)?,
        bottom: nn::Sequential = double_conv(8 * width, 16 * width)?,
        up4: nn::ConvTranspose2d = nn::ConvTranspose2d::new(16 * width, 8 * width, 2)?.stride(2),
        join4: nn::Sequential = double_conv(16 * width, 8 * width)?,
        up3: nn::ConvTranspose2d = nn::ConvTranspose2d::new(8 * width, 4 * width, 2)?.stride(2),
        join3: nn::Sequential = double_conv(8 * width, 4 * width)?,
        up2: nn::ConvTranspose2d = nn::ConvTranspose2d::new(4 * width, 2 * width, 2)?.stride(2),
        join2: nn::Sequential = double_conv(4 * width, 2 * width)?,
        up1: nn::ConvTranspose2d = nn::ConvTranspose2d::new(2 * width, width, 2)?.stride(2),
        join1: nn::Sequential = double_conv(2 * width, width)?,
        pool: nn::MaxPool2d = nn::MaxPool2d::new(2),
        head: nn::Conv2d = nn::Conv2d::new(width, classes, 1)?,
    }

    fn forward(&self, x: &Tensor) -> anygpu::Result<Tensor> {
        let x1 = x.apply(&self.down1)?;
        let x2 = x1.apply(&self.pool)?.apply(&self.down2)?;
        let x3 = x2.apply(&self.pool)?.apply(&self.down3)?;
        let x4 = x3.apply(&self.pool)?.apply(&self.down4)?;
        let x = x4.apply(&self.pool)?.apply(&self.bottom)?;
        let x = Tensor::cat(&[&x4, &x.apply(&self.up4)?], 1)?.apply(&self.join4)?;
        let x = Tensor::cat(&[&x3, &x.apply(&self.up3)?], 1)?.apply(&self.join3)?;
        let x = Tensor::cat(&[&x2, &x.apply(&self.up2)?], 1)?.apply(&self.join2)?;
        let x = Tensor::cat(&[&x1, &x.apply(&self.up1)?], 1)?.apply(&self.join1)?;
        x.apply(&self.head)
    }
}
