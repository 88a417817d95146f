//! The public normalisations: each checks its arguments and calls the one op on `[A, C, B]`.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::long::refuse;
use crate::ops::norm::rows::NormaliseRows;
use crate::ops::norm::running::{self, Shares};
use crate::ops::norm::{Moment, Moments, NormShape, Normalise, Then};
use crate::ops::{apply, expect_float, named, same_device};
use crate::process_group::{self, Rank};
use crate::tensor::Tensor;

/// The statistics, if they are not computed from x.
type Fixed = Option<Tensor>;

/// Returns x̂ · weight + bias and what follows in the type of x, and the statistics that were used, of all ranks' samples.
fn normalise(
    name: &'static str,
    x: &Tensor,
    norm: NormShape,
    fixed: Fixed,
    [weight, bias, residual]: [Option<&Tensor>; 3],
    rank: Option<Rank>,
) -> Result<(Tensor, Tensor)> {
    residual.map_or(Ok(()), |residual| expect_float(name, residual))?;
    let norm = NormShape { fixed: fixed.is_some(), ..checked(name, x, norm, [weight, bias])? };
    let stats = match fixed {
        Some(stats) => stats,
        None => joined(named(name, || apply(Moments(norm), &[&x.detach()]))?, rank.as_ref())?,
    };
    let further = [weight, bias, residual].into_iter().flatten();
    let inputs: Vec<&Tensor> = [x, &stats].into_iter().chain(further).collect();
    Ok((named(name, || apply(Normalise(norm, rank), &inputs))?, stats))
}

/// Returns x̂ · weight + bias in the type of x, with statistics of each row of the last size.
fn normalise_rows(name: &'static str, x: &Tensor, norm: NormShape, affine: [Option<&Tensor>; 2]) -> Result<Tensor> {
    let [weight, bias] = affine;
    let Some(op) = NormaliseRows::of(checked(name, x, norm, affine)?, x) else {
        return Ok(normalise(name, x, norm, None, [weight, bias, None], None)?.0);
    };
    let inputs: Vec<&Tensor> = [Some(x), weight, bias].into_iter().flatten().collect();
    named(name, || apply(op, &inputs))
}

/// Checks the operands, and returns the normalisation with those that are given.
fn checked(name: &'static str, x: &Tensor, norm: NormShape, [weight, bias]: [Option<&Tensor>; 2]) -> Result<NormShape> {
    [Some(x), weight, bias].into_iter().flatten().try_for_each(|tensor| expect_float(name, tensor))?;
    for given in [weight, bias].into_iter().flatten() {
        if given.elem_count() != norm.features {
            let detail = format!("the weight and the bias have {} elements, one for each feature", norm.features);
            return Err(Error::shapes(name, x.shape(), given.shape(), detail));
        }
    }
    Ok(NormShape { weight: weight.is_some(), bias: bias.is_some(), ..norm })
}

/// Returns the means and variances `[2, C]` over all ranks' samples, from the statistics of each rank. All ranks get
/// the same.
fn joined(stats: Tensor, rank: Option<&Rank>) -> Result<Tensor> {
    let Some(rank) = rank else { return Ok(stats) };
    let channels = stats.shape()[1];
    let all = rank.exchange(stats.to_vec()?, |all| {
        let total = |c: usize| {
            let part = |(share, own): &(f64, Vec<f32>)| Moment {
                count: *share,
                mean: own[c].into(),
                squares: share * f64::from(own[channels + c]),
            };
            all.iter().map(part).fold(Moment::default(), Moment::with)
        };
        let totals: Vec<Moment> = (0..channels).map(total).collect();
        let variances = totals.iter().map(|t| (t.squares / t.count) as f32);
        Ok(totals.iter().map(|t| t.mean as f32).chain(variances).collect())
    })?;
    Tensor::from_slice(&all, stats.shape(), stats.device())
}

/// Returns the sizes of a normalisation over the trailing dimensions.
fn trailing(name: &'static str, x: &Tensor, normalized_shape: &[usize], eps: f32) -> Result<NormShape> {
    let (lead, own) = x.shape().split_at(x.rank().saturating_sub(normalized_shape.len()));
    if own != normalized_shape || own.is_empty() {
        let detail = "the second shape is not the last dimensions of the first";
        return Err(Error::shapes(name, x.shape(), normalized_shape, detail));
    }
    let features = own.iter().product();
    let sizes = [1, lead.iter().product(), features];
    Ok(NormShape::new(sizes, [1, features], eps))
}

