//! Conversions from and to images of the `image` crate (feature `image`).

use image::{ColorType, DynamicImage, GrayImage, RgbImage, RgbaImage};

use crate::device::IntoDevice;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

impl Tensor {
    /// Returns an image as `[C, H, W]` f32 in 0 to 1, like torchvision's `ToTensor`.
    ///
    /// C is 1 for grey images, 4 for images with transparency, and 3 otherwise. The tensor is on `device`; `None` is
    /// the CPU.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device does not have enough memory.
    ///
    /// ```
    /// use anygpu::Tensor;
    /// use image::{DynamicImage, Rgb, RgbImage};
    ///
    /// let red = DynamicImage::from(RgbImage::from_pixel(3, 2, Rgb([255, 0, 51])));
    /// let x = Tensor::from_image(&red, None)?;
    /// assert_eq!(x.shape(), [3, 2, 3]);
    /// assert_eq!(x.to_vec::<f32>()?[12], 0.2);
    /// assert_eq!(x.to_image()?, red);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn from_image(image: &DynamicImage, device: impl IntoDevice) -> Result<Tensor> {
        let color = image.color();
        let (bytes, channels) = match color {
            ColorType::L8 | ColorType::L16 => (image.to_luma8().into_raw(), 1),
            _ if color.has_alpha() => (image.to_rgba8().into_raw(), 4),
            _ => (image.to_rgb8().into_raw(), 3),
        };
        let size = [image.height() as usize, image.width() as usize, channels];
        let device = device.into_device()?;
        let pixels = Tensor::from_slice(&bytes, size, &device)?.to_dtype(DType::F32)?;
        // A division, not a multiplication by 1/255, so that 51 becomes the f32 nearest to 0.2.
        pixels.permute([2, 0, 1])?.div(&Tensor::scalar(255f32, &device)?)
    }

    /// Returns a tensor as an image.
    ///
    /// The shape is `[C, H, W]` with C 1, 3 or 4, or `[H, W]`. The elements are floats in 0 to 1, clamped to that
    /// range, or u8. Waits until the device has computed them.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for other shapes; [`Error::DTypeMismatch`] for other types; also the errors of
    /// [`Tensor::to_vec`].
    pub fn to_image(&self) -> Result<DynamicImage> {
        let x = if self.rank() == 2 { self.unsqueeze(0)? } else { self.detach() };
        let (&[c, h, w], true) = (x.shape(), matches!(x.shape().first(), Some(1 | 3 | 4))) else {
            let detail = format!("an image is [1, 3 or 4, H, W] or [H, W], not {:?}", self.shape());
            return Err(Error::argument("to_image", detail));
        };
        let bytes = match x.dtype() {
            DType::U8 => x,
            dtype if dtype.is_float() => x.mul_scalar(255.0)?.add_scalar(0.5)?.to_dtype(DType::U8)?,
            dtype => {
                let (expected, got) = ("a float type or u8".into(), dtype.to_string());
                return Err(Error::DTypeMismatch { op: "to_image", expected, got });
            }
        };
        let bytes = bytes.permute([1, 2, 0])?.to_vec::<u8>()?;
        let size = |side: usize| u32::try_from(side).unwrap_or(u32::MAX);
        let (w, h) = (size(w), size(h));
        let image = match c {
            1 => GrayImage::from_raw(w, h, bytes).map(DynamicImage::from),
            3 => RgbImage::from_raw(w, h, bytes).map(DynamicImage::from),
            _ => RgbaImage::from_raw(w, h, bytes).map(DynamicImage::from),
        };
        image.ok_or_else(|| Error::argument("to_image", format!("{:?} is too large for an image", self.shape())))
    }
}
