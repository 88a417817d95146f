//! A picture that a kernel of this program filters on the window's own device. The result goes to a texture that egui
//! draws: no pixel passes through the host.

use std::f32::consts::TAU;

use anygpu::{DType, Device, Result, Tensor, WgslKernel, data, wgpu};
use eframe::{egui, egui_wgpu};

/// The digits in a row and in a column of the picture.
const DIGITS: usize = 6;

/// The pixels of a digit's cell. The rows of the picture are a multiple of 256 bytes, as a buffer that is copied to
/// a texture requires. For other widths, anygpu copies them once more.
const CELL: usize = 32;

/// The pixels of the picture's sides.
const SIDE: usize = DIGITS * CELL;

/// The kernel's source at first.
pub const SOURCE: &str = include_str!("swirl.wgsl");

/// The kernel's entry point.
const ENTRY: &str = "swirl";

/// The settings of the user.
#[derive(Clone, Copy, PartialEq)]
pub struct Settings {
    /// How far the middle is turned, in full turns.
    pub turns: f32,
    /// The share of the edges in the result, from 0 (the picture) to 1 (the edges alone).
    pub edges: f32,
}

/// The picture, the kernel and the texture.
pub struct Filter {
    device: Device,
    kernel: WgslKernel,
    /// The pixels, `[height, width]`, each with its four bytes in one word: fewer to read for the kernel than as
    /// floats.
    picture: Tensor,
    texture: wgpu::Texture,
    id: egui::TextureId,
    /// The settings of what is in the texture.
    shown: Option<Settings>,
}

impl Filter {
    /// Puts a picture of the digits on the window's device, and makes the texture for the result.
    ///
    /// # Errors
    ///
    /// The errors of anygpu: of the kernel's source, and of the device.
    pub fn new(window: &egui_wgpu::RenderState, device: &Device, digits: &data::ImageSet) -> Result<Filter> {
        let kernel = WgslKernel::new(SOURCE, ENTRY)?;
        let picture = Tensor::from_slice(&mosaic(digits), [SIDE, SIDE], device)?;
        let texture = window.device.create_texture(&wgpu::TextureDescriptor {
            label: Some("filtered picture"),
            size: wgpu::Extent3d { width: SIDE as u32, height: SIDE as u32, depth_or_array_layers: 1 },
            mip_level_count: 1,
            sample_count: 1,
            dimension: wgpu::TextureDimension::D2,
            // egui takes the values of textures as they are, so this is not the format whose name ends in `Srgb`.
            format: wgpu::TextureFormat::Rgba8Unorm,
            usage: wgpu::TextureUsages::COPY_DST | wgpu::TextureUsages::TEXTURE_BINDING,
            view_formats: &[],
        });
        let view = texture.create_view(&wgpu::TextureViewDescriptor::default());
        let linear = wgpu::FilterMode::Linear;
        let id = window.renderer.write().register_native_texture(&window.device, &view, linear);
        Ok(Filter { device: device.clone(), kernel, picture, texture, id, shown: None })
    }

    /// Replaces the kernel by a kernel with another source.
    ///
    /// # Errors
    ///
    /// [`anygpu::Error::Kernel`] with the line of the source and the error there. The old kernel stays in use.
    pub fn set_source(&mut self, source: &str) -> Result<()> {
        (self.kernel, self.shown) = (WgslKernel::new(source, ENTRY)?, None);
        Ok(())
    }

    /// Filters the picture if the texture has not the result of these settings already, and returns the texture.
    ///
    /// # Errors
    ///
    /// The errors of anygpu, for example of a lost device.
    pub fn run(&mut self, settings: Settings) -> Result<egui::TextureId> {
        if self.shown != Some(settings) {
            let launch = self.kernel.on(&self.device).input("picture", &self.picture);
            let launch = launch.set("width", SIDE as u32).set("height", SIDE as u32);
            let launch = launch.set("angle", settings.turns * TAU).set("edges", settings.edges);
            let launch = launch.output("filtered", ([SIDE, SIDE, 4], DType::F32));
            let filtered = launch.dispatch([SIDE, SIDE, 1])?.remove(0);
            // The texture is written before egui draws: a queue runs what is submitted in order.
            filtered.to_dtype(DType::U8)?.copy_to_texture(&self.texture)?;
            self.shown = Some(settings);
        }
        Ok(self.id)
    }
}

/// Returns a picture of digits, each in the colour of its class on a dark ground.
fn mosaic(digits: &data::ImageSet) -> Vec<u32> {
    let (h, w) = (digits.h, digits.w);
    let margin = [(CELL - h) / 2, (CELL - w) / 2];
    let pixel = |i: usize| {
        let (y, x) = (i / SIDE, i % SIDE);
        let digit = (y / CELL * DIGITS + x / CELL) % digits.n;
        let place = [(y % CELL).checked_sub(margin[0]), (x % CELL).checked_sub(margin[1])];
        let ink = match place {
            [Some(y), Some(x)] if y < h && x < w => f32::from(digits.images[(digit * h + y) * w + x]) / 255.0,
            _ => 0.0,
        };
        let colour = egui::ecolor::Hsva::new(f32::from(digits.labels[digit]) / 10.0, 0.55, 1.0, 1.0).to_rgb();
        let ground = [0.10, 0.12, 0.20];
        let [red, green, blue] = [0, 1, 2].map(|c| ground[c] + (colour[c] - ground[c]) * ink);
        u32::from_le_bytes([red, green, blue, 1.0].map(|channel| (channel * 255.0) as u8))
    };
    (0..SIDE * SIDE).map(pixel).collect()
}
