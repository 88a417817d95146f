use crate::device::gpu::LARGEST_BINDING;
use crate::{Device, Error, Result, Tensor};

/// Calls `f` with adapters that bind no more than so many words, and compares its results with the host's.
fn same_as_on_the_host(words: usize, f: impl Fn(&Device) -> Result<Vec<Tensor>>) -> Result<()> {
    let expected = f(&Device::cpu())?;
    for device in Device::all().into_iter().filter(|device| !device.is_cpu()) {
        // The variants of kernels are tried, on examples of their own; nothing waits to be recorded.
        f(&device)?;
        device.synchronize()?;
        LARGEST_BINDING.set(Some(words));
        let got = f(&device);
        LARGEST_BINDING.set(None);
        for (i, (got, expected)) in got.map_err(|error| panic!("{device}: {error}"))?.iter().zip(&expected).enumerate()
        {
            assert_eq!((got.shape(), got.dtype()), (expected.shape(), expected.dtype()), "{device}: result {i}");
            let values = |x: &Tensor| x.detach().to_dtype(crate::DType::F32)?.to_vec::<f32>();
            for (at, (got, expected)) in values(got)?.iter().zip(&values(expected)?).enumerate() {
                let near =
                    (got - expected).abs() <= 2e-5 * expected.abs().max(1.0) || got.to_bits() == expected.to_bits();
                assert!(near, "{device}: result {i} at {at}: {got} instead of {expected}");
            }
        }
    }
    Ok(())
}

/// Returns numbers between −1 and 1 that differ from element to element.
fn numbers(shape: &[usize], device: &Device) -> Result<Tensor> {
    let count = shape.iter().product::<usize>();
    let values = (0..count).map(|i| ((i * 7919 + 13) % 2003) as f32 / 1001.5 - 1.0).collect::<Vec<_>>();
    Tensor::from_vec(values, shape, device)
}

#[test]
fn functions_of_elements() -> Result<()> {
    for shape in [vec![4096], vec![33, 65], vec![2, 1111], vec![3, 5, 7, 11], vec![64, 40]] {
        same_as_on_the_host(256, |device| {
            let x = numbers(&shape, device)?;
            let row = numbers(&shape[shape.len() - 1..], device)?;
            let mut column = shape.clone();
            column[shape.len() - 1] = 1;
            let column = numbers(&column, device)?;
            let narrow = if shape[0] > 2 { x.narrow(0, 1, shape[0] - 2)?.exp()? } else { x.exp()? };
            let mut all =
                vec![x.exp()?, x.mul(2.0)?.add(&x)?, x.mul(&column)?, narrow, x.gt(0.0)?.where_cond(&x, 0.5)?];
            if column.elem_count() <= 256 && row.elem_count() <= 256 {
                all.push(column.sub(&row)?);
            }
            all.push(x.masked_fill(&x.lt(0.0)?, 3.0)?);
            all.push(x.to_dtype(crate::DType::F16)?.to_dtype(crate::DType::F32)?);
            all.push(x.mul(100.0)?.to_dtype(crate::DType::I32)?);
            Ok(all)
        })?;
    }
    Ok(())
}

#[test]
fn copies_of_other_layouts() -> Result<()> {
    same_as_on_the_host(256, |device| {
        let (x, y) = (numbers(&[65, 43], device)?, numbers(&[7, 11, 13], device)?);
        let joined = Tensor::cat(&[&x, &x.mul(2.0)?, &x.narrow(0, 3, 1)?], 0)?;
        let beside = Tensor::cat(&[&x, &x.narrow(1, 5, 3)?], 1)?;
        let target = Tensor::zeros([65, 43], device)?;
        target.narrow(1, 2, 20)?.copy_(&x.narrow(1, 1, 20)?)?;
        Ok(vec![x.t()?.contiguous()?, y.permute([2, 0, 1])?.contiguous()?, joined, beside, target, x.t()?.exp()?])
    })
}

