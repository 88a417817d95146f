#!/usr/bin/env python3
"""Compares `anygpu bench` with PyTorch and ONNX Runtime on the same workloads in the same minutes.

    python3 benches/peers/run.py                                   # cpu, all workloads
    python3 benches/peers/run.py --device gpu:0 --workloads matmul,resnet18 --rounds 5

In each round, each workload runs in `anygpu bench`, then in each peer that is installed, one after the other. README.md
beside this file has the method.
"""

import argparse
import importlib
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import shapes  # noqa: E402
import timing  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WORKLOADS = "matmul,conv2d,elementwise,softmax,attention,chain,lenet,resnet18,transformer,transfer"
PEERS = [("PyTorch", "with_torch"), ("ONNX Runtime", "with_onnxruntime")]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = next((p for p in (ROOT / "anygpu", ROOT / "target/release/anygpu") if p.is_file()), "anygpu")
    parser.add_argument("--anygpu", default=str(default), help="the command (default: %(default)s)")
    parser.add_argument("--device", default="cpu", type=one_device, help="cpu, gpu:N or soft:N (default: cpu)")
    parser.add_argument("--torch-device", help="the device of PyTorch (default: the same)")
    parser.add_argument("--workloads", default=WORKLOADS, help="a list (default: %(default)s)")
    parser.add_argument("--size", default="1024", help="shapes of matmul, as of `anygpu bench` (default: 1024)")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is measured (default: 3)")
    parser.add_argument("--repeats", type=int, default=5, help="measured repeats in a round (default: 5)")
    parser.add_argument("--warm-up", type=int, default=2, help="repeats before them (default: 2)")
    parser.add_argument("--threads", type=int, default=processors(), help="threads of the peers (default: all)")
    parser.add_argument("--out", help="write the table to this file too")
    parser.add_argument("--json", help="write the figures to this file, one object for each workload")
    return parser.parse_args()


def one_device(name):
    """The name of one device with its number, since a peer is compared on one."""
    if not re.fullmatch(r"(cpu|(gpu|soft):\d+)(/\d+)?", name):
        raise argparse.ArgumentTypeError(f"'{name}' is not the name of one device, as cpu, gpu:0 or soft:1")
    return name


def processors():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load():
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def peers(args):
    """The peers that are installed and have such a device: name, module, device. And what is to be said of the others."""
    found, notes = [], []
    for name, module in PEERS:
        try:
            peer = importlib.import_module(module)
            peer.setup(args.threads)
            device = peer.device_for(args.device)
            if name == "PyTorch" and args.torch_device:
                device = args.torch_device
            if device is None:
                notes.append(f"{name} {peer.VERSION} has no device for {args.device}.")
                continue
            notes.append(f"{name} {peer.VERSION} on {peer.describe(device)}, {args.threads} threads.")
            found.append((name, peer, device))
        except ImportError as error:
            notes.append(f"{name} is not installed ({error}).")
        except Exception as error:  # a peer that does not start, as with a wrong driver, does not end the others
            notes.append(f"{name} cannot be used ({type(error).__name__}: {error}).")
    return found, notes


