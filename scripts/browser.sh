#!/usr/bin/env bash
# Runs the tests in a browser, Chromium, whose WebGPU is a software adapter: those of tests/browser, and the page of examples/web.
#
# Usage, after  cargo build --release -p anygpu-bindgen -p anygpu-browser-tests :
#
#   scripts/browser.sh [NAME...]       # tests whose names have one of these parts; otherwise all
#   scripts/browser.sh --build         # only fetches and builds, which needs none of those programs
#
# On Debian and Ubuntu, root installs Chromium and Node.js where they are missing. The package that drives the browser is fetched once into
# target/browser-tests, in the version of tests/browser/package-lock.json. CHROMIUM names another browser, PROFILE another cargo profile of the
# programs that run here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'browser: %s\n' "$*" >&2; }
target=${CARGO_TARGET_DIR:-target}
folder=$target/browser-tests
programs=$target/${PROFILE:-release}
mkdir -p "$folder"

# shellcheck source=scripts/need.sh
. scripts/need.sh

fetch() {
    if [ -z "${CHROMIUM:-}" ]; then need chromium chromium; fi
    need node nodejs
    need npm npm
    if ! cmp -s tests/browser/package-lock.json "$folder/package-lock.json" || [ ! -e "$folder/whole" ]; then
        cp tests/browser/package.json tests/browser/package-lock.json "$folder"
        (cd "$folder" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error </dev/null >&2 && touch whole)
    fi
}

# Modules for the browser, with vectors for `cpu`. In a subshell, since another compiler may serve for them.
build() (
    eval "$(scripts/wasm-toolchain.sh)"
    export CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS="-C target-feature=+simd128"
    # shellcheck disable=SC2086 # words
    cargo build --locked --target wasm32-unknown-unknown $WASM_BUILD_STD --profile browser --lib -p anygpu-browser-tests -p anygpu-web
)

site() {
    local modules=$target/wasm32-unknown-unknown/browser
    rm -rf "$folder/site"
    mkdir -p "$folder/site"
    cp tests/browser/index.html "$folder/site"
    "$programs/anygpu-bindgen" "$modules/anygpu_browser_tests.wasm" "$folder/site/pkg" tests
    "$programs/browser-native" "$folder/site"
    rm -rf "$folder/page"
    mkdir -p "$folder/page"
    cp examples/web/site/* assets/mnist-5k/*.gz "$folder/page"
    "$programs/anygpu-bindgen" "$modules/anygpu_web.wasm" "$folder/page" anygpu small
}

fetch >"$folder/fetch.log" 2>&1 &
fetching=$!
build
wait "$fetching" || { cat "$folder/fetch.log" >&2; exit 1; }
if [ "${1:-}" = --build ]; then exit; fi
site
export CHROMIUM=${CHROMIUM:-$(command -v chromium)} NODE_MODULES=$PWD/$folder/node_modules
case $folder in /*) NODE_MODULES=$folder/node_modules ;; esac
node tests/browser/run.mjs "$folder/site" "$folder/page" "$@"
