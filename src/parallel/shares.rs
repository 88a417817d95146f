//! How a batch is split among devices, as users choose it.

/// How [`DataParallel`](super::DataParallel) splits a batch. The step is the same for every split, apart from rounding:
/// gradients are averaged by the number of samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Shares {
    /// By measured times, so that all devices finish at the same time: the time for a sample, and the time that a device takes for
    /// the copies of parameters and gradients, whatever its samples. A device that would need longer for these copies than the
    /// others for its samples gets no samples; it is measured again from time to time. Since measured times vary, repeated runs
    /// may differ by rounding.
    #[default]
    Measured,
    /// Equal shares. Repeated runs on the same devices give the same bits.
    Even,
    /// In proportion to these positive numbers, one per device.
    Fixed(Vec<f64>),
}
