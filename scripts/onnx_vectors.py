#!/usr/bin/env python3
"""Makes tests/data/onnx-node*.tar.gz: ONNX's own test vectors of operators and of small models.

    scripts/onnx_vectors.py [wheel]
    scripts/onnx_vectors.py --newer

The first makes onnx-node.tar.gz from the wheel of onnx 1.16.2 (operator set 21; later wheels leave the vectors out), which pip
downloads unless it is given; its SHA-256 is checked. The same wheel gives the same bytes. Python's standard library only.

The second makes onnx-node-newer.tar.gz with the generator within onnx 1.23.2 (operator set 28), which must be installed (with
numpy 2.4.6 and ml_dtypes 0.6.0: other versions may round in another way). It leaves out the tests whose models are in the first
file; one that has the name of another test there ends with "_1.23".

A test is a folder: model.onnx and test_data_set_0/{input,output}_<i>.pb. Both take those whose inputs and outputs are tensors,
not of strings or complex numbers, whose operators are of ONNX's own domain, and whose files are at most 300 kB each.
"""

import gzip
import hashlib
import io
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import warnings
import zipfile

VERSION = "1.16.2"
SHA256 = "7b98aa9733bd4b781eb931d33b4078ff2837e7d68062460726d6dd011f332bd4"
NEWER = "1.23.2"
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


def generated():
    """The (name, files) of the tests that the installed onnx generates; the files by their paths in the folder of the test."""
    import onnx
    import onnx.backend.test.case.model
    import onnx.backend.test.case.node

    if onnx.__version__ != NEWER:
        sys.exit(f"onnx {onnx.__version__} is installed, and {NEWER} is expected")
    warnings.simplefilter("ignore")  # it divides by zero on purpose
    cases = onnx.backend.test.case.node.collect_testcases(None) + onnx.backend.test.case.model.collect_testcases()
    for case in cases:
        if case.kind == "real":
            continue
        graph, files = case.model.graph, {"model.onnx": case.model.SerializeToString(deterministic=True)}
        if not is_taken(files["model.onnx"]):
            continue
        for i, sides in enumerate(case.data_sets):
            for side, values, infos in zip(("input", "output"), sides, (graph.input, graph.output)):
                for j, (value, info) in enumerate(zip(values, infos)):
                    if not isinstance(value, onnx.TensorProto):
                        value = onnx.numpy_helper.from_array(value, info.name)
                    files[f"test_data_set_{i}/{side}_{j}.pb"] = value.SerializeToString(deterministic=True)
        yield case.name, files


def newer():
    """Sorted (path, bytes) of the generated tests that the other archive does not have, and their number."""
    with tarfile.open(ROOT / "tests/data/onnx-node.tar.gz") as tar:
        models = {info.name: tar.extractfile(info).read() for info in tar if info.name.endswith("/model.onnx")}
    kept, count = [], 0
    for name, files in generated():
        older = models.get(f"{name}/model.onnx")
        if older == files["model.onnx"]:
            continue
        if max(map(len, files.values())) > LARGEST:
            print(f"too large: {name}")
            continue
        count += 1
        test = f"{name}_1.23" if older else name
        kept += [(f"{test}/{path}", data) for path, data in files.items()]
    return sorted(kept), count


def finish(files, count, name):
    out = ROOT / "tests/data" / name
    write(files, out)
    print(f"{out}: {count} tests, {out.stat().st_size} bytes, sha256 {hashlib.sha256(out.read_bytes()).hexdigest()}")


def main():
    if sys.argv[1:] == ["--newer"]:
        return finish(*newer(), "onnx-node-newer.tar.gz")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else download(folder)
        data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != SHA256:
        sys.exit(f"{path} is not the wheel of onnx {VERSION} that this script knows")
    finish(*subset(zipfile.ZipFile(io.BytesIO(data))), "onnx-node.tar.gz")


if __name__ == "__main__":
    main()
