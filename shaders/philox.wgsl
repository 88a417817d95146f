// Philox 4x32-10 (Salmon et al., SC 2011), the same bits as src/philox.rs. The params of the shader that follows have
// the key `seed` and the number of the first block `first`, each as low and high word.

fn philox(block: u32) -> vec4<u32> {
    let low = p.first.x + block;
    var c = vec4(low, p.first.y + select(0u, 1u, low < block), 0u, 0u);
    var key = p.seed;
    for (var round = 0u; round < 10u; round++) {
        let hi = vec2(mul_high(c.x, 0xD2511F53u), mul_high(c.z, 0xCD9E8D57u));
        c = vec4(hi.y ^ c.y ^ key.x, c.z * 0xCD9E8D57u, hi.x ^ c.w ^ key.y, c.x * 0xD2511F53u);
        key += vec2(0x9E3779B9u, 0xBB67AE85u);
    }
    return c;
}
