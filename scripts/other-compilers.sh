#!/usr/bin/env bash
# Compiles every kernel with the compilers that users' machines have and this crate does not link:
#
#   Tint, of Chrome's WebGPU (npm's package `webgpu`, a build of Dawn): the WGSL, by the rules of browsers
#   DXC, of DirectX 12 (PyPI's `compushady`, which holds a build for Linux): the HLSL that naga writes from it
#
# and runs some kernels from what DXC made of them, against the same kernels from WGSL.
#
# Usage, after  cargo build --release -p anygpu-translate :
#
#   eval "$(scripts/software-adapters.sh)"       # lavapipe, to run kernels on
#   scripts/other-compilers.sh [translate-kernels]
#
# Packages are fetched once, in these versions, into target/other-compilers. Status 0: all is well; 1: a kernel does not
# compile or has other numbers; 3: a compiler could not be had (the message says why), and what the others said is fine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

DXC_PACKAGE=compushady==0.17.5
DXC_FILE=libdxcompiler_x86_64.so.3.7
DXC_SHA256=fb549976da7abff1ee56bdfa4f5ab156b95e971d4270b5b4447b61682d105809

say() { printf 'other-compilers: %s\n' "$*" >&2; }
tool=${1:-target/release/translate-kernels}
case $tool in */*) tool=$(realpath "$tool") ;; esac
cache=${CARGO_TARGET_DIR:-target}/other-compilers
mkdir -p "$cache"
cache=$(cd "$cache" && pwd -P)
missing=0

# shellcheck source=scripts/need.sh
. scripts/need.sh

# Dawn, by its lock file, without the scripts of packages.
find_dawn() {
    local folder=$cache/dawn
    if cmp -s translate/package-lock.json "$folder/package-lock.json" && [ -e "$folder/whole" ]; then return; fi
    need node nodejs && need npm npm || return 1
    rm -rf "$folder"
    mkdir -p "$folder"
    cp translate/package.json translate/package-lock.json "$folder"
    (cd "$folder" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error </dev/null >&2 && touch whole) || {
        say "no Dawn: npm could not fetch what translate/package-lock.json names"
        return 1
    }
}

# DXC, out of the source package: one file, which nothing builds.
find_dxc() {
    [ "$(uname -sm)" = "Linux x86_64" ] || { say "no DXC: the package has $DXC_FILE, for Linux on x86-64"; return 1; }
    if [ ! -e "$cache/$DXC_FILE" ]; then
        need python3 python3 || return 1
        python3 -m pip --version >/dev/null 2>&1 || need pip3 python3-pip || return 1
        local staging=$cache/staging
        rm -rf "$staging"
        mkdir -p "$staging"
        python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --dest "$staging" \
            "$DXC_PACKAGE" </dev/null >&2 || { say "no DXC: pip could not fetch $DXC_PACKAGE"; return 1; }
        tar -xzf "$staging"/*.tar.gz -C "$staging" --wildcards --strip-components=3 "*/$DXC_FILE" ||
            { say "no DXC: $DXC_PACKAGE holds no $DXC_FILE"; return 1; }
        mv "$staging/$DXC_FILE" "$cache/$DXC_FILE"
        rm -rf "$staging"
    fi
    echo "$DXC_SHA256  $cache/$DXC_FILE" | sha256sum --check --quiet >&2 || {
        say "no DXC: $cache/$DXC_FILE is not the file of $DXC_PACKAGE"
        return 1
    }
}

kernels=$cache/kernels
rm -rf "$kernels"
mkdir -p "$kernels"
"$tool" "$kernels"
if find_dawn; then
    (cd "$cache/dawn" && node "$OLDPWD/translate/tint.mjs" "$kernels" 2>"$cache/dawn.log") ||
        { tail -n 20 "$cache/dawn.log" >&2; exit 1; }
else
    missing=3
fi
if find_dxc; then
    python3 translate/dxc.py "$cache/$DXC_FILE" "$kernels"
    "$tool" --compare "$kernels"
else
    missing=3
fi
exit $missing
