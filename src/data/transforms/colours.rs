use super::Transform;
use crate::data::{Array, Random};
use crate::device::cpu::with_room;
use crate::error::{Error, Result};

/// Changes brightness, contrast, saturation and hue by random factors, in random order, like torchvision's
/// `ColorJitter`.
///
/// Takes images `[3, H, W]` or `[1, H, W]` of u8, or of f32 from 0 to 1. With one channel, saturation and hue are not
/// changed. By default, nothing is changed.
///
/// ```
/// use anygpu::data::transforms::{ColorJitter, Transform};
/// use anygpu::data::{Array, Random};
///
/// let jitter = ColorJitter::new().brightness(0.4).contrast(0.4).saturation(0.4).hue(0.1);
/// let image = Array::new(vec![0.5f32; 3 * 4], [3, 2, 2])?;
/// let changed = jitter.apply(image.clone(), &mut Random::of_sample(0, 0, 1))?;
/// assert_eq!(changed.shape(), [3, 2, 2]);
/// assert_ne!(changed.as_slice::<f32>()?, image.as_slice::<f32>()?);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ColorJitter {
    brightness: f32,
    contrast: f32,
    saturation: f32,
    hue: f32,
}

impl ColorJitter {
    /// Creates a transform that changes nothing.
    #[must_use]
    pub fn new() -> ColorJitter {
        ColorJitter::default()
    }

    /// Sets the range of the brightness factor: from `1 − amount` (at least 0) to `1 + amount`.
    #[must_use]
    pub fn brightness(mut self, amount: f32) -> ColorJitter {
        self.brightness = amount;
        self
    }

    /// Sets the range of the contrast factor: from `1 − amount` (at least 0) to `1 + amount`.
    #[must_use]
    pub fn contrast(mut self, amount: f32) -> ColorJitter {
        self.contrast = amount;
        self
    }

    /// Sets the range of the saturation factor: from `1 − amount` (at least 0) to `1 + amount`.
    #[must_use]
    pub fn saturation(mut self, amount: f32) -> ColorJitter {
        self.saturation = amount;
        self
    }

    /// Sets the range of the hue shift: from `−amount` to `amount` of the colour circle. `amount` is at most 0.5.
    #[must_use]
    pub fn hue(mut self, amount: f32) -> ColorJitter {
        self.hue = amount;
        self
    }

    fn check(&self) -> Result<()> {
        let amounts = [
            ("brightness", self.brightness, f32::MAX),
            ("contrast", self.contrast, f32::MAX),
            ("saturation", self.saturation, f32::MAX),
            ("hue", self.hue, 0.5),
        ];
        match amounts.into_iter().find(|(_, amount, most)| !(0.0..=*most).contains(amount)) {
            Some((what, amount, most)) => {
                let most = if most < 1.0 { format!(" and at most {most}") } else { String::new() };
                Err(Error::argument("ColorJitter", format!("{what} is {amount}, and must be finite, at least 0{most}")))
            }
            None => Ok(()),
        }
    }
}

/// One of the changes, with its factor.
#[derive(Clone, Copy)]
enum Change {
    Brightness(f32),
    Contrast(f32),
    Saturation(f32),
    Hue(f32),
}

impl Transform for ColorJitter {
    fn apply(&self, image: Array, random: &mut Random) -> Result<Array> {
        self.check()?;
        let mut order = [0usize, 1, 2, 3];
        random.shuffle(&mut order);
        let mut between = |low: f32, high: f32| low + (high - low) * random.uniform();
        let mut factor = |amount: f32| between((1.0 - amount).max(0.0), 1.0 + amount);
        let (brightness, contrast, saturation) =
            (factor(self.brightness), factor(self.contrast), factor(self.saturation));
        let hue = between(-self.hue, self.hue);
        let all = [
            (self.brightness, Change::Brightness(brightness)),
            (self.contrast, Change::Contrast(contrast)),
            (self.saturation, Change::Saturation(saturation)),
            (self.hue, Change::Hue(hue)),
        ];
        let wanted: Vec<Change> = order.iter().filter(|&&i| all[i].0 > 0.0).map(|&i| all[i].1).collect();
        changed(image, &wanted)
    }
}

