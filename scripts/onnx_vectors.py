#!/usr/bin/env python3
"""Makes tests/data/onnx-node.tar.gz: ONNX's own test vectors of the operators that map to ops of ours.

    scripts/onnx_vectors.py [wheel]

They come from the wheel of onnx 1.16.2 (later wheels leave them out), which pip downloads unless it is given; its
SHA-256 is checked. A test is a folder: model.onnx and test_data_set_0/{input,output}_<i>.pb. It takes the models of one
node with an operator of the list below whose files are at most 300 kB each. The same wheel gives the same bytes.
Python's standard library only.
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
PREFIX = "onnx/backend/test/data/node/"
LARGEST = 300_000

OPERATORS = set(
    """
    Abs Neg Sign Exp Log Sqrt Reciprocal Sin Cos Tan Tanh Sigmoid Erf Floor Ceil Round Clip Relu LeakyRelu Elu Gelu HardSwish
    Softplus Softsign Celu Selu ThresholdedRelu HardSigmoid Mish PRelu Shrink IsNaN IsInf Identity Dropout Cast CastLike
    Add Sub Mul Div Pow Mod Max Min Mean Sum Equal Greater GreaterOrEqual Less LessOrEqual And Or Xor Not Where
    ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare
    ArgMax ArgMin CumSum Softmax LogSoftmax Hardmax LayerNormalization GroupNormalization InstanceNormalization
    BatchNormalization MeanVarianceNormalization NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss
    MatMul Gemm Einsum Conv ConvTranspose MaxPool AveragePool GlobalAveragePool GlobalMaxPool LpPool Resize Upsample
    Reshape Flatten Transpose Squeeze Unsqueeze Expand Tile Concat Split Slice Pad DepthToSpace SpaceToDepth
    Gather GatherElements Scatter ScatterElements OneHot TopK Trilu Range EyeLike ConstantOfShape
    """.split()
)


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


def operators(model):
    """The operators of a ModelProto's nodes: .graph = 7, .node = 1, .op_type = 4."""
    graph = dict(fields(model))[7]
    return [dict(fields(node))[4].decode() for number, node in fields(graph) if number == 1]


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
        tests.setdefault(name[len(PREFIX) :].split("/")[0], []).append(name)
    kept, count = [], 0
    for test, files in tests.items():
        found = operators(wheel.read(f"{PREFIX}{test}/model.onnx"))
        small = all(wheel.getinfo(name).file_size <= LARGEST for name in files)
        if len(found) == 1 and found[0] in OPERATORS and small:
            count += 1
            kept += [(name[len(PREFIX) :], wheel.read(name)) for name in files]
        elif len(found) == 1 and found[0] in OPERATORS:
            print(f"too large: {test}")
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
