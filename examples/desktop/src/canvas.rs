//! The square on which a digit is drawn with the mouse, in the pixels that the net sees.

use eframe::egui::{self, Color32, Pos2, Rect, Sense, Vec2};

/// The pixels of a side, as in MNIST.
pub const SIDE: usize = 28;

/// Half the width of a stroke, in pixels. MNIST's strokes are two to three pixels wide.
const RADIUS: f32 = 1.4;

/// A picture of grey pixels from 0 (paper) to 1 (ink).
pub struct Canvas {
    pixels: Vec<f32>,
    /// Where the pointer was in the last frame, in pixels, while its button is down.
    last: Option<Pos2>,
}

impl Canvas {
    /// Returns an empty canvas.
    pub fn new() -> Canvas {
        Canvas { pixels: vec![0.0; SIDE * SIDE], last: None }
    }

    /// Replaces the drawing by an image of bytes.
    pub fn set(&mut self, bytes: &[u8]) {
        self.pixels = bytes.iter().map(|&byte| f32::from(byte) / 255.0).collect();
        self.pixels.resize(SIDE * SIDE, 0.0);
    }

    /// Removes the drawing.
    pub fn clear(&mut self) {
        self.set(&[]);
    }

    /// Returns whether nothing is drawn.
    pub fn is_empty(&self) -> bool {
        self.pixels.iter().all(|&ink| ink == 0.0)
    }

    /// Returns the pixels, moved so that their centre of mass is in the middle, as in MNIST.
    pub fn centred(&self) -> Vec<f32> {
        let mass: f32 = self.pixels.iter().sum();
        let moment = |place: fn(usize) -> usize| {
            self.pixels.iter().enumerate().map(|(i, ink)| ink * place(i) as f32).sum::<f32>() / mass.max(f32::EPSILON)
        };
        let shift = |centre: f32| (SIDE as f32 / 2.0 - centre).round() as isize;
        let (right, down) = (shift(moment(|i| i % SIDE)), shift(moment(|i| i / SIDE)));
        let mut moved = vec![0.0; SIDE * SIDE];
        for (i, &ink) in self.pixels.iter().enumerate().filter(|(_, ink)| **ink > 0.0) {
            let (x, y) = ((i % SIDE).checked_add_signed(right), (i / SIDE).checked_add_signed(down));
            if let (Some(x @ 0..SIDE), Some(y @ 0..SIDE)) = (x, y) {
                moved[y * SIDE + x] = ink;
            }
        }
        moved
    }

    /// Shows the canvas in a square of this size and takes the strokes of the mouse. Returns whether it was drawn on.
    pub fn show(&mut self, ui: &mut egui::Ui, size: f32) -> bool {
        let (response, painter) = ui.allocate_painter(Vec2::splat(size), Sense::drag());
        let rect = response.rect;
        let drawn = match response.interact_pointer_pos() {
            Some(pointer) => {
                self.stroke(((pointer - rect.min) * (SIDE as f32 / size)).to_pos2());
                true
            }
            None => {
                self.last = None;
                false
            }
        };
        painter.add(self.ink(rect));
        painter.rect_stroke(rect, 2, ui.visuals().window_stroke, egui::StrokeKind::Inside);
        if self.is_empty() {
            let font = egui::TextStyle::Body.resolve(ui.style());
            let colour = ui.visuals().weak_text_color();
            painter.text(rect.center(), egui::Align2::CENTER_CENTER, "draw here with the mouse", font, colour);
        }
        drawn
    }

    /// Draws a line from the pointer's last place to this one.
    fn stroke(&mut self, to: Pos2) {
        let from = self.last.replace(to).unwrap_or(to);
        let steps = ((to - from).length() * 4.0).ceil().max(1.0) as usize;
        for step in 1..=steps {
            self.dot(from + (to - from) * (step as f32 / steps as f32));
        }
    }

    /// Draws a round dot with a soft edge.
    fn dot(&mut self, centre: Pos2) {
        for (i, ink) in self.pixels.iter_mut().enumerate() {
            let pixel = egui::pos2((i % SIDE) as f32 + 0.5, (i / SIDE) as f32 + 0.5);
            *ink = ink.max((RADIUS + 0.5 - pixel.distance(centre)).clamp(0.0, 1.0));
        }
    }

    /// Returns a square for each pixel with ink. A texture of all pixels would cost software adapters more: they are
    /// slow where much is painted.
    fn ink(&self, canvas: Rect) -> egui::Mesh {
        let mut mesh = egui::Mesh::default();
        let side = canvas.width() / SIDE as f32;
        for (i, &ink) in self.pixels.iter().enumerate().filter(|(_, ink)| **ink > 0.0) {
            let corner = canvas.min + side * Vec2::new((i % SIDE) as f32, (i / SIDE) as f32);
            mesh.add_colored_rect(Rect::from_min_size(corner, Vec2::splat(side)), Color32::WHITE.gamma_multiply(ink));
        }
        mesh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawing_is_moved_to_the_middle() {
        let mut canvas = Canvas::new();
        canvas.stroke(egui::pos2(4.5, 3.5));
        canvas.stroke(egui::pos2(4.5, 8.5));
        let moved = canvas.centred();
        let rows: Vec<usize> = (0..SIDE).filter(|y| moved[y * SIDE..][..SIDE].iter().any(|&ink| ink > 0.5)).collect();
        let (first, last) = (rows[0], rows[rows.len() - 1]);
        assert!((first + last).abs_diff(SIDE) <= 1, "rows {first} to {last}");
        assert!(Canvas::new().centred().iter().all(|&ink| ink == 0.0));
    }
}
