//! Passes on the optimisation level, from which `src/device/cpu/notice.rs` knows whether to say that it is 0.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-env=ANYGPU_OPT_LEVEL={}", std::env::var("OPT_LEVEL").unwrap_or_default());
}
