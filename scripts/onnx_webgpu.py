#!/usr/bin/env python3
"""Times the models of scripts/onnx_models.py beside ONNX Runtime's WebGPU provider on the same adapter, as a Markdown table.

    cargo build --release --features onnx --example onnx_model
    VK_DRIVER_FILES=/path/of/the/driver.json scripts/onnx_webgpu.py FOLDER --device soft:0

Needs onnxruntime-webgpu (in an environment of its own: it takes the place of onnxruntime), onnx and numpy. The provider chooses its
adapter itself, so VK_DRIVER_FILES has to leave one driver only; the lines before the table say which one each process has loaded.

In each turn both programs run a model 20 times, each in a process of its own; inputs come from the host's memory and outputs go
back to it. A figure is the median over the turns of the median of a process, and a ratio the median over the turns of theirs ÷ ours.
"""

import argparse
import collections
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

RUNS = 20


def theirs(model, sizes, validation):
    """Times ONNX Runtime in this process; prints the times, the drivers and the nodes that each provider ran, as JSON."""
    import numpy
    import onnxruntime

    provider = ("WebGpuExecutionProvider", {"validationMode": validation})

    def session(folder=None):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if folder:
            options.enable_profiling = True
            options.profile_file_prefix = os.path.join(folder, "nodes")
        return onnxruntime.InferenceSession(model, options, providers=[provider, "CPUExecutionProvider"])

    session_timed, sizes, inputs = session(), iter(sizes), {}
    random = numpy.random.default_rng(0)
    for info in session_timed.get_inputs():
        shape = [dim if isinstance(dim, int) else next(sizes, 1) for dim in info.shape]
        if not shape:
            inputs[info.name] = numpy.array(16000, numpy.int64)
        elif "int" in info.type:
            inputs[info.name] = random.integers(0, 256, shape, dtype=numpy.int32)
        else:
            inputs[info.name] = random.standard_normal(shape, dtype=numpy.float32) * numpy.float32(0.5)
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        session_timed.run(None, inputs)
        times.append((time.perf_counter() - start) * 1e3)
    with tempfile.TemporaryDirectory() as folder:
        profiled = session(folder)
        profiled.run(None, inputs)
        events = json.loads(pathlib.Path(profiled.end_profiling()).read_text())
    nodes = collections.Counter(
        event["args"]["provider"].replace("ExecutionProvider", "")
        for event in events
        if event.get("cat") == "Node" and event["name"].endswith("kernel_time")
    )
    maps = pathlib.Path("/proc/self/maps")
    files = {line.split()[-1] for line in maps.read_text().splitlines() if len(line.split()) > 5} if maps.exists() else set()
    asked = os.environ.get("VK_DRIVER_FILES", "")
    wanted = {str(json.loads(pathlib.Path(icd).read_text())["ICD"]["library_path"]) for icd in asked.split(":") if icd}
    drivers = sorted(file for file in files if any(pathlib.Path(file).name == pathlib.Path(name).name for name in wanted))
    print("JSON" + json.dumps({"median": statistics.median(times), "drivers": drivers, "nodes": nodes}))


def run_theirs(model, sizes, validation):
    command = [sys.executable, __file__, "--theirs", str(model), "--validation", validation, *map(str, sizes)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in done.stdout.splitlines():
        if line.startswith("JSON"):
            return json.loads(line[4:])
    sys.exit(f"{model}: ONNX Runtime gave no times\n{done.stdout}{done.stderr}")


def run_ours(program, model, device, sizes):
    done = subprocess.run([program, str(model), device, *map(str, sizes)], stdout=subprocess.PIPE, text=True, check=True)
    return float(re.search(r"median ([\d.]+) ms", done.stdout).group(1))


def open_sizes(model, shapes):
    """The sizes of the dimensions that the file leaves open, in the order of its inputs."""
    import onnx

    graph = onnx.load(model, load_external_data=False).graph
    given = {tensor.name for tensor in graph.initializer}
    for info in graph.input:
        if info.name not in given and not isinstance(shapes[info.name], int):
            for dim, size in zip(info.type.tensor_type.shape.dim, shapes[info.name]):
                if dim.dim_value < 1:
                    yield size


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path, nargs="?")
    parser.add_argument("sizes", type=int, nargs="*")
    parser.add_argument("--device", default="soft:0")
    parser.add_argument("--program", default="target/release/examples/onnx_model")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--models", default="", help="a part of the names of the models to take")
    parser.add_argument("--validation", default="disabled", help="the provider's validationMode")
    parser.add_argument("--theirs", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_intermixed_args()
    if arguments.theirs:
        return theirs(str(arguments.folder), arguments.sizes, arguments.validation)

    from onnx_models import PACKAGES

    ratios, rows, drivers = [], [], set()
    for _, (name, cases) in sorted(model for models in PACKAGES.values() for model in models.items()):
        if arguments.models not in name:
            continue
        model = arguments.folder / name / "model.onnx"
        sizes = list(open_sizes(model, cases[0]))
        turns = []
        for _ in range(arguments.turns):
            ours = run_ours(arguments.program, model, arguments.device, sizes)
            turns.append((ours, run_theirs(model, sizes, arguments.validation)))
        ratio = [their["median"] / ours for ours, their in turns]
        nodes = turns[0][1]["nodes"]
        drivers.update(driver for _, their in turns for driver in their["drivers"])
        shape = " × ".join(map(str, next(iter(cases[0].values()))))
        ours, their = statistics.median(our for our, _ in turns), statistics.median(their["median"] for _, their in turns)
        placed = f"{nodes.get('WebGpu', 0)} + {nodes.get('CPU', 0)}"
        spread = f"{min(ratio):.1f} to {max(ratio):.1f}"
        rows.append(f"| {name} | {shape} | {ours:.3g} | {their:.4g} | {statistics.median(ratio):.1f} | {spread} | {placed} |")
        print(rows[-1], file=sys.stderr, flush=True)
        ratios.append(statistics.median(ratio))
    print(f"drivers that ONNX Runtime loaded: {', '.join(sorted(drivers)) or 'unknown'}\n")
    print("| model | input | ours, ms | WebGPU provider, ms | theirs ÷ ours | of the turns | its nodes: WebGPU + CPU |")
    print("|---|---|---|---|---|---|---|", *rows, sep="\n")
    print(f"\ngeometric mean {math.exp(statistics.fmean(map(math.log, ratios))):.2f}")


if __name__ == "__main__":
    main()
