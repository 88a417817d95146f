#!/usr/bin/env bash
# Writes docs/public-api.txt: every public item of the library, so that a change to its surface is seen in a diff.
#
#   scripts/public_api.sh [OPTION...]            writes the file
#   scripts/public_api.sh --check [OPTION...]    compares: status 0 if the file is right; 1, with a diff, if it is not;
#                                                3 if this toolchain's rustdoc writes another format than scripts/public-api reads
#
# The options are cargo's: which libraries are documented, and in which profile they are built.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
out=$target/public-api
mkdir -p "$out"
check=
if [ "${1:-}" = --check ]; then
    check=1
    shift
fi
if [ $# = 0 ]; then set -- -p anygpu --all-features; fi

# `cargo doc` would read all dependencies once more. The rustdoc of documentation tests gets them as they were built; it is told to
# write the documentation and to test nothing. Its JSON is unstable: RUSTC_BOOTSTRAP lets a stable rustdoc write it. The variable is
# set for rustdoc alone, since build scripts read it, and all dependencies would be built anew.
cat >"$out/rustdoc" <<'END'
#!/usr/bin/env bash
options=()
while [ $# != 0 ]; do
    case $1 in
        --test) ;;
        --test-*=*) ;;
        --test-*) shift ;;
        *) options+=("$1") ;;
    esac
    shift
done
RUSTC_BOOTSTRAP=1 exec rustdoc "${options[@]}" -Z unstable-options --output-format json --out-dir "${0%/*}"
END
chmod +x "$out/rustdoc"
RUSTDOC=$out/rustdoc cargo test --locked "$@" --doc

# Not by the compiler of .ci/run, whose warnings would look as if the JSON could not be read.
if ! env -u RUSTC_WORKSPACE_WRAPPER CARGO_TARGET_DIR="$out" cargo run --locked --quiet --manifest-path scripts/public-api/Cargo.toml -- \
    "$out/anygpu.json" >"$out/public-api.txt"; then
    echo "public-api: the JSON of $(rustdoc --version) cannot be read: choose the version of the crate public-api in" >&2
    echo "public-api: scripts/public-api/Cargo.toml that reads it" >&2
    exit 3
fi
if [ -z "$check" ]; then
    cp "$out/public-api.txt" docs/public-api.txt
    echo "docs/public-api.txt: $(wc -l <docs/public-api.txt) items"
elif ! diff -u docs/public-api.txt "$out/public-api.txt"; then
    echo "public-api: the public items of the library are not those of docs/public-api.txt. If that is intended, renew it:" >&2
    echo "public-api:   scripts/public_api.sh" >&2
    exit 1
fi
