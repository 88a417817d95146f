//! Any chain of elementwise ops has the numbers of its single kernels, bit by bit: compilers of drivers merge what they can.

use anygpu::{Result, Tensor};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::chains::{RUNS, operands};
use crate::common::{adapters, alone, property};

type Unary = fn(&Tensor) -> Result<Tensor>;
type Binary = fn(&Tensor, &Tensor) -> Result<Tensor>;

/// The functions and signs, and what a compiler can merge.
const UNARY: &[Unary] = &[
    Tensor::neg,
    Tensor::abs,
    Tensor::sign,
    Tensor::relu,
    Tensor::square,
    Tensor::recip,
    Tensor::sqrt,
    Tensor::floor,
    Tensor::round,
    Tensor::exp,
    Tensor::log,
    Tensor::sin,
    Tensor::tanh,
    Tensor::asin,
    Tensor::atan,
    Tensor::sinh,
    Tensor::asinh,
    Tensor::atanh,
    Tensor::erf,
    Tensor::silu,
    Tensor::softsign,
    |x| x.mul(0.5),
    |x| x.add(0.25),
    |x| x.clamp(Some(-1.0), Some(2.0)),
    |x| x.leaky_relu(0.25),
    |x| x.pow(3.0),
];
const BINARY: &[Binary] = &[
    |x, y| x.add(y),
    |x, y| x.sub(y),
    |x, y| x.mul(y),
    |x, y| x.div(y),
    |x, y| x.maximum(y),
    |x, y| x.minimum(y),
    |x, y| x.pow(y),
    |x, y| x.atan2(y),
];

/// A step: the function's number, the numbers of its operands, counted back from the last result, and whether its result is held.
#[derive(Clone, Debug)]
struct Step {
    binary: bool,
    function: usize,
    operands: [usize; 2],
    held: bool,
}

fn step() -> impl Strategy<Value = Step> {
    // Mostly the last results: else there is no chain.
    let back = || prop_oneof![3 => Just(0usize), 2 => 0..6usize];
    (proptest::bool::weighted(0.4), 0..1000usize, [back(), back()], proptest::bool::weighted(0.3))
        .prop_map(|(binary, function, operands, held)| Step { binary, function, operands, held })
}

/// Returns the bits of the elements, and the same for every NaN: which one x + y returns depends on the order of its operands, which
/// compilers exchange.
fn bits(x: &Tensor) -> Result<Vec<u32>> {
    let bits = |x: f32| if x.is_nan() { f32::NAN } else { x }.to_bits();
    Ok(x.to_vec::<f32>()?.into_iter().map(bits).collect())
}

/// Returns the last result and those that are held. If `one_by_one`, each kernel is computed before the next op, so that no chain
/// begins.
fn run(steps: &[Step], operands: &[Tensor; 2], one_by_one: bool) -> Result<Vec<Vec<u32>>> {
    let (mut all, mut held) = (operands.to_vec(), Vec::new());
    for (i, step) in steps.iter().enumerate() {
        let [a, b] = step.operands.map(|back| &all[all.len() - 1 - back % all.len()]);
        let result = match step.binary {
            true => BINARY[step.function % BINARY.len()](a, b)?,
            false => UNARY[step.function % UNARY.len()](a)?,
        };
        if one_by_one {
            result.device().synchronize()?;
        }
        if step.held || i + 1 == steps.len() {
            held.push(result.clone());
        }
        all.push(result);
    }
    drop(all); // what is not held is not written
    held.iter().map(bits).collect()
}

fn compare(steps: &[Step]) -> Result<()> {
    for device in adapters() {
        let operands = operands(81, &device)?;
        let expected = run(steps, &operands, true)?;
        for _ in 0..RUNS {
            assert_eq!(run(steps, &operands, false)?, expected, "{device}");
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(property(16))]

    #[test]
    fn chains_have_the_numbers_of_single_kernels(steps in vec(step(), 2..7)) {
        let _alone = alone();
        compare(&steps).expect("no error");
    }
}
