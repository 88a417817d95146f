"""The workloads of `anygpu bench` in ONNX Runtime, as graphs with random weights. It does not train."""

import numpy
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import shapes

NAME = "ONNX Runtime"
VERSION = onnxruntime.__version__
THREADS = 1
OPSET = 17

ON_DEVICE = ["CUDAExecutionProvider", "ROCMExecutionProvider"]
"""The providers whose inputs and outputs can stay on the device. The others copy them from and to the host in each run."""

NUMBERED = [*ON_DEVICE, "DmlExecutionProvider"]
"""The providers that take the number of a device."""


def setup(threads):
    global THREADS
    THREADS = threads
    onnxruntime.set_default_logger_severity(3)


def device_for(name):
    """The execution provider and the number of its device, for the device of this crate with this name, or None."""
    if not name.startswith("gpu"):
        return "CPUExecutionProvider", 0
    number = int(name.split(":")[1].split("/")[0])
    there = onnxruntime.get_available_providers()
    wanted = [*ON_DEVICE, "CoreMLExecutionProvider", "DmlExecutionProvider"]
    provider = next((provider for provider in wanted if provider in there), None)
    if provider is None or (provider == "CoreMLExecutionProvider" and number > 0):
        return None  # Core ML chooses its device itself
    return provider, number


def describe(device):
    provider, number = device
    return f"`{provider}`, device {number}" if provider in NUMBERED else f"`{provider}`"


class Graph:
    """Nodes in order, each with one output, and weights."""

    def __init__(self):
        self.nodes, self.weights, self.inputs = [], [], []
        self.random = numpy.random.default_rng(0)

    def input(self, shape, dtype=TensorProto.FLOAT):
        name = f"in{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def constant(self, array):
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(numpy.ascontiguousarray(array), name))
        return name

    def weight(self, *shape):
        scale = max(shapes.product(shape[1:]), 1) ** -0.5
        return self.constant((self.random.random(shape, dtype=numpy.float32) - 0.5) * scale)

    def node(self, op, *inputs, **attributes):
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def linear(self, x, inputs, outputs):
        return self.node("Add", self.node("MatMul", x, self.weight(inputs, outputs)), self.weight(outputs))

    def convolution(self, x, inputs, outputs, kernel, stride=1, padding=0, bias=True):
        weights = [self.weight(outputs, inputs, kernel, kernel)] + ([self.weight(outputs)] if bias else [])
        return self.node("Conv", x, *weights, strides=[stride] * 2, pads=[padding] * 4)

    def batch_norm(self, x, channels):
        one = lambda: self.constant(numpy.ones(channels, numpy.float32))
        zero = lambda: self.constant(numpy.zeros(channels, numpy.float32))
        return self.node("BatchNormalization", x, one(), zero(), zero(), one())

    def layer_norm(self, x, width):
        scale, bias = numpy.ones(width, numpy.float32), numpy.zeros(width, numpy.float32)
        return self.node("LayerNormalization", x, self.constant(scale), self.constant(bias), axis=-1, epsilon=1e-5)

    def model(self, output):
        outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, "workload", self.inputs, outputs, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
        model.ir_version = 8
        return model.SerializeToString()


def attention(g, q, k, v, tokens, width):
    """Causal attention of heads of this width, `[.., tokens, width]`."""
    scores = g.node("MatMul", q, g.node("Transpose", k, perm=[0, 1, 3, 2]))
    scaled = g.node("Mul", scores, g.constant(numpy.float32(width**-0.5)))
    mask = numpy.triu(numpy.full((tokens, tokens), -1e30, numpy.float32), 1)
    shares = g.node("Softmax", g.node("Add", scaled, g.constant(mask)), axis=-1)
    return g.node("MatMul", shares, v)


def lenet(g, x):
    x = g.node("AveragePool", g.node("Relu", g.convolution(x, 1, 20, 3)), kernel_shape=[2, 2], strides=[2, 2])
    x = g.node("AveragePool", g.node("Relu", g.convolution(x, 20, 50, 5)), kernel_shape=[2, 2], strides=[2, 2])
    x = g.node("Relu", g.linear(g.node("Flatten", x), 800, 128))
    return g.linear(x, 128, 10)


