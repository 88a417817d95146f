// Precedes the shaders that find an index of any kind in an operand of a product by one rule for strides, transposes,
// batches and NCHW images. A map is (inner, step, outer, 0), see `IndexMap`.

fn placed(i: u32, map: vec4<u32>) -> u32 {
    return (i / map.x) * map.z + (i % map.x) * map.y;
}
