#!/usr/bin/env python3
"""Makes the pictures of docs/gallery from real runs.

    eval "$(scripts/software-adapters.sh)"
    cargo build --release -p anygpu-cli && cargo build --release -p anygpu-plot --example mixed && cargo build --release --example generate_text
    python3 scripts/gallery.py [--devices cpu,soft:0,soft:1] [--only NAME,...] [--models FOLDER]

Needs the Python package pyte, for pictures of the terminal; numpy and pillow, for the boxes, with the models that scripts/onnx_models.py
fetches into FOLDER. The pictures of the desktop program and of the page are made by their own tests.
"""

import argparse
import fcntl
import html
import json
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "docs/gallery"
RELEASE = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
COLUMNS = 118
COLOURS = {
    "black": "#24292f", "red": "#ff7b72", "green": "#7ee787", "brown": "#e3b341", "yellow": "#e3b341", "blue": "#79c0ff",
    "magenta": "#d2a8ff", "cyan": "#76e3ea", "white": "#e6edf3", "default": "#e6edf3",
}


def terminal(name, command, rows, seconds=None):
    """Runs a command in a terminal, to its end or for so many seconds, and draws its last screen below the command itself."""
    import pyte

    screen = pyte.Screen(COLUMNS, rows)
    stream = pyte.ByteStream(screen)
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLORTERM="", COLUMNS=str(COLUMNS), LINES=str(rows))
        os.environ["PATH"] = f"{RELEASE}:{os.environ['PATH']}"
        os.chdir(tempfile.gettempdir())
        os.execvp("bash", ["bash", "-c", f"sleep 0.2; {command}"])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, COLUMNS, 0, 0))
    begin = time.monotonic()
    while seconds is None or time.monotonic() < begin + seconds:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                data = os.read(terminal, 65536)
            except OSError:
                break
            if not data:
                break
            stream.feed(data)
    picture = [[screen.buffer[row][column] for column in range(COLUMNS)] for row in range(rows)]
    if seconds is not None:
        os.kill(pid, signal.SIGINT)
    os.waitpid(pid, 0)
    while picture and all(cell.data == " " for cell in picture[-1]):
        picture.pop()
    write(name, command, picture)


def write(name, command, picture):
    """Writes rows of characters with colours as an SVG."""
    width, height, top = 8.43, 18, 44
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {COLUMNS * width + 32:.0f} {top + (len(picture) + 1) * height + 12}" '
        'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="14">',
        '<rect width="100%" height="100%" rx="8" fill="#0d1117"/>',
        '<circle cx="20" cy="18" r="6" fill="#ff5f57"/><circle cx="40" cy="18" r="6" fill="#febc2e"/><circle cx="60" cy="18" r="6" fill="#28c840"/>',
        f'<text x="16" y="{top}" fill="#8b949e" xml:space="preserve">$ {html.escape(command)}</text>',
    ]
    for number, row in enumerate(picture):
        y = top + (number + 1) * height
        at = 0
        while at < len(row):
            style = (row[at].fg, row[at].bold, row[at].reverse)
            end = at
            while end < len(row) and (row[end].fg, row[end].bold, row[end].reverse) == style:
                end += 1
            # Each word has its own place: a viewer's font may be wider or narrower.
            text = "".join(cell.data for cell in row[at:end])
            fill = COLOURS.get(style[0].removeprefix("bright"), f"#{style[0]}" if len(style[0]) == 6 else "#e6edf3")
            bold = ' font-weight="bold"' if style[1] else ""
            for word in re.finditer(r"\S+", text):
                lines.append(
                    f'<text x="{16 + (at + word.start()) * width:.1f}" y="{y}" fill="{fill}"{bold} '
                    f'textLength="{len(word[0]) * width:.1f}" lengthAdjust="spacingAndGlyphs">{html.escape(word[0])}</text>'
                )
            at = end
    (OUT / f"{name}.svg").write_text("\n".join(lines + ["</svg>", ""]))


def mixed(devices):
    subprocess.run([RELEASE / "examples/mixed", OUT / "mixed.svg", *devices], check=True)


