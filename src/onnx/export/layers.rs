//! Products, convolutions, pools, normalisations.

use super::elementwise::with_number;
use super::graph::{Attribute, Graph, Id, Node, Operand, Source};
use super::movement::transpose;
use super::translate::Call;
use crate::error::Result;
use crate::onnx::ElementType;
use crate::ops::traced::{NormShape, Then, Traced, Window, WindowParams, further};

const FLOAT: ElementType = ElementType::Float;

pub(super) fn translate(call: &mut Call, what: &Traced) -> Result<Option<Id>> {
    Ok(Some(match what {
        Traced::MatMul => product(call)?,
        Traced::Attention { scale, causal } => attention(call, *scale, *causal)?,
        Traced::Conv { groups, window } => {
            let inputs = floats(call)?;
            let mut attributes = attributes(window, window.params.padding);
            attributes.push(("group", (*groups).into()));
            call.graph().node("Conv", &inputs, &attributes)
        }
        Traced::ConvTranspose { groups, window } => transposed(call, *groups, window)?,
        Traced::MaxPool(window) => {
            let x = call.input(0)?;
            call.graph().node("MaxPool", &[x.into()], &attributes(window, ends(window)))
        }
        Traced::MaxPoolPositions(window) => {
            let x = call.input(0)?;
            let g = call.graph();
            let kinds = [FLOAT, ElementType::Int64];
            let [_, positions] = g.nodes("MaxPool", &[x.into()], &attributes(window, ends(window)), kinds);
            // ONNX counts through all planes.
            with_number(g, "Mod", positions, window.plane() as f64)
        }
        Traced::AvgPool { window, count_pad, divisors } => means(call, window, *count_pad, divisors)?,
        Traced::Columns(window) => columns(call, window)?,
        Traced::Planes(window) => planes(call, window)?,
        Traced::Moments(norm) => moments(call, norm)?,
        Traced::Normalise(norm) => normalise(call, norm)?,
        _ => return Ok(None),
    }))
}

/// All inputs as floats of 32 bits.
fn floats(call: &mut Call) -> Result<Vec<Operand>> {
    (0..call.step.inputs.len()).map(|i| Ok(call.input(i)?.into())).collect()
}

/// A product with a transposed matrix is one operator, which takes a bias too.
fn product(call: &mut Call) -> Result<Id> {
    let [a, b] = [call.input(0)?, call.input(1)?];
    let flat = call.shape(0).len() == 2 && call.shape(1).len() == 2;
    let g = call.graph();
    if let Some(transposed) = g.made_by(b, "Transpose").filter(|_| flat) {
        let inputs = [a.into(), transposed.inputs[0].clone()];
        return Ok(g.node("Gemm", &inputs, &[("transB", true.into())]));
    }
    Ok(g.simple("MatMul", &[a, b]))
}

/// The queries, keys and values as products and a softmax.
fn attention(call: &mut Call, scale: f64, causal: bool) -> Result<Id> {
    let [q, k, v] = [call.input(0)?, call.input(1)?, call.input(2)?];
    let [queries, keys] = [0, 1].map(|i| call.shape(i)[call.shape(i).len() - 2]);
    let rank = call.shape(1).len();
    let g = call.graph();
    let q = with_number(g, "Mul", q, scale);
    let mut swapped: Vec<usize> = (0..rank).collect();
    swapped.swap(rank - 2, rank - 1);
    let k = transpose(g, k, &swapped);
    let mut scores = g.simple("MatMul", &[q, k]);
    if causal {
        let mask = causal_mask(g, [queries, keys]);
        scores = g.simple("Add", &[scores, mask]);
    }
    let weights = g.node("Softmax", &[scores.into()], &[("axis", (-1i64).into())]);
    Ok(g.simple("MatMul", &[weights, v]))
}

/// What is added to scores so that no query sees later keys: one constant for all layers of a size.
fn causal_mask(g: &mut Graph, [queries, keys]: [usize; 2]) -> Id {
    if let Some(&mask) = g.causal_masks.get(&[queries, keys]) {
        return mask;
    }
    let later = |at: usize| if at % keys > at / keys { f32::NEG_INFINITY } else { 0.0 };
    let mask = g.floats((0..queries * keys).map(later).collect(), &[queries, keys]);
    g.causal_masks.insert([queries, keys], mask);
    mask
}

/// The attributes of windows, with the padding at the ends.
fn attributes(window: &Window, ends: [usize; 2]) -> Vec<(&'static str, Attribute)> {
    let WindowParams { kernel, stride, padding, dilation } = &window.params;
    let pads = [padding[0], padding[1], ends[0], ends[1]];
    let mut all = vec![("kernel_shape", kernel[..].into()), ("strides", stride[..].into()), ("pads", pads[..].into())];
    if *dilation != [1, 1] {
        all.push(("dilations", dilation[..].into()));
    }
    all
}

