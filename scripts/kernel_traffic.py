#!/usr/bin/env python3
"""Sums the bytes that the kernels of one run of a workload read and write, beside the least that `anygpu bench` counts.

    RUST_LOG=anygpu::kernels=trace anygpu bench resnet18 --devices soft:0 --repeats 1 --warm-up 2 --json 2>&1 \
        | python3 scripts/kernel_traffic.py

A kernel counts whole buffers. The parameters of a net are parts of one buffer, and so are their gradients: there, a kernel counts
what it takes of it. It is the largest buffer that `optim.*` binds, so predictions count with the training before them.
"""

import collections
import json
import re
import sys

KERNEL = re.compile(r"anygpu::kernels\] \S+ (.+) reads \[(.*)\] writes \[(.*)\]$")
MIB = 2**20


def sizes(text):
    return [int(size) for size in text.split(",") if size.strip()]


def counted(kernel, bucket):
    """The bytes that a kernel reads and writes. `bucket` is the size of the parameters' buffer."""
    name, reads, writes = kernel
    part = lambda size: size >= bucket > 0 and not name.startswith("optim.")  # noqa: E731
    read = sum(size for size in reads if not part(size))
    written = sum(size for size in writes if not part(size))
    for size in writes:
        written += min(size, read) if part(size) else 0
    for size in reads:
        # Packing reads each weight once; norms and biases read one number of a channel.
        read += min(size, written) if part(size) and name.startswith(("pack", "matmul")) else 0
    return read, written


def main():
    kernels, bucket, net = [], 0, None
    for line in sys.stdin:
        if found := KERNEL.search(line.rstrip()):
            name, reads, writes = found[1], sizes(found[2]), sizes(found[3])
            kernels.append((name, reads, writes))
            continue
        if not line.startswith("{"):
            continue
        row = json.loads(line)
        if not row["dispatches"]:
            continue
        if net != (row["workload"], row["device"]):
            # The nets of two workloads have parameters of their own.
            net = (row["workload"], row["device"])
            steps = [reads + writes for name, reads, writes in kernels if name.startswith("optim.")]
            bucket = min(steps[-1]) if steps else 0
        totals = collections.defaultdict(lambda: [0, 0, 0])
        for kernel in kernels[-row["dispatches"]:]:
            total = totals[kernel[0]]
            for i, value in enumerate([1, *counted(kernel, bucket)]):
                total[i] += value
        read, written = (sum(total[i] for total in totals.values()) for i in (1, 2))
        least = "not counted" if row["bytes"] is None else f"{row['bytes'] / MIB:.0f} MiB"
        print(f"{row['workload']}, {row['shape']}, {row['device']}: {row['dispatches']} kernels read {read / MIB:.0f} MiB and "
              f"write {written / MIB:.0f}; the least is {least}")
        kernels = kernels[-row["dispatches"]:]  # an optimiser of earlier nets is none of the next one
        for name, (count, read, written) in sorted(totals.items(), key=lambda item: -sum(item[1][1:]))[:12]:
            print(f"  {count:4} {name:32} {read / MIB:8.1f} {written / MIB:8.1f}")


if __name__ == "__main__":
    main()
