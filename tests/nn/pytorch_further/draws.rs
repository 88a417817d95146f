//! `multinomial`: the same positions on every device, by seeds, with the right frequencies.

use anygpu::{DType, Result, Tensor, manual_seed};

use crate::common::devices_in_turn;

/// The generator is one for the process: these draws are one test.
#[test]
fn draws_follow_the_seed_and_the_weights() -> Result<()> {
    let weights = [[1.0f32, 0.0, 2.0, 5.0], [0.25, 0.25, 0.25, 0.25]];
    let draw = |device: &_, replacement: bool| -> Result<Vec<u32>> {
        manual_seed(11);
        let weights = Tensor::new(weights, device)?;
        let drawn = weights.multinomial(if replacement { 5000 } else { 3 }, replacement)?;
        assert_eq!((drawn.dtype(), drawn.device()), (DType::U32, device));
        drawn.to_vec::<u32>()
    };
    let all = devices_in_turn();
    for replacement in [true, false] {
        let first = draw(&all[0], replacement)?;
        for device in &all[1..] {
            assert_eq!(draw(device, replacement)?, first, "{device}");
        }
    }
    let drawn = draw(&all[0], true)?;
    for (row, weights) in drawn.chunks(5000).zip(weights) {
        let sum: f32 = weights.iter().sum();
        for (i, weight) in weights.iter().enumerate() {
            let share = row.iter().filter(|&&place| place as usize == i).count() as f32 / 5000.0;
            assert!((share - weight / sum).abs() < 0.025, "{i}: {share}");
            assert!(*weight > 0.0 || share == 0.0);
        }
    }
    // Without replacement, the first of the drawn follows the weights, and none comes twice.
    manual_seed(5);
    let rows = Tensor::new([1.0f32, 0.0, 2.0, 5.0], &all[0])?.broadcast_to([4000, 4])?;
    let drawn = rows.multinomial(3, false)?.to_vec2::<u32>()?;
    for (i, weight) in [1.0, 0.0, 2.0, 5.0].into_iter().enumerate() {
        let share = drawn.iter().filter(|row| row[0] as usize == i).count() as f32 / 4000.0;
        assert!((share - weight / 8.0).abs() < 0.03, "{i}: {share}");
    }
    // The second, given that the first was 3: of the weights 1 and 2.
    let after: Vec<_> = drawn.iter().filter(|row| row[0] == 3).collect();
    let share = after.iter().filter(|row| row[1] == 2).count() as f32 / after.len() as f32;
    assert!((share - 2.0 / 3.0).abs() < 0.04, "{share}");
    for mut row in drawn {
        row.sort_unstable();
        assert_eq!(row, [0, 2, 3]);
    }
    // Other types, and nothing to draw.
    let halves = Tensor::new([0.0f32, 1.0], &all[0])?.to_dtype(DType::F16)?;
    assert_eq!(halves.multinomial(2, true)?.to_vec::<u32>()?, [1, 1]);
    assert_eq!(halves.multinomial(0, false)?.shape(), [0]);
    Ok(())
}