/// The padding at the ends that gives as many windows as there are: more than at the starts if the last one extends past it, and
/// never less.
fn ends(window: &Window) -> [usize; 2] {
    let padding = window.params.padding;
    [0, 1].map(|d| reach(window, d).saturating_sub(window.size[d] + padding[d]).max(padding[d]))
}

/// What the windows cover in one direction, from the start of the first to the end of the last.
fn reach(window: &Window, d: usize) -> usize {
    (window.out[d].max(1) - 1) * window.params.stride[d] + window.params.span(d)
}

fn transposed(call: &mut Call, groups: usize, window: &Window) -> Result<Id> {
    let inputs = floats(call)?;
    let mut all = attributes(window, window.params.padding);
    let padded = |d: usize| window.size[d] + 2 * window.params.padding[d];
    let output_padding = [0, 1].map(|d| padded(d).saturating_sub(reach(window, d)));
    all.push(("output_padding", output_padding[..].into()));
    all.push(("group", groups.into()));
    Ok(call.graph().node("ConvTranspose", &inputs, &all))
}

/// The means of windows. What extends past the padding is never counted, so that such windows have a factor.
fn means(call: &mut Call, window: &Window, count_pad: bool, divisors: &[f32]) -> Result<Id> {
    let x = call.input(0)?;
    let g = call.graph();
    let ends = ends(window);
    let mut all = attributes(window, ends);
    if window.params.dilation != [1, 1] {
        g.opset = g.opset.max(19);
    }
    all.push(("count_include_pad", count_pad.into()));
    let means = g.node("AveragePool", &[x.into()], &all);
    if !count_pad || ends == window.params.padding {
        return Ok(means);
    }
    let factors = divisors.iter().map(|divisor| window.taps() as f32 / divisor).collect();
    let factors = g.floats(factors, &window.out);
    Ok(g.simple("Mul", &[means, factors]))
}

/// Windows as columns: a convolution that picks one pixel for each channel of its result.
fn columns(call: &mut Call, window: &Window) -> Result<Id> {
    let (x, channels, shape) = (call.input(0)?, call.shape(0)[1], call.out_shape().to_vec());
    let (taps, [height, width]) = (window.taps(), window.params.kernel);
    let g = call.graph();
    let weight = (0..channels * taps * taps).map(|i| f32::from(i % taps == i / taps % taps)).collect();
    let weight = g.floats(weight, &[channels * taps, 1, height, width]);
    let mut all = attributes(window, window.params.padding);
    all.push(("group", channels.into()));
    let picked = g.node("Conv", &[x.into(), weight.into()], &all);
    Ok(g.reshape(picked, &shape))
}

fn planes(call: &mut Call, window: &Window) -> Result<Id> {
    let x = call.input(0)?;
    let WindowParams { kernel, stride, padding, dilation } = &window.params;
    let pads = [*padding, *padding].concat();
    let all = [("dilations", dilation[..].into()), ("pads", pads[..].into()), ("strides", stride[..].into())];
    Ok(call.graph().node("Col2Im", &[x.into(), window.size[..].into(), kernel[..].into()], &all))
}

/// The mean over all but the middle of three dimensions, as `[1, C, 1]`.
fn mean(g: &mut Graph, x: Id) -> Id {
    g.node("ReduceMean", &[x.into(), Operand::Ints(vec![0, 2])], &[])
}

fn moments(call: &mut Call, norm: &NormShape) -> Result<Id> {
    let x = call.input(0)?;
    let g = call.graph();
    let x = g.reshape(x, &norm.sizes);
    let centre = mean(g, x);
    let [first, distance] = match norm.centre {
        true => [centre, g.simple("Sub", &[x, centre])],
        false => [with_number(g, "Mul", centre, 0.0), x],
    };
    let squares = g.simple("Mul", &[distance, distance]);
    let second = mean(g, squares);
    let both = g.node("Concat", &[first.into(), second.into()], &[("axis", 0i64.into())]);
    Ok(g.reshape(both, &[2, norm.sizes[1]]))
}

fn normalise(call: &mut Call, norm: &NormShape) -> Result<Id> {
    let inputs = floats(call)?;
    let [weight, bias, residual] = further(norm, &inputs).map(|operand| operand.cloned());
    let (x, statistics) = (call.input(0)?, call.input(1)?);
    let shape = call.shape(0).to_vec();
    let g = call.graph();
    let mut y = if let Some(axis) = trailing(g, x, statistics, &shape, norm) {
        let own = &shape[axis..];
        let weight = given(g, weight, 1.0, own);
        let mut inputs = vec![x.into(), weight];
        if bias.is_some() {
            inputs.push(given(g, bias, 0.0, own));
        }
        g.node("LayerNormalization", &inputs, &[("axis", axis.into()), ("epsilon", norm.eps.into())])
    } else if let Some([mean, variance]) = running(g, statistics, &shape, norm) {
        let features = &[norm.features][..];
        let (weight, bias) = (given(g, weight, 1.0, features), given(g, bias, 0.0, features));
        g.node("BatchNormalization", &[x.into(), weight, bias, mean, variance], &[("epsilon", norm.eps.into())])
    } else {
        step_by_step(g, [x, statistics], [weight, bias], &shape, norm)
    };
    if let Some(Operand::Value(residual)) = residual {
        y = g.simple("Add", &[y, residual]);
    }
    Ok(if norm.then != Then::Nothing { g.simple("Relu", &[y]) } else { y })
}

