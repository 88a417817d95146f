//! Elementwise formulas as a part of a product or a convolution: its results go through them before they are written.
//!
//! The formulas become the function `put` of `shaders/common/put.wgsl`, with which the kernel writes each element
//! of its result once. The product's own params and inputs keep their places. The first result that is kept takes
//! the place of the product's result. Then come the inputs of the formulas, and their other results.

use super::chain::Pointwise;
use super::fused::Fused;
use super::pipeline::Generated;
use super::{Gpu, Kernel, ParamsAt, ShaderText, Signature};

/// Words before the params of the formulas: a zero, and padding.
const ZERO: [u32; 4] = [0; 4];

impl Fused<'_> {
    /// Returns the params and the workgroups of the product with these formulas.
    pub fn call_of_product(&self, product: &Kernel) -> (Vec<u32>, [u32; 3]) {
        let mut words = product.params.words.clone();
        words.resize(words.len().next_multiple_of(4), 0);
        words.extend(ZERO);
        self.extend_params(&mut words, 1);
        (words, product.groups)
    }

    /// Returns the function `put`, after its bindings. The first `bindings` of them belong to the product.
    fn put(&self, bindings: usize) -> String {
        let kept = self.kept();
        let mut text = String::new();
        for input in 0..self.bound.len() {
            let binding = bindings + input + 1;
            text += &format!("@group(0) @binding({binding}) var<storage, read> x{input}: array<f32>;\n");
        }
        for (at, i) in kept.iter().skip(1).enumerate() {
            let binding = bindings + self.bound.len() + at + 1;
            text += &format!("@group(0) @binding({binding}) var<storage, read_write> y{i}: array<f32>;\n");
        }
        text += &self.function_text(&kept);
        let elements = self.reads.iter().enumerate().map(|(at, read)| self.element(at, read));
        let arguments: Vec<String> = std::iter::once("value".to_string()).chain(elements).collect();
        text += "fn put(i: u32, value: f32) {\n";
        text += &format!("    let all = results({});\n", arguments.join(", "));
        for (at, i) in kept.iter().enumerate() {
            let to = if at == 0 { "out".to_string() } else { format!("y{i}") };
            text += &format!("    {to}[i] = all.s{i};\n");
        }
        text + "}\n"
    }

    /// Returns the members after the product's params. They have the words of [`ZERO`] and of the formulas.
    fn members_of_epilogue(&self) -> String {
        format!("    zero: u32,\n    zero1: u32,\n    zero2: u32,\n    zero3: u32,\n{}", self.members())
    }
}

/// Returns the text of a shader that writes its result by [`PUT`](super::PUT), through formulas: samples, for tests of the
/// texts that are made at run time.
pub(crate) fn epilogue_text(shader: &ShaderText, header: &str, calls: &[Pointwise]) -> String {
    let bindings =
        (1..).take_while(|n| shader.files.iter().any(|file| file.contains(&format!("@binding({n})")))).count();
    let mut fused = Fused::of(0, calls.len() + 1);
    fused.begin(None, false);
    fused.extend(calls);
    shader.with_epilogue(header, &fused.put(bindings), &fused.members_of_epilogue(), false)
}

impl Gpu {
    /// Returns the kernel of a product with formulas.
    pub(super) fn product_with_formulas(&self, product: &Kernel, inputs: usize, fused: &Fused) -> Generated {
        let words = fused.words(product.params.words.len().next_multiple_of(4) + ZERO.len());
        let params = ParamsAt::of(words, self.caps.max_immediates);
        let (own, bound) = (inputs + 1, fused.bound.len());
        let buffers = 0..own + bound + fused.kept().len().saturating_sub(1);
        let buffers = buffers.map(|i| (i as u32 + 1, i == inputs || i >= own + bound)).collect();
        let immediates = matches!(params, ParamsAt::Immediates(_));
        let text =
            product.shader.with_epilogue(product.header, &fused.put(own), &fused.members_of_epilogue(), immediates);
        let name = format!("{}.{} fused", product.shader.name, product.entry);
        let signature = Signature { params, buffers, exact: false };
        Generated { name, text, entry: product.entry, constants: product.constants.clone(), signature }
    }
}
