#!/usr/bin/env python3
"""Makes tests/data/onnx-node.tar.gz: ONNX's own test vectors of operators and of small models.

    scripts/onnx_vectors.py [wheel]

They come from the wheel of onnx 1.16.2 (later wheels leave them out), which pip downloads unless it is given; its
SHA-256 is checked. A test is a folder: model.onnx and test_data_set_0/{input,output}_<i>.pb. It takes those whose inputs
and outputs are tensors, not of strings or complex numbers, whose operators are of ONNX's own domain, and whose files are
at most 300 kB each. The same wheel gives the same bytes. Python's standard library only.
"""

import gzip
import hashlib
import io
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile

VERSION = "1.16.2"
SHA256 = "7b98aa9733bd4b781eb931d33b4078ff2837e7d68062460726d6dd011f332bd4"
ROOT = pathlib.Path(__file__).resolve().parent.parent
PREFIX = "onnx/backend/test/data/"
FOLDERS = ("node", "pytorch-converted", "pytorch-operator", "simple")
LARGEST = 300_000
# Codes of TensorProto.DataType.
STRING, COMPLEX = 8, (14, 15)


def fields(message):
    """The (number, value) pairs of a protobuf message: integers, or the bytes of what has a length."""
    i = 0

    def varint():
        nonlocal i
        value = shift = 0
        while True:
            byte = message[i]
            i += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while i < len(message):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(key & 7) or varint()
        yield key >> 3, message[i : i + size]
        i += size


def values(graph, number):
    """The element types of a graph's inputs (11) or outputs (12); None for what is not a tensor."""
    for key, value in fields(graph):
        if key == number:
            kind = dict(fields(dict(fields(value)).get(2, b"")))
            yield dict(fields(kind[1])).get(1) if 1 in kind else None


def is_taken(model):
    """Whether a ModelProto is of tensors and of ONNX's operators: .graph = 7; .node = 1, .domain = 7."""
    graph = dict(fields(model))[7]
    kinds = [*values(graph, 11), *values(graph, 12)]
    domains = [dict(fields(node)).get(7, b"") for number, node in fields(graph) if number == 1]
    return all(domain in (b"", b"ai.onnx") for domain in domains) and all(
        kind is not None and kind != STRING and kind not in COMPLEX for kind in kinds
    )


def download(folder):
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--dest", folder]
        + ["--platform=manylinux2014_x86_64", "--python-version=3.11", f"onnx=={VERSION}"],
        check=True,
    )
    return next(pathlib.Path(folder).glob("onnx-*.whl"))


def subset(wheel):
    """Sorted (path, bytes) of all files to keep, and the number of tests."""
    names = sorted(name for name in wheel.namelist() if name.startswith(PREFIX) and not name.endswith("/"))
    tests = {}
    for name in names:
        folder, test, *rest = name[len(PREFIX) :].split("/")
        if folder in FOLDERS and rest:
            tests.setdefault((folder, test), []).append((f"{test}/{'/'.join(rest)}", name))
    kept, count = [], 0
    for (folder, test), files in tests.items():
        if not is_taken(wheel.read(f"{PREFIX}{folder}/{test}/model.onnx")):
            continue
        if any(wheel.getinfo(name).file_size > LARGEST for _, name in files):
            print(f"too large: {test}")
            continue
        count += 1
        kept += [(short, wheel.read(name)) for short, name in files]
    return kept, count


def write(files, path):
    """A tar archive without times, owners or modes of its own, compressed without a time."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    path.write_bytes(gzip.compress(raw.getvalue(), compresslevel=9, mtime=0))


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else download(folder)
        data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != SHA256:
        sys.exit(f"{path} is not the wheel of onnx {VERSION} that this script knows")
    files, count = subset(zipfile.ZipFile(io.BytesIO(data)))
    out = ROOT / "tests/data/onnx-node.tar.gz"
    write(files, out)
    print(f"{out}: {count} tests, {out.stat().st_size} bytes, sha256 {hashlib.sha256(out.read_bytes()).hexdigest()}")


if __name__ == "__main__":
    main()
