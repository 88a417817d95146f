#!/usr/bin/env python3
"""Writes transformers as PyTorch's exporter writes them, with random weights, and test data of them: inputs, and the outputs of
ONNX Runtime.

    scripts/onnx_transformers.py FOLDER [--width 768] [--heads 12] [--layers 2]

Layer norms, RMS norms, GELU and attention are the operators that the exporter of PyTorch makes of them before operator sets 17, 20
and 23. Each model becomes a folder of FOLDER, in the layout of ONNX's own test data: model.onnx and
test_data_set_<n>/{input,output}_<i>.pb. `cargo test --features onnx --test onnx` reads them from the folder that
ANYGPU_ONNX_MODELS names. Needs the packages onnx, onnxruntime and numpy.
"""

import argparse
import math
import pathlib

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper


class Net:
    """A graph that is written node by node."""

    def __init__(self, seed):
        self.nodes, self.weights = [], []
        self.random = np.random.default_rng(seed)

    def __call__(self, op, *inputs, **attributes):
        """Adds a node; numbers and arrays become constants. Returns the name of its output."""
        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        output = f"{op}_{len(self.nodes)}_output"
        self.nodes.append(helper.make_node(op, names, [output], f"/{op}_{len(self.nodes)}", **attributes))
        return output

    def constant(self, value):
        value = np.asarray(value, np.float32) if isinstance(value, float) else np.asarray(value, np.int64)
        output = f"Constant_{len(self.nodes)}_output"
        self.nodes.append(helper.make_node("Constant", [], [output], value=numpy_helper.from_array(value)))
        return output

    def weight(self, *shape, around=0.0):
        value = around + self.random.standard_normal(shape) / math.sqrt(shape[0])
        self.weights.append(numpy_helper.from_array(value.astype(np.float32), f"weight_{len(self.weights)}"))
        return self.weights[-1].name

    def linear(self, x, inputs, outputs, bias=True):
        y = self("MatMul", x, self.weight(inputs, outputs))
        return self("Add", self.weight(outputs), y) if bias else y

    def layer_norm(self, x, width):
        centred = self("Sub", x, self("ReduceMean", x, axes=[-1]))
        variance = self("ReduceMean", self("Pow", centred, 2.0), axes=[-1])
        normal = self("Div", centred, self("Sqrt", self("Add", variance, 1e-5)))
        return self("Add", self("Mul", normal, self.weight(width, around=1.0)), self.weight(width))

    def rms_norm(self, x, width):
        mean = self("ReduceMean", self("Pow", x, 2.0), axes=[-1])
        inverse = self("Reciprocal", self("Sqrt", self("Add", mean, 1e-6)))
        return self("Mul", self.weight(width, around=1.0), self("Mul", x, inverse))

    def gelu(self, x):
        gate = self("Add", self("Erf", self("Div", x, math.sqrt(2.0))), 1.0)
        return self("Mul", self("Mul", x, gate), 0.5)

    def gelu_tanh(self, x):
        inner = self("Add", x, self("Mul", self("Pow", x, 3.0), 0.044715))
        gate = self("Add", self("Tanh", self("Mul", inner, math.sqrt(2.0 / math.pi))), 1.0)
        return self("Mul", self("Mul", x, 0.5), gate)

    def heads(self, x, heads, each, perm=(0, 2, 1, 3)):
        return self("Transpose", self("Reshape", x, [0, 0, heads, each]), perm=list(perm))

    def joined(self, x, width):
        return self("Reshape", self("Transpose", x, perm=[0, 2, 1, 3]), [0, 0, width])

    def causal(self, x):
        """A mask of the tokens after each, as an addend."""
        tokens = self("Slice", self("Shape", x), [1], [2], [0])
        square = self("Concat", tokens, tokens, axis=0)
        least = numpy_helper.from_array(np.asarray([np.finfo(np.float32).min], np.float32))
        return self("Trilu", self("ConstantOfShape", square, value=least), 1, upper=1)


def bert(net, width, heads, layers):
    """Norms after the blocks; the scores are divided, and a mask of the tokens is an input."""
    each = width // heads
    mask = net("Mul", net("Sub", 1.0, net("Unsqueeze", "attention_mask", [1, 2])), -10000.0)
    x = "x"
    for _ in range(layers):
        query, key, value = (net.linear(x, width, width) for _ in range(3))
        query, value = net.heads(query, heads, each), net.heads(value, heads, each)
        key = net.heads(key, heads, each, (0, 2, 3, 1))
        scores = net("Add", net("Div", net("MatMul", query, key), math.sqrt(each)), mask)
        found = net("MatMul", net("Softmax", scores, axis=-1), value)
        x = net.layer_norm(net("Add", net.linear(net.joined(found, width), width, width), x), width)
        hidden = net.gelu(net.linear(x, width, 4 * width))
        x = net.layer_norm(net("Add", net.linear(hidden, 4 * width, width), x), width)
    return x, {"x": (width,), "attention_mask": ()}


