//! Reads machine code in the form in which RADV returns it: `BB7:` begins a block, and lines of instructions begin with a
//! tab.

use crate::compiled::Mix;

/// Returns the instructions of the block that runs most often: of the blocks in the innermost loops, the one with
/// the most multiply-adds, then with the most instructions.
pub fn hottest_block(assembly: &str) -> Mix {
    let blocks = blocks(assembly);
    let loops = loops(&blocks);
    let depth = |at: usize| loops.iter().filter(|(first, last)| (*first..=*last).contains(&at)).count();
    let mixes = blocks.iter().enumerate().map(|(at, block)| (depth(at), mix(&block.instructions)));
    let hottest = mixes.max_by_key(|(depth, mix)| (*depth, mix.multiply_adds, mix.instructions));
    hottest.map(|(_, mix)| mix).unwrap_or_default()
}

struct Block<'a> {
    label: &'a str,
    instructions: Vec<&'a str>,
}

fn blocks(assembly: &str) -> Vec<Block<'_>> {
    let mut blocks: Vec<Block> = Vec::new();
    for line in assembly.lines() {
        if let Some(label) = line.strip_suffix(':') {
            blocks.push(Block { label, instructions: Vec::new() });
        } else if let (Some(block), true) = (blocks.last_mut(), line.starts_with('\t')) {
            let instruction = line.split(';').next().unwrap_or_default().trim();
            block.instructions.push(instruction);
        }
    }
    blocks
}

/// Returns the loops, each from the block that a later one jumps back to, to the last one that does.
fn loops(blocks: &[Block]) -> Vec<(usize, usize)> {
    let mut loops: Vec<(usize, usize)> = Vec::new();
    for (at, block) in blocks.iter().enumerate() {
        for branch in
            block.instructions.iter().filter(|line| line.starts_with("s_branch") || line.starts_with("s_cbranch"))
        {
            let target = branch.split_whitespace().nth(1).unwrap_or_default();
            let Some(first) = blocks[..=at].iter().position(|block| block.label == target) else { continue };
            match loops.iter_mut().find(|(other, _)| *other == first) {
                Some((_, last)) => *last = at,
                None => loops.push((first, at)),
            }
        }
    }
    loops
}

fn mix(instructions: &[&str]) -> Mix {
    let mut mix = Mix::default();
    // A dual instruction is two of them, with `::` between.
    for instruction in instructions.iter().flat_map(|line| line.split("::")) {
        let name = instruction.trim_start();
        let is = |starts: &[&str]| u64::from(starts.iter().any(|start| name.starts_with(start)));
        mix.instructions += 1;
        mix.multiply_adds +=
            is(&["v_fma", "v_mac_f32", "v_mad_f32", "v_madak_f32", "v_madmk_f32", "v_pk_fma", "v_dual_fma", "v_wmma"]);
        mix.lds_loads += is(&["ds_load", "ds_read"]);
        mix.lds_stores += is(&["ds_store", "ds_write"]);
        mix.memory_loads += is(&["buffer_load", "global_load", "s_buffer_load"]);
    }
    mix
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "BB0:\n\tv_fma_f32 v0, v1, v2, v3 ; 00\n\tv_fma_f32 v0, v1, v2, v3 ; 00\nBB1:\n\ts_nop 0\n\
        BB2:\n\tds_load_b128 v[0:3], v4 ; 00\n\tv_dual_fmac_f32 v0, v1, v2 :: v_dual_fmac_f32 v3, v4, v5 ; 00\n\
        \tv_mad_u32_u24 v0, v1, v2, v3\n\tbuffer_load_dwordx4 v[0:3], v4\n\ts_cbranch_scc1 BB2 ; 00\n\
        BB3:\n\ts_cbranch_scc0 BB4\n\ts_branch BB1\nBB4:\n\ts_endpgm\n";

    #[test]
    fn the_hottest_block_is_in_the_innermost_loop() {
        let expected = Mix { instructions: 6, multiply_adds: 2, lds_loads: 1, lds_stores: 0, memory_loads: 1 };
        assert_eq!(hottest_block(CODE), expected);
        assert_eq!(loops(&blocks(CODE)), [(2, 2), (1, 3)]);
    }

    #[test]
    fn without_loops_it_is_the_block_with_the_most_multiply_adds() {
        let code = "BB0:\n\ts_nop 0\n\ts_nop 0\nBB1:\n\tv_mac_f32_e32 v0, v1, v2\n";
        assert_eq!(hottest_block(code), Mix { instructions: 1, multiply_adds: 1, ..Mix::default() });
        assert_eq!(hottest_block(""), Mix::default());
    }
}
