#!/usr/bin/env bash
# Says how to compile for wasm32-unknown-unknown here:
#
#   eval "$(scripts/wasm-toolchain.sh)"
#   cargo build --target wasm32-unknown-unknown $WASM_BUILD_STD -p anygpu-web --profile web
#
# Where rustup has the target or can fetch it, that is all, and WASM_BUILD_STD is empty. Elsewhere, on Debian and Ubuntu, a compiler of
# Debian's packages is unpacked into a folder of its own (WASM_TOOLCHAIN, by default in the cache of the user) beside the one that is
# installed. The standard library is then built too.
set -euo pipefail

say() { printf 'wasm-toolchain: %s\n' "$*" >&2; }
target=wasm32-unknown-unknown

if rustup target list --installed 2>/dev/null | grep -qx "$target" || rustup target add "$target" >&2 2>/dev/null; then
    echo "export WASM_BUILD_STD="
    exit
fi
say "rustup has no $target: a compiler of Debian's packages"
command -v apt-get >/dev/null || { say "no apt-get: install a Rust toolchain with the target $target"; exit 1; }
folder=${WASM_TOOLCHAIN:-${XDG_CACHE_HOME:-$HOME/.cache}/anygpu/wasm-toolchain}
root=$folder/root
if [ ! -e "$folder/whole" ]; then
    rm -rf "$folder"
    mkdir -p "$folder/packages" "$root"
    if [ "$(id -u)" = 0 ]; then apt-get -qq -o DPkg::Lock::Timeout=120 update >&2; fi
    # The newest library that is packaged, with the LLVM that its compiler needs.
    library=$(apt-cache search --names-only '^libstd-rust-web-[0-9.]+$' | awk '{print $1}' | sort -V | tail -n 1)
    [ -n "$library" ] || { say "no package libstd-rust-web-*: install a Rust toolchain with the target $target"; exit 1; }
    llvm=$(apt-cache depends "$library" | awk '/Depends: libllvm/ {print $2; exit}')
    (cd "$folder/packages" && apt-get -qq download rustc-web "$library" libstd-rust-web-dev rust-web-src "$llvm" "lld-${llvm#libllvm}") >&2
    for package in "$folder"/packages/*.deb; do dpkg -x "$package" "$root"; done
    rm -rf "$folder/packages"
    ln -sfn "../../../src/$(basename "$root"/usr/src/rustc-*)" "$root/usr/lib/rustlib/src/rust"
    touch "$folder/whole"
fi
linker=$(ls "$root"/usr/bin/wasm-ld-*)
cat <<EXPORTS
export LD_LIBRARY_PATH=$(dirname "$(ls "$root"/usr/lib/*/libLLVM*.so* | head -n 1)")\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}
export RUSTC=$root/usr/bin/rustc RUSTC_BOOTSTRAP=1
export CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER=$linker
export WASM_BUILD_STD='-Z build-std=std,panic_abort'
EXPORTS
