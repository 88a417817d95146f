//! Functions of tensors: elementwise, shapes, reductions, indices, images.

use super::*;

#[test]
fn functions_of_one_element() -> Result<()> {
    functions("activations", &[37], |x| {
        Ok(vec![
            x.relu()?,
            x.leaky_relu(0.1)?,
            x.elu(0.7)?,
            x.gelu()?,
            x.gelu_tanh()?,
            x.silu()?,
            x.softplus(1.0, 20.0)?,
            x.softplus(3.0, 2.0)?,
            x.log_sigmoid()?,
            x.mish()?,
            x.hardswish()?,
            x.hardsigmoid()?,
            x.softsign()?,
            x.hardtanh(-0.5, 1.0)?,
            x.sigmoid()?,
            x.tanh()?,
            x.softmax(-1)?,
            x.log_softmax(-1)?,
        ])
    })?;
    functions("functions", &[37], |x| {
        let (small, large) = (x.mul(0.4)?, x.abs()?.add(1.1)?);
        Ok(vec![
            x.neg()?,
            x.abs()?,
            x.sign()?,
            x.square()?,
            large.recip()?,
            x.exp()?,
            x.exp2()?,
            x.expm1()?,
            large.log()?,
            large.log2()?,
            large.log1p()?,
            large.sqrt()?,
            large.rsqrt()?,
            x.sin()?,
            x.cos()?,
            small.tan()?,
            small.asin()?,
            small.acos()?,
            x.atan()?,
            x.sinh()?,
            x.cosh()?,
            x.asinh()?,
            large.acosh()?,
            small.atanh()?,
            x.erf()?,
            x.floor()?,
            x.ceil()?,
            x.round()?,
            x.trunc()?,
            x.clamp(Some(-0.3), None)?,
            x.clamp(None, Some(0.4))?,
        ])
    })
}

#[test]
fn functions_of_two_elements() -> Result<()> {
    let inputs = |n: usize| Ok(vec![numbers(&[n, 1, 7])?, numbers(&[n, 3, 1])?.mul(1.3)?.add(0.05)?]);
    check("pairs", &Identity, inputs, |_, inputs| {
        let (a, b) = (&inputs[0], &inputs[1]);
        Ok(vec![
            a.add(b)?,
            a.sub(b)?,
            a.mul(b)?,
            a.div(b)?,
            a.abs()?.pow(b)?,
            a.maximum(b)?,
            a.minimum(b)?,
            a.rem(b)?,
            a.fmod(b)?,
            a.div_floor(b)?,
            a.sub(0.5)?,
            (2.0 / a)?,
            a.eq(a)?,
            a.ne(b)?,
            a.lt(b)?,
            a.le(b)?,
            a.gt(b)?,
            a.ge(0.0)?,
            a.gt(b)?.logical_and(&a.lt(1.0)?)?,
            a.gt(b)?.logical_or(&a.lt(1.0)?)?,
            a.gt(b)?.logical_xor(&a.lt(1.0)?)?,
            a.gt(b)?.logical_not()?,
            a.gt(b)?.to_dtype(DType::F32)?.mul(b)?,
            a.gt(b)?.where_cond(a, b)?,
            a.masked_fill(&a.gt(0.5)?, -7.0)?,
            a.gt(b)?.sum(1, false)?,
        ])
    })?;
    let inputs = |n: usize| {
        let ints = |shift| numbers(&[n, 9])?.mul(9.0)?.add(shift)?.to_dtype(DType::I32);
        Ok(vec![ints(0.0)?, ints(0.7)?])
    };
    check("integers", &Identity, inputs, |_, inputs| {
        let (a, b) = (&inputs[0], &inputs[1]);
        let (positive, unsigned) = (b.abs()?.add(1)?, a.abs()?.to_dtype(DType::U32)?);
        Ok(vec![
            a.add(b)?,
            a.sub(b)?,
            a.mul(b)?,
            a.neg()?,
            a.abs()?,
            a.sign()?,
            a.maximum(b)?,
            a.rem(&positive)?,
            a.bitwise_and(b)?,
            a.bitwise_or(b)?,
            a.bitwise_xor(b)?,
            a.lt(b)?,
            a.sum(-1, true)?,
            a.to_dtype(DType::F32)?,
            unsigned.add(&unsigned)?,
            unsigned.mul(3u32)?,
            unsigned.gt(4u32)?,
            a.cumsum(-1)?,
        ])
    })
}

