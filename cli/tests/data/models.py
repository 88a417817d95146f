#!/usr/bin/env python3
"""Makes the models of cli/tests/cli/run.rs beside this file, with Python's package onnx."""

import pathlib

import onnx
from onnx import TensorProto, helper

FOLDER = pathlib.Path(__file__).parent


def save(name, nodes, inputs, outputs, weights=()):
    value = lambda name, kind, shape: helper.make_tensor_value_info(name, kind, shape)
    graph = helper.make_graph(
        nodes, name, [value(*one) for one in inputs], [value(*one) for one in outputs], list(weights)
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, FOLDER / f"{name}.onnx")


FLOAT, LONG, BYTE = TensorProto.FLOAT, TensorProto.INT64, TensorProto.UINT8

# y = tanh(x w) gain and twice = 2 ids.
save(
    "mixed",
    [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Tanh", ["xw"], ["t"]),
        helper.make_node("Mul", ["t", "gain"], ["y"]),
        helper.make_node("Add", ["ids", "ids"], ["twice"]),
    ],
    [("x", FLOAT, ["batch", 3]), ("ids", LONG, ["batch", 2]), ("gain", FLOAT, [])],
    [("y", FLOAT, ["batch", 2]), ("twice", LONG, ["batch", 2])],
    [helper.make_tensor("w", FLOAT, [3, 2], [1.0, 0.0, 0.0, 1.0, 0.5, -0.5])],
)

# The mean of each channel of a picture, channels first.
save(
    "planes",
    [helper.make_node("GlobalAveragePool", ["x"], ["m"]), helper.make_node("Flatten", ["m"], ["scores"])],
    [("x", FLOAT, [1, 3, 4, 6])],
    [("scores", FLOAT, [1, 3])],
)

# The same of bytes, channels last, of any size, and the size.
save(
    "pixels",
    [
        helper.make_node("Cast", ["x"], ["f"], to=FLOAT),
        helper.make_node("ReduceMean", ["f"], ["scores"], axes=[1, 2], keepdims=0),
        helper.make_node("Shape", ["x"], ["size"]),
    ],
    [("x", BYTE, ["n", "h", None, 3])],
    [("scores", FLOAT, ["n", 3]), ("size", LONG, [4])],
)
