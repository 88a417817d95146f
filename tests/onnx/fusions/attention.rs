//! Attention of several operators.

use anygpu::nn::Module;
use anygpu::{Tensor, onnx};

use super::super::common::devices;
use super::{Case, numbers};

/// A case of queries `[2, 3, 4, 5]`, keys `[2, 3, 6, 5]`, values `[2, 3, 6, 7]` and a mask `[2, 1, 4, 6]`.
fn attention(text: &'static str) -> Case {
    let inputs: Vec<(&str, &[usize])> =
        vec![("q", &[2, 3, 4, 5]), ("k", &[2, 3, 6, 5]), ("v", &[2, 3, 6, 7]), ("mask", &[2, 1, 4, 6])];
    Case { text, opset: 17, weights: vec![("bias", &[3, 4, 6]), ("table", &[6, 7])], inputs }
}

#[test]
fn attention_becomes_one_operator() {
    let forms = [
        "t = Transpose(k) perm=0,1,3,2
        s = MatMul(q, t)
        w = Softmax(s) axis=-1
        y = MatMul(w, v)",
        "t = Transpose(k) perm=0,1,3,2
        s = MatMul(q, t)
        d = Div(s, 2.5)
        w = Softmax(d)
        y = MatMul(w, v)",
        "t = Transpose(k) perm=0,1,3,2
        s = MatMul(q, t)
        d = Mul(0.4, s)
        m = Add(d, mask)
        w = Softmax(m) axis=-1
        y = MatMul(w, v)",
        // Trained biases of places, in the other order.
        "t = Transpose(k) perm=0,1,3,2
        s = MatMul(q, t)
        m = Add(bias, s)
        w = Softmax(m) axis=3
        y = MatMul(w, v)",
        // PyTorch scales queries and keys.
        "a = Mul(q, 0.6)
        t = Transpose(k) perm=0,1,3,2
        b = Mul(t, 0.6)
        s = MatMul(a, b)
        m = Add(s, mask)
        w = Softmax(m) axis=-1
        y = MatMul(w, v)",
        // Values of the file.
        "a = Div(k, [1.5])
        t = Transpose(a) perm=0,1,3,2
        s = MatMul(q, t)
        w = Softmax(s) axis=-1
        y = MatMul(w, table)",
    ];
    for text in forms {
        attention(text).becomes("FusedAttention 1");
    }
    let old = "t = Transpose(k) perm=0,1,3,2
        s = MatMul(q, t)
        w = Softmax(s) axis=3
        y = MatMul(w, v)";
    attention(old).opset(11).becomes("FusedAttention 1");
    // Keys as columns, as BERT's come of a transposition of all dimensions.
    let inputs: &[(&str, &[usize])] = &[("q", &[2, 3, 4, 5]), ("k", &[2, 6, 3, 5]), ("v", &[2, 3, 6, 7])];
    let columns = "t = Transpose(k) perm=0,2,3,1
        s = MatMul(q, t)
        d = Div(s, 2.5)
        w = Softmax(d) axis=-1
        y = MatMul(w, v)";
    attention(columns).inputs(inputs).becomes("FusedAttention 1, Transpose 1");
    // Heads that share keys and values, and keys that something else reads too.
    let inputs: &[(&str, &[usize])] = &[("q", &[2, 3, 4, 5]), ("k", &[1, 6, 5]), ("v", &[6, 5])];
    let shared = "t = Transpose(k) perm=0,2,1
        s = MatMul(q, t)
        w = Softmax(s) axis=-1
        o = MatMul(w, v)
        r = ReduceMean(t)
        y = Add(o, r)";
    attention(shared).inputs(inputs).becomes("Add 1, FusedAttention 1, ReduceMean 1, Transpose 1");
}

/// The last axis of the keys is not the last one of scores of more dimensions.
#[test]
fn attention_along_another_axis_is_right() {
    let inputs: &[(&str, &[usize])] = &[("q", &[2, 3, 4, 5]), ("k", &[6, 5]), ("v", &[6, 7])];
    let text = "t = Transpose(k) perm=1,0
        s = MatMul(q, t)
        w = Softmax(s) axis=1
        y = MatMul(w, v)";
    for opset in [11, 17] {
        attention(text).inputs(inputs).opset(opset).becomes("FusedAttention 1");
    }
}

