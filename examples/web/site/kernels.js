// The kernels that the page begins with. `picture` and `filtered` have the four bytes of a pixel in one word.
const head = `struct Params { width: u32, height: u32, amount: f32 }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> picture: array<u32>;
@group(0) @binding(2) var<storage, read_write> filtered: array<u32>;

// A pixel of the picture; outside of it, the nearest one.
fn pixel(place: vec2i) -> vec4f {
    let last = vec2i(vec2u(params.width, params.height)) - 1;
    let at = vec2u(clamp(place, vec2i(), last));
    return unpack4x8unorm(picture[at.y * params.width + at.x]);
}
`;

const main = (body) => `${head}
@compute @workgroup_size(8, 8)
fn main(@builtin(global_invocation_id) id: vec3u) {
    if id.x >= params.width || id.y >= params.height { return; }
${body}
    filtered[id.y * params.width + id.x] = pack4x8unorm(vec4(colour.rgb, 1.0));
}
`;

export const kernels = {
  swirl: main(`    // Turns the picture, the more the nearer to its middle.
    let middle = 0.5 * vec2f(f32(params.width), f32(params.height));
    let d = vec2f(id.xy) + 0.5 - middle;
    let near = max(1.0 - length(d) / min(middle.x, middle.y), 0.0);
    let angle = 6.0 * params.amount * near * near;
    let c = cos(angle);
    let s = sin(angle);
    let place = middle + vec2(c * d.x - s * d.y, s * d.x + c * d.y);
    let colour = pixel(vec2i(floor(place)));`),
  edges: main(`    // The differences from the neighbours, mixed with the picture.
    let at = vec2i(id.xy);
    let dx = pixel(at + vec2(1, 0)) - pixel(at - vec2(1, 0));
    let dy = pixel(at + vec2(0, 1)) - pixel(at - vec2(0, 1));
    let edge = 2.0 * sqrt(dx * dx + dy * dy);
    let colour = mix(pixel(at), edge, params.amount);`),
  blur: main(`    // The mean of a square.
    let r = i32(12.0 * params.amount);
    var colour = vec4f();
    for (var y = -r; y <= r; y++) {
        for (var x = -r; x <= r; x++) {
            colour += pixel(vec2i(id.xy) + vec2(x, y));
        }
    }
    colour /= f32((2 * r + 1) * (2 * r + 1));`),
  blocks: main(`    // One pixel of each block.
    let side = 1u + u32(24.0 * params.amount);
    let colour = pixel(vec2i(id.xy / side * side + side / 2u));`),
  grey: main(`    // Brightness without colour.
    let own = pixel(vec2i(id.xy));
    let grey = dot(own.rgb, vec3(0.299, 0.587, 0.114));
    let colour = mix(own, vec4(grey), params.amount);`),
};
