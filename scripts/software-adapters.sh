#!/usr/bin/env bash
# Makes four software GPU adapters visible in one process, on a machine without a GPU:
#
#   1. the system's lavapipe (Vulkan)         3. a newer lavapipe (Vulkan), from Debian's backports
#   2. the system's llvmpipe (OpenGL, EGL)    4. SwiftShader (Vulkan), from Debian's chromium-common
#
# Usage, in any POSIX shell:
#
#   eval "$(scripts/software-adapters.sh)"
#   cargo run --release -- devices
#
# Standard output carries only `export` lines; what was found goes to standard error.
# Status 0: four adapters; 3: fewer, or on Debian a stand-in for a driver that could not be fetched (the exports still hold);
# 1: nothing could be done.
#
# 1 and 2 are installed with apt where they are missing (as root; otherwise the command to run is printed).
# 3 and 4 are only unpacked into a cache directory, through an apt configuration of their own:
# the system's packages, sources and package lists stay as they are, and root is not needed.
# Once unpacked, no network is needed. A real GPU in the machine stays visible.
#
# Where the distribution has no such package (Ubuntu has neither 3 nor 4), an installed Chrome or Chromium lends its SwiftShader,
# and copies of the system's lavapipe stand in for the rest: separate adapters, but the same driver.
#
# Variables:
#   ANYGPU_ADAPTERS_DIR  where to unpack; default ${XDG_CACHE_HOME:-$HOME/.cache}/anygpu/adapters
#
# Exports: VK_ADD_DRIVER_FILES, MESA_SHADER_CACHE_DIR (compiled shaders are kept, in a folder for this processor and width of vectors;
# MESA_SHADER_CACHE_DISABLE=true turns that off), LIBGL_ALWAYS_SOFTWARE=1,
# ANYGPU_RADV: the manifest of RADV, AMD's driver, from the package of 3, for the compile check in `amd/`; empty where it is not had.
set -euo pipefail

say() { printf 'software-adapters: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

[ "$(uname -s)" = Linux ] || fail "needs Linux"
ID=unknown VERSION_ID=0 VERSION_CODENAME=''
# shellcheck source=/dev/null
[ ! -r /etc/os-release ] || . /etc/os-release

# One folder per system: an upgraded system must not load drivers unpacked for the old one.
cache=${ANYGPU_ADAPTERS_DIR:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/anygpu/adapters}
mkdir -p "$cache/$ID-$VERSION_ID-$(uname -m)" || fail "cannot write $cache: set ANYGPU_ADAPTERS_DIR"
cache=$(cd "$cache/$ID-$VERSION_ID-$(uname -m)" && pwd -P)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# --- the system's own drivers ---------------------------------------------------------------------------------------

# system_library NAME: the path of an installed shared library.
system_library() {
    local path
    for path in /usr/lib/*/"$1" /usr/lib64/"$1" /usr/lib/"$1"; do
        [ -e "$path" ] && { echo "$path"; return; }
    done
    return 1
}

system_complete() {
    system_library libvulkan_lvp.so >/dev/null && system_library libvulkan.so.1 >/dev/null &&
        system_library libEGL.so.1 >/dev/null && system_library 'libEGL_mesa.so.0' >/dev/null &&
        { system_library dri/swrast_dri.so || system_library dri/libdril_dri.so; } >/dev/null
}

install_system_drivers() {
    local packages=(mesa-vulkan-drivers libvulkan1 libegl1 libegl-mesa0 libgl1-mesa-dri)
    command -v apt-get >/dev/null || { say "no apt-get here: install Mesa's lavapipe, EGL and the Vulkan loader yourself"; return; }
    if [ "$(id -u)" != 0 ]; then
        say "drivers of the system are missing. Run: sudo apt-get update && sudo apt-get install -y ${packages[*]}"
        return
    fi
    say "installing ${packages[*]}"
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120)
    { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "${packages[@]}"; } </dev/null >&2 ||
        say "apt-get could not install them (see above)"
}

system_complete || install_system_drivers

# --- drivers that are only unpacked ---------------------------------------------------------------------------------

# Copies the system's apt sources into $work/sources and adds the release's backports, from the same mirrors and with the same keys.
derive_sources() {
    local file
    mkdir -p "$work/sources" "$work/lists/partial" "$work/archives/partial"
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        [ -r "$file" ] || continue
        cp "$file" "$work/sources/$(basename "$file" .list)-copy.list"
        sed -nE "s/^(deb[[:space:]].*[[:space:]])$VERSION_CODENAME([[:space:]].*main.*)$/\1$VERSION_CODENAME-backports\2/p" \
            "$file" >"$work/sources/$(basename "$file" .list)-backports.list"
    done
    for file in /etc/apt/sources.list.d/*.sources; do
        [ -r "$file" ] || continue
        cp "$file" "$work/sources/$(basename "$file" .sources)-copy.sources"
        awk -v suite="$VERSION_CODENAME" 'BEGIN { RS = ""; ORS = "\n\n" }
            $0 ~ "(^|\n)Suites:[^\n]*[ \t]" suite "([ \t\n]|$)" && /(^|\n)Components:[^\n]*main/ {
                sub(/Suites:[^\n]*/, "Suites: " suite "-backports"); print }' \
            "$file" >"$work/sources/$(basename "$file" .sources)-backports.sources"
    done
}

