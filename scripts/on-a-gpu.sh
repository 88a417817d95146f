#!/usr/bin/env bash
# Measures this library on a machine with a GPU that has neither a toolchain nor network.
#
#   scripts/on-a-gpu.sh pack [FILE.tar.gz]     in a checkout: builds the command and packs it with this script
#   ./on-a-gpu.sh run FOLDER [OPTIONS]         from the unpacked archive: runs everything, results in FOLDER
#
# `pack` builds for this machine's architecture and C library, and puts the Vulkan loader (libvulkan.so.1) beside it: that of
# `--deb FILE`, a package libvulkan1, or else the system's if it has one. With a software adapter of Vulkan
# (scripts/software-adapters.sh), the archive has what tools/cards predicts of cards.
#
# `run` takes at most nine minutes, and begins with what matters most:
#   devices    what the machine has                       devices.json, devices.txt, system.txt
#   check      the op table without its large cases       check.json
#   bench      all workloads, with the times of kernels   bench.json
#   variants   convolutions, rows and attention, by variant      variant-FAMILY-NAME.json
#   tune       products, by variant; the fastest are stored      tune.json
#   train      LeNet, then ResNet-18 on built-in digits   train-lenet.json, train-resnet18.json
#   peers      PyTorch and ONNX Runtime, where installed  peers.json, peers.md
# and report.md, a table of all, also of the kernels beside the predictions of tools/cards. Each step has a part of the time that
# is left. One that fails or takes longer does not stop the others; each has its log, STEP.log.
# Status 0: all steps passed or were skipped; 1: one failed.
#
# Options of `run`:
#   --devices LIST   as of the command (default: auto, all hardware GPUs, else the CPU); also --device
#   --total SECONDS  for everything (default: 540)
#   --card NAME      the card of docs/cards.md that predicts (default: by the adapter's name)
# PYTHON names the Python for the peers (default: python3). Status 2: the command line is wrong; 130: Ctrl-C ended it.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
say() { printf 'on-a-gpu: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }
wrong() { say "$*; --help has the options"; exit 2; }
# value OPTION [VALUE]: requires the value of an option.
value() { [ $# -gt 1 ] && [ -n "$2" ] || wrong "$1 needs a value"; }
usage() { sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

# --- pack -----------------------------------------------------------------------------------------------------------

# loader DEB FOLDER: puts libvulkan.so.1 into FOLDER, from a package or the system. Without one, the archive has none.
loader() {
    local library
    if [ -n "$1" ]; then
        mkdir "$work/deb"
        dpkg-deb -x "$1" "$work/deb" || fail "cannot unpack $1 as a Debian package"
        library=$(find "$work/deb" -name 'libvulkan.so.1' | sort | sed -n 1p)
        [ -n "$library" ] || fail "$1 has no libvulkan.so.1"
    else
        library=$(find /usr/lib /usr/lib64 -maxdepth 2 -name 'libvulkan.so.1' 2>/dev/null | sort | sed -n 1p)
    fi
    if [ -z "$library" ]; then
        say "no Vulkan loader here: the machine must have its own"
        return
    fi
    { mkdir -p "$2" && cp -L "$library" "$2/libvulkan.so.1"; } || fail "cannot copy $library"
}

# built ROOT PACKAGE NAME: builds a command and prints its path, which depends on settings of Cargo.
built() {
    local messages path
    messages=$(cd "$1" && cargo build --release --locked -p "$2" --message-format=json-render-diagnostics) ||
        fail "the build failed"
    path=$(printf '%s\n' "$messages" | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | grep "/$3\$" | tail -n 1)
    [ -n "$path" ] && [ -x "$path" ] || fail "cargo built no command $3"
    printf '%s\n' "$path"
}

pack() {
    local archive='' deb='' root folder command cards name=anygpu-on-a-gpu
    while [ $# -gt 0 ]; do
        case $1 in
        -h | --help) usage; return ;;
        --deb) value "$@"; deb=$2; shift 2 ;;
        -*) wrong "unknown option $1" ;;
        *) [ -z "$archive" ] || wrong "one archive, not $archive and $1"; archive=$1; shift ;;
        esac
    done
    archive=${archive:-$name.tar.gz}
    root=$(dirname "$here")
    [ -f "$root/cli/Cargo.toml" ] || fail "pack runs in a checkout"
    [ -z "$deb" ] || [ -r "$deb" ] || wrong "--deb $deb: there is no such file"
    [ -z "$deb" ] || command -v dpkg-deb >/dev/null || fail "--deb needs dpkg-deb, which is not installed here"
    command=$(built "$root" anygpu-cli anygpu) || exit 1
    cards=$(built "$root" anygpu-cards cards) || exit 1
    work=$(mktemp -d) || fail "no temporary folder"
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT TERM HUP
    folder=$work/$name
    {
        mkdir -p "$folder/scripts" "$folder/benches/peers" &&
            cp "$command" "$folder/anygpu" &&
            cp "$root/scripts/on-a-gpu.sh" "$root"/LICENSE-* "$folder/" &&
            cp "$root/scripts/pytorch_resnet18.py" "$folder/scripts/" &&
            cp "$root"/benches/peers/*.py "$root/benches/peers/README.md" "$folder/benches/peers/"
    } || fail "cannot copy the files of the archive"
    strip "$folder/anygpu" 2>/dev/null || say "strip is missing: the archive is larger"
    git -C "$root" rev-parse HEAD >"$folder/commit" 2>/dev/null || echo unknown >"$folder/commit"
    git -C "$root" diff --quiet HEAD 2>/dev/null || echo "with changes" >>"$folder/commit"
    "$cards" --times >"$folder/predictions.json" || say "no predictions: tools/cards needs a software adapter of Vulkan"
    loader "$deb" "$folder/lib"
    tar -C "$work" -czf "$archive" "$name" || fail "cannot write $archive"
    say "$archive: $(du -h "$archive" | cut -f 1). There: tar xzf $(basename "$archive") && $name/on-a-gpu.sh run results"
}

# --- run ------------------------------------------------------------------------------------------------------------

# limited SECONDS COMMAND...: asks the command to end after so many seconds (status 124), and kills it five seconds later
# (status 137). The command is the first of a process group, so that its children end too.
group=''
limited() {
    local limit=$1 end asked=0 status
    shift
    set -m
    "$@" &
    group=$!
    set +m
    end=$((SECONDS + limit))
    while kill -0 "$group" 2>/dev/null; do
        if [ "$SECONDS" -ge "$end" ]; then
            case $asked in
            0) kill -TERM -- "-$group" 2>/dev/null ;;
            1) kill -KILL -- "-$group" 2>/dev/null ;;
            *) group=''; return 125 ;; # a process that waits for its driver cannot be killed
            esac
            asked=$((asked + 1))
            end=$((SECONDS + 5))
        fi
        sleep 0.2
    done
    wait "$group"
    status=$?
    kill -TERM -- "-$group" 2>/dev/null # children that it left
    group=''
    case $asked in
    0) return "$status" ;;
    1) return 124 ;;
    *) return 137 ;;
    esac
}

# interrupted: ends the step that runs, and this script.
interrupted() {
    trap '' INT TERM HUP
    if [ -n "$group" ]; then
        say "stopped: the step is ended"
        kill -TERM -- "-$group" 2>/dev/null
        local tries=0
        while kill -0 -- "-$group" 2>/dev/null && [ "$tries" -lt 50 ]; do
            sleep 0.2
            tries=$((tries + 1))
        done
        kill -KILL -- "-$group" 2>/dev/null
    fi
    exit 130
}

# reason LOG: its first error, or its last line.
reason() {
    { grep -m 1 '^error' "$1" || tail -n 1 "$1"; } | tr '|' '/' | cut -c 1-200
}

steps=()
failed=0
# step NAME PART OUTPUT COMMAND...: runs a step for at most so many percent of the time that is left, with its standard output in
# OUTPUT and its errors in NAME.log. A step that writes results as it goes passes if it has some when its time is over.
step() {
    local name=$1 limit=$(((deadline - SECONDS) * $2 / 100)) output=$3 began=$SECONDS status result
    shift 3
    if [ "$limit" -lt 5 ]; then
        skip "$name" "no time is left"
        return
    fi
    case $name in train-*) [ "$limit" -le 45 ] || limit=45 ;; esac # it takes all that it is given
    say "$name (at most $limit s)"
    limited "$limit" "$@" >"$out/$output" 2>"$out/$name.log" </dev/null
    status=$?
    case $name:$status in
    *:0) result=passed ;;
    train-*:124 | train-*:137)
        if grep -q '"epoch":' "$out/$output" || grep -q 'after step [1-9]' "$out/$name.log"; then
            result="passed, ended after its time"
        else
            result="**failed**: no step was finished in $limit s"
        fi
        ;;
    *:124 | *:137)
        result="**failed**: stopped after $limit s"
        case $name in
        check) if grep -q '"op":' "$out/$output" && ! grep -q '"ok":false' "$out/$output"; then result="passed as far as it went, $limit s"; fi ;;
        bench | variant-* | peers) if grep -q . "$out/$output"; then result="passed as far as it went, $limit s"; fi ;;
        esac
        ;;
    *:125) result="**failed**: stuck, left running" ;;
    *) result="**failed**: status $status, $(reason "$out/$name.log")" ;;
    esac
    [ -s "$out/$name.log" ] || rm -f "$out/$name.log"
    case $result in *failed*) failed=1 ;; esac
    steps+=("| $name | $result | $((SECONDS - began)) | \`$output\` |")
}

skip() {
    say "$1: skipped: $2"
    steps+=("| $1 | skipped: $2 | 0 | |")
}

system() {
    uname -a
    if [ -r /proc/cpuinfo ]; then grep -m 1 'model name' /proc/cpuinfo; fi
    if command -v nproc >/dev/null; then echo "$(nproc) processors"; fi
    uptime
    if command -v nvidia-smi >/dev/null; then nvidia-smi; fi
    if command -v rocm-smi >/dev/null; then rocm-smi; fi
    echo "commit $(tr '\n' ' ' 2>/dev/null <"$here/commit" || echo 'of a checkout')"
}

# has_library NAME: whether the system finds a shared library. Its list is made by ldconfig, which users may not have in PATH.
has_library() {
    local libraries
    libraries=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null)
    [[ $libraries == *"$1"* ]]
}

# Finds the drivers that are there: the packed loader for a system without one, and NVIDIA's manifest, which containers
# often lack.
drivers() {
    if [ -e "$here/lib/libvulkan.so.1" ] && ! has_library libvulkan.so.1; then
        export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
        say "this system has no Vulkan loader: the packed one is used"
    fi
    local manifest=$out/nvidia_icd.json
    if has_library libGLX_nvidia.so.0 && [ -z "${VK_DRIVER_FILES:-}${VK_ICD_FILENAMES:-}" ] &&
        ! ls /usr/share/vulkan/icd.d/*nvidia* /etc/vulkan/icd.d/*nvidia* >/dev/null 2>&1; then
        printf '{"file_format_version": "1.0.0", "ICD": {"library_path": "libGLX_nvidia.so.0", "api_version": "1.3.0"}}\n' >"$manifest"
        export VK_ADD_DRIVER_FILES=$manifest${VK_ADD_DRIVER_FILES:+:$VK_ADD_DRIVER_FILES}
        say "NVIDIA's driver has no Vulkan manifest here: $manifest is used"
    fi
}

# rows FILE FIELD...: a row of Markdown for each line of JSON, with these fields; numbers of four digits, or whole ones from 1000.
rows() {
    local file=$1
    shift
    awk -v fields="$*" '
        function field(key,    at, rest) {
            at = index($0, "\"" key "\":")
            if (!at) return "–"
            rest = substr($0, at + length(key) + 3)
            if (substr(rest, 1, 1) == "\"") { rest = substr(rest, 2); return substr(rest, 1, index(rest, "\"") - 1) }
            sub(/[,}\]].*/, "", rest)
            if (rest == "null") return "–"
            if (rest ~ /^[-0-9.e+]+$/) {
                if (key == "share") return sprintf("%.1f %%", 100 * rest)
                return sprintf(rest + 0 >= 1000 || rest + 0 <= -1000 ? "%.0f" : "%.4g", rest)
            }
            return rest
        }
        { n = split(fields, keys, " "); line = "|"
          for (i = 1; i <= n; i++) { value = field(keys[i]); gsub(/[|*]/, "·", value); line = line " " value " |" }
          print line }' "$file"
}