impl Tensor {
    /// Applies layer normalisation over the last dimensions: `(x − mean) / √(variance + eps) · weight + bias`.
    ///
    /// The sizes of these dimensions are `normalized_shape`. The result has the same shape and type; it is computed in
    /// f32.
    ///
    /// `weight` and `bias` have the shape `normalized_shape`; their defaults are 1 and 0. The variance is the biased
    /// one. (Ba et al., "Layer normalization", 2016.)
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if `normalized_shape` is not the end of x's shape, or a weight or bias has another
    /// size; [`Error::DTypeMismatch`] unless the types are floats.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([[1.0, 3.0], [-5.0, 5.0]], None)?;
    /// let y = x.layer_norm(&[2], None, None, 0.0)?;
    /// assert_eq!(y.to_vec::<f32>()?, [-1.0, 1.0, -1.0, 1.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn layer_norm(
        &self,
        normalized_shape: &[usize],
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f32,
    ) -> Result<Tensor> {
        let norm = trailing("layer_norm", self, normalized_shape, eps)?;
        normalise_rows("layer_norm", self, norm, [weight, bias])
    }

    /// Applies RMS normalisation over the last dimensions: `x / √(mean of x² + eps) · weight`.
    ///
    /// The sizes of these dimensions are `normalized_shape`. `weight` has this shape; its default is 1. (Zhang and
    /// Sennrich, "Root mean square layer normalization", 2019.)
    ///
    /// # Errors
    /// Same as [`Tensor::layer_norm`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([[7.0, 1.0]], None)?; // the mean of the squares is 25
    /// assert_eq!(x.rms_norm(&[2], None, 0.0)?.to_vec::<f32>()?, [1.4, 0.2]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn rms_norm(&self, normalized_shape: &[usize], weight: Option<&Tensor>, eps: f32) -> Result<Tensor> {
        let norm = NormShape { centre: false, ..trailing("rms_norm", self, normalized_shape, eps)? };
        normalise_rows("rms_norm", self, norm, [weight, None])
    }

    /// Applies group normalisation to `[N, C, ..]`.
    ///
    /// Mean and variance are computed for each sample, over each of `groups` equal ranges of channels. `weight` and
    /// `bias` are `[C]`. With as many groups as channels, this is instance normalisation. (Wu and He, "Group
    /// normalization", 2018.)
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no dimension of channels, if it is 0, or if `groups` does not divide it;
    /// otherwise same as [`Tensor::layer_norm`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([[1.0, 3.0, 10.0, 30.0]], None)?.reshape([1, 4, 1])?;
    /// assert_eq!(x.group_norm(2, None, None, 0.0)?.to_vec::<f32>()?, [-1.0, 1.0, -1.0, 1.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn group_norm(
        &self,
        groups: usize,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f32,
    ) -> Result<Tensor> {
        let shape = self.shape();
        let channels = shape.get(1).copied().unwrap_or(0);
        let samples = shape.first().and_then(|n| n.checked_mul(groups));
        let (Some(rows), false) = (samples, groups == 0 || channels == 0 || !channels.is_multiple_of(groups)) else {
            let detail = format!("{groups} groups do not divide the channels of {shape:?}, which is [N, C, ..]");
            return Err(Error::argument("group_norm", detail));
        };
        let span: usize = shape[2..].iter().product();
        let sizes = [1, rows, channels / groups * span];
        let norm = NormShape::new(sizes, [span, channels], eps);
        normalise_rows("group_norm", self, norm, [weight, bias])
    }

    /// Applies batch normalisation to each channel of `[N, C, ..]`: `(x − mean) / √(variance + eps) · weight + bias`.
    /// `weight`, `bias` and the running statistics are `[C]`.
    ///
    /// In `training`, mean and variance are computed from the batch, over all dimensions except C. If `running` =
    /// (mean, variance) is given, it is updated **in place**, as in PyTorch:
    /// `running ← (1 − momentum) · running + momentum · batch`, with the unbiased variance `Σ (x − mean)² / (n − 1)`. x
    /// itself is normalised with the biased variance.
    ///
    /// Without `training`, mean and variance are the `running` ones, or computed from the batch if `running` is `None`.
    /// (Ioffe and Szegedy, "Batch normalization", 2015.)
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no dimension of channels, or if a channel has fewer than two elements in
    /// training; otherwise same as [`Tensor::layer_norm`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([[1.0, 10.0], [3.0, 30.0]], None)?;
    /// let (mean, variance) = (Tensor::zeros([2], None)?, Tensor::ones([2], None)?);
    /// let y = x.batch_norm(Some((&mean, &variance)), None, None, true, 0.1, 0.0)?;
    /// assert_eq!(y.to_vec::<f32>()?, [-1.0, -1.0, 1.0, 1.0]);
    /// assert_eq!(mean.to_vec::<f32>()?, [0.2, 2.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn batch_norm(
        &self,
        running: Option<(&Tensor, &Tensor)>,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        training: bool,
        momentum: f32,
        eps: f32,
    ) -> Result<Tensor> {
        let options = BatchNorm { running, weight, bias, training, momentum, eps };
        options.normalise("batch_norm", self, Then::Nothing, None)
    }

    /// Computes `relu` of [`Tensor::batch_norm`], in one pass over the elements.
    ///
    /// # Errors
    /// Same as [`Tensor::batch_norm`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([[1.0, 10.0], [3.0, 30.0]], None)?;
    /// let y = x.batch_norm_relu(None, None, None, true, 0.1, 0.0)?;
    /// assert_eq!(y.to_vec::<f32>()?, [0.0, 0.0, 1.0, 1.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn batch_norm_relu(
        &self,
        running: Option<(&Tensor, &Tensor)>,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        training: bool,
        momentum: f32,
        eps: f32,
    ) -> Result<Tensor> {
        let options = BatchNorm { running, weight, bias, training, momentum, eps };
        options.normalise("batch_norm_relu", self, Then::Relu, None)
    }

    /// Computes `relu(y + residual)` of y = [`Tensor::batch_norm`], in one pass over the elements: the end of a residual
    /// block. `residual` has the shape of x.
    ///
    /// # Errors
    /// Same as [`Tensor::batch_norm`]; [`Error::ShapeMismatch`] if `residual` has another shape than x.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([[1.0, 10.0], [3.0, 30.0]], None)?;
    /// let y = x.batch_norm_add_relu(&x, None, None, None, true, 0.1, 0.0)?;
    /// assert_eq!(y.to_vec::<f32>()?, [0.0, 9.0, 4.0, 31.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    #[expect(clippy::too_many_arguments, reason = "they are those of batch_norm, and the residual")]
    pub fn batch_norm_add_relu(
        &self,
        residual: &Tensor,
        running: Option<(&Tensor, &Tensor)>,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        training: bool,
        momentum: f32,
        eps: f32,
    ) -> Result<Tensor> {
        let name = "batch_norm_add_relu";
        if residual.shape() != self.shape() {
            let detail = "the residual has the shape of the input";
            return Err(Error::shapes(name, self.shape(), residual.shape(), detail));
        }
        let options = BatchNorm { running, weight, bias, training, momentum, eps };
        if residual.dtype() != self.dtype() {
            // Before running statistics change.
            expect_float(name, residual)?;
            same_device(name, &[self, residual])?;
            let y = options.normalise(name, self, Then::Nothing, None)?;
            return named(name, || y.add(residual)?.relu());
        }
        options.normalise(name, self, Then::AddRelu, Some(residual))
    }
}

