//! Trains LeNet on the 5 000 embedded digits for a few epochs, on one device, and asserts the accuracy.
//!
//! `cargo run --release --example train_lenet [device]`: the first GPU by default, or the CPU if there is none.

use std::time::Instant;

use anygpu::metrics::Mean;
use anygpu::nn::models::{LENET_RECIPE, lenet};
use anygpu::{DataParallel, Device, Result, data, manual_seed, nn, optim, try_gpu};

fn main() -> Result<()> {
    let device = match std::env::args().nth(1) {
        Some(name) => Device::new(&name)?,
        None => try_gpu(0),
    };
    manual_seed(0);
    let (train, test) = data::mnist_5k()?.loaders(LENET_RECIPE.batch_size, 0)?;
    let net = DataParallel::new(lenet()?, std::slice::from_ref(&device))?;
    let mut sgd = optim::SGD::new(net.parameters(), LENET_RECIPE.lr).momentum(LENET_RECIPE.momentum);

    let mut accuracy = 0.0;
    for epoch in 0..2 {
        let start = Instant::now();
        let mut mean = Mean::new(); // stays on the device until the epoch is over
        for batch in &train {
            let (images, labels) = batch?;
            let loss = net.train_batch(&images, &labels, nn::cross_entropy)?;
            sgd.step()?;
            mean.add(&loss, labels.elem_count())?;
        }
        let loss = mean.value()?;
        let seconds = start.elapsed().as_secs_f64();
        accuracy = net.evaluate(&test)?;
        println!("epoch {epoch}: loss {loss:.3}, test acc {accuracy:.3}, {seconds:.1} s on {device}");
    }
    assert!(accuracy > 0.90, "two epochs are enough for 0.90, got {accuracy}");
    Ok(())
}
