// Turns a picture around its middle, the more the nearer to it, and mixes it with its edges.

struct Params { width: u32, height: u32, angle: f32, edges: f32 }

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> picture: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> filtered: array<vec4<f32>>;

fn pixel(place: vec2<i32>) -> vec4<f32> {
    let inside = clamp(place, vec2(0), vec2(i32(params.width), i32(params.height)) - 1);
    return picture[u32(inside.y) * params.width + u32(inside.x)];
}

// The colour between four pixels.
fn colour(place: vec2<f32>) -> vec4<f32> {
    let corner = floor(place - 0.5);
    let part = place - 0.5 - corner;
    let at = vec2<i32>(corner);
    let top = mix(pixel(at), pixel(at + vec2(1, 0)), part.x);
    let bottom = mix(pixel(at + vec2(0, 1)), pixel(at + vec2(1, 1)), part.x);
    return mix(top, bottom, part.y);
}

@compute @workgroup_size(8, 8)
fn swirl(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= params.width || id.y >= params.height { return; }
    let middle = 0.5 * vec2(f32(params.width), f32(params.height));
    let from_middle = vec2<f32>(id.xy) + 0.5 - middle;
    let near = max(1.0 - length(from_middle) / min(middle.x, middle.y), 0.0);
    let angle = params.angle * near * near;
    let c = cos(angle);
    let s = sin(angle);
    let place = middle + vec2(c * from_middle.x - s * from_middle.y, s * from_middle.x + c * from_middle.y);

    var result = colour(place);
    if params.edges > 0.0 {
        let at = vec2<i32>(floor(place));
        let across = pixel(at + vec2(1, 0)) - pixel(at - vec2(1, 0));
        let down = pixel(at + vec2(0, 1)) - pixel(at - vec2(0, 1));
        result = mix(result, sqrt(across * across + down * down), params.edges);
    }
    // The texture has bytes.
    filtered[id.y * params.width + id.x] = vec4(round(255.0 * clamp(result.rgb, vec3(0.0), vec3(1.0))), 255.0);
}
