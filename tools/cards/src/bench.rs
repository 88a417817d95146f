//! The workloads of `anygpu bench`, from the files of the command.

#![allow(dead_code, reason = "bench measures them: their figures, and the limits of the devices, are of no use here")]

#[path = "../../../cli/src/bench/nets.rs"]
mod nets;
#[path = "../../../cli/src/bench/transformer.rs"]
mod transformer;
#[path = "../../../cli/src/bench/workloads.rs"]
mod workloads;

mod probes {
    /// What a run computes and moves at least.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Cost {
        pub flops: f64,
        pub bytes: f64,
    }
}

pub use workloads::{Case, Workload};

/// Returns the cases of a workload, of the sizes that `bench` takes.
pub fn cases(workload: Workload) -> Vec<Case> {
    let sizes = workloads::Sizes { products: vec![[1024, 1024, 1024]], elements: vec![16 << 20] };
    workloads::cases(&[workload], &sizes)
}
