//! `i64` as indices and labels, on every device. An adapter reports a wrong index to whoever waits for it next.

use anygpu::nn::{self, Module};
use anygpu::{DType, Device, Result, Tensor, s};

use crate::common::{alone, devices};

#[track_caller]
fn refused<T>(result: Result<T>, words: &[&str]) {
    let text = match result {
        Ok(_) => panic!("not refused: {words:?}"),
        Err(error) => error.to_string(),
    };
    words.iter().for_each(|word| assert!(text.contains(word), "{word}: {text}"));
}

/// What a device says of an index, now or when it is waited for.
fn outcome(result: Result<Tensor>) -> Result<Vec<f64>> {
    let x = result?;
    let values = x.to_vec_f64()?;
    x.device().synchronize()?;
    Ok(values)
}

#[test]
fn integers_are_indices() -> Result<()> {
    let _alone = alone();
    for device in &devices() {
        let x = Tensor::arange(0.0, 24.0, 1.0, device)?.reshape([4, 6])?;
        let long = x.to_dtype(DType::I64)?.to(Device::cpu())?.mul(1i64 << 33)?.to(device)?;
        let list = [3i64, 0, 0, 2];
        let of = |shape: &[usize]| Tensor::from_slice(&list, shape, device);
        let same = |a: Result<Tensor>, b: Result<Tensor>| -> Result<()> {
            assert_eq!(outcome(a)?, outcome(b)?, "{device}");
            Ok(())
        };
        let narrow = |x: Tensor| x.to_dtype(DType::U32);
        same(x.index_select(0, &of(&[4])?), x.index_select(0, &narrow(of(&[4])?)?))?;
        same(x.gather(0, &of(&[2, 2])?.t()?), x.gather(0, &narrow(of(&[2, 2])?)?.t()?))?;
        same(x.embedding(&of(&[2, 2])?), x.embedding(&narrow(of(&[2, 2])?)?))?;
        same(of(&[4])?.one_hot(5), narrow(of(&[4])?)?.one_hot(5))?;
        same(
            x.scatter_add(0, &of(&[4, 1])?, &x.i(s![.., ..1])?),
            x.scatter_add(0, &narrow(of(&[4, 1])?)?, &x.i(s![.., ..1])?),
        )?;
        same(x.index_add(0, &of(&[4])?, &x), x.index_add(0, &narrow(of(&[4])?)?, &x))?;
        same(x.index(&[&of(&[4])?, &of(&[4])?]), x.index(&[&narrow(of(&[4])?)?, &narrow(of(&[4])?)?]))?;
        same(x.cross_entropy(&of(&[4])?), x.cross_entropy(&narrow(of(&[4])?)?))?;
        same(nn::cross_entropy(&x, &of(&[4])?), nn::cross_entropy(&x, &narrow(of(&[4])?)?))?;
        let ignoring = nn::CrossEntropyLoss::new().ignore_index(-100);
        let labels = Tensor::from_slice(&[1i64, -100, 2, -100], 4, device)?;
        same(ignoring.forward(&x, &labels), ignoring.forward(&x, &labels.to_dtype(DType::I32)?))?;
        assert_eq!(nn::correct(&x, &labels)?, 0);
        let embedding = nn::Embedding::new(4, 3)?.to(device)?;
        same(embedding.forward(&of(&[2, 2])?), embedding.forward(&narrow(of(&[2, 2])?)?))?;
        // Elements of 64 bits are picked whole.
        let at = |i: usize, j: usize| ((6 * i + j) as i64) << 33;
        let rows: Vec<i64> = list.iter().flat_map(|&i| (0..6).map(move |j| at(i as usize, j))).collect();
        assert_eq!(long.index_select(0, &of(&[4])?)?.to_vec::<i64>()?, rows, "{device}");
        assert_eq!(
            long.gather(0, &of(&[1, 4])?)?.to_vec::<i64>()?,
            (0..4).map(|j| at(list[j] as usize, j)).collect::<Vec<_>>()
        );
        assert_eq!(
            long.gather(1, &of(&[4, 1])?)?.to_vec::<i64>()?,
            (0..4).map(|i| at(i, list[i] as usize)).collect::<Vec<_>>()
        );
        assert_eq!(long.index(&[&of(&[4])?])?.to_vec::<i64>()?, rows);
        let copied = long.zeros_like()?.index_copy(0, &of(&[4])?.i(2..)?, &long.i(..2)?)?;
        let expected: Vec<i64> = (0..24)
            .map(|k| match k / 6 {
                0 => at(0, k % 6),
                2 => at(1, k % 6),
                _ => 0,
            })
            .collect();
        assert_eq!(copied.to_vec::<i64>()?, expected, "{device}");
        let scattered = long.zeros_like()?.scatter(0, &of(&[1, 4])?, &long.i(s![1..2, ..4])?)?;
        let expected: Vec<i64> =
            (0..24).map(|k| if k % 6 < 4 && list[k % 6] == (k / 6) as i64 { at(1, k % 6) } else { 0 }).collect();
        assert_eq!(scattered.to_vec::<i64>()?, expected, "{device}");
        refused(long.scatter_add(0, &of(&[4, 1])?, &long.i(s![.., ..1])?), &["scatter_add", "i64"]);
        // What is beyond 32 bits does not become an index by being cut off.
        for wrong in [
            4,
            -1,
            i64::from(i32::MAX),
            1 << 31,
            u32::MAX.into(),
            1 << 32,
            (1 << 32) + 1,
            -(1 << 32),
            i64::MIN,
            i64::MAX,
        ] {
            let index = Tensor::from_slice(&[1, wrong], 2, device)?;
            refused(outcome(x.index_select(0, &index)), &["index", "dimension"]);
            refused(outcome(long.index_select(0, &index)), &["index", "dimension"]);
            refused(outcome(x.embedding(&index)), &["index", "dimension"]);
            let label = Tensor::from_slice(&[1, if wrong == 4 { 6 } else { wrong }], 2, device)?;
            refused(outcome(x.i(..2)?.cross_entropy(&label)), &["cross_entropy"]);
        }
        assert_eq!(outcome(x.index_select(0, &of(&[4])?.i(0..0)?))?, [0.0; 0]);
    }
    Ok(())
}