/// Makes the changes one after the other.
fn changed(mut image: Array, changes: &[Change]) -> Result<Array> {
    let [channels, height, width] = image.image_size("ColorJitter")?;
    if channels != 1 && channels != 3 {
        let detail = format!("the image is [1 or 3, H, W], not {:?}", image.shape());
        return Err(Error::argument("ColorJitter", detail));
    }
    let bytes = image.as_slice::<u8>().is_ok();
    let mut pixels = Pixels { values: values(&image)?, plane: height * width, channels, bytes };
    changes.iter().for_each(|change| pixels.change(*change));
    if bytes {
        let out = image.as_mut_slice::<u8>()?;
        out.iter_mut().zip(&pixels.values).for_each(|(out, value)| *out = *value as u8);
    } else {
        image.as_mut_slice::<f32>()?.copy_from_slice(&pixels.values);
    }
    Ok(image)
}

fn values(image: &Array) -> Result<Vec<f32>> {
    let mut values = with_room(image.elem_count())?;
    if let Ok(bytes) = image.as_slice::<u8>() {
        values.extend(bytes.iter().map(|&byte| f32::from(byte)));
    } else {
        let floats = image.as_slice::<f32>().map_err(|_| {
            let got = image.dtype().to_string();
            Error::DTypeMismatch { op: "ColorJitter", expected: "u8 or f32".into(), got }
        })?;
        values.extend(floats);
    }
    Ok(values)
}

/// An image as floats. If it has bytes, the floats are from 0 to 255, and each change makes them integers again, as
/// torchvision does.
struct Pixels {
    values: Vec<f32>,
    plane: usize,
    channels: usize,
    bytes: bool,
}

impl Pixels {
    /// Rounds down to a byte.
    fn stored(&self, value: f32) -> f32 {
        if self.bytes { value.trunc() } else { value }
    }

    fn most(&self) -> f32 {
        if self.bytes { 255.0 } else { 1.0 }
    }

    fn blended(&self, value: f32, other: f32, factor: f32) -> f32 {
        self.stored((factor * value + (1.0 - factor) * other).clamp(0.0, self.most()))
    }

    fn grey(&self, i: usize) -> f32 {
        match self.channels {
            1 => self.values[i],
            _ => {
                let [r, g, b] = [0, 1, 2].map(|channel| self.values[channel * self.plane + i]);
                self.stored(0.2989 * r + 0.587 * g + 0.114 * b)
            }
        }
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Brightness(factor) => self.blend(factor, |_, _| 0.0),
            Change::Contrast(factor) => {
                let sum: f64 = (0..self.plane).map(|i| f64::from(self.grey(i))).sum();
                let mean = (sum / self.plane.max(1) as f64) as f32;
                self.blend(factor, |_, _| mean);
            }
            Change::Saturation(factor) if self.channels == 3 => self.blend(factor, Pixels::grey),
            Change::Hue(turn) if self.channels == 3 => self.turn(turn),
            Change::Saturation(_) | Change::Hue(_) => {}
        }
    }

    fn blend(&mut self, factor: f32, other: impl Fn(&Pixels, usize) -> f32) {
        for i in 0..self.plane {
            let other = other(self, i);
            for channel in 0..self.channels {
                let at = channel * self.plane + i;
                self.values[at] = self.blended(self.values[at], other, factor);
            }
        }
    }

    fn turn(&mut self, turn: f32) {
        let most = self.most();
        for i in 0..self.plane {
            let [h, s, v] = hsv([0, 1, 2].map(|channel| self.values[channel * self.plane + i] / most));
            for (channel, value) in rgb([(h + turn).rem_euclid(1.0), s, v]).into_iter().enumerate() {
                // torchvision converts floats to bytes this way.
                self.values[channel * self.plane + i] =
                    if self.bytes { (value * (256.0 - 1e-3)).trunc() } else { value };
            }
        }
    }
}

/// Hue, saturation and value, from 0 to 1.
fn hsv([r, g, b]: [f32; 3]) -> [f32; 3] {
    let (most, least) = (r.max(g).max(b), r.min(g).min(b));
    if most == least {
        return [0.0, 0.0, most];
    }
    let range = most - least;
    let [rc, gc, bc] = [r, g, b].map(|colour| (most - colour) / range);
    let h = if most == r {
        bc - gc
    } else if most == g {
        2.0 + rc - bc
    } else {
        4.0 + gc - rc
    };
    [(h / 6.0 + 1.0) % 1.0, range / most, most]
}