# head_of FIELD...: the first two rows of a table.
head_of() {
    local line='|' rule='|' field
    for field; do line="$line $field |" rule="$rule---|"; done
    printf '%s\n%s\n' "$line" "$rule"
}

# bench_table FILE TITLE
bench_table() {
    [ -s "$out/$1" ] || return 0
    local fields=(workload shape device median min max unit share dispatches)
    printf '\n## %s\n\n' "$2"
    head_of "${fields[@]}"
    grep '"median":' "$out/$1" | rows - "${fields[@]}"
}

# card_of ADAPTER: the card of the predictions that an adapter is; the H200 has the chip of the H100.
card_of() {
    local card adapter=${1//(R)/}
    adapter=${adapter//([Tt][Mm])/}
    case $adapter in *H100* | *H200*) echo 'H100 SXM'; return ;; esac
    for card in 'RX 7900 XTX' 'Radeon 780M' 'Arc A770' 'Apple M2' 'RTX 4060'; do
        case $adapter in *"$card" | *"$card Graphics"* | *"$card ("* | *"$card/"*) echo "$card" ;; esac
    done
}

# predictions: the kernels of the benchmark on the first device, beside what tools/cards predicts for its card. The longest come first.
predictions() {
    local device adapter file=$here/predictions.json
    [ -s "$file" ] && [ -s "$out/bench.json" ] || return 0
    device=$(sed -n '1s/.*"device":"\([^"]*\)".*/\1/p' "$out/bench.json")
    adapter=$(sed -n "s/^{\"name\":\"${device//\//.}\".*\"adapter\":\"\([^\"]*\)\".*/\1/p" "$out/devices.json")
    card=${card:-$(card_of "$adapter")}
    printf '\n## Kernels beside their predictions\n\n'
    if [ -z "$card" ] || ! grep -q "\"$card\":" "$file"; then
        printf 'tools/cards has no card like %s%s: --card names one.\n' "$adapter" "${card:+ ($card)}"
        return
    fi
    printf '`%s` (%s) beside the model of the %s: µs of all launches in one run, without those of launching. Ratios above 1.5 are bold.\n\n' "$device" "$adapter" "$card"
    head_of workload kernel launches measured predicted ratio
    awk -v card="$card" -v device="$device" '
        function field(key,    at, rest) {
            at = index($0, "\"" key "\":")
            if (!at) return ""
            rest = substr($0, at + length(key) + 3)
            if (substr(rest, 1, 1) == "\"") { rest = substr(rest, 2); return substr(rest, 1, index(rest, "\"") - 1) }
            sub(/[,}\]].*/, "", rest)
            return rest
        }
        FNR == NR { predicted[field("workload") SUBSEP field("kernel")] = field(card); next }
        /"micros":/ && field("device") == device {
            key = field("workload") " " field("shape") SUBSEP field("kernel")
            micros[key] += field("micros"); calls[key] += field("calls")
        }
        END {
            for (key in micros) {
                split(key, part, SUBSEP)
                if (!(key in predicted)) { unknown += micros[key]; continue }
                ratio = predicted[key] > 0 ? micros[key] / predicted[key] : 0
                mark = ratio > 1.5 ? "**" : ""
                gsub(/[|*]/, "·", part[1])
                printf "| %s | `%s` | %d | %.1f | %.1f | %s%.2f%s |\n", part[1], part[2], calls[key], micros[key], predicted[key], mark, ratio, mark
            }
            if (unknown) printf "| | kernels that the model does not have | | %.1f | | |\n", unknown
        }' "$file" "$out/bench.json" | LC_ALL=C sort -t '|' -k 5,5 -rn
}

