// The geometry of windows that slide over planes; a layer's own, and it stays: as constants, it costs no division.
override HEIGHT: u32 = 1u;
override WIDTH: u32 = 1u;
override KERNEL_Y: u32 = 1u;
override KERNEL_X: u32 = 1u;
override STRIDE_Y: u32 = 1u;
override STRIDE_X: u32 = 1u;
override PAD_Y: u32 = 0u;
override PAD_X: u32 = 0u;
override DILATION_Y: u32 = 1u;
override DILATION_X: u32 = 1u;
override OUT_Y: u32 = 1u;
override OUT_X: u32 = 1u;