# Reads the package lists of those sources, once per run, into $work. The system's proxy and credentials apply; its hooks do not.
private_apt_update() {
    [ ! -e "$work/apt.conf" ] || return 0
    derive_sources
    cat >"$work/apt.conf" <<CONF
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Post-Invoke;
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "3";
Dir::Etc::SourceList "/dev/null";
Dir::Etc::SourceParts "$work/sources";
Dir::State::Lists "$work/lists";
Dir::Cache "$work";
CONF
    # One bad third-party source must not stop the rest: whether it worked shows at the download.
    APT_CONFIG=$work/apt.conf apt-get -q update </dev/null >"$work/update.log" 2>&1 || true
}

# unpack NAME PACKAGE FILE: puts the shared library FILE of a Debian package into $cache/NAME. A package is fetched once per run.
unpack() {
    local name=$1 package=$2 file=$3 staging=$work/${2%%/*} library
    if [ ! -d "$staging/root" ]; then
        private_apt_update
        mkdir -p "$staging"
        (cd "$staging" && APT_CONFIG=$work/apt.conf apt-get -q download "$package" </dev/null >"$work/$name.log" 2>&1) || {
            grep -h '^[EW]:' "$work/update.log" "$work/$name.log" | head -n 5 >&2 || true
            return 1
        }
        dpkg-deb -x "$staging"/*.deb "$staging/root"
    fi
    library=$(find "$staging/root" -name "$file" | head -n 1)
    [ -n "$library" ] || { say "$package holds no $file"; return 1; }
    place "$name" "$library" "$(basename "$staging"/*.deb .deb)"
}

# place NAME LIBRARY VERSION: into the cache, the library last and by a rename, so that what is there is whole.
place() {
    mkdir -p "$cache/$1"
    printf '%s\n' "$3" >"$cache/$1/version"
    cp "$2" "$cache/$1/driver.so.$$"
    mv -f "$cache/$1/driver.so.$$" "$cache/$1/driver.so"
}

# usable NAME: unpacked, and all it links to is there.
usable() {
    [ -s "$cache/$1/driver.so" ] || return 1
    ! ldd "$cache/$1/driver.so" 2>&1 | grep -E 'not found|not a dynamic' >&2
}

# Tells whether this distribution packages the drivers at all.
on_debian() { [ "$ID" = debian ] && [ -n "$VERSION_CODENAME" ] && command -v apt-get >/dev/null; }

# find_newer_lavapipe / find_swiftshader: make $cache/newer-lavapipe or $cache/swiftshader usable, or say why not.
find_newer_lavapipe() {
    usable newer-lavapipe && return
    on_debian || { say "no newer lavapipe: only Debian's backports have one"; return 1; }
    unpack newer-lavapipe "mesa-vulkan-drivers/$VERSION_CODENAME-backports" libvulkan_lvp.so && usable newer-lavapipe && return
    say "no newer lavapipe: it could not be had from $VERSION_CODENAME-backports"
    return 1
}

# find_radv: AMD's Vulkan driver of the same package as the newer lavapipe. It is no adapter here: without a GPU it only
# compiles, which is what `amd/` uses it for.
find_radv() {
    usable radv && return
    on_debian || { say "no RADV: only Debian's backports have it"; return 1; }
    unpack radv "mesa-vulkan-drivers/$VERSION_CODENAME-backports" libvulkan_radeon.so && usable radv && return
    say "no RADV: it could not be had from $VERSION_CODENAME-backports"
    return 1
}

find_swiftshader() {
    local folder
    usable swiftshader && return
    if on_debian; then
        unpack swiftshader chromium-common libvk_swiftshader.so && usable swiftshader && return
    fi
    for folder in /usr/lib/chromium /usr/lib/chromium-browser /opt/google/chrome /opt/microsoft/msedge; do
        [ -r "$folder/libvk_swiftshader.so" ] || continue
        place swiftshader "$folder/libvk_swiftshader.so" "$folder"
        usable swiftshader && return
    done
    say "no SwiftShader: only Debian's chromium-common, Chrome and Chromium (not the snap) have one"
    return 1
}

# stand_in NAME: a copy of the system's lavapipe; the loader takes it for another driver.
stand_in() {
    local library
    library=$(system_library libvulkan_lvp.so) || return 1
    cmp -s "$library" "$cache/$1/driver.so" || place "$1" "$library" "copy of $library"
    usable "$1" || return 1
    ! on_debian || complete=false
}

# manifest NAME API_VERSION: writes the loader's manifest, whose library_path must be absolute.
manifest() {
    printf '{"file_format_version": "1.0.0", "ICD": {"library_path": "%s", "api_version": "%s"}}\n' \
        "$cache/$1/driver.so" "$2" >"$cache/$1/icd.json.$$"
    mv -f "$cache/$1/icd.json.$$" "$cache/$1/icd.json"
}

# add NAME API_VERSION TITLE: makes a driver one of the adapters.
manifests=''
add() {
    manifest "$1" "$2"
    manifests=$manifests${manifests:+:}$cache/$1/icd.json
    report "$3" "$(cat "$cache/$1/version")"
}

found=0
complete=true
# report TITLE ORIGIN: counts and names an adapter.
report() {
    found=$((found + 1))
    say "$found. $1: $2"
}

# --- all together ---------------------------------------------------------------------------------------------------

if library=$(system_library libvulkan_lvp.so); then report "lavapipe (Vulkan)" "$library"; else say "no lavapipe of the system"; fi
if library=$(system_library libEGL_mesa.so.0); then report "llvmpipe (OpenGL)" "$library"; else say "no llvmpipe of the system"; fi
if find_newer_lavapipe; then
    add newer-lavapipe 1.3.0 "newer lavapipe (Vulkan)"
elif stand_in lavapipe-copy-1; then
    add lavapipe-copy-1 1.3.0 "lavapipe again (Vulkan)"
fi
if find_swiftshader; then
    add swiftshader 1.1.0 "SwiftShader (Vulkan)"
elif stand_in lavapipe-copy-2; then
    add lavapipe-copy-2 1.3.0 "lavapipe again (Vulkan)"
fi
radv=''
if find_radv; then
    manifest radv 1.3.0
    radv=$cache/radv/icd.json
fi

[ -z "${VK_DRIVER_FILES:-}${VK_ICD_FILENAMES:-}" ] ||
    say "VK_DRIVER_FILES or VK_ICD_FILENAMES is set: the Vulkan loader will ignore VK_ADD_DRIVER_FILES"
printf 'export VK_ADD_DRIVER_FILES=%q\n' "$manifests"
# Most of the time of tests on Mesa's adapters is spent on compiling, for each process anew without this. What Mesa compiled for one
# processor or one width of vectors is wrong for another, and its own keys do not have them.
compiled_for=$({ grep -m1 -E '^(flags|Features)' /proc/cpuinfo || true; echo "${LP_NATIVE_VECTOR_WIDTH:-}"; } | cksum | cut -d ' ' -f 1)
printf 'export MESA_SHADER_CACHE_DIR=%q\n' "$cache/shaders-$compiled_for"
printf 'export LIBGL_ALWAYS_SOFTWARE=1\n'
printf 'export ANYGPU_RADV=%q\n' "$radv"
if [ "$found" -lt 4 ] || [ "$complete" = false ]; then exit 3; fi
