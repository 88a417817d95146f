#!/usr/bin/env python3
"""Fetches real models of ONNX and makes test data of them: inputs, and the outputs of ONNX Runtime.

    scripts/onnx_models.py FOLDER

The models are in packages of PyPI, which pip downloads by name. Each becomes a folder of FOLDER, in the layout of ONNX's own
test data: model.onnx and test_data_set_<n>/{input,output}_<i>.pb. So do operators of ONNX
Runtime's own, in models of one node. `cargo test --features onnx --test onnx` reads them from the folder that ANYGPU_ONNX_MODELS
names. Needs the packages onnx, onnxruntime and numpy.
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


def operator(folder, name, op, shapes, outputs, integers=None, shown=None, **attributes):
    """A model of one operator of ONNX Runtime's own, with random inputs of these shapes; None for one that is left out. The first
    `shown` of its outputs are those of the model."""
    integers = integers or {}
    names = [f"x{i}" if shape is not None else "" for i, shape in enumerate(shapes)]
    random = np.random.default_rng(11)
    values, infos = [], []
    for i, shape in enumerate(shapes):
        if shape is None:
            continue
        value = integers.get(i)
        value = random.standard_normal(shape, dtype=np.float32) if value is None else np.array(value, dtype=shape)
        values.append(value)
        kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        infos.append(onnx.helper.make_tensor_value_info(names[i], kind, value.shape))
    results = [f"y{i}" for i in range(outputs)]
    domain = "" if op == "SimplifiedLayerNormalization" else "com.microsoft"
    node = onnx.helper.make_node(op, names, results, domain=domain, **attributes)
    outs = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in results[:shown]]
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", infos, outs), opset_imports=opsets, ir_version=8)
    data = model.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    write(folder / name, data, 0, values, session.run(None, dict(zip([i.name for i in infos], values))))
    print(f"{name}: 1 case")


def transformers(folder):
    """Operators of ONNX Runtime that its tools for transformers write."""
    heads = {"num_heads": 4, "kv_num_heads": 2}
    kv, cache, tables = (2, 3, 32), (2, 2, 5, 16), [(32, 8), (32, 8)]
    one = np.int32
    query = "GroupQueryAttention"
    first = [(2, 3, 64), kv, kv, None, None, one, one]
    operator(folder, "ms-gqa-prompt", query, first, 3, {5: [2, 2], 6: 3}, **heads)
    step = [(2, 1, 64), (2, 1, 32), (2, 1, 32), cache, cache, one, one]
    operator(folder, "ms-gqa-step", query, step, 3, {5: [5, 5], 6: 6}, **heads)
    # What follows the last key of a sample in its cache is left open.
    operator(folder, "ms-gqa-uneven", query, step, 3, {5: [5, 2], 6: 6}, shown=1, **heads)
    rotary = {**heads, "do_rotary": 1}
    operator(folder, "ms-gqa-rotary", query, [*step, *tables], 3, {5: [5, 3], 6: 6}, shown=1, **rotary)
    operator(folder, "ms-gqa-rotary-pairs", query, [*first, *tables], 3, {5: [2, 2], 6: 3}, rotary_interleaved=1, **rotary)
    operator(folder, "ms-gqa-window", query, step, 3, {5: [5, 5], 6: 6}, local_window_size=2, **heads)
    operator(folder, "ms-gqa-softcap", query, step, 3, {5: [5, 5], 6: 6}, softcap=2.0, scale=0.7, **heads)
    packed = [(2, 3, 128), None, None, None, None, one, one]
    operator(folder, "ms-gqa-packed", query, packed, 3, {5: [2, 2], 6: 3}, **heads)
    multi, x, y = "MultiHeadAttention", (2, 3, 32), (2, 5, 32)
    operator(folder, "ms-mha", multi, [x, y, y], 1, num_heads=4)
    operator(folder, "ms-mha-bias", multi, [x, y, y, (96,)], 1, num_heads=4, scale=0.3)
    mask = [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]
    operator(folder, "ms-mha-mask", multi, [x, y, y, None, one], 1, {4: mask}, num_heads=4)
    operator(folder, "ms-mha-added", multi, [x, y, y, None, None, (1, 4, 3, 5)], 1, num_heads=4)
    operator(folder, "ms-mha-causal", multi, [x, x, x], 1, num_heads=4, unidirectional=1)
    past = (2, 4, 5, 8)
    operator(folder, "ms-mha-past", multi, [x, x, x, None, None, None, past, past], 3, num_heads=4)
    turn = "RotaryEmbedding"
    operator(folder, "ms-rotary", turn, [x, np.int64, (16, 4), (16, 4)], 1, {1: [[0, 1, 2], [4, 2, 9]]})
    operator(folder, "ms-rotary-pairs", turn, [(2, 4, 3, 8), np.int64, (16, 4), (16, 4)], 1, {1: [5]}, interleaved=1)
    operator(folder, "ms-skip-rms", "SkipSimplifiedLayerNormalization", [x, x, (32,)], 1, epsilon=1e-6)
    operator(folder, "ms-rms", "SimplifiedLayerNormalization", [x, (32,)], 1, epsilon=1e-6, axis=-1)


def main():
    folder = pathlib.Path(sys.argv[1])
    for package, models in PACKAGES.items():
        for wheel in wheels(package):
            for path in wheel.namelist():
                if path.rsplit("/", 1)[-1] in models:
                    name, cases = models[path.rsplit("/", 1)[-1]]
                    run(folder, name, wheel.read(path), cases)
    light(folder)
    transformers(folder)


if __name__ == "__main__":
    main()
