#!/usr/bin/env bash
# Runs commands as the ranks of a job on two "machines": two network namespaces with names and addresses of their own, which only
# a veth link connects. Needs root, iproute2 and Open MPI.
#
#   scripts/mpi-two-hosts.sh COMMAND [: COMMAND]      the second one on the second machine; without it, both run the first
#
# Exit status: that of mpirun; 3 if this system does not let one make network namespaces.
# With ANYGPU_CUT_AFTER=SECONDS, the link goes down after so long.
set -euo pipefail

first=()
while [ $# != 0 ] && [ "$1" != : ]; do first+=("$1"); shift; done
[ $# = 0 ] || shift
second=("$@")
[ ${#second[@]} != 0 ] || second=("${first[@]}")
[ ${#first[@]} != 0 ] || { sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2; }

id=$$
folder=$(mktemp -d)
finish() {
    ip netns delete "anygpu-$id-1" 2>/dev/null || true
    ip netns delete "anygpu-$id-2" 2>/dev/null || true
    rm -rf "$folder"
}
trap finish EXIT

machine() {
    local name=anygpu-$id-$1
    ip -n "$name" link set lo up && ip -n "$name" addr add "10.77.0.$1/24" dev "veth$id" && ip -n "$name" link set "veth$id" up
}
namespaces() {
    ip netns add "anygpu-$id-1" && ip netns add "anygpu-$id-2" &&
        ip link add "veth$id" netns "anygpu-$id-1" type veth peer name "veth$id" netns "anygpu-$id-2" &&
        machine 1 && machine 2 && ip netns exec "anygpu-$id-1" unshare --uts true
}
if ! reason=$(namespaces 2>&1); then
    echo "SKIPPED: no network namespaces here: $reason"
    exit 3
fi

# Runs a command on the machine whose address ends in $1: what ssh does for real ones.
cat >"$folder/agent" <<END
#!/bin/sh
machine=\${1##*.}
shift
exec ip netns exec "anygpu-$id-\$machine" unshare --uts sh -c "hostname machine-\$machine; \$*"
END
chmod +x "$folder/agent"

if [ -n "${ANYGPU_CUT_AFTER:-}" ]; then
    (sleep "$ANYGPU_CUT_AFTER"; ip -n "anygpu-$id-1" link set "veth$id" down) &
fi

export TMPDIR=$folder OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# All messages go over the link: shared memory would reach the other namespace too.
"$folder/agent" 10.77.0.1 exec mpirun --oversubscribe --bind-to none --timeout "${ANYGPU_MPI_TIMEOUT:-120}" \
    --mca plm_rsh_agent "$folder/agent" --mca btl tcp,self \
    --mca oob_tcp_if_include 10.77.0.0/24 --mca btl_tcp_if_include 10.77.0.0/24 \
    --mca oob_tcp_keepalive_time 5 --mca oob_tcp_keepalive_intvl 2 --mca oob_tcp_keepalive_probes 3 \
    --host 10.77.0.1:1 -n 1 "${first[*]@Q}" : --host 10.77.0.2:1 -n 1 "${second[*]@Q}"
