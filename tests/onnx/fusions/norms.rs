//! Layer norms and RMS norms of several operators.

use super::case;

/// As PyTorch's exporter writes it, with a weight and a bias.
const LAYER_NORM: &str = "m = ReduceMean(x) axes=-1
    d = Sub(x, m)
    p = Pow(d, 2)
    v = ReduceMean(p) axes=-1
    e = Add(v, 0.001)
    s = Sqrt(e)
    n = Div(d, s)
    w = Mul(n, weight)
    y = Add(w, bias)";

#[test]
fn layer_norms_become_one_operator() {
    case(LAYER_NORM).becomes("LayerNormalization 1");
    // Two differences, a square as a product, a reciprocal, and the other order of operands.
    let other = "m = ReduceMean(x) axes=-1 keepdims=1
        d = Sub(x, m)
        c = Sub(x, m)
        p = Mul(c, c)
        v = ReduceMean(p) axes=-1
        e = Add([0.001], v)
        s = Sqrt(e)
        r = Reciprocal(s)
        n = Mul(r, d)
        w = Mul(weight, n)
        y = Add(bias, w)";
    case(other).becomes("LayerNormalization 1");
    let alone = "m = ReduceMean(x, [:-1])
        d = Sub(x, m)
        p = Pow(d, [:2])
        v = ReduceMean(p, [:-1])
        e = Add(v, 0.001)
        s = Sqrt(e)
        r = Div(1, s)
        y = Mul(d, r)";
    case(alone).opset(18).weights(&[]).becomes("LayerNormalization 1");
    let biased = "m = ReduceMean(x) axes=-2,-1
        d = Sub(x, m)
        p = Pow(d, 2)
        v = ReduceMean(p) axes=-1,-2
        e = Add(v, 0.001)
        s = Sqrt(e)
        n = Div(d, s)
        y = Add(n, bias)";
    case(biased).weights(&[("bias", &[3, 5])]).becomes("LayerNormalization 1");
}

/// TensorFlow adds x · s and bias − mean · s.
#[test]
fn layer_norms_of_tensorflow_become_one_operator() {
    let text = "m = ReduceMean(x) axes=2
        d = Sub(x, m)
        p = Mul(d, d)
        v = ReduceMean(p) axes=2
        e = Add(v, 0.001)
        s = Sqrt(e)
        r = Reciprocal(s)
        w = Mul(r, weight)
        a = Mul(x, w)
        b = Mul(m, w)
        c = Sub(bias, b)
        y = Add(a, c)";
    case(text).becomes("LayerNormalization 1");
    case(text).inputs(&[("x", &[2, 3, 4, 5])]).becomes("LayerNormalization 1");
    let apart = "Add 2, Mul 4, Reciprocal 1, ReduceMean 2, Sqrt 1, Sub 2";
    case(text).weights(&[("weight", &[5]), ("bias", &[3, 5])]).becomes(apart);
    let swapped = "m = ReduceMean(x) axes=2
        d = Sub(x, m)
        p = Mul(d, d)
        v = ReduceMean(p) axes=2
        e = Add(v, 0.001)
        s = Sqrt(e)
        r = Reciprocal(s)
        w = Mul(r, weight)
        a = Mul(x, w)
        b = Mul(m, w)
        c = Sub(b, bias)
        y = Add(a, c)";
    case(swapped).becomes(apart);
    let twice = "m = ReduceMean(x) axes=2
        d = Sub(x, m)
        p = Mul(d, d)
        v = ReduceMean(p) axes=2
        e = Add(v, 0.001)
        s = Sqrt(e)
        r = Reciprocal(s)
        w = Mul(r, weight)
        a = Mul(m, w)
        b = Mul(m, w)
        c = Sub(bias, b)
        y = Add(a, c)";
    case(twice).becomes(apart);
}

/// Whether an axis that counts from the beginning is the last one is known when the model runs.
#[test]
fn layer_norms_of_other_axes_are_right() {
    let text = "m = ReduceMean(x) axes=2
        d = Sub(x, m)
        p = Pow(d, 2)
        v = ReduceMean(p) axes=2
        e = Add(v, 0.001)
        s = Sqrt(e)
        n = Div(d, s)
        w = Mul(n, weight)
        y = Add(w, bias)";
    case(text).becomes("LayerNormalization 1");
    case(text).inputs(&[("x", &[2, 3, 4, 5])]).becomes("LayerNormalization 1");
    let middle = "m = ReduceMean(x) axes=-2
        d = Sub(x, m)
        p = Pow(d, 2)
        v = ReduceMean(p) axes=-2
        e = Add(v, 0.001)
        s = Sqrt(e)
        y = Div(d, s)";
    case(middle).weights(&[]).becomes("Add 1, Div 1, Pow 1, ReduceMean 2, Sqrt 1, Sub 1");
    let root = "p = Mul(x, x)
        v = ReduceMean(p) axes=1
        e = Add(v, 0.001)
        s = Sqrt(e)
        y = Div(x, s)";
    case(root).weights(&[]).becomes("RMSNormalization 1");
}

