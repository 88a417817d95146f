#!/usr/bin/env python3
"""Fetches real models of ONNX and makes test data of them: inputs, and the outputs of ONNX Runtime.

    scripts/onnx_models.py FOLDER

The models are in packages of PyPI, which pip downloads by name. Each becomes a folder of FOLDER, in the layout of ONNX's own
test data: model.onnx and test_data_set_<n>/{input,output}_<i>.pb. `cargo test --features onnx --test onnx` reads them from
the folder that ANYGPU_ONNX_MODELS names. Needs the packages onnx, onnxruntime and numpy.
"""

import pathlib
import subprocess
import sys
import tempfile
import zipfile

import numpy as np
import onnx
import onnx.backend.test
import onnxruntime
from onnx import numpy_helper

# Package of PyPI: the models to take, each with a name and the shapes of its inputs where the file leaves them open.
PACKAGES = {
    "rapidocr-onnxruntime": {
        "ch_PP-OCRv4_det_infer.onnx": ("rapidocr-detection", [{"x": (1, 3, 160, 192)}, {"x": (1, 3, 96, 96)}]),
        "ch_PP-OCRv4_rec_infer.onnx": ("rapidocr-recognition", [{"x": (1, 3, 48, 160)}, {"x": (2, 3, 48, 96)}]),
        "ch_ppocr_mobile_v2.0_cls_infer.onnx": ("rapidocr-classification", [{"x": (2, 3, 48, 192)}]),
    },
    "magika": {"model.onnx": ("magika", [{"bytes": (3, 2048)}])},
    "silero-vad": {
        "silero_vad.onnx": ("silero-vad", [{"input": (2, 576), "state": (2, 2, 128), "sr": 16000}]),
        "silero_vad_16k_op15.onnx": ("silero-vad-16k", [{"input": (3, 576), "state": (2, 3, 128), "sr": 16000}]),
        "silero_vad_16k_sequence.onnx": ("silero-vad-sequence", [{"input": (5, 576), "h": (1, 1, 128), "c": (1, 1, 128)}]),
        "silero_vad_half.onnx": ("silero-vad-half", [{"input": (1, 576), "state": (2, 1, 128)}]),
        "silero_vad_op18_ifless.onnx": ("silero-vad-ifless", [{"input": (2, 576), "sr": 8000, "state": (2, 2, 128)}]),
        "silero_vad_openvino_16k.onnx": ("silero-vad-openvino", [{"input": (1, 576), "state": (2, 1, 128)}]),
    },
    "nudenet": {"320n.onnx": ("nudenet-320n", [{"images": (1, 3, 320, 320)}, {"images": (2, 3, 128, 192)}])},
}


def wheels(package):
    """The wheel that pip downloads for a package."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--dest", folder]
        subprocess.run([*command, package], check=True)
        for path in pathlib.Path(folder).glob("*.whl"):
            yield zipfile.ZipFile(path)


def write(folder, model, number, inputs, outputs):
    data = folder / f"test_data_set_{number}"
    data.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(model)
    for kind, arrays in (("input", inputs), ("output", outputs)):
        for i, array in enumerate(arrays):
            (data / f"{kind}_{i}.pb").write_bytes(numpy_helper.from_array(np.asarray(array)).SerializeToString())


def values(session, shapes, random):
    """Numbers as the model's inputs have them: pixels and samples about 0, bytes, a rate."""
    for info in session.get_inputs():
        shape = shapes[info.name]
        if isinstance(shape, int):
            yield np.array(shape, dtype=np.int64)
        elif "int" in info.type:
            yield random.integers(0, 256, shape, dtype=np.int32)
        else:
            yield random.standard_normal(shape, dtype=np.float32) * np.float32(0.5)


def run(folder, name, model, cases):
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(7)
    names = [info.name for info in session.get_inputs()]
    for number, shapes in enumerate(cases):
        inputs = list(values(session, shapes, random))
        outputs = session.run(None, dict(zip(names, inputs)))
        write(folder / name, model, number, inputs, outputs)
    print(f"{name}: {len(cases)} cases")


def light(folder):
    """The models without weights of the package onnx, whose tests compute the outputs with its own evaluator."""
    for path in sorted((pathlib.Path(onnx.backend.test.__file__).parent / "data/light").glob("*.onnx")):
        model = onnx.load(path)
        initial = {tensor.name for tensor in model.graph.initializer}
        shapes = {}
        for info in model.graph.input:
            if info.name not in initial:
                shapes[info.name] = tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)
        run(folder, path.stem.replace("_", "-"), path.read_bytes(), [shapes])


def main():
    folder = pathlib.Path(sys.argv[1])
    for package, models in PACKAGES.items():
        for wheel in wheels(package):
            for path in wheel.namelist():
                if path.rsplit("/", 1)[-1] in models:
                    name, cases = models[path.rsplit("/", 1)[-1]]
                    run(folder, name, wheel.read(path), cases)
    light(folder)


if __name__ == "__main__":
    main()