fn rgb([h, s, v]: [f32; 3]) -> [f32; 3] {
    let sector = (h * 6.0).floor();
    let f = h * 6.0 - sector;
    let [p, q, t] = [1.0 - s, 1.0 - s * f, 1.0 - s * (1.0 - f)].map(|share| (v * share).clamp(0.0, 1.0));
    match sector as u32 % 6 {
        0 => [v, t, p],
        1 => [q, v, p],
        2 => [p, v, t],
        3 => [p, q, v],
        4 => [t, p, v],
        _ => [v, p, q],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// a = torch.tensor([[[10, 200], [30, 255]], [[60, 100], [30, 0]], [[250, 50], [30, 128]]], dtype=torch.uint8)
    /// F.adjust_brightness(a, 1.5), adjust_contrast(a, 0.5), adjust_saturation(a, 2.0), adjust_hue(a, 0.25), adjust_hue(a, -0.4);
    /// and of a / 255.
    #[test]
    fn changes_are_torchvisions() -> Result<()> {
        let bytes = [10u8, 200, 30, 255, 60, 100, 30, 0, 250, 50, 30, 128];
        let floats: Vec<f32> = bytes.iter().map(|&byte| f32::from(byte) / 255.0).collect();
        let all: [(Change, [u8; 12], [f32; 12]); 5] = [
            (
                Change::Brightness(1.5),
                [15, 255, 45, 255, 90, 150, 45, 0, 255, 75, 45, 192],
                [0.05882, 1.0, 0.17647, 1.0, 0.35294, 0.58824, 0.17647, 0.0, 1.0, 0.29412, 0.17647, 0.75294],
            ),
            (
                Change::Contrast(0.5),
                [43, 138, 53, 166, 68, 88, 53, 38, 163, 63, 53, 102],
                [
                    0.1724, 0.54495, 0.21162, 0.65279, 0.27044, 0.34887, 0.21162, 0.15279, 0.64299, 0.25083, 0.21162,
                    0.40377,
                ],
            ),
            (
                Change::Saturation(2.0),
                [0, 255, 31, 255, 54, 76, 31, 0, 255, 0, 31, 166],
                [0.0, 1.0, 0.11766, 1.0, 0.20898, 0.29733, 0.11766, 0.0, 1.0, 0.0, 0.11766, 0.6478],
            ),
            (
                Change::Hue(0.25),
                [250, 75, 30, 255, 10, 200, 30, 255, 180, 50, 30, 0],
                [0.98039, 0.29412, 0.11765, 1.0, 0.03922, 0.78431, 0.11765, 0.99804, 0.70588, 0.19608, 0.11765, 0.0],
            ),
            (
                Change::Hue(-0.4),
                [156, 50, 30, 0, 250, 60, 30, 230, 10, 200, 30, 255],
                [0.61176, 0.19608, 0.11765, 0.0, 0.98039, 0.23529, 0.11765, 0.90196, 0.03922, 0.78431, 0.11765, 1.0],
            ),
        ];
        for (i, (change, of_bytes, of_floats)) in all.into_iter().enumerate() {
            let image = changed(Array::new(bytes.to_vec(), [3, 2, 2])?, &[change])?;
            assert_eq!(image.as_slice::<u8>()?, of_bytes, "{i}");
            let image = changed(Array::new(floats.clone(), [3, 2, 2])?, &[change])?;
            let apart = image.as_slice::<f32>()?.iter().zip(of_floats).map(|(a, b)| (a - b).abs());
            assert!(apart.fold(0.0, f32::max) < 2e-5, "{i}: {:?}", image.as_slice::<f32>()?);
        }
        Ok(())
    }

    #[test]
    fn grey_images_keep_their_colour_and_settings_are_checked() -> Result<()> {
        let random = || Random::of_sample(1, 2, 3);
        let grey = Array::new(vec![10u8, 20, 30, 40], [1, 2, 2])?;
        let coloured = ColorJitter::new().saturation(0.9).hue(0.5).apply(grey.clone(), &mut random())?;
        assert_eq!(coloured.as_slice::<u8>()?, grey.as_slice::<u8>()?);
        let brighter = ColorJitter::new().brightness(0.9).apply(grey.clone(), &mut random())?;
        assert_ne!(brighter.as_slice::<u8>()?, grey.as_slice::<u8>()?);
        let again = ColorJitter::new().brightness(0.9).apply(grey.clone(), &mut random())?;
        assert_eq!(again.as_slice::<u8>()?, brighter.as_slice::<u8>()?);
        for (jitter, what) in
            [(ColorJitter::new().hue(0.6), "at most 0.5"), (ColorJitter::new().contrast(-0.1), "contrast")]
        {
            let error = jitter.apply(grey.clone(), &mut random()).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
        let four = Array::new(vec![0u8; 16], [4, 2, 2])?;
        assert!(
            ColorJitter::new().hue(0.1).apply(four, &mut random()).unwrap_err().to_string().contains("[1 or 3, H, W]")
        );
        Ok(())
    }
}
