#!/usr/bin/env bash
# Builds the page into `examples/web/dist`: `examples/web/build.sh [profile]`.
#
# scripts/wasm-toolchain.sh provides the compiler for wasm32-unknown-unknown.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
profile=${1:-web}
target=${CARGO_TARGET_DIR:-$root/target}
dist=$here/dist

cd "$root"
cargo build --release --target-dir "$target" -p anygpu-bindgen
(
    exports=$(scripts/wasm-toolchain.sh)
    eval "$exports"
    # Vector instructions, which all browsers with WebGPU have: cpu is three times as fast with them.
    export CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS="-C target-feature=+simd128"
    # shellcheck disable=SC2086 # several arguments
    cargo build --target wasm32-unknown-unknown $WASM_BUILD_STD -p anygpu-web --profile "$profile" --target-dir "$target"
)
rm -rf "$dist"
mkdir -p "$dist"
cp "$here"/site/* "$root"/assets/mnist-5k/*.gz "$dist/"
"$target/release/anygpu-bindgen" "$target/wasm32-unknown-unknown/$profile/anygpu_web.wasm" "$dist" anygpu small
printf '%s: %d bytes, %d with gzip\n' "$dist/anygpu_bg.wasm" "$(wc -c <"$dist/anygpu_bg.wasm")" "$(gzip -9 <"$dist/anygpu_bg.wasm" | wc -c)"
