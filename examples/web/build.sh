#!/usr/bin/env bash
# Builds the page into `examples/web/dist`: `examples/web/build.sh [profile]`.
#
# It takes the target `wasm32-unknown-unknown` and `wasm-bindgen` of the version in Cargo.lock.
# WASM_BUILD_STD is passed to cargo: `-Z build-std=std,panic_abort` for a toolchain without that target.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
profile=${1:-web}
target=${CARGO_TARGET_DIR:-$root/target}
dist=$here/dist

wanted=$(sed -n '/^name = "wasm-bindgen"$/{n;s/version = "\(.*\)"/\1/p}' "$root/Cargo.lock")
found=$(wasm-bindgen --version 2>/dev/null | cut -d' ' -f2 || true)
if [ "$found" != "$wanted" ]; then
    echo "wasm-bindgen is ${found:-missing}: run  cargo install wasm-bindgen-cli --version $wanted --locked" >&2
    exit 1
fi

# Vector instructions, which all browsers with WebGPU have: cpu is three times as fast with them.
export RUSTFLAGS="${RUSTFLAGS:+$RUSTFLAGS }-C target-feature=+simd128"
# shellcheck disable=SC2086 # several arguments
(cd "$root" && cargo build --target wasm32-unknown-unknown ${WASM_BUILD_STD:-} -p anygpu-web --profile "$profile" --target-dir "$target")

rm -rf "$dist"
mkdir -p "$dist"
cp "$here"/site/* "$root"/assets/mnist-5k/*.gz "$dist/"
wasm-bindgen --target web --no-typescript --remove-name-section --remove-producers-section --out-dir "$dist" --out-name anygpu \
    "$target/wasm32-unknown-unknown/$profile/anygpu_web.wasm"
printf '%s: %d bytes, %d with gzip\n' "$dist/anygpu_bg.wasm" "$(wc -c <"$dist/anygpu_bg.wasm")" "$(gzip -9 <"$dist/anygpu_bg.wasm" | wc -c)"
