// out = A · B (+ bias), as in matmul_panels.wgsl and from the same panels, with one element of out per invocation: no
// vectors, few registers, no workgroup memory. For drivers on which the other variants give wrong results.

@group(0) @binding(1) var<storage, read> a: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<f32>;

@compute @workgroup_size(WG)
fn matmul_plain(id: Id) {
    let element = linear_index(id);
    let z = element / (p.m * p.n);
    if z >= p.z_count {
        return;
    }
    let m = element / p.n % p.m;
    let n = element % p.n;
    let first = (z % p.splits) * p.k_split;
    if first >= p.k && p.k > 0u {
        return;
    }
    let last = min(first + p.k_split, p.k);
    let from_a = (z / p.splits) * p.a_batch * 4u + (m / 8u) * p.k * 8u + m % 8u;
    let from_b = (z / p.splits) * p.b_batch * 4u + (n / 64u) * p.k * 64u + n % 64u;
    var sum = 0.0;
    for (var k = first; k < last; k++) {
        sum += a[from_a + k * 8u] * b[from_b + k * 64u];
    }
    if HAS_BIAS {
        sum += bias[p.bias_offset + m];
    }
    put(p.offset + z * p.batch + m * p.row + (n / p.inner) * p.outer + n % p.inner, sum);
}
