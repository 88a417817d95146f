//! What happens when there is no memory left: an error, and nothing that is alive changes. Each case runs in a process of
//! its own, whose address space is limited.

use std::process::Command;
use std::time::Instant;

use anygpu::{Device, Error, Result, Tensor};

use crate::common::{self, alone};

/// Elements of a block: 128 MiB.
const BLOCK: usize = 32 << 20;

/// Runs an ignored test of this file in a process whose address space has `kibibytes`.
fn run_limited(name: &str, device: &Device, kibibytes: u64) {
    let program = std::env::current_exe().unwrap();
    let output = Command::new("sh")
        .args(["-c", "ulimit -S -v \"$1\" && shift && exec \"$@\"", "sh", &kibibytes.to_string()])
        .arg(program)
        .args(["--ignored", "--exact", "--nocapture", "--test-threads=1", name])
        .env("ANYGPU_TEST_DEVICE", device.name())
        .env("RAYON_NUM_THREADS", "2")
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{device}, {kibibytes} KiB: {}\n{out}\n{err}", output.status);
    println!("{device}, {kibibytes} KiB: {}", out.lines().find(|line| line.contains("blocks")).unwrap_or(""));
}

#[cfg(target_os = "linux")]
#[test]
fn blocks_that_are_granted_hold_their_values() {
    let _alone = alone();
    for device in common::devices() {
        run_limited("exhaustion::fills_memory", &device, 3_000_000);
    }
}

#[test]
#[ignore = "run by blocks_that_are_granted_hold_their_values, with limited memory"]
fn fills_memory() -> Result<()> {
    let _alone = alone();
    let Ok(name) = std::env::var("ANYGPU_TEST_DEVICE") else { return Ok(()) };
    let device = match Device::new(&name) {
        Ok(device) => device,
        Err(error) => {
            println!("0 blocks, it does not open: {error}");
            return Ok(());
        }
    };
    let mut blocks = Vec::new();
    let (error, took) = loop {
        let begin = Instant::now();
        match Tensor::full([BLOCK], blocks.len() as f32, &device).and_then(|t| device.synchronize().map(|()| t)) {
            Ok(block) => blocks.push(block),
            Err(error) => break (error, begin.elapsed().as_secs_f64()),
        }
        assert!(blocks.len() < 60, "60 blocks of 128 MiB");
    };
    println!("{} blocks, then within {took:.2} s: {error}", blocks.len());
    assert!(error.is_out_of_memory(), "{error}");
    for (value, block) in blocks.iter().enumerate() {
        for at in [0, BLOCK / 2, BLOCK - 1] {
            match block.narrow(0, at, 1)?.item::<f32>() {
                Ok(element) => assert_eq!(element, value as f32, "block {value} at {at}"),
                // Reading needs memory, too. It may say that there is none.
                Err(Error::OutOfMemory { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    drop(blocks);
    assert_eq!(Tensor::ones([1 << 20], &device)?.sum_all()?.item::<f32>()?, (1 << 20) as f32);
    Ok(())
}
