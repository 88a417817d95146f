//! The update of running statistics, in place.

use crate::autograd::no_grad;
use crate::device::Backend;
use crate::device::gpu::{Kernel, params, shader};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::inplace::copy_;
use crate::ops::inputs::lock_all;
use crate::ops::traced::note_write;
use crate::ops::{CpuIn, Dense, GpuIn, same_device};
use crate::tensor::Tensor;

params! {
    struct Params {
        channels: usize,
        stats_offset: usize,
        mean_offset: usize,
        variance_offset: usize,
        kept: f32,
        share: f32,
        spread: f32,
    }
}
shader!(SHADER: Params = "norm/norm_running");

/// The parts of the old values, and of a batch's mean and variance, in the new ones.
#[derive(Clone, Copy)]
pub(super) struct Shares {
    pub kept: f32,
    pub mean: f32,
    pub variance: f32,
}

/// Computes `mean ← kept · mean + share · stats[0]` and likewise the variance from `stats[1]`, in place. `stats` is
/// `[2, C]`, the others are `[C]`.
pub(super) fn update([mean, variance]: [&Tensor; 2], stats: &Tensor, shares: Shares) -> Result<()> {
    same_device("batch_norm", &[stats, mean, variance])?;
    let simple = |t: &Tensor| t.dtype() == DType::F32 && t.layout().is_contiguous() && t.elem_count() > 0;
    let apart = mean.layout().offset.abs_diff(variance.layout().offset) >= mean.elem_count();
    let one_buffer = mean.storage().id() == variance.storage().id();
    if !(simple(mean) && simple(variance) && stats.layout().is_contiguous()) || (one_buffer && !apart) {
        return no_grad(|| {
            composed(mean, &stats.narrow(0, 0, 1)?, shares.kept, shares.mean)?;
            composed(variance, &stats.narrow(0, 1, 1)?, shares.kept, shares.variance)
        });
    }
    note_write("the update of running statistics", mean, Some(stats));
    note_write("the update of running statistics", variance, None);
    match stats.device().backend()? {
        Backend::Cpu(_) => on_cpu([mean, variance], stats, shares)?,
        Backend::Gpu(gpu) => {
            let [stats_offset, mean_offset, variance_offset] = [stats, mean, variance].map(|t| t.layout().offset);
            let (channels, Shares { kept, mean: share, variance: spread }) = (mean.elem_count(), shares);
            let params = Params { channels, stats_offset, mean_offset, variance_offset, kept, share, spread };
            let [stats, mean, variance] = [stats, mean, variance].map(GpuIn::<Dense>::new);
            let kernel = Kernel::build(SHADER, if one_buffer { "one" } else { "two" }, params).input(&stats?);
            let kernel = kernel.output(&mean?);
            let kernel = if one_buffer { kernel } else { kernel.output(&variance?) };
            gpu.run(kernel.each(channels))?;
        }
    }
    mean.storage().bump();
    variance.storage().bump();
    Ok(())
}

fn on_cpu(targets: [&Tensor; 2], stats: &Tensor, shares: Shares) -> Result<()> {
    for (i, (target, share)) in targets.into_iter().zip([shares.mean, shares.variance]).enumerate() {
        let (read, mut written) = lock_all(&[stats], &[target])?;
        let (channels, offset) = (target.elem_count(), target.layout().offset);
        let stats = &CpuIn::<Dense>::new(stats, &read)?.slice::<f32>()[i * channels..];
        let target = &mut bytemuck::cast_slice_mut::<u32, f32>(&mut written[0])[offset..offset + channels];
        target.iter_mut().zip(stats).for_each(|(v, new)| *v = *v * shares.kept + new * share);
    }
    Ok(())
}

/// Computes `running ← kept · running + share · batch`, in place, for values of any type and layout.
fn composed(running: &Tensor, batch: &Tensor, kept: f32, share: f32) -> Result<()> {
    let old = running.detach().to_dtype(DType::F32)?.mul_scalar(kept)?;
    let new = old.add(&batch.reshape(running.shape())?.mul_scalar(share)?)?;
    copy_(running, &new.to_dtype(running.dtype())?)
}
