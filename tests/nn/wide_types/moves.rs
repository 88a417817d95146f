//! What picks and places whole elements, on every device.

use anygpu::{Padding, Result, Tensor};

use super::LONGS;
use crate::common::devices;

#[test]
fn choices_and_padding_move_whole_elements() -> Result<()> {
    for device in &devices() {
        let x = Tensor::from_slice(&LONGS, [2, 7], device)?;
        let mask: Vec<bool> = (0..14).map(|i| i % 3 == 0).collect();
        let condition = Tensor::from_slice(&mask, [2, 7], device)?;
        let chosen: Vec<i64> = (0..14).map(|i| if mask[i] { LONGS[i] } else { i64::MIN + 9 }).collect();
        assert_eq!(condition.where_cond(&x, i64::MIN + 9)?.to_vec::<i64>()?, chosen, "{device}");
        let other = Tensor::from_slice(&[5i64, -5], [2, 1], device)?;
        let chosen: Vec<i64> = (0..14).map(|i| if mask[i] { [5, -5][i / 7] } else { LONGS[i] }).collect();
        assert_eq!(condition.where_cond(&other, &x)?.to_vec::<i64>()?, chosen);
        let filled: Vec<i64> = (0..14).map(|i| if mask[i] { -3 } else { LONGS[i] }).collect();
        assert_eq!(x.masked_fill(&condition, -3.9)?.to_vec::<i64>()?, filled);
        let padded = x.pad(&[(1, 0), (0, 2)], Padding::Constant(-7.0))?;
        let expected: Vec<i64> =
            (0..27).map(|k| if k / 9 > 0 && k % 9 < 7 { LONGS[(k / 9 - 1) * 7 + k % 9] } else { -7 }).collect();
        assert_eq!((padded.shape(), padded.to_vec::<i64>()?), (&[3, 9][..], expected), "{device}");
        let padded = x.pad(&[(2, 1)], Padding::Reflect)?;
        let expected: Vec<i64> = (0..20).map(|k| LONGS[k / 10 * 7 + [2, 1, 0, 1, 2, 3, 4, 5, 6, 5][k % 10]]).collect();
        assert_eq!(padded.to_vec::<i64>()?, expected, "{device}");
        let triangle: Vec<i64> = (0..14).map(|k| if k % 7 <= k / 7 + 1 { LONGS[k] } else { 0 }).collect();
        assert_eq!(x.tril(1)?.to_vec::<i64>()?, triangle, "{device}");
    }
    Ok(())
}
