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

# A decoder of 7 tokens. The next one is the sum of all before it, of the mask and of the last position, modulo 7.
CACHE = ["batch", 1, "past", 1]
save(
    "decoder",
    [
        helper.make_node("Gather", ["table", "input_ids"], ["key"]),
        helper.make_node("Unsqueeze", ["key", "one"], ["keys"]),
        helper.make_node("Concat", ["past_key_values.0.key", "keys"], ["present.0.key"], axis=2),
        helper.make_node("ReduceSum", ["present.0.key", "all"], ["tokens"], keepdims=0),
        helper.make_node("Unsqueeze", ["tokens", "one"], ["rows"]),
        helper.make_node("ReduceSum", ["attention_mask", "one"], ["seen"], keepdims=1),
        helper.make_node("ReduceMax", ["position_ids"], ["last"], axes=[1], keepdims=1),
        helper.make_node("Add", ["seen", "last"], ["added"]),
        helper.make_node("Cast", ["added"], ["whole"], to=FLOAT),
        helper.make_node("Add", ["rows", "whole"], ["sum"]),
        helper.make_node("Mod", ["sum", "seven"], ["next"], fmod=1),
        helper.make_node("Unsqueeze", ["next", "one"], ["column"]),
        helper.make_node("Sub", ["column", "classes"], ["apart"]),
        helper.make_node("Abs", ["apart"], ["distance"]),
        helper.make_node("Neg", ["distance"], ["logits"]),
    ],
    [
        ("input_ids", LONG, ["batch", "tokens"]),
        ("attention_mask", LONG, ["batch", "total"]),
        ("position_ids", LONG, ["batch", "tokens"]),
        ("past_key_values.0.key", FLOAT, CACHE),
    ],
    [("logits", FLOAT, ["batch", 1, 7]), ("present.0.key", FLOAT, ["batch", 1, "total", 1])],
    [
        helper.make_tensor("table", FLOAT, [7, 1], list(range(7))),
        helper.make_tensor("classes", FLOAT, [7], list(range(7))),
        helper.make_tensor("seven", FLOAT, [1], [7.0]),
        helper.make_tensor("one", LONG, [1], [1]),
        helper.make_tensor("all", LONG, [3], [1, 2, 3]),
    ],
)