#[test]
fn shapes_and_parts() -> Result<()> {
    functions("shapes", &[4, 6], |x| {
        let n = x.shape()[0];
        Ok(vec![
            x.reshape([n * 4, 6])?,
            x.reshape([n, 2, 12])?,
            x.flatten(1)?,
            x.permute([2, 0, 1])?,
            x.transpose(1, 2)?,
            x.unsqueeze(1)?.broadcast_to([n, 3, 4, 6])?,
            x.narrow(1, 1, 2)?,
            x.slice(2, 1, 6, 2)?,
            x.select(1, 3)?,
            x.flip([1, 2])?,
            x.roll(2, 2)?,
            x.repeat([1, 2, 1])?,
            Tensor::cat(&[x, &x.mul(2.0)?], 2)?,
            Tensor::stack(&[x, x], 1)?,
            x.chunk(3, 2)?[1].clone(),
            x.tril(1)?,
            x.triu(-1)?,
            x.reshape([n, 2, 2, 6])?.permute([0, 2, 1, 3])?.reshape([n * 2, 12])?,
        ])
    })?;
    functions("pads", &[2, 4, 5], |x| {
        let margins = [(0, 0), (0, 0), (1, 2), (2, 1)];
        let padded = |padding| x.pad(&margins, padding);
        Ok(vec![padded(Padding::Constant(1.5))?, padded(Padding::Reflect)?, padded(Padding::Replicate)?])
    })
}

#[test]
fn reductions_and_indices() -> Result<()> {
    functions("reductions", &[4, 6], |x| {
        Ok(vec![
            x.sum(1, false)?,
            x.mean([1, 2], true)?,
            x.max(2, false)?,
            x.min(1, true)?,
            x.prod(2, false)?,
            x.var(2, 1.0, false)?,
            x.std([1, 2], 0.0, true)?,
            x.norm(2.0, 2, false)?,
            x.logsumexp(2, false)?,
            x.argmax(2)?,
            x.argmin(1)?,
            x.cumsum(1)?,
            x.matmul(&x.t()?)?,
        ])
    })?;
    functions("indices", &[4, 6], |x| {
        let picks = Tensor::try_from([3u32, 0, 3])?;
        let (sorted, order) = x.sort(2, true)?;
        let (largest, places) = x.topk(2, 2, true, true)?;
        let base = Tensor::zeros([4, 6], None)?.mul(0.0)?.add(x)?;
        let (table, from_end) = (Tensor::arange(0.0, 6.0, 1.0, None)?, places.to_dtype(DType::I32)?.sub(6)?);
        Ok(vec![
            x.index_select(1, &picks)?,
            x.gather(2, &order)?,
            sorted,
            largest,
            places,
            table.index(&[&from_end])?,
            base.scatter(2, &order, x)?,
            base.scatter_add(2, &order, x)?,
            base.index_add(1, &picks, &x.narrow(1, 0, 3)?)?,
            base.scatter_reduce(2, &order, x, ScatterReduce::Amax, true)?,
        ])
    })
}

#[test]
fn images() -> Result<()> {
    functions("interpolation", &[2, 5, 7], |x| {
        Ok(vec![
            x.interpolate([10, 14], Interpolation::Nearest)?,
            x.interpolate([8, 3], Interpolation::NearestExact)?,
            x.interpolate([9, 4], Interpolation::Linear { align_corners: false })?,
            x.interpolate([9, 4], Interpolation::Linear { align_corners: true })?,
            x.interpolate([9, 4], Interpolation::Cubic { align_corners: false })?,
            x.resample(2, &Resample::new(9).filter(ResampleFilter::Cubic { a: -0.5 }))?,
        ])
    })?;
    functions("windows", &[2, 5, 6], |x| {
        let windows = Unfold::new([3, 2]).stride(1).padding([1, 0]);
        let columns = x.unfold(windows)?;
        let planes = columns.fold([5, 6], windows)?;
        Ok(vec![columns, planes])
    })
}