def adapter(args):
    """The name of the card of `--device` in brackets, since the numbers of other programs may have another order."""
    result = subprocess.run([args.anygpu, "devices", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    names = [line.get("adapter") for line in lines if line.get("name") == args.device.split("/")[0]]
    return f" ({names[0]})" if names and names[0] else ""


def bench(args, workload):
    """The lines of one run of `anygpu bench`."""
    command = [args.anygpu, "bench", workload, "--devices", args.device, "--json"]
    command += ["--repeats", str(args.repeats), "--warm-up", str(args.warm_up)]
    if workload in ("matmul", "all"):  # the others refuse it
        command += ["--size", args.size]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if result.returncode != 0:
        print(f"anygpu bench {workload}: {result.stderr.strip()}", file=sys.stderr)
    return [json.loads(line) for line in result.stdout.splitlines()]


def measure(args, line, name, peer, device):
    """The median figure of a peer, or None where it has no such workload or fails."""
    try:
        prepared = peer.prepare(line, device)
        if prepared is None:
            return None
        most = 1 if line["workload"] == "transfer" else timing.MOST_RUNS
        seconds = timing.seconds(*prepared, args.repeats, args.warm_up, most)
        return timing.median([shapes.rate(line, second) for second in seconds])
    except Stopped:
        raise
    except Exception as error:  # a peer that fails in one workload does not end the others
        print(f"{name} {line['workload']} {line['shape']}: {error}", file=sys.stderr)
        return None


def rounds(args, found, rows):
    """Adds for each workload and shape: a line of `anygpu bench`, and the figures of all rounds by program."""
    for number in range(args.rounds):
        for workload in args.workloads.split(","):
            for line in bench(args, workload):
                if line["workload"] == "probe":
                    continue
                figures = {"anygpu": line["median"]}
                for name, peer, device in found:
                    figures[name] = measure(args, line, name, peer, device)
                row = rows.setdefault((line["workload"], line["shape"]), {"line": line, "figures": []})
                row["figures"].append(figures)
                shown = ", ".join(f"{name} {show(figure)}" for name, figure in figures.items())
                title = f"{line['workload']} {line['shape']}"
                print(f"round {number + 1}: {title}: {shown} {line['unit']}", file=sys.stderr, flush=True)


class Stopped(Exception):
    """The program is to end: SIGTERM, or Ctrl-C."""


def stop(_signal, _frame):
    raise Stopped


def show(figure):
    return "–" if figure is None else f"{figure:.0f}" if figure >= 100 else f"{figure:.3g}"


def median_of(row, name):
    figures = [figures[name] for figures in row["figures"] if figures[name] is not None]
    return timing.median(figures) if figures else None


def ratios(row, name):
    """How many times as fast as the peer this crate is, in each round."""
    pairs = [(figures["anygpu"], figures[name]) for figures in row["figures"] if figures[name]]
    slower = row["line"]["unit"] == "µs"
    return [peer / own if slower else own / peer for own, peer in pairs]


def table(rows, names):
    header = ["workload", "shape", "unit", "anygpu", *names, *(f"anygpu / {name}" for name in names)]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for row in rows:
        line = row["line"]
        cells = [line["workload"], line["shape"].replace("*", "∗"), line["unit"], show(median_of(row, "anygpu"))]
        cells += [show(median_of(row, name)) for name in names]
        for name in names:
            of = ratios(row, name)
            cells.append(f"{timing.median(of):.2f} ({min(of):.2f} … {max(of):.2f})" if of else "–")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def report(args, rows, found, notes, before):
    count, after = processors(), load()
    busy = f"The load was {before:.1f} before and {after:.1f} after on {count} processors"
    busy += ": **the machine was busy**, so compare the ratios only." if before > 0.3 * count else "."
    when = time.strftime("%Y-%m-%d", time.gmtime())
    method = f"Medians over {args.rounds} round(s) of {args.repeats} repeats, each program in turn in each round; in brackets"
    method += " the smallest and the largest ratio of a round. A ratio above 1 says that anygpu is faster."
    lines = [f"anygpu on `{args.device}`{adapter(args)}, {platform.machine()}, {when}. {' '.join(notes)} {method} {busy}", ""]
    return "\n".join(lines + table(rows, [name for name, *_ in found])) + "\n"


def main():
    args = arguments()
    if shutil.which(args.anygpu) is None:
        sys.exit(f"no command {args.anygpu}: build it, or name it with --anygpu")
    before = load()
    found, notes = peers(args)
    rows = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    stopped = False
    try:
        rounds(args, found, rows)
    except Stopped:
        stopped = True  # what was measured is reported
        notes.append("**Stopped before the end.**")
    rows = list(rows.values())
    text = report(args, rows, found, notes, before)
    print(text)
    if args.out:
        pathlib.Path(args.out).write_text(text, encoding="utf-8")
    if args.json:
        objects = ({**row["line"], "rounds": row["figures"]} for row in rows)
        pathlib.Path(args.json).write_text("".join(json.dumps(o) + "\n" for o in objects), encoding="utf-8")
    if not rows or stopped:
        sys.exit("stopped before the end" if stopped else "nothing was measured: see the messages above")


if __name__ == "__main__":
    main()
