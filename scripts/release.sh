#!/usr/bin/env bash
# Prepares a release: packages every crate, builds the packages from nothing in an empty folder, and runs the program of README.md with them.
#
#   scripts/release.sh --dry-run          # publishes nothing; ends with a list of what is missing for crates.io
#   scripts/release.sh --publish          # the same, then `cargo publish`, if nothing is missing
#
# Leaves target/release-check/: the packages, and the lists of dependencies (SBOM, CycloneDX) of the library and of the command.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case "${1:-}" in
    --dry-run | --publish) mode=$1 ;;
    *) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac

# In the order in which they can be published.
crates=(anygpu-host anygpu anygpu-plot anygpu-cli)
most=3000000 # bytes of the package of the library
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
folder=$PWD/target/release-check
missing=()
say() { printf '\n== %s\n' "$*"; }

say "packages of version $version"
rm -rf "$folder"
mkdir -p "$folder/packages" "$folder/program/src"
names=()
for crate in "${crates[@]}"; do names+=(-p "$crate"); done
dirty=()
[ -z "$(git status --porcelain)" ] || { dirty=(--allow-dirty); missing+=("the working tree has changes that are not committed"); }
cargo package --quiet --no-verify "${dirty[@]}" --target-dir "$folder/cargo" "${names[@]}"
for crate in "${crates[@]}"; do
    package=$folder/cargo/package/$crate-$version.crate
    tar -xzf "$package" -C "$folder/packages"
    bytes=$(stat -c %s "$package")
    files=$(tar -tzf "$package" | wc -l)
    printf '%-12s %9d bytes, %4d files\n' "$crate" "$bytes" "$files"
    for file in LICENSE-MIT LICENSE-APACHE README.md; do
        [ -e "$folder/packages/$crate-$version/$file" ] || missing+=("$crate: the package has no $file")
    done
    if [ "$crate" = anygpu ] && [ "$bytes" -gt "$most" ]; then missing+=("anygpu: the package has more than $most bytes"); fi
    for field in description license readme repository keywords categories; do
        grep -q "^$field = " "$folder/packages/$crate-$version/Cargo.toml" || missing+=("$crate: no $field in Cargo.toml")
    done
done

oldest=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
say "the crates with Rust $oldest, which they promise"
if rustup toolchain install "$oldest" --profile minimal --no-self-update; then
    RUSTFLAGS="-D warnings" rustup run "$oldest" cargo check --quiet --locked --target-dir "$folder/target"
else
    missing+=("Rust $oldest cannot be installed: it is not known whether it compiles them")
fi

say "the program of README.md, with the packages"
cat >"$folder/program/Cargo.toml" <<END
[package]
name = "program"
version = "0.1.0"
edition = "2024"

[dependencies]
anygpu = "$version"

# None need be published yet: each finds the others here.
[patch.crates-io]
$(for crate in "${crates[@]}"; do echo "$crate = { path = \"../packages/$crate-$version\" }"; done)

[workspace]
END
awk '/^```rust$/ { on = 1; next } /^```$/ { if (on) exit } on' README.md >"$folder/program/src/main.rs"
cargo run --quiet --release --manifest-path "$folder/program/Cargo.toml" --target-dir "$folder/target"

say "the command, with the packages"
cp -r "$folder/packages/anygpu-cli-$version" "$folder/command"
sed -n '/^\[patch/,$p' "$folder/program/Cargo.toml" | grep -v '^anygpu-cli' >>"$folder/command/Cargo.toml"
sed -i 's#"\.\./packages#"../packages#' "$folder/command/Cargo.toml"
cargo install --quiet --path "$folder/command" --root "$folder" --target-dir "$folder/target"
"$folder/bin/anygpu" devices

say "list of dependencies"
if cargo cyclonedx --version >/dev/null 2>&1 || cargo install --quiet --locked cargo-cyclonedx; then
    for crate in anygpu anygpu-cli; do
        manifest=Cargo.toml
        [ "$crate" = anygpu ] || manifest=cli/Cargo.toml
        cargo cyclonedx --quiet --format json --manifest-path "$manifest" --override-filename "$crate-$version.cdx"
        mv "$(dirname "$manifest")/$crate-$version.cdx.json" "$folder/"
        printf '%s: %s dependencies\n' "$crate" "$(grep -c '"bom-ref"' "$folder/$crate-$version.cdx.json")"
    done
    # It writes a list for every member of the workspace.
    git clean -fq -- "*-$version.cdx.json"
else
    missing+=("no cargo-cyclonedx for the list of dependencies: cargo install cargo-cyclonedx")
fi

for crate in "${crates[@]}"; do
    found=$(cargo info --registry crates-io "$crate" 2>&1 || true)
    if grep -q '^version: ' <<<"$found"; then
        missing+=("$crate: crates.io has a crate of this name: is it ours?")
    elif ! grep -q 'could not find' <<<"$found"; then
        missing+=("$crate: crates.io could not be asked for the name")
    fi
done
grep -q "^## $version (20" CHANGELOG.md || missing+=("CHANGELOG.md: no date for $version")
git rev-parse -q --verify "refs/tags/v$version" >/dev/null || missing+=("no tag v$version")
[ -n "${CARGO_REGISTRY_TOKEN:-}" ] || [ -e "${CARGO_HOME:-$HOME/.cargo}/credentials.toml" ] || missing+=("no token for crates.io: cargo login")

if [ ${#missing[@]} = 0 ]; then
    say "nothing is missing"
    if [ "$mode" = --publish ]; then cargo publish "${names[@]}"; fi
else
    say "missing for crates.io"
    printf -- '- %s\n' "${missing[@]}"
    [ "$mode" = --dry-run ]
fi
