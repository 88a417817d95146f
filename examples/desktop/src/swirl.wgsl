// Turns a picture around its middle, the more the
// nearer to it, and mixes it with its edges.

struct Params {
    width: u32, height: u32,
    angle: f32, edges: f32,
}
@group(0) @binding(0)
var<uniform> params: Params;
@group(0) @binding(1)
var<storage, read> picture: array<u32>;
@group(0) @binding(2)
var<storage, read_write> filtered: array<vec4f>;

fn size() -> vec2u {
    return vec2(params.width, params.height);
}

fn pixel(place: vec2i) -> vec4f {
    let last = vec2i(size()) - 1;
    let at = vec2u(clamp(place, vec2i(), last));
    let i = at.y * params.width + at.x;
    return unpack4x8unorm(picture[i]);
}

// The colour between four pixels.
fn colour(place: vec2f) -> vec4f {
    let at = vec2i(floor(place - 0.5));
    let part = fract(place - 0.5);
    let x = vec2(1, 0);
    let y = vec2(0, 1);
    return mix(
        mix(pixel(at), pixel(at + x), part.x),
        mix(pixel(at + y), pixel(at + x + y), part.x),
        part.y,
    );
}

@compute @workgroup_size(8, 8)
fn swirl(
    @builtin(global_invocation_id) id: vec3u,
) {
    if any(id.xy >= size()) { return; }
    let middle = 0.5 * vec2f(size());
    let d = vec2f(id.xy) + 0.5 - middle;
    let radius = min(middle.x, middle.y);
    let near = max(1.0 - length(d) / radius, 0.0);
    let angle = params.angle * near * near;
    let c = cos(angle);
    let s = sin(angle);
    let place = middle + vec2(c * d.x - s * d.y,
                              s * d.x + c * d.y);
    var result = colour(place);
    if params.edges > 0.0 {
        let at = vec2i(floor(place));
        let x = vec2(1, 0);
        let y = vec2(0, 1);
        let dx = pixel(at + x) - pixel(at - x);
        let dy = pixel(at + y) - pixel(at - y);
        let edge = sqrt(dx * dx + dy * dy);
        result = mix(result, edge, params.edges);
    }
    // The texture has bytes.
    let rgb = round(255.0 * saturate(result.rgb));
    let i = id.y * params.width + id.x;
    filtered[i] = vec4(rgb, 255.0);
}