#[test]
fn what_is_almost_attention_stays() {
    let axis = "t = Transpose(k) perm=0,1,3,2
        s = MatMul(q, t)
        w = Softmax(s) axis=-2
        y = MatMul(w, v)";
    attention(axis).becomes("MatMul 2, Softmax 1, Transpose 1");
    let first = "t = Transpose(k) perm=0,1,3,2
        s = MatMul(q, t)
        w = Softmax(s) axis=1
        y = MatMul(w, v)";
    attention(first).becomes("MatMul 2, Softmax 1, Transpose 1");
    // The default axis was 1 once.
    let default = "t = Transpose(k) perm=0,1,3,2
        s = MatMul(q, t)
        w = Softmax(s)
        y = MatMul(w, v)";
    attention(default).opset(12).becomes("MatMul 2, Softmax 1, Transpose 1");
    let shown = "t = Transpose(k) perm=0,1,3,2
        s = MatMul(q, t)
        yw = Softmax(s) axis=-1
        y = MatMul(yw, v)";
    attention(shown).becomes("MatMul 2, Softmax 1, Transpose 1");
    let square: &[(&str, &[usize])] = &[("q", &[2, 4, 5]), ("k", &[2, 4, 5]), ("v", &[2, 4, 4])];
    let doubled = "t = Transpose(k) perm=0,2,1
        s = MatMul(q, t)
        m = Add(s, s)
        w = Softmax(m) axis=-1
        y = MatMul(w, v)";
    attention(doubled).inputs(square).becomes("Add 1, MatMul 2, Softmax 1, Transpose 1");
    let same = "t = Transpose(k) perm=0,2,1
        s = MatMul(q, t)
        w = Softmax(s) axis=-1
        y = MatMul(w, s)";
    attention(same).inputs(square).becomes("MatMul 2, Softmax 1, Transpose 1");
    let right = "t = Transpose(k) perm=0,2,1
        s = MatMul(q, t)
        w = Softmax(s) axis=-1
        y = MatMul(v, w)";
    attention(right).inputs(square).becomes("MatMul 2, Softmax 1, Transpose 1");
    // A scale for each head is no number, but what is scaled may be the queries.
    let heads = "t = Transpose(k) perm=0,1,3,2
        s = MatMul(q, t)
        d = Mul(s, scale)
        w = Softmax(d) axis=-1
        y = MatMul(w, v)";
    attention(heads).weights(&[("scale", &[3, 1, 1])]).becomes("MatMul 2, Mul 1, Softmax 1, Transpose 1");
    // A transposition that moves something else, too, stays.
    let moved = "t = Transpose(k) perm=1,0,3,2
        s = MatMul(q, t)
        w = Softmax(s) axis=-1
        y = MatMul(w, v)";
    let inputs: &[(&str, &[usize])] = &[("q", &[2, 3, 4, 5]), ("k", &[3, 2, 6, 5]), ("v", &[2, 3, 6, 7])];
    attention(moved).inputs(inputs).becomes("FusedAttention 1, Transpose 1");
}

/// A query that a mask lets attend to nothing has no result, as its operators define.
#[test]
fn rows_that_are_masked_entirely_are_nan() {
    let text = "t = Transpose(k) perm=0,1,3,2
        s = MatMul(q, t)
        m = Add(s, mask)
        w = Softmax(m) axis=-1
        y = MatMul(w, v)";
    let model = onnx::load_bytes(&attention(text).file(false, false)).unwrap();
    for device in devices() {
        let of = |dims: &[usize], seed| Tensor::from_vec(numbers(dims.iter().product(), seed), dims, &device).unwrap();
        let mut mask = vec![0.0; 2 * 4 * 6];
        mask[6..12].fill(f32::NEG_INFINITY);
        let mask = Tensor::from_vec(mask, [2, 1, 4, 6], &device).unwrap();
        let (q, k, v) = (of(&[2, 3, 4, 5], 0), of(&[2, 3, 6, 5], 1), of(&[2, 3, 6, 7], 2));
        let model = model.clone().to(&device).unwrap();
        let y = model.run(&[("q", &q), ("k", &k), ("v", &v), ("mask", &mask)]).unwrap()["y"].to_vec::<f32>().unwrap();
        for (i, row) in y.chunks_exact(7).enumerate() {
            let masked = i / 12 == 0 && i % 4 == 1;
            assert!(row.iter().all(|value| value.is_nan() == masked), "row {i} on {device}: {row:?}");
        }
    }
}