def resnet18(g, x):
    def normed(x, inputs, outputs, kernel, stride):
        return g.batch_norm(g.convolution(x, inputs, outputs, kernel, stride, kernel // 2, bias=False), outputs)

    def block(x, inputs, outputs, stride):
        y = normed(g.node("Relu", normed(x, inputs, outputs, 3, stride)), outputs, outputs, 3, 1)
        shortcut = x if stride == 1 and inputs == outputs else normed(x, inputs, outputs, 1, stride)
        return g.node("Relu", g.node("Add", y, shortcut))

    x = g.node("Relu", normed(x, 3, 64, 7, 2))
    x = g.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for inputs, outputs, stride in [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]:
        x = block(block(x, inputs, outputs, stride), outputs, outputs, 1)
    return g.linear(g.node("Flatten", g.node("GlobalAveragePool", x)), 512, 10)


def gelu(g, x):
    erf = g.node("Erf", g.node("Mul", x, g.constant(numpy.float32(2**-0.5))))
    half = g.node("Mul", x, g.constant(numpy.float32(0.5)))
    return g.node("Mul", half, g.node("Add", erf, g.constant(numpy.float32(1))))


def transformer(g, tokens, context, layers, width):
    sizes = lambda *numbers: g.constant(numpy.array(numbers, numpy.int64))
    head = width // shapes.HEADS
    x = g.node("Add", g.node("Gather", g.weight(shapes.VOCABULARY, width), tokens), g.weight(context, width))
    for _ in range(layers):
        qkv = g.linear(g.layer_norm(x, width), width, 3 * width)
        heads = []
        for i in range(3):
            part = g.node("Slice", qkv, sizes(i * width), sizes((i + 1) * width), sizes(2))
            split = g.node("Reshape", part, sizes(0, 0, shapes.HEADS, head))
            heads.append(g.node("Transpose", split, perm=[0, 2, 1, 3]))
        seen = g.node("Transpose", attention(g, *heads, context, head), perm=[0, 2, 1, 3])
        x = g.node("Add", x, g.linear(g.node("Reshape", seen, sizes(0, 0, width)), width, width))
        up = gelu(g, g.linear(g.layer_norm(x, width), width, 4 * width))
        x = g.node("Add", x, g.linear(up, 4 * width, width))
    return g.linear(g.layer_norm(x, width), width, shapes.VOCABULARY)


def graph(line):
    """The graph of a line's workload and the shapes of its inputs, or None."""
    g, shape, workload = Graph(), shapes.numbers(line["shape"]), line["workload"]
    inputs = []

    def given(*sides):
        inputs.append(sides)
        return g.input(sides)

    if workload in ("lenet", "resnet18", "transformer"):
        if shapes.is_training(line):
            return None
        if workload == "transformer":
            sequences, context, layers, width = shapes.transformer(line)
            inputs.append((sequences, context))
            out = transformer(g, g.input((sequences, context), TensorProto.INT64), context, layers, width)
        else:
            batch, image = shapes.batch_and_image(line)
            out = (resnet18 if workload == "resnet18" else lenet)(g, given(batch, *image))
    elif workload == "matmul":
        out = g.node("MatMul", given(*shape[:2]), given(*shape[1:]))
    elif workload == "conv2d":
        images, weights, padding = shapes.convolution(line)
        out = g.convolution(given(*images), weights[1], weights[0], weights[2], padding=padding, bias=False)
    elif workload == "add":
        out = g.node("Add", given(*shape), given(*shape))
    elif workload == "attention":
        out = attention(g, given(*shape), given(*shape), given(*shape), shape[2], shape[3])
    elif workload in ("relu", "softmax", "layer_norm", "sum", "sum rows"):
        x = given(*shape)
        rows = lambda: g.constant(numpy.array([1], numpy.int64))
        out = {
            "relu": lambda: g.node("Relu", x),
            "softmax": lambda: g.node("Softmax", x, axis=1),
            "layer_norm": lambda: g.layer_norm(x, shape[1]),
            "sum": lambda: g.node("ReduceSum", x, keepdims=0),
            "sum rows": lambda: g.node("ReduceSum", x, rows(), keepdims=0),
        }[workload]()
    else:
        return None  # a copy or a transfer is no graph
    return g.model(out), inputs, out


def prepare(line, provider_and_number):
    """One run of the line's workload and what waits for it, or None."""
    made = graph(line)
    if made is None:
        return None
    model, inputs, out = made
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    provider, number = provider_and_number
    if provider == "DmlExecutionProvider":  # which supports neither
        options.enable_mem_pattern = False
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    chosen = {"device_id": str(number)} if provider in NUMBERED else {}
    session = onnxruntime.InferenceSession(model, options, providers=[(provider, chosen)])
    device, number = ("cuda", number) if provider in ON_DEVICE else ("cpu", 0)
    binding = session.io_binding()
    random = numpy.random.default_rng(0)
    for i, shape in enumerate(inputs):
        if line["workload"] == "transformer":
            value = random.integers(0, shapes.VOCABULARY, shape)
        else:
            value = random.random(shape, dtype=numpy.float32) - 0.5
        binding.bind_ortvalue_input(f"in{i}", onnxruntime.OrtValue.ortvalue_from_numpy(value, device, number))
    binding.bind_output(out, device, number)
    return lambda: session.run_with_iobinding(binding), binding.synchronize_outputs
