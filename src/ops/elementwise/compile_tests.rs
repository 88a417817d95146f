//! Kernels of chains are compiled while other threads go on.

use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::thread;

use web_time::{Duration, Instant};

use crate::device::Device;
use crate::device::injected_faults::{COMPILATIONS, COMPILES, hold_compilations};
use crate::error::Result;
use crate::tensor::Tensor;
use crate::util::sync;

const LONGEST: Duration = Duration::from_secs(120);

/// A chain that no other test has.
fn chain(x: &Tensor) -> Result<Vec<f32>> {
    x.add(0.5)?.mul(x)?.add(0.25)?.mul(x)?.sub(x)?.mul(x)?.sub(3.0)?.to_vec()
}

#[test]
fn a_chain_that_is_compiled_delays_no_other_thread() -> Result<()> {
    if std::env::var_os("ANYGPU_FUSION").is_some() {
        return Ok(()); // it changes when chains are compiled
    }
    for device in Device::all().into_iter().filter(|device| !device.is_cpu()) {
        let x = Tensor::full([1000], 2.0f32, &device)?;
        let expected = [(((2.5 * 2.0 + 0.25) * 2.0) - 2.0) * 2.0 - 3.0; 1000];
        let x = &x;
        let held = sync::lock(&COMPILES);
        let before = COMPILATIONS.load(Ordering::SeqCst);
        thread::scope(|scope| {
            let (done, first_done) = channel();
            scope.spawn(move || {
                hold_compilations();
                // It is compiled when it has come several times.
                let result = (0..9).try_fold(Vec::new(), |_, _| chain(x));
                done.send(result)
            });
            let start = Instant::now();
            while COMPILATIONS.load(Ordering::SeqCst) == before && start.elapsed() < LONGEST {
                thread::sleep(Duration::from_millis(1));
            }
            let (done, others_done) = channel();
            let same = done.clone();
            scope.spawn(move || same.send(chain(x)));
            scope.spawn(move || done.send(x.add(1.0).and_then(|y| y.to_vec())));
            let others = [others_done.recv_timeout(LONGEST), others_done.recv_timeout(LONGEST)];
            let waits = first_done.try_recv().is_err();
            drop(held); // before anything fails, so that the threads end
            let first = first_done.recv_timeout(LONGEST);
            for result in others {
                let elements = result.expect("the other threads go on").expect("no error");
                assert!(elements == expected || elements == [3.0; 1000], "{device}: {:?}", &elements[..2]);
            }
            assert!(waits, "{device}: the chain was not compiled");
            assert_eq!(first.expect("the chain is recorded").expect("no error"), expected, "{device}");
        });
        assert_eq!(chain(x)?, expected, "{device}");
    }
    Ok(())
}
