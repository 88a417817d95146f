// x is [A, C, B] log-probabilities, labels and g [A, B], w [C] the classes' weights (1 if not WEIGHTED); n = (a, b).
//   forward:  out[n] ← −w[label[n]] · x[a, label[n], b]
//   weights:  out[n] ← w[label[n]]
//   backward: out[a, c, b] ← −w[c] · g[n] where c = label[n], otherwise 0
//   cross_entropy:      out[n] ← w[label[n]] · (log Σ_c exp(x[a, c, b]) − x[a, label[n], b]), of any scores x
//   cross_entropy_grad: out[a, c, b] ← w[label[n]] · g[n] · (exp(x[a, c, b]) / Σ_c exp(x[a, c, b]) − [c = label[n]])
// All dense. After nll_labels.wgsl. One invocation: one element of out; in the last two, one n.

@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<storage, read> g: array<f32>;
@group(0) @binding(5) var<storage, read_write> dx: array<f32>;

const INFINITE = 0x7f800000u;

@compute @workgroup_size(WG)
fn weights(id: Id) {
    let n = linear_index(id);
    if n >= p.count {
        return;
    }
    out[n] = bitcast<f32>(weight_bits(labels[p.label_offset + n]));
}

@compute @workgroup_size(WG)
fn forward(id: Id) {
    let n = linear_index(id);
    if n >= p.count {
        return;
    }
    let label = labels[p.label_offset + n];
    var bits = weight_bits(label);
    if label < p.classes && !(IGNORE && label == p.ignored) {
        let at = ((n / p.inner) * p.classes + label) * p.inner + n % p.inner;
        bits = bitcast<u32>(-x[p.x_offset + at] * bitcast<f32>(bits));
    }
    out[n] = bitcast<f32>(bits);
}

@compute @workgroup_size(WG)
fn backward(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let n = (i / (p.inner * p.classes)) * p.inner + i % p.inner;
    let label = labels[p.label_offset + n];
    var v = 0.0;
    if label == (i / p.inner) % p.classes && !(IGNORE && label == p.ignored) {
        v = -x[p.x_offset + n] * bitcast<f32>(weight_bits(label));
    }
    out[i] = v;
}

/// The scores of one n: where they are, the largest of them, the sum of exp(x − most), and whether one is NaN or +∞, or all
/// are −∞.
struct Row {
    begin: u32,
    end: u32,
    most: f32,
    total: f32,
    odd: bool,
}

fn row_of(n: u32) -> Row {
    let begin = p.x_offset + (n / p.inner) * p.classes * p.inner + n % p.inner;
    let end = begin + p.classes * p.inner;
    var most = x[begin];
    var largest = 0u; // of the magnitudes: NaN is above infinity
    for (var at = begin; at < end; at += p.inner) {
        most = max(most, x[at]);
        largest = max(largest, bitcast<u32>(x[at]) & 0x7fffffffu);
    }
    var total = 0.0;
    for (var at = begin; at < end; at += p.inner) {
        total += exp(x[at] - most);
    }
    return Row(begin, end, most, total, largest > INFINITE || (bitcast<u32>(most) & 0x7fffffffu) >= INFINITE);
}

@compute @workgroup_size(WG)
fn cross_entropy(id: Id) {
    let n = linear_index(id);
    if n >= p.count {
        return;
    }
    let label = labels[p.label_offset + n];
    var bits = weight_bits(label);
    if label < p.classes && !(IGNORE && label == p.ignored) {
        let row = row_of(n);
        let loss = -bitcast<f32>(bits) * ((x[row.begin + label * p.inner] - row.most) - log(row.total));
        bits = select(bitcast<u32>(loss), NAN_BITS, row.odd);
    }
    out[n] = bitcast<f32>(bits);
}

@compute @workgroup_size(WG)
fn cross_entropy_grad(id: Id) {
    let n = linear_index(id);
    if n >= p.count {
        return;
    }
    let label = labels[p.label_offset + n];
    let bits = weight_bits(label);
    let ignored = IGNORE && label == p.ignored;
    let factor = bitcast<f32>(bits) * g[p.g_offset + n];
    let row = row_of(n);
    for (var at = row.begin; at < row.end; at += p.inner) {
        let own = select(0.0, 1.0, at == row.begin + label * p.inner);
        let slope = factor * (exp(x[at] - row.most) / row.total - own);
        let odd = select(bitcast<u32>(slope), NAN_BITS, row.odd || label >= p.classes);
        dx[at - p.x_offset] = bitcast<f32>(select(odd, 0u, ignored));
    }
}