report() {
    local file fields
    printf '# anygpu on %s, %s\n\n' "$(uname -sm)" "$(date -u +%Y-%m-%d)"
    printf 'Devices: `%s`. Commit: %s\n\n' "$devices" "$(tr '\n' ' ' 2>/dev/null <"$here/commit" || echo 'of a checkout')"
    head_of step result seconds output
    printf '%s\n' "${steps[@]}"
    if [ -s "$out/devices.json" ]; then
        fields=(name kind adapter api driver memory_total)
        printf '\n## Devices\n\n'
        head_of "${fields[@]}"
        rows "$out/devices.json" "${fields[@]}"
    fi
    if [ -s "$out/check.json" ]; then
        printf '\n## Check\n\n'
        tail -n 1 "$out/check.json" | grep '"failed_cases"' | rows - ops cases failed_cases ok |
            sed 's/^| \(.*\) | \(.*\) | \(.*\) | \(.*\) |$/\1 ops, \2 cases, \3 failed (ok: \4)./'
        grep '"ok":false' "$out/check.json" | grep '"op":' | rows - device op verdict worst_error tolerance
    fi
    bench_table bench.json "Workloads; \`share\` is of what the device can do at most"
    predictions
    for file in "$out"/variant-*.json; do
        [ -e "$file" ] || continue
        file=$(basename "$file")
        bench_table "$file" "Variant $(printf '%s' "$file" | sed 's/^variant-//; s/\.json$//; s/-/\//')"
    done
    if [ -s "$out/tune.json" ]; then
        printf '\n## Products by variant, in seconds\n\n'
        head_of device class sizes default fastest ratio times
        sed -n 's/.*"device":"\([^"]*\)".*"class":"\([^"]*\)","sizes":\[\([0-9,]*\)\],"default":"\([^"]*\)","tuned":"\([^"]*\)".*"ratio":\([0-9.e+-]*\),"times":\[\[\(.*\)\]\]}/| \1 | \2 | \3 | \4 | \5 | \6 | \7 |/p' \
            "$out/tune.json" | sed 's/\],\[/; /g; s/",/ /g; s/"//g'
    fi
    for file in lenet resnet18; do
        [ -e "$out/train-$file.json" ] || continue
        fields=(epoch train_loss test_loss test_acc seconds images_per_s)
        printf '\n## Training of %s, first and last epochs\n\n' "$file"
        if grep -q '"epoch":' "$out/train-$file.json"; then
            head_of "${fields[@]}"
            grep '"epoch":' "$out/train-$file.json" | rows - "${fields[@]}" | awk '{ line[NR] = $0 }
                END { for (i = 1; i <= NR; i++) if (i <= 3 || i > NR - 3) print line[i] }'
        else
            printf 'No epoch was finished.\n'
        fi
        if [ -s "$out/train-$file.log" ]; then printf '\n%s\n' "$(reason "$out/train-$file.log")"; fi
    done
    if [ -s "$out/peers.md" ]; then printf '\n## Peers\n\n' && cat "$out/peers.md"; fi
}

