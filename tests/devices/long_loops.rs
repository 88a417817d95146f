//! Kernels of users with more iterations of loops than a driver runs: their results are wrong there, with a warning in the log.

use std::sync::{Mutex, PoisonError};

use anygpu::device::Quirk;
use anygpu::kernel::{Output, WgslKernel};
use anygpu::testing::adapters;
use anygpu::{DType, Device, Result};

/// The kernels with loops count their iterations in y[0].
const SOURCE: &str = "
    struct Params { n: u32, m: u32 }
    @group(0) @binding(0) var<uniform> p: Params;
    @group(0) @binding(1) var<storage, read_write> y: array<u32>;

    @compute @workgroup_size(1)
    fn nested() {
        for (var i = 0u; i < p.n; i++) {
            for (var j = 0u; j < p.m; j++) { y[0]++; }
        }
    }
";

const PRODUCT: &str = "
    struct Params { n: u32, m: u32 }
    @group(0) @binding(0) var<uniform> p: Params;
    @group(0) @binding(1) var<storage, read_write> y: array<u32>;

    @compute @workgroup_size(1)
    fn product() { y[0] = p.n * p.m; }
";

static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Warnings;

impl log::Log for Warnings {
    fn enabled(&self, metadata: &log::Metadata) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record) {
        if self.enabled(record.metadata()) {
            WARNINGS.lock().unwrap_or_else(PoisonError::into_inner).push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// Returns the warnings about loops since the last call.
fn about_loops() -> Vec<String> {
    let all = std::mem::take(&mut *WARNINGS.lock().unwrap_or_else(PoisonError::into_inner));
    all.into_iter().filter(|text| text.contains("leaves all loops")).collect()
}

fn count(device: &Device, kernel: &WgslKernel, [n, m]: [u32; 2]) -> Result<u32> {
    let launch = kernel.on(device).params(&[n, m]).output("y", Output::zeros([1], DType::U32));
    launch.dispatch(1)?[0].to_vec::<u32>().map(|y| y[0])
}

#[test]
fn a_driver_that_leaves_loops_early_is_told_of_once_for_each_kernel() -> Result<()> {
    log::set_logger(&Warnings).expect("the only logger");
    log::set_max_level(log::LevelFilter::Warn);
    for device in adapters() {
        let budget = device.quirks()?.iter().find_map(|quirk| match quirk {
            Quirk::LoopBudget { iterations } => Some(*iterations),
            _ => None,
        });
        let (nested, product) = (WgslKernel::new(SOURCE, "nested")?, WgslKernel::new(PRODUCT, "product")?);
        assert_eq!(count(&device, &product, [300, 300])?, 90_000);
        assert_eq!(about_loops(), Vec::<String>::new(), "{device}: a kernel without a loop");

        assert_eq!(count(&device, &nested, [200, 300])?, 60_000, "{device}: a loop that is short enough");
        let told = about_loops();
        match budget {
            Some(budget) => {
                let [text] = &told[..] else { panic!("{device}: {told:?}") };
                let parts = ["kernel nested: ", &device.to_string(), &budget.to_string(), &device.info().driver];
                assert!(parts.iter().all(|part| text.contains(part)), "{device}: {text}");
            }
            None => assert_eq!(told, Vec::<String>::new(), "{device}"),
        }

        let counted = count(&device, &nested, [300, 300])?;
        match budget {
            Some(budget) => assert!((budget / 2..=budget).contains(&counted), "{device}: {counted} of {budget}"),
            None => assert_eq!(counted, 90_000, "{device}"),
        }
        assert_eq!(about_loops(), Vec::<String>::new(), "{device}: it is said once");
    }
    Ok(())
}