/// A weight or a bias in this shape: the layer's own, or the number that stands for none.
fn given(g: &mut Graph, operand: Option<Operand>, otherwise: f32, shape: &[usize]) -> Operand {
    match operand {
        Some(Operand::Value(id)) if shape.len() > 1 => g.reshape(id, shape).into(),
        Some(operand) => operand,
        None => g.floats(vec![otherwise; shape.iter().product()], shape).into(),
    }
}

/// The first of the dimensions that are normalised, if these are the last ones, with statistics of x itself and a weight of their
/// shape.
fn trailing(g: &Graph, x: Id, statistics: Id, shape: &[usize], norm: &NormShape) -> Option<usize> {
    let [outer, _, inner] = norm.sizes;
    if outer != 1 || norm.span != 1 || norm.features != inner || !norm.centre {
        return None;
    }
    // What `moments` above has made, from the same x.
    let joined = g.made_by(statistics, "Reshape").and_then(|node| source(g, &node.inputs[0], "Concat"))?;
    let centre = source(g, &joined.inputs[0], "ReduceMean")?;
    let of = source(g, &centre.inputs[0], "Reshape")?;
    if of.inputs[0] != x.into() {
        return None;
    }
    (0..shape.len()).rev().find(|&axis| shape[axis..].iter().product::<usize>() == inner)
}

fn source<'a>(g: &'a Graph, operand: &Operand, op: &str) -> Option<&'a Node> {
    match operand {
        Operand::Value(id) => g.made_by(*id, op),
        _ => None,
    }
}

/// The mean and the variance of each channel, if they are joined from two tensors with names.
fn running(g: &Graph, statistics: Id, shape: &[usize], norm: &NormShape) -> Option<[Operand; 2]> {
    let [samples, channels, span] = norm.sizes;
    let as_is = shape.len() >= 2 && shape[..2] == [samples, channels];
    if !as_is || norm.features != channels || norm.span != span {
        return None;
    }
    let joined = g.made_by(statistics, "Concat").filter(|node| node.inputs.len() == 2)?;
    let named = |operand: &Operand| {
        let from = source(g, operand, "Reshape")?.inputs[0].clone();
        match from {
            Operand::Value(id) if matches!(g.values[id].source, Source::Named(..)) => Some(from),
            _ => None,
        }
    };
    Some([named(&joined.inputs[0])?, named(&joined.inputs[1])?])
}

fn step_by_step(
    g: &mut Graph,
    [x, statistics]: [Id; 2],
    [weight, bias]: [Option<Operand>; 2],
    shape: &[usize],
    norm: &NormShape,
) -> Id {
    let mut row = |i: i64| {
        let bounds = [i, i + 1, 0].map(|value| Operand::Ints(vec![value]));
        let [start, end, axis] = bounds;
        let part = g.node("Slice", &[statistics.into(), start, end, axis], &[]);
        g.reshape(part, &[1, norm.sizes[1], 1])
    };
    let (centre, variance) = (row(0), row(1));
    let x = g.reshape(x, &norm.sizes);
    let x = if norm.centre { g.simple("Sub", &[x, centre]) } else { x };
    let variance = with_number(g, "Add", variance, norm.eps.into());
    let root = g.simple("Sqrt", &[variance]);
    let mut y = g.simple("Div", &[x, root]);
    if weight.is_some() || bias.is_some() {
        let outer = shape.iter().product::<usize>() / (norm.features * norm.span).max(1);
        y = g.reshape(y, &[outer, norm.features, norm.span]);
        for (op, operand) in [("Mul", weight), ("Add", bias)] {
            if let Some(Operand::Value(id)) = operand {
                let column = g.reshape(id, &[norm.features, 1]);
                y = g.simple(op, &[y, column]);
            }
        }
    }
    g.reshape(y, shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_window_may_need_more_padding() {
        let params = WindowParams { kernel: [3, 2], stride: [2, 2], padding: [1, 0], dilation: [1, 1] };
        let window = Window { params, size: [6, 4], out: [4, 2] };
        assert_eq!(ends(&window), [2, 0]);
        let floor = Window { out: [3, 2], ..window };
        assert_eq!(ends(&floor), [1, 0]);
    }
}
