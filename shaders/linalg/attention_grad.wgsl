// The gradients of attention.wgsl, after attention_places.wgsl, from the gradient g of its result: the weights are computed again, so that
// none is in memory (Dao et al., "FlashAttention", 2022, algorithm 4). With w = softmax(q kᵀ · scale) and c_i = Σ_j w_ij · (g_i · v_j):
//   of_queries: dq_i ← scale · Σ_j w_ij · (g_i · v_j − c_i) · k_j, and found_i ← (log Σ_j exp(score_ij), c_i). One invocation: one query.
//   of_keys:    dk_j ← scale · Σ_i w_ij · (g_i · v_j − c_i) · q_i. One invocation: one key.
//   of_values:  dv_j ← Σ_i w_ij · g_i. One invocation: one value.
// Of each head, the three gradients follow one another in `out`. Where the forward pass gave NaN, so do these.

@group(0) @binding(4) var<storage, read> g: array<vec4<f32>>; // [heads, L, V]
@group(0) @binding(5) var<storage, read_write> found: array<vec2<f32>>; // [heads, L]
@group(0) @binding(6) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> known: array<vec2<f32>>;

/// Returns where the gradients of a head begin.
fn gradients_of(head: u32) -> u32 {
    return head * (p.queries * OF_KEY + p.keys * (OF_KEY + OF_VALUE));
}

@compute @workgroup_size(WG)
fn of_queries(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let tile = tile_of(group, p.queries);
    if tile.head >= p.heads {
        return;
    }
    let query = min(tile.first + local, p.queries - 1u);
    let at = places(tile.head);
    var own = scaled_query(at.x + query * p.rows.x);
    var slope: Row;
    for (var e = 0u; e < OF_VALUE; e++) {
        slope[e] = g[p.offsets.w + (tile.head * p.queries + query) * OF_VALUE + e];
    }
    let end = select(p.keys, min(p.keys, tile.first + WG), CAUSAL);
    let last = select(p.keys - 1u, min(query, p.keys - 1u), CAUSAL);
    var most = LOWEST;
    var total = 0.0;
    var mean = 0.0;
    var nan = false;
    for (var j = 0u; j < end; j++) {
        let score = by_key(&own, at.y + j * p.rows.y);
        let product = by_value(&slope, at.z + j * p.rows.z);
        if j <= last {
            nan = nan || (bitcast<u32>(score) & 0x7fffffffu) > INFINITE;
            let peak = max(most, score);
            let kept = exp(most - peak);
            let weight = exp(score - peak);
            total = total * kept + weight;
            mean = mean * kept + weight * product;
            most = peak;
        }
    }
    let known_of_query = nan_if(vec4(most + log(total), mean / total, 0.0, 0.0), is_odd(most, total, nan));
    let level = known_of_query.x;
    mean = known_of_query.y;
    var sums: Row;
    for (var j = 0u; j < end; j++) {
        let start = at.y + j * p.rows.y;
        let score = by_key(&own, start);
        let product = by_value(&slope, at.z + j * p.rows.z);
        let weight = select(0.0, exp(score - level) * (product - mean), j <= last);
        for (var e = 0u; e < OF_KEY; e++) {
            sums[e] += weight * k[start + e];
        }
    }
    if tile.first + local >= p.queries {
        return;
    }
    found[tile.head * p.queries + query] = vec2(level, mean);
    let to = gradients_of(tile.head) + query * OF_KEY;
    for (var e = 0u; e < OF_KEY; e++) {
        out[to + e] = sums[e] * p.scale;
    }
}

/// Returns the key at `at`, by the scale.
fn scaled_key(at: u32) -> Row {
    var row: Row;
    for (var e = 0u; e < OF_KEY; e++) {
        row[e] = k[at + e] * p.scale;
    }
    return row;
}

/// Returns the product of `row` and the query at `at`.
fn by_query(row: ptr<function, Row>, at: u32) -> f32 {
    var sum = vec4<f32>();
    for (var e = 0u; e < OF_KEY; e++) {
        sum += (*row)[e] * q[at + e];
    }
    return sum_of(sum);
}

/// Returns the product of `row` and the gradient of a result at `at`.
fn by_slope(row: ptr<function, Row>, at: u32) -> f32 {
    var sum = vec4<f32>();
    for (var e = 0u; e < OF_VALUE; e++) {
        sum += (*row)[e] * g[at + e];
    }
    return sum_of(sum);
}

/// Returns the weight of a query and a key. It is NaN where the level is, also on adapters that have exp(NaN) = 0.
fn weight_of(score: f32, level: f32, query: u32, key: u32) -> f32 {
    let weight = bitcast<f32>(select(bitcast<u32>(exp(score - level)), 0x7fc00000u, is_nan(level)));
    return select(weight, 0.0, CAUSAL && key > query);
}

/// Returns the first query that sees a key of a tile.
fn first_query(tile: Tile) -> u32 {
    return select(0u, min(tile.first, p.queries), CAUSAL);
}

@compute @workgroup_size(WG)
fn of_keys(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let tile = tile_of(group, p.keys);
    if tile.head >= p.heads {
        return;
    }
    let key = min(tile.first + local, p.keys - 1u);
    let at = places(tile.head);
    var value: Row;
    var own = scaled_key(at.y + key * p.rows.y);
    for (var e = 0u; e < OF_VALUE; e++) {
        value[e] = v[at.z + key * p.rows.z + e];
    }
    var sums: Row;
    for (var i = first_query(tile); i < p.queries; i++) {
        let start = at.x + i * p.rows.x;
        let slopes = p.offsets.w + (tile.head * p.queries + i) * OF_VALUE;
        let of_query = known[tile.head * p.queries + i];
        let weight = weight_of(by_query(&own, start), of_query.x, i, key);
        let slope = select(weight * (by_slope(&value, slopes) - of_query.y), 0.0, CAUSAL && key > i); // not 0 · NaN
        for (var e = 0u; e < OF_KEY; e++) {
            sums[e] += slope * q[start + e];
        }
    }
    if tile.first + local >= p.keys {
        return;
    }
    let to = gradients_of(tile.head) + p.queries * OF_KEY + key * OF_KEY;
    for (var e = 0u; e < OF_KEY; e++) {
        out[to + e] = sums[e] * p.scale;
    }
}

@compute @workgroup_size(WG)
fn of_values(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let tile = tile_of(group, p.keys);
    if tile.head >= p.heads {
        return;
    }
    let key = min(tile.first + local, p.keys - 1u);
    let at = places(tile.head);
    var own = scaled_key(at.y + key * p.rows.y);
    var sums: Row;
    for (var i = first_query(tile); i < p.queries; i++) {
        let start = at.x + i * p.rows.x;
        let slopes = p.offsets.w + (tile.head * p.queries + i) * OF_VALUE;
        let weight = weight_of(by_query(&own, start), known[tile.head * p.queries + i].x, i, key);
        for (var e = 0u; e < OF_VALUE; e++) {
            sums[e] += weight * g[slopes + e];
        }
    }
    if tile.first + local >= p.keys {
        return;
    }
    let to = gradients_of(tile.head) + (p.queries + p.keys) * OF_KEY + key * OF_VALUE;
    for (var e = 0u; e < OF_VALUE; e++) {
        out[to + e] = sums[e];
    }
}
