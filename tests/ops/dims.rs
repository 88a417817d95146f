//! Dimensions counted from the end: the same results as those counted from 0, and an error for those that are not there.

use anygpu::{DType, Error, Result, Tensor};

/// A method with its dimension left open.
type Along = fn(&Tensor, i64) -> Result<Tensor>;

fn positions(x: &Tensor) -> Result<Tensor> {
    Tensor::zeros(x.shape(), x.device())?.to_dtype(DType::U32)
}

fn first(parts: Vec<Tensor>) -> Result<Tensor> {
    Ok(parts[0].clone())
}

const METHODS: &[(&str, Along)] = &[
    ("all", |x, dim| x.gt(&Tensor::zeros([1], None)?)?.all(dim, false)),
    ("any", |x, dim| x.gt(&Tensor::zeros([1], None)?)?.any([dim], false)),
    ("argmax", |x, dim| x.argmax(dim)),
    ("argmin", |x, dim| x.argmin(dim)),
    ("argsort", |x, dim| x.argsort(dim, true)),
    ("cat", |x, dim| Tensor::cat(&[x, x], dim)),
    ("chunk", |x, dim| first(x.chunk(2, dim)?)),
    ("cumprod", |x, dim| x.cumprod(dim)),
    ("cumsum", |x, dim| x.cumsum(dim)),
    ("diagonal", |x, dim| x.diagonal(0, 1, dim)),
    ("flatten", |x, dim| x.flatten(dim)),
    ("flip", |x, dim| x.flip(vec![dim])),
    ("gather", |x, dim| x.gather(dim, &positions(x)?)),
    ("index_add", |x, dim| x.index_add(dim, &Tensor::try_from([1u32])?, &x.narrow(dim, 0, 1)?)),
    ("index_select", |x, dim| x.index_select(dim, &Tensor::try_from([1u32])?)),
    ("log_softmax", |x, dim| x.log_softmax(dim)),
    ("logsumexp", |x, dim| x.logsumexp(dim, true)),
    ("max", |x, dim| x.max(dim, false)),
    ("mean", |x, dim| x.mean(dim, false)),
    ("min", |x, dim| x.min(dim, false)),
    ("movedim", |x, dim| x.movedim(dim, -1)),
    ("narrow", |x, dim| x.narrow(dim, 1, 1)),
    ("norm", |x, dim| x.norm(2.0, dim, false)),
    ("prod", |x, dim| x.prod(dim, false)),
    ("roll", |x, dim| x.roll(1, dim)),
    ("scatter", |x, dim| x.scatter(dim, &positions(x)?, x)),
    ("scatter_add", |x, dim| x.scatter_add(dim, &positions(x)?, x)),
    ("select", |x, dim| x.select(dim, 1)),
    ("slice", |x, dim| x.slice(dim, 0, 2, 2)),
    ("softmax", |x, dim| x.softmax(dim)),
    ("sort", |x, dim| Ok(x.sort(dim, false)?.0)),
    ("split", |x, dim| first(x.split(1, dim)?)),
    ("split_sizes", |x, dim| first(x.split_sizes(&[1, 1], dim)?)),
    ("squeeze", |x, dim| x.unsqueeze(dim)?.squeeze(dim)),
    ("std", |x, dim| x.std(dim, 1.0, false)),
    ("sum", |x, dim| x.sum(dim, false)),
    ("topk", |x, dim| Ok(x.topk(1, dim, true, true)?.0)),
    ("transpose", |x, dim| x.transpose(0, dim)),
    ("var", |x, dim| x.var(dim, 1.0, false)),
];

#[test]
fn negative_dimensions_count_from_the_end() -> Result<()> {
    let values: Vec<f32> = (0..24).map(|i| ((i * 7) % 24) as f32 - 11.0).collect();
    let x = Tensor::from_vec(values, [2, 4, 3], None)?;
    for (name, method) in METHODS {
        let mut compared = 0;
        for dim in 0..3 {
            match (method(&x, dim), method(&x, dim - 3)) {
                (Ok(front), Ok(back)) => {
                    compared += 1;
                    assert_eq!(front.shape(), back.shape(), "{name} along {dim}");
                    assert_eq!(front.dtype(), back.dtype(), "{name} along {dim}");
                    let same =
                        front.to_dtype(DType::F32)?.to_vec::<f32>()? == back.to_dtype(DType::F32)?.to_vec::<f32>()?;
                    assert!(same, "{name} along {dim}: {front} and {back}");
                }
                // The diagonal of dimension 1 with itself, and two parts of what is not two long.
                (front, back) => {
                    assert_eq!(front.is_err(), back.is_err(), "{name} along {dim}: {front:?} and {back:?}")
                }
            }
        }
        assert!(compared > 0, "{name} has no result along any dimension");
    }
    Ok(())
}

#[test]
fn dimensions_that_are_not_there_are_named() -> Result<()> {
    let x = Tensor::zeros([2, 4, 3], None)?;
    for (name, method) in METHODS {
        for dim in [4, -5, i64::MIN, i64::MAX] {
            match method(&x, dim) {
                Err(Error::InvalidArgument { detail, .. }) => {
                    assert!(detail.contains(&dim.to_string()) && detail.contains("[2, 4, 3]"), "{name}: {detail}");
                }
                other => panic!("{name} along {dim}: {other:?}"),
            }
        }
    }
    Ok(())
}

#[test]
fn several_dimensions_and_new_ones() -> Result<()> {
    let x = Tensor::zeros([2, 4, 3], None)?;
    assert_eq!(x.sum([0, -1], false)?.shape(), [4]);
    assert_eq!(x.permute([-1, 0, 1])?.shape(), [3, 2, 4]);
    assert_eq!(x.transpose(-1, -2)?.shape(), [2, 3, 4]);
    assert_eq!(x.unsqueeze(-1)?.shape(), [2, 4, 3, 1]);
    assert_eq!(x.unsqueeze(-4)?.shape(), [1, 2, 4, 3]);
    assert_eq!(Tensor::stack(&[&x, &x], -1)?.shape(), [2, 4, 3, 2]);
    assert!(x.unsqueeze(-5).is_err() && x.unsqueeze(4).is_err());
    let twice = x.sum([2, -1], false).unwrap_err().to_string();
    assert!(twice.contains("twice"), "{twice}");
    Ok(())
}