/// The arguments of batch norm.
struct BatchNorm<'a> {
    running: Option<(&'a Tensor, &'a Tensor)>,
    weight: Option<&'a Tensor>,
    bias: Option<&'a Tensor>,
    training: bool,
    momentum: f32,
    eps: f32,
}

impl BatchNorm<'_> {
    fn normalise(&self, name: &'static str, x: &Tensor, then: Then, residual: Option<&Tensor>) -> Result<Tensor> {
        let BatchNorm { running, weight, bias, training, momentum, eps } = *self;
        let shape = x.shape();
        let (Some(&samples), Some(&channels)) = (shape.first(), shape.get(1)) else {
            return Err(Error::argument(name, format!("{shape:?} is not [N, C, ..]")));
        };
        let span: usize = shape[2..].iter().product();
        let rank = process_group::rank().filter(|_| training || running.is_none());
        if let Some(rank) = rank.as_ref().filter(|rank| !rank.is_joint()) {
            rank.note_statistics();
        }
        let rank = rank.filter(|rank| rank.is_joint());
        let count = rank.as_ref().map_or(samples * span, |rank| rank.over_all(samples * span));
        if training && count < 2 {
            let detail = format!("{shape:?} has {count} elements for each channel: training needs at least 2");
            return Err(Error::argument(name, detail));
        }
        if let Some(other) = running.into_iter().flat_map(|(m, v)| [m, v]).find(|t| t.shape() != [channels]) {
            return Err(Error::shapes(name, shape, other.shape(), "running statistics are [C]"));
        }
        let fixed = match running.filter(|_| !training) {
            Some((mean, variance)) => Some(named(name, || statistics(mean, variance))?),
            None => None,
        };
        let norm = NormShape { then, ..NormShape::new([samples, channels, span], [span, channels], eps) };
        let (out, stats) = normalise(name, x, norm, fixed, [weight, bias, residual], rank)?;
        if let Some((mean, variance)) = running.filter(|_| training) {
            let unbiased = momentum * (count as f32 / (count - 1) as f32);
            let shares = Shares { kept: 1.0 - momentum, mean: momentum, variance: unbiased };
            named(name, || running::update([mean, variance], &stats, shares))?;
        }
        Ok(out)
    }
}

/// Returns mean and variance as `[2, C]`, which the op reads.
fn statistics(mean: &Tensor, variance: &Tensor) -> Result<Tensor> {
    refuse("batch_norm", [mean, variance])?;
    let row = |t: &Tensor| t.detach().to_dtype(DType::F32)?.reshape([1, t.elem_count()]);
    crate::ops::cat(&[&row(mean)?, &row(variance)?], 0)
}