# variants: convolutions and rows with each variant that the devices can run, by shutting out all others of its family, and attention
# in several passes. `tune` times the variants of products.
variants() {
    local names name other family workload shut
    step variants 20 variants.json "$anygpu" check --devices "$devices" --op / --quick --json
    names=$(sed -n 's/.*"op":"\(conv2d\/implicit_[0-9]*\)".*/\1/p; s/.*"op":"softmax\/\([a-z]*\)".*/rows\/\1/p' "$out/variants.json" | sort -u)
    for name in $names; do
        family=${name%%/*} workload=conv2d shut=''
        [ "$family" != rows ] || workload=softmax
        for other in $names; do
            if [ "$other" != "$name" ] && [ "${other%%/*}" = "$family" ]; then shut=$shut${shut:+,}$other; fi
        done
        variant "${name/\//-}" "$shut" "$workload"
    done
    variant attention-composed attention/fused attention
}

# variant NAME SHUT WORKLOAD: a workload without the variants of a list.
variant() {
    step "variant-$1" 15 "variant-$1.json" env ANYGPU_QUARANTINE="$2" RUST_LOG=error \
        "$anygpu" bench "$3" --devices "$devices" --json --repeats 3 --warm-up 1
}

run() {
    out='' devices=auto card=''
    local total=540 peer python=${PYTHON:-python3}
    while [ $# -gt 0 ]; do
        case $1 in
        -h | --help) usage; return ;;
        --device | --devices) value "$@"; devices=$2; shift 2 ;;
        --total) value "$@"; total=$2; shift 2 ;;
        --card) value "$@"; card=$2; shift 2 ;;
        -*) wrong "unknown option $1" ;;
        *) [ -z "$out" ] || wrong "one folder, not $out and $1"; out=$1; shift ;;
        esac
    done
    [ -n "$out" ] || wrong "name a folder for the results"
    [[ $total =~ ^[1-9][0-9]*$ ]] || wrong "--total $total: it must be a whole number of seconds"
    # The last step may take ten seconds to end, and the report some.
    deadline=$((SECONDS + total - 15))
    for anygpu in "$here/anygpu" "$(dirname "$here")/target/release/anygpu"; do [ -x "$anygpu" ] && break; done
    [ -x "$anygpu" ] || fail "no command here: run this from the unpacked archive, or build a release first"
    mkdir -p "$out" && out=$(cd "$out" && pwd -P) || fail "cannot write $out"
    [ -z "$(ls -A "$out")" ] || fail "$out is not empty: results of two runs would mix"
    trap interrupted INT TERM HUP
    drivers

    step system 10 system.txt system
    step devices 10 devices.json "$anygpu" devices --json
    step devices-long 10 devices.txt "$anygpu" devices --long
    step check 30 check.json "$anygpu" check --devices "$devices" --quick --json
    step bench 40 bench.json "$anygpu" bench --devices "$devices" --json --repeats 5 --warm-up 1 --profile "$out/profiles"
    variants
    step tune 25 tune.json "$anygpu" tune --devices "$devices" --json
    # Both nets take the digits that are built into the command. More epochs than fit: the step ends them.
    step train-lenet 25 train-lenet.json "$anygpu" train lenet --devices "$devices" --epochs 100000 --json
    step train-resnet18 35 train-resnet18.json "$anygpu" train resnet18 --devices "$devices" --epochs 100000 --limit 640 --json
    if ! command -v "$python" >/dev/null; then
        skip peers "there is no $python (PYTHON names another one)"
    elif ! "$python" -c 'import torch' 2>/dev/null && ! "$python" -c 'import onnxruntime, onnx' 2>/dev/null; then
        skip peers "$python has neither PyTorch nor ONNX Runtime"
    else
        # The device that the workloads ran on first, also where --devices says auto.
        peer=$(sed -n '1s/.*"device":"\([^"]*\)".*/\1/p' "$out/bench.json" 2>/dev/null)
        step peers 100 peers.md "$python" "$here/benches/peers/run.py" --anygpu "$anygpu" \
            --device "${peer:-cpu}" --rounds 1 --repeats 3 --json "$out/peers.json"
    fi
    report >"$out/report.md"
    say "$out/report.md"
    return "$failed"
}

case ${1:-} in
pack) shift; pack "$@" ;;
run) shift; run "$@" ;;
-h | --help | help) usage ;;
*) usage >&2; exit 2 ;;
esac
