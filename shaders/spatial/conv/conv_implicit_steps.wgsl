// The steps of a convolution without columns in memory: which elements of the image an invocation reads for its tile of
// columns. After conv_implicit_places.wgsl.

override FLAT: bool = false;

// The vectors of x that an invocation moves for a tile. ACROSS invocations move one step of k.
const MOVED_B = 16u / ROWS;
const ACROSS = ROWS * COLUMNS / 8u;

struct Spots {
    at: vec4<u32>,
    y: vec4<u32>,
    x: vec4<u32>,
}

// Where an invocation reads: its vectors of columns; the step of k, and its place; the elements of this step.
var<private> columns: array<Spots, MOVED_B>;
var<private> k: u32;
var<private> at_k: Place;
var<private> row_a: u32;
var<private> on: bool; // the step is within the sum
var<private> places_b: array<vec4<u32>, MOVED_B>;
var<private> inside: array<vec4<bool>, MOVED_B>;

/// Returns the place that is as much further as `step` is from 0, in planes `[height, width]`.
fn further(at: Place, step: Place, height: u32, width: u32) -> Place {
    var x = at.x + step.x;
    var y = at.y + step.y;
    var plane = at.plane + step.plane;
    if x >= width {
        x -= width;
        y++;
    }
    if y >= height {
        y -= height;
        plane++;
    }
    return Place(plane, y, x);
}

/// Returns the number of tiles of a sum.
fn all_tiles(s: Shape) -> u32 {
    if FLAT || WEIGHT_GRAD {
        return (s.k + DEPTH - 1u) / DEPTH;
    }
    return s.taps_y * s.taps_x * ((p.channels + DEPTH - 1u) / DEPTH);
}

/// Returns the part of a place that depends on a column, in the channels of a group.
fn column_spot(n: u32, group: u32) -> Spot {
    let first = p.image_offset + group * p.channels * p.height * p.width;
    var spot: Spot;
    if WEIGHT_GRAD {
        let tap = place(n, g.taps_y, g.taps_x);
        spot = tap_spot(tap.plane, tap.y, tap.x);
    } else {
        spot = window_spot(place(n, g.out_y, g.out_x));
    }
    return Spot(first + spot.at, spot.y, spot.x);
}

/// Finds the elements of step k. Those outside the image are read at place 0, and not used.
fn find() {
    var spot: Spot;
    if WEIGHT_GRAD {
        spot = window_spot(at_k);
        row_a = k;
        on = k < g.k;
    } else {
        let channel = select(0u, at_k.x, FLAT);
        spot = tap_spot(channel, at_k.plane, at_k.y);
        row_a = g.a_first + at_k.plane * g.a_y + at_k.y * g.a_x + channel;
        on = at_k.plane < g.taps_y;
    }
    for (var i = 0u; i < MOVED_B; i++) {
        let y = columns[i].y + spot.y;
        let xx = columns[i].x + spot.x;
        inside[i] = (y < vec4(p.height)) & (xx < vec4(p.width)) & vec4(on);
        places_b[i] = select(vec4(0u), columns[i].at + spot.at, inside[i]);
    }
    row_a = select(0u, row_a, on);
}

/// Moves on to the tile that begins `tile` tiles after the first.
fn start(tile: u32, step: u32) {
    k = tile * DEPTH + step;
    if WEIGHT_GRAD {
        at_k = place(k, g.out_y, g.out_x);
    } else if FLAT {
        at_k = place(k, g.taps_x, p.channels);
    } else {
        let tiles = (p.channels + DEPTH - 1u) / DEPTH;
        let tap = tile / tiles;
        at_k = Place(tap / g.taps_x, tap % g.taps_x, tile % tiles * DEPTH);
    }
    find();
}

/// Moves on to the next tile. `eight` is the place of step 8.
fn advance(eight: Place) {
    k += DEPTH;
    if WEIGHT_GRAD {
        at_k = further(at_k, eight, g.out_y, g.out_x);
        find();
    } else if FLAT {
        at_k = further(at_k, eight, g.taps_x, p.channels);
        find();
    } else {
        at_k.x += DEPTH;
        if at_k.x >= p.channels {
            at_k = next(Place(at_k.plane, at_k.y, 0u), g.taps_x, 1u);
            find();
        }
    }
}
