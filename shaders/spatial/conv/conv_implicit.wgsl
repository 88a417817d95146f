// A convolution or one of its gradients as a matrix product out[m, n] = Σ_k a[m, k] · x[k, n] that reads x from the image, so
// that no columns are in memory (after conv_implicit_steps.wgsl, tile_product.wgsl and halves.wgsl). For GPUs.
// `a` is in panels of 64 rows (pack.wgsl). By rows and columns of x:
//   the convolution: n is a window (image, y, x), k is (ty, tx, channel), a the weight. The gradient of the image is one for
//                    the pixels of each phase (conv_implicit_places.wgsl);
//   WEIGHT_GRAD:     n is (channel, ty, tx), k is a window (image, y, x), a the gradient of the result.
// An invocation moves elements of one step of k and of four columns, or several times four. Unless FLAT or WEIGHT_GRAD, a tile
// has channels of one position of the window, so that places are found once for each position. With FLAT, it has any steps:
// for few channels.

@group(0) @binding(1) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> x: array<u32>;

override X_HALVES: u32 = 0u;

fn of_x(i: u32) -> f32 {
    return float_of(x[word_of(i, X_HALVES)], i, X_HALVES);
}

// The vectors of A that an invocation moves for a tile.
const MOVED_A = 16u / COLUMNS;

struct Part {
    a: array<vec4<f32>, MOVED_A>,
    b: array<vec4<f32>, MOVED_B>,
}

/// Loads the elements of a tile that this invocation moves.
fn load(from_a: u32, step: u32) -> Part {
    var channel = 0u; // beside the one of `find`
    if !FLAT && !WEIGHT_GRAD {
        channel = min(at_k.x + step, p.channels - 1u);
    }
    let planes = channel * p.height * p.width;
    var part: Part;
    for (var i = 0u; i < MOVED_A; i++) {
        part.a[i] = a[from_a + (row_a + channel) * 16u + i * ACROSS];
    }
    for (var i = 0u; i < MOVED_B; i++) {
        let at = places_b[i] + planes;
        part.b[i] = vec4(of_x(at.x), of_x(at.y), of_x(at.z), of_x(at.w));
    }
    return part;
}

/// Puts them into the tile, with zeros for those outside the image and for steps past the end.
fn put_part(step: u32, vector: u32, part: Part) {
    let to_a = step * A_STRIDE + vector;
    let to_b = step * B_STRIDE + vector;
    var tail = k - step + DEPTH > g.k;
    var valid = on;
    if !FLAT && !WEIGHT_GRAD {
        tail = at_k.x + DEPTH > p.channels;
        valid = at_k.x + step < p.channels;
    }
    for (var i = 0u; i < MOVED_A; i++) {
        tile_a[to_a + i * ACROSS] = part.a[i];
    }
    for (var i = 0u; i < MOVED_B; i++) {
        tile_b[to_b + i * ACROSS] = select(vec4<f32>(), part.b[i], inside[i]);
    }
    if tail && !valid {
        for (var i = 0u; i < MOVED_A; i++) {
            tile_a[to_a + i * ACROSS] = vec4<f32>();
        }
        for (var i = 0u; i < MOVED_B; i++) {
            tile_b[to_b + i * ACROSS] = vec4<f32>();
        }
    }
}

@compute @workgroup_size(COLUMNS, ROWS)
fn conv_implicit(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_id) lid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let tile = group_number(group);
    let m_tiles = (p.m + ROWS * 8u - 1u) / (ROWS * 8u);
    let n_tiles = (p.n + COLUMNS * 8u - 1u) / (COLUMNS * 8u);
    let m_tile = tile % m_tiles;
    let n_tile = (tile / m_tiles) % n_tiles;
    let all = tile / (m_tiles * n_tiles);
    if all >= p.z_count {
        return;
    }
    let counts = phases();
    let z = all / (counts.x * counts.y);
    let shape = shape_of(all % (counts.x * counts.y));
    g = shape;
    let first = z % p.splits * p.tiles_split;
    let last = min(first + p.tiles_split, all_tiles(shape));
    let step = local / ACROSS;
    let vector = local % ACROSS;
    // In place of panels and columns past the end the last one is loaded; its sums are not stored.
    let vector_a = m_tile * ROWS * 2u + vector;
    let panels = (p.m + 63u) / 64u;
    let panel = z / p.splits * panels + min(vector_a / 16u, panels - 1u);
    let from_a = panel * p.a_depth * 16u + vector_a % 16u;
    for (var i = 0u; i < MOVED_B; i++) {
        let n = (n_tile * COLUMNS * 2u + vector + i * ACROSS) * 4u;
        for (var j = 0u; j < 4u; j++) {
            let spot = column_spot(min(n + j, g.n - 1u), z / p.splits);
            columns[i].at[j] = spot.at;
            columns[i].y[j] = spot.y;
            columns[i].x[j] = spot.x;
        }
    }
    var eight = Place();
    if WEIGHT_GRAD {
        eight = place(DEPTH, g.out_y, g.out_x);
    } else if FLAT {
        eight = place(DEPTH, g.taps_x, p.channels);
    }
    start(first, step);
    put_part(step, vector, load(from_a, step));
    workgroupBarrier();
    for (var t = first; t < last; t++) {
        advance(eight);
        let next = load(from_a, step);
        multiply_tiles(lid);
        workgroupBarrier();
        put_part(step, vector, next);
        workgroupBarrier();
    }
    store_tile(z, m_tile, n_tile, lid);
}