#[test]
fn what_is_almost_a_layer_norm_stays() {
    let all = "Add 1, Div 1, Pow 1, ReduceMean 2, Sqrt 1, Sub 1";
    // The rows of a square matrix, whose means without their dimension are taken from its columns.
    let dropped = "m = ReduceMean(x) axes=-1 keepdims=0
        d = Sub(x, m)
        p = Pow(d, 2)
        v = ReduceMean(p) axes=-1 keepdims=0
        e = Add(v, 0.001)
        s = Sqrt(e)
        y = Div(d, s)";
    case(dropped).inputs(&[("x", &[4, 4])]).weights(&[]).becomes(all);
    let cube = "m = ReduceMean(x) axes=-1
        d = Sub(x, m)
        p = Pow(d, 4)
        v = ReduceMean(p) axes=-1
        e = Add(v, 0.001)
        s = Sqrt(e)
        y = Div(d, s)";
    case(cube).weights(&[]).becomes(all);
    let vector = "m = ReduceMean(x) axes=-1
        d = Sub(x, m)
        p = Pow(d, 2)
        v = ReduceMean(p) axes=-1
        e = Add(v, epsilon)
        s = Sqrt(e)
        y = Div(d, s)";
    case(vector).weights(&[("epsilon", &[5])]).becomes(all);
    // The variance is about the mean of other dimensions: the quotient by its root is all that is a norm.
    let axes = "m = ReduceMean(x) axes=-2
        d = Sub(x, m)
        p = Pow(d, 2)
        v = ReduceMean(p) axes=-1
        e = Add(v, 0.001)
        s = Sqrt(e)
        y = Div(d, s)";
    case(axes).weights(&[]).becomes("RMSNormalization 1, ReduceMean 1, Sub 1");
    let read = "m = ReduceMean(x) axes=-1
        d = Sub(x, m)
        p = Pow(d, 2)
        v = ReduceMean(p) axes=-1
        e = Add(v, 0.001)
        s = Sqrt(e)
        n = Div(d, s)
        y = Mul(n, s)";
    case(read).weights(&[]).becomes("Add 1, Div 1, Mul 1, Pow 1, ReduceMean 2, Sqrt 1, Sub 1");
    let mean = "m = ReduceMean(x) axes=-1
        d = Sub(x, m)
        p = Pow(d, 2)
        v = ReduceMean(p) axes=-1
        e = Add(v, 0.001)
        s = Sqrt(e)
        n = Div(d, s)
        y = Add(n, m)";
    case(mean).weights(&[]).becomes("Add 1, RMSNormalization 1, ReduceMean 1, Sub 1");
    case(LAYER_NORM).weights(&[("weight", &[3, 1]), ("bias", &[5])]).becomes("Add 1, LayerNormalization 1, Mul 1");
    case(LAYER_NORM).weights(&[("weight", &[5]), ("bias", &[3, 5])]).becomes("Add 1, LayerNormalization 1");
    case(LAYER_NORM).weights(&[("weight", &[1]), ("bias", &[1])]).becomes("Add 1, LayerNormalization 1, Mul 1");
}

/// Of integers, the mean is a whole number: the file says by the type of ε what it divides.
#[test]
fn norms_of_integers_stay() {
    let text = "p = Mul(x, x)
        v = ReduceMean(p) axes=-1
        e = Add(v, [:1])
        s = Sqrt(e)
        y = Div(x, s)";
    assert_eq!(case(text).weights(&[]).operators(), "Add 1, Div 1, Mul 1, ReduceMean 1, Sqrt 1");
}

#[test]
fn rms_norms_become_one_operator() {
    let plain = "p = Pow(x, 2)
        v = ReduceMean(p) axes=-1
        e = Add(v, 0.001)
        s = Sqrt(e)
        n = Div(x, s)
        y = Mul(n, weight)";
    case(plain).weights(&[("weight", &[5])]).becomes("RMSNormalization 1");
    case(plain).weights(&[("weight", &[3, 1])]).becomes("Mul 1, RMSNormalization 1");
    let reciprocal = "p = Mul(x, x)
        v = ReduceMean(p, [:-1])
        e = Add(0.001, v)
        s = Sqrt(e)
        r = Reciprocal(s)
        n = Mul(x, r)
        y = Mul(weight, n)";
    case(reciprocal).opset(18).weights(&[("weight", &[5])]).becomes("RMSNormalization 1");
    let inverse = "p = Mul(x, x)
        v = ReduceMean(p) axes=-2,-1
        e = Add(v, 0.001)
        s = Sqrt(e)
        r = Div(1, s)
        n = Mul(r, x)
        z = Mul(n, weight)
        y = Add(z, bias)";
    case(inverse).weights(&[("weight", &[3, 5]), ("bias", &[3, 5])]).becomes("Add 1, RMSNormalization 1");
    let twice = "p = Mul(x, x)
        v = ReduceMean(p) axes=-1
        e = Add(v, 0.001)
        s = Sqrt(e)
        r = Div(2, s)
        y = Mul(r, x)";
    case(twice).weights(&[]).becomes("Add 1, Div 1, Mul 2, ReduceMean 1, Sqrt 1");
    let read = "p = Mul(x, x)
        v = ReduceMean(p) axes=-1
        e = Add(v, 0.001)
        s = Sqrt(e)
        n = Div(x, s)
        y = Add(n, v)";
    case(read).weights(&[]).becomes("Add 2, Div 1, Mul 1, ReduceMean 1, Sqrt 1");
    let inputs: &[(&str, &[usize])] = &[("x", &[2, 3, 5]), ("z", &[2, 3, 5])];
    let different = "p = Mul(z, z)
        v = ReduceMean(p) axes=-1
        e = Add(v, 0.001)
        s = Sqrt(e)
        y = Div(x, s)";
    case(different).inputs(inputs).weights(&[]).becomes("Add 1, Div 1, Mul 1, ReduceMean 1, Sqrt 1");
}