#[test]
fn sums_and_extremes() -> Result<()> {
    for shape in [[1, 5000, 1], [70, 50, 1], [50, 70, 1], [3, 9, 100], [2, 3, 700]] {
        same_as_on_the_host(600, |device| {
            let x = numbers(&shape, device)?;
            let mut all = vec![x.sum_all()?, x.max_all()?, x.mean([0, 1, 2], false)?];
            for dim in 0..3usize {
                all.extend([x.sum([dim], false)?, x.max([dim], true)?, x.min([dim], false)?]);
            }
            all.extend([x.sum([0, 1], false)?, x.sum([0, 2], false)?]);
            if shape[2] <= 600 {
                all.extend([x.argmax(2)?, x.softmax(2)?, x.cumsum(2)?]);
            }
            Ok(all)
        })?;
    }
    Ok(())
}

#[test]
fn taking_and_adding_by_index() -> Result<()> {
    same_as_on_the_host(512, |device| {
        let table = numbers(&[200, 24], device)?.requires_grad();
        let ids = Tensor::from_vec((0..19u32).map(|i| i * 53 % 200).collect::<Vec<_>>(), [19], device)?;
        let rows = table.embedding(&ids)?;
        rows.mul(&rows)?.sum_all()?.backward()?;
        let x = numbers(&[1000], device)?;
        let picked = x.gather(0, &Tensor::from_vec(vec![999u32, 0, 512, 511, 256], [5], device)?)?;
        let columns = numbers(&[40, 30], device)?.index_select(1, &Tensor::from_vec(vec![29u32, 3], [2], device)?)?;
        let grad = table.grad().ok_or_else(|| Error::internal("no gradient"))?;
        Ok(vec![rows, grad, picked, columns])
    })
}

#[test]
fn products() -> Result<()> {
    for [m, k, n] in [[5, 100, 1000], [1000, 100, 5], [400, 64, 300], [12, 8000, 9], [3, 30_000, 5]] {
        same_as_on_the_host(1 << 16, |device| {
            let (a, b, c) = (numbers(&[m, k], device)?, numbers(&[k, n], device)?, numbers(&[n, k], device)?);
            let batch = numbers(&[9, m, k], device)?.matmul(&c.t()?)?;
            Ok(vec![a.matmul(&b)?, a.matmul(&c.t()?)?, batch])
        })?;
    }
    Ok(())
}

#[test]
fn a_tied_table_trains() -> Result<()> {
    same_as_on_the_host(1 << 16, |device| {
        let table = numbers(&[600, 128], device)?.mul(0.3)?.requires_grad();
        let ids = Tensor::from_vec((0..24u32).map(|i| i * 53 % 600).collect::<Vec<_>>(), [24], device)?;
        let labels = Tensor::from_vec((0..24u32).map(|i| i * 31 % 600).collect::<Vec<_>>(), [24], device)?;
        let mut optimiser = crate::optim::SGD::new(vec![table.clone()], 0.5).momentum(0.9);
        let mut losses = Vec::new();
        for _ in 0..3 {
            let logits = table.embedding(&ids)?.matmul(&table.t()?)?;
            let loss = logits.cross_entropy(&labels)?;
            loss.backward()?;
            optimiser.step()?;
            optimiser.zero_grad();
            losses.push(loss.detach());
        }
        losses.push(table.detach());
        Ok(losses)
    })
}

#[test]
fn random_numbers_are_those_of_one_piece() -> Result<()> {
    for device in Device::all() {
        let draw = |words| {
            crate::manual_seed(5);
            LARGEST_BINDING.set(words);
            let drawn = [Tensor::rand([3], &device), Tensor::rand([1000], &device), Tensor::full([1000], 7.0, &device)];
            LARGEST_BINDING.set(None);
            drawn.into_iter().map(|x| x?.to_vec::<f32>()).collect::<Result<Vec<_>>>()
        };
        assert_eq!(draw(None)?, draw(Some(192))?, "{device}");
    }
    Ok(())
}
