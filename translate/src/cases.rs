//! The kernels whose numbers are compared: kernels with the longest loops, and kernels with functions of their own,
//! which compilers may simplify.

/// A dispatch of some kernels. Each buffer has [`WORDS`] words.
#[derive(Debug)]
pub struct Case {
    /// The start of the kernels' names, as `specialisations::name` makes them, and their end.
    pub kernels: (&'static str, &'static str),
    /// Members of the params that are not 0.
    pub params: &'static [(&'static str, u32)],
    /// Workgroups.
    pub groups: [u32; 3],
    /// Words that are written, at least.
    pub written: usize,
}

impl Case {
    pub fn has(&self, kernel: &str) -> bool {
        kernel.starts_with(self.kernels.0) && kernel.ends_with(self.kernels.1)
    }
}

/// Returns the case of a kernel. Kernels with an epilogue have more inputs and outputs.
pub fn of(kernel: &str) -> Option<&'static Case> {
    CASES.iter().find(|case| case.has(kernel) && !kernel.contains("with an epilogue"))
}

/// The words of each buffer.
pub const WORDS: usize = 1 << 18;

/// The product of a batch of two, each in two parts of k.
const PRODUCT: &[(&str, u32)] = &[
    ("m", 130),
    ("n", 131),
    ("k", 37),
    ("m_tiles", 3),
    ("n_tiles", 3),
    ("a_batch", 17 * 37 * 2),
    ("b_batch", 3 * 37 * 16),
    ("k_split", 19),
    ("splits", 2),
    ("offset", 3),
    ("batch", 130 * 133),
    ("row", 133),
    ("inner", 131),
    ("bias_offset", 1),
    ("z_count", 4),
];

const DIRECT: &[(&str, u32)] = &[
    ("count", 2 * 6 * 4 * 5),
    ("a_offset", 1),
    ("b_offset", 2),
    ("bias_offset", 3),
    ("images", 4),
    ("run", 2),
    ("channels", 4),
    ("out_channels", 6),
    ("depth", 2),
    ("wide", 3),
    ("height", 9),
    ("width", 11),
    ("out_y", 4),
    ("out_x", 5),
];

const COLUMNS: &[(&str, u32)] = &[
    ("count", 100),
    ("columns", 70),
    ("first", 2),
    ("offset", 5),
    ("channels", 3),
    ("depth", 2),
    ("run", 2),
    ("height", 9),
    ("width", 11),
    ("out_y", 4),
    ("out_x", 5),
];

const PARTS: &[(&str, u32)] = &[
    ("offset", 4),
    ("outer", 30),
    ("reduced", 41),
    ("inner", 1),
    ("chunks", 3),
    ("apart", 1),
    ("step", 3),
    ("span", 41),
];

const ROWS: &[(&str, u32)] = &[("offset", 4), ("outer", 70), ("reduced", 23), ("inner", 1)];
const PLANES: &[(&str, u32)] = &[("offset", 4), ("outer", 7), ("reduced", 23), ("inner", 9)];

// a and b are floats: 0.5 and 2. The grid of this many elements is folded.
const FUNCTION: &[(&str, u32)] =
    &[("count", 150_000), ("offset", 4), ("run", 3), ("a", 0x3f00_0000), ("b", 0x4000_0000)];

const fn case(
    kernels: (&'static str, &'static str),
    params: &'static [(&'static str, u32)],
    groups: [u32; 3],
    written: usize,
) -> Case {
    Case { kernels, params, groups, written }
}

const SETTINGS: &str = "DILATION_X=3 DILATION_Y=3 KERNEL_X=3 KERNEL_Y=3 PAD_X=3 PAD_Y=3 STRIDE_X=3 STRIDE_Y=3";
const PRODUCTS: usize = 4 * 130 * 131 - 100;

const CASES: &[Case] = &[
    case(("matmul_plain HAS_BIAS", ""), PRODUCT, [1066, 1, 1], PRODUCTS),
    case(("matmul_panels HAS_BIAS", ""), PRODUCT, [36, 1, 1], PRODUCTS),
    case(("matmul_tiles HAS_BIAS", ""), PRODUCT, [36, 1, 1], PRODUCTS),
    case(("matmul_blocks_64 matmul_blocks HAS_BIAS", ""), PRODUCT, [36, 1, 1], PRODUCTS),
    case(("matmul_blocks_128 matmul_blocks HAS_BIAS", ""), PRODUCT, [16, 1, 1], PRODUCTS),
    case(("conv im2col", SETTINGS), COLUMNS, [45, 1, 1], 600),
    case(("conv col2im", SETTINGS), COLUMNS, [2, 1, 1], 150),
    case(("conv_direct forward", SETTINGS), DIRECT, [6, 1, 1], 200),
    case(("conv_direct input_grad", SETTINGS), DIRECT, [6, 1, 1], 100),
    case(("conv_direct weight_grad", SETTINGS), DIRECT, [6, 1, 1], 50),
    case(("reduce T=", "OP=0"), PARTS, [2, 1, 1], 85),
    case(("reduce T=", "OP=2"), PARTS, [2, 1, 1], 85),
    case(("reduce rows4 T=", "OP=0"), PARTS, [2, 1, 1], 85),
    case(("reduce rows4 T=", "OP=3"), PARTS, [2, 1, 1], 85),
    case(("softmax LOG", ""), PLANES, [1, 1, 1], 1000),
    case(("softmax rows4", ""), ROWS, [2, 1, 1], 5000),
    case(("unary T=", ""), FUNCTION, [2048, 2, 1], 40_000),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_has_the_case_of_its_name() {
        assert!(of("matmul_plain HAS_BIAS=1").is_some_and(|case| case.params == PRODUCT));
        assert!(of("reduce rows4 T=f32 OP=3").is_some_and(|case| case.kernels.1 == "OP=3"));
        assert!(of("reduce rows4 T=f32 OP=1").is_none());
    }
}
