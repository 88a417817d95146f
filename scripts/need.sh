# shellcheck shell=bash
# For scripts that source it and have a function `say`:
#
# need COMMAND PACKAGE...: installs packages where a command is missing, as root on Debian and Ubuntu. Fails if it stays missing.
need() {
    command -v "$1" >/dev/null && return
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing ${*:2}"
        local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300)
        { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "${@:2}"; } </dev/null >&2 || true
    fi
    command -v "$1" >/dev/null || { say "no $1: install ${*:2}"; return 1; }
}
