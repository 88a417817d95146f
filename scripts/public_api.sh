#!/usr/bin/env bash
# Writes docs/public-api.txt: every public item of the library, so that a change to its surface is seen in a diff.
#
#   scripts/public_api.sh            writes the file
#   scripts/public_api.sh --check    compares: status 0 if the file is right; 1, with a diff, if it is not;
#                                    3 if this toolchain's rustdoc writes another format than scripts/public-api reads
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
out=$target/public-api
mkdir -p "$out"

# rustdoc's JSON is unstable: RUSTC_BOOTSTRAP lets a stable rustdoc write it. The variable is set for rustdoc alone, since
# build scripts read it, and all dependencies would be built anew.
cat >"$out/rustdoc" <<'END'
#!/bin/sh
RUSTC_BOOTSTRAP=1 exec rustdoc "$@"
END
chmod +x "$out/rustdoc"
# The whole workspace with all features, as the other stages of .ci/run build it: they share the dependencies.
RUSTDOC=$out/rustdoc RUSTDOCFLAGS="${RUSTDOCFLAGS:-} -Z unstable-options --output-format json" \
    cargo doc --locked --workspace --all-features --no-deps

if ! CARGO_TARGET_DIR=$out cargo run --locked --quiet --manifest-path scripts/public-api/Cargo.toml -- \
    "$target/doc/anygpu.json" >"$out/public-api.txt"; then
    echo "public-api: the JSON of $(rustdoc --version) cannot be read: choose the version of the crate public-api in" >&2
    echo "public-api: scripts/public-api/Cargo.toml that reads it" >&2
    exit 3
fi
if [ "${1:-}" != --check ]; then
    cp "$out/public-api.txt" docs/public-api.txt
    echo "docs/public-api.txt: $(wc -l <docs/public-api.txt) items"
elif ! diff -u docs/public-api.txt "$out/public-api.txt"; then
    echo "public-api: the public items of the library are not those of docs/public-api.txt. If that is intended, renew it:" >&2
    echo "public-api:   scripts/public_api.sh" >&2
    exit 1
fi