def gpt2(net, width, heads, layers):
    """Norms before the blocks, queries and keys that are scaled, a causal mask, and GELU by tanh."""
    each = width // heads
    mask, x = net.causal("x"), "x"
    for _ in range(layers):
        inner = net.linear(net.layer_norm(x, width), width, 3 * width)
        parts = [net("Slice", inner, [i * width], [(i + 1) * width], [2]) for i in range(3)]
        query, key, value = (net.heads(part, heads, each) for part in parts)
        root = math.sqrt(1.0 / math.sqrt(each))
        key = net("Mul", net("Transpose", key, perm=[0, 1, 3, 2]), root)
        scores = net("Add", net("MatMul", net("Mul", query, root), key), mask)
        found = net("MatMul", net("Softmax", scores, axis=-1), value)
        x = net("Add", x, net.linear(net.joined(found, width), width, width))
        hidden = net.gelu_tanh(net.linear(net.layer_norm(x, width), width, 4 * width))
        x = net("Add", x, net.linear(hidden, 4 * width, width))
    return net.layer_norm(x, width), {"x": (width,)}


def vit(net, width, heads, layers):
    """Norms before the blocks, queries and keys that are scaled, no mask, and GELU by erf."""
    each = width // heads
    x = "x"
    for _ in range(layers):
        inner = net.layer_norm(x, width)
        query, key, value = (net.heads(net.linear(inner, width, width), heads, each) for _ in range(3))
        root = math.sqrt(1.0 / math.sqrt(each))
        key = net("Mul", net("Transpose", key, perm=[0, 1, 3, 2]), root)
        weights = net("Softmax", net("MatMul", net("Mul", query, root), key), axis=-1)
        x = net("Add", x, net.linear(net.joined(net("MatMul", weights, value), width), width, width))
        hidden = net.gelu(net.linear(net.layer_norm(x, width), width, 4 * width))
        x = net("Add", x, net.linear(hidden, 4 * width, width))
    return net.layer_norm(x, width), {"x": (width,)}


def llama(net, width, heads, layers):
    """RMS norms, a gate, and a causal mask; positions are not encoded."""
    each = width // heads
    mask, x = net.causal("x"), "x"
    for _ in range(layers):
        inner = net.rms_norm(x, width)
        query, key, value = (net.heads(net.linear(inner, width, width, False), heads, each) for _ in range(3))
        scores = net("MatMul", query, net("Transpose", key, perm=[0, 1, 3, 2]))
        weights = net("Softmax", net("Add", net("Mul", scores, 1 / math.sqrt(each)), mask), axis=-1)
        x = net("Add", x, net.linear(net.joined(net("MatMul", weights, value), width), width, width, False))
        inner = net.rms_norm(x, width)
        gate = net.linear(inner, width, 3 * width, False)
        gate = net("Mul", net("Mul", gate, net("Sigmoid", gate)), net.linear(inner, width, 3 * width, False))
        x = net("Add", x, net.linear(gate, 3 * width, width, False))
    return net.rms_norm(x, width), {"x": (width,)}


def main():
    parser = argparse.ArgumentParser(description="Transformers as PyTorch's exporter writes them, and test data of them.")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--layers", type=int, default=2)
    options = parser.parse_args()
    for seed, build in enumerate([bert, gpt2, vit, llama]):
        net = Net(seed)
        output, inputs = build(net, options.width, options.heads, options.layers)
        info = lambda name, sizes: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "tokens", *sizes])
        graph = helper.make_graph(
            net.nodes,
            build.__name__,
            [info(name, sizes) for name, sizes in inputs.items()],
            [info(output, (options.width,))],
            net.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
        onnx.checker.check_model(model)
        folder = options.folder / f"transformer-{build.__name__}"
        session = onnxruntime.InferenceSession(model.SerializeToString())
        for number, (batch, tokens) in enumerate([(1, 24), (3, 7)]):
            arrays = {}
            for name, sizes in inputs.items():
                values = net.random.standard_normal((batch, tokens, *sizes))
                arrays[name] = (values if sizes else values > -1).astype(np.float32)
            outputs = session.run(None, arrays)
            data = folder / f"test_data_set_{number}"
            data.mkdir(parents=True, exist_ok=True)
            for kind, values in (("input", arrays.values()), ("output", outputs)):
                for i, array in enumerate(values):
                    (data / f"{kind}_{i}.pb").write_bytes(numpy_helper.from_array(array).SerializeToString())
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        print(f"{folder}: {len(net.nodes)} nodes")


if __name__ == "__main__":
    main()
