#!/usr/bin/env python3
"""Writes docs/check.md from the output of `anygpu check`:

    anygpu check --devices all --json | python3 scripts/check_table.py > docs/check.md
"""

import json
import sys

# Cases of variants that no adapter of this machine has: family, op, and their number.
NOWHERE = [
    ("conv", "conv2d/cooperative_16", 7),
    ("conv", "conv2d/cooperative_8", 7),
    ("matmul", "matmul/cooperative_16", 6),
    ("matmul", "matmul/cooperative_8", 6),
]

# The numbers of cases of which each software adapter runs a part, since all of them take long.
SHARED = {
    "conv2d/implicit_128": 15,
    "conv2d/implicit_32": 15,
    "conv2d/implicit_64": 15,
    "matmul/dots": 22,
    "matmul/slices": 25,
    "matmul/strided": 25,
    "index_add/shared": 6,
    "index_reduce/shared": 1,
    "scatter_add/shared": 7,
}


def main():
    rows = [json.loads(line) for line in sys.stdin if line.startswith("{")]
    summary, rows = rows[-1], rows[:-1]
    devices = summary["devices"]
    print("# The results of `anygpu check --devices all`\n")
    print("Each figure is the largest error of an op on a device, divided by the tolerance of its case. More than 1 would be a failure.")
    print("The cases cover values and gradients, odd sizes, every element type of the op, and transposed, narrowed and broadcast layouts.")
    print()
    print("The machine has no GPU. `soft:0` is lavapipe of Mesa 22.3.6, `soft:1` lavapipe of Mesa 25.0.7, `soft:2` SwiftShader, and")
    print("`soft:3` llvmpipe of Mesa 22.3.6 through GL. A dash: the op has no case for this device. Cases that take long are shared among the")
    print("software adapters; with `--thorough` each adapter runs all of them.\n")
    print(f"{summary['cases']} cases on {len(devices)} devices, {summary['failed_cases']} failed; in quarantine: "
          f"{', '.join(summary['quarantined']) or 'nothing'}.\n")
    print("| device | cases |\n|---|---|")
    for device in devices:
        own = [row for row in rows if row["device"] == device]
        print(f"| `{device}` | {sum(row['cases'] for row in own)} |")
    print("\n| op | cases |" + "".join(f" `{device}` |" for device in devices))
    print("|---|---|" + "---|" * len(devices))
    by_op = {(family, op): {} for family, op, _ in NOWHERE}
    counts = {op: cases for _, op, cases in NOWHERE}
    for row in rows:
        by_op.setdefault((row["family"], row["op"]), {})[row["device"]] = row
    for (_, op), found in sorted(by_op.items()):
        cells = [f"{found[d]['ratio']:.2g}" if d in found else "–" for d in devices]
        most = max((row["cases"] for row in found.values()), default=counts.get(op))
        print(f"| {op} | {SHARED.get(op, most)} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
