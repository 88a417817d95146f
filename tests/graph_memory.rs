//! The memory of the graph. A file of its own, since other tests would change what is measured.

mod common;

use anygpu::{Result, Tensor};
use common::devices_in_turn;

/// A loss that is kept, for instance to print it, holds no results of the forward pass after `backward`.
#[test]
fn backward_frees_the_graph() -> Result<()> {
    for device in devices_in_turn() {
        let x = Tensor::ones([1 << 20], &device)?.requires_grad();
        let live = device.memory().live;
        let loss = |x: &Tensor| x.sin()?.exp()?.sqrt()?.mean_all();
        let kept = loss(&x)?;
        assert!(device.memory().live >= live + (8 << 20), "{device}");
        kept.backward_retain_graph()?;
        kept.backward()?;
        assert!(device.memory().live < live + (5 << 20), "{device}: the gradient and the loss are left");
        let before = x.grad().map(|grad| grad.to_vec::<f32>()).transpose()?;
        let error = kept.add(&loss(&x)?)?.backward().unwrap_err().to_string();
        assert!(error.contains("freed") && error.contains("backward_retain_graph"), "{error}");
        assert_eq!(
            x.grad().map(|grad| grad.to_vec::<f32>()).transpose()?,
            before,
            "{device}: an error changes nothing"
        );
    }
    Ok(())
}