def timeline(devices):
    """One step of LeNet on several devices, from the trace of a run."""
    with tempfile.TemporaryDirectory() as folder:
        trace = pathlib.Path(folder) / "run.json"
        command = [RELEASE / "anygpu", "train", "lenet", "--batch-size", "256", "--epochs", "2", "--devices", ",".join(devices), "--trace", trace]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        events = json.loads(trace.read_text())["traceEvents"]
    rows = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    spans = [event for event in events if event["ph"] == "X"]
    steps = [span for span in spans if rows[span["tid"]] == "steps"]
    step = sorted(steps[len(steps) // 2 :], key=lambda span: span["dur"])[len(steps) // 4]
    begin, length = step["ts"], step["dur"]
    left, width, height, top = 210, 880, 26, 56
    colours = {"copy of parameters": "#f28e2b", "compute": "#4e79a7", "gradients": "#59a14f"}
    shown = {tid: name for tid, name in rows.items() if name != "steps"}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 30} {top + len(shown) * (height + 8) + 60}" '
        'font-family="system-ui, sans-serif" font-size="13" fill="#24292f">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="16" y="26" font-size="16">{html.escape(step["name"])} of LeNet, batch of 256, on {html.escape(", ".join(devices))}: {length / 1000:.1f} ms</text>',
    ]
    for number, (tid, name) in enumerate(shown.items()):
        y = top + number * (height + 8)
        lines.append(f'<text x="16" y="{y + 17}">{html.escape(name)}</text>')
        lines.append(f'<rect x="{left}" y="{y}" width="{width}" height="{height}" fill="#f6f8fa"/>')
        for span in spans:
            kind = span["name"].split(" ")[0] if span["name"].startswith("gradients") else span["name"]
            inside = begin <= span["ts"] < begin + length
            if span["tid"] != tid or kind not in colours or not inside:
                continue
            x, w = left + (span["ts"] - begin) / length * width, max(span["dur"] / length * width, 2)
            lines.append(f'<rect x="{x:.1f}" y="{y}" width="{w:.1f}" height="{height}" fill="{colours[kind]}"/>')
            if kind == "compute":
                lines.append(f'<text x="{x + 6:.1f}" y="{y + 17}" fill="white">{span["args"]["samples"]} samples</text>')
    y = top + len(shown) * (height + 8) + 24
    for number, (name, colour) in enumerate(colours.items()):
        label = "gradients to the host" if name == "gradients" else name
        lines.append(f'<rect x="{left + number * 200}" y="{y - 12}" width="14" height="14" fill="{colour}"/><text x="{left + number * 200 + 20}" y="{y}">{label}</text>')
    (OUT / "timeline.svg").write_text("\n".join(lines + ["</svg>", ""]))


def boxes(models, device):
    """The words that a model of RapidOCR finds in the picture of the page in a browser."""
    import numpy
    from PIL import Image, ImageDraw

    picture = Image.open(ROOT / "docs/guide/src/images/browser.png").convert("RGB")
    # The model takes sides that are multiples of 32.
    picture = picture.crop((0, 0, *(side // 32 * 32 for side in picture.size)))
    with tempfile.TemporaryDirectory() as folder:
        array, scores = pathlib.Path(folder) / "x.npy", pathlib.Path(folder) / "scores.npy"
        pixels = (numpy.asarray(picture, dtype=numpy.float32) / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
        numpy.save(array, numpy.ascontiguousarray(pixels.transpose(2, 0, 1)[None], dtype=numpy.float32))
        model = models / "rapidocr-detection/model.onnx"
        command = [RELEASE / "anygpu", "run", model, "--devices", device]
        subprocess.run([*command, "--input", f"x={array}", "--output", f"sigmoid_0.tmp_0={scores}"], check=True)
        found = numpy.load(scores)[0, 0] > 0.3
    drawing = ImageDraw.Draw(picture)
    count = 0
    for y, x in zip(*numpy.nonzero(found)):
        if not found[y, x]:
            continue
        # All places that are connected with this one.
        area, left = [], [(y, x)]
        found[y, x] = False
        while left:
            row, column = left.pop()
            area.append((row, column))
            for near in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
                if 0 <= near[0] < found.shape[0] and 0 <= near[1] < found.shape[1] and found[near]:
                    found[near] = False
                    left.append(near)
        if len(area) > 12:
            rows, columns = zip(*area)
            corners = [min(columns) - 4, min(rows) - 7, max(columns) + 4, max(rows) + 7]
            drawing.rectangle(corners, outline=(220, 40, 40), width=2)
            count += 1
    print(f"{count} boxes")
    picture.quantize(48).save(OUT / "boxes.png", optimize=True)


def text():
    """What a small transformer writes after it was trained on Shakespeare's sonnets."""
    written = subprocess.run([RELEASE / "examples/generate_text", "cpu", "3000"], check=True, capture_output=True, text=True).stdout
    (OUT / "text.txt").write_text(written)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="cpu,soft:0,soft:1", help="the devices of the mix (default: %(default)s)")
    parser.add_argument("--only", help="a list of pictures (default: all)")
    parser.add_argument("--models", type=pathlib.Path, help="the folder of scripts/onnx_models.py, for the boxes")
    arguments = parser.parse_args()
    devices = arguments.devices.split(",")
    named = ",".join(devices)
    pictures = {
        "mixed": lambda: mixed(devices),
        "timeline": lambda: timeline(devices),
        "devices": lambda: terminal("devices", "anygpu devices", 30),
        "check": lambda: terminal("check", "anygpu check --quick --devices soft:0 | tail -n 24", 26),
        "train": lambda: terminal("train", f"anygpu train --live --epochs 4 --devices {named}", 40),
        "top": lambda: top(named),
        "text": text,
    }
    if arguments.models:
        pictures["boxes"] = lambda: boxes(arguments.models, devices[-1])
    OUT.mkdir(parents=True, exist_ok=True)
    for name, make in pictures.items():
        if not arguments.only or name in arguments.only.split(","):
            print(name, flush=True)
            make()
    print(f"{sum(file.stat().st_size for file in OUT.iterdir())} bytes in {OUT.relative_to(ROOT)}")


def top(devices):
    """The devices of the machine while a net trains on them."""
    run = subprocess.Popen(
        [RELEASE / "anygpu", "train", "--epochs", "200", "--devices", devices], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        time.sleep(8)
        terminal("top", "anygpu top", 30, seconds=6)
    finally:
        run.send_signal(signal.SIGINT)
        run.wait()


if __name__ == "__main__":
    sys.exit(main())
