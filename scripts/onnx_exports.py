"""Runs ONNX's checker and ONNX Runtime on the models that the tests of `anygpu::onnx::export` leave, and compares the outputs.

    ANYGPU_ONNX_EXPORTS=DIR cargo test --release --features onnx --test onnx export
    python3 scripts/onnx_exports.py DIR

Needs the packages onnx, onnxruntime and numpy. Ends with status 1 if an output differs by more than 1e-4 of the largest element.
"""

import glob
import os
import sys

import numpy as np
import onnx
import onnxruntime


def compare(folder):
    path = os.path.join(folder, "model.onnx")
    onnx.checker.check_model(onnx.load(path), full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    farthest = 0.0
    sizes = sorted({os.path.basename(name).split("_")[0] for name in glob.glob(os.path.join(folder, "*_input_0.npy"))})
    if not sizes:
        raise SystemExit(f"{folder} has no inputs")
    for samples in sizes:
        array = lambda kind, i: np.load(os.path.join(folder, f"{samples}_{kind}_{i}.npy"))
        feeds = {port.name: array("input", i) for i, port in enumerate(session.get_inputs())}
        outputs = session.run(None, feeds)
        labels = os.path.join(folder, f"{samples}_labels_0.npy")
        if os.path.exists(labels):
            labels = np.load(labels)
            right = [int((scores.argmax(1) == labels).sum()) for scores in (outputs[0], array("output", 0))]
            print(f"of {len(labels)} images, ONNX Runtime has {right[0]} right, and the net {right[1]}")
            if right[0] != right[1]:
                raise AssertionError("another accuracy")
        for i, got in enumerate(outputs):
            expected = array("output", i)
            if got.shape != expected.shape or got.dtype != expected.dtype:
                raise AssertionError(f"output {i}: {got.dtype}{got.shape}, expected {expected.dtype}{expected.shape}")
            if got.size:
                got, expected = got.astype(np.float64), expected.astype(np.float64)
                scale = max(1.0, np.abs(expected[np.isfinite(expected)]).max(initial=0.0))
                with np.errstate(invalid="ignore"):  # the difference of equal infinities
                    far = np.abs(got - expected)
                far = np.where((got == expected) | (np.isnan(got) & np.isnan(expected)), 0.0, far)
                farthest = max(farthest, float(far.max() / scale))
    if not farthest <= 1e-4:
        raise AssertionError(f"differs by {farthest:.1e}")
    return farthest


def main():
    failed = 0
    folders = sorted(os.path.dirname(path) for path in glob.glob(os.path.join(sys.argv[1], "*", "model.onnx")))
    for folder in folders:
        name = os.path.basename(folder)
        try:
            print(f"{name:28} {compare(folder):.1e}")
        except Exception as error:  # a report of all models is worth more than the first error
            failed += 1
            print(f"{name:28} FAILED: {str(error)[:400]}")
    print(f"{len(folders) - failed} of {len(folders)} models equal ONNX Runtime's outputs")
    return 1 if failed or not folders else 0


if __name__ == "__main__":
    sys.exit(main())
