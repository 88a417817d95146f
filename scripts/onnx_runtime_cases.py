"""Writes tests/onnx/runtime_cases.txt: operators at their edges, with the outputs of ONNX Runtime. Needs onnx, onnxruntime, numpy.

A line is an operator (after a colon, one of ONNX Runtime's own), its attributes, its inputs, how many of these are given when the
model runs (the others are constants), its outputs, and the tolerance of floats.
"""
import sys

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

KINDS = {"float32": "FLOAT", "int64": "INT64", "uint8": "UINT8", "int8": "INT8", "int32": "INT32"}
lines = []


def f32(*values):
    return np.array(values, np.float32)


def i64(*values):
    return np.array(values, np.int64)


def i32(values):
    return np.array(values, np.int32)


def u8(*values):
    return np.array(values, np.uint8)


def i8(*values):
    return np.array(values, np.int8)


def number(kind, value):
    return np.array(value, kind)


def run(op, inputs, count, domain, attributes):
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    outputs = [f"y{i}" for i in range(count)]
    node = helper.make_node(op, names, outputs, domain=domain, **attributes)
    given = [(n, x) for n, x in zip(names, inputs) if x is not None]
    # What ONNX Runtime wants as constants is not said by the operators.
    free, fixed = given[:1], given[1:]
    infos = [helper.make_tensor_value_info(n, getattr(TensorProto, KINDS[x.dtype.name]), x.shape) for n, x in free]
    made = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph([node], "g", infos, made, [numpy_helper.from_array(x, n) for n, x in fixed])
    sets = [helper.make_opsetid("", 19), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=sets, ir_version=9)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(free))


def array(x):
    if x is None:
        return "-"
    shape = ",".join(map(str, x.shape))
    shown = (lambda v: np.format_float_positional(v, unique=True, trim="-")) if x.dtype == np.float32 else str
    return f"{KINDS[x.dtype.name]}[{shape}] " + " ".join(shown(v) for v in x.ravel())


def attribute(name, value):
    if isinstance(value, str):
        return f"{name}:s={value}"
    if isinstance(value, list):
        kind = "fs" if isinstance(value[0], float) else "is"
        return f"{name}:{kind}=" + ",".join(map(str, value))
    return f"{name}:{'f' if isinstance(value, float) else 'i'}={value}"


def case(op, inputs, count=1, given=1, near=0, shown=None, **attributes):
    domain = "com.microsoft" if op.startswith(":") else ""
    outputs = run(op.lstrip(":"), inputs, count, domain, attributes)[:shown]
    lists = [" ".join(attribute(*pair) for pair in attributes.items()), "; ".join(map(array, inputs)), str(given)]
    lines.append(" | ".join([op, *lists, "; ".join(map(array, outputs)), str(near)]))


def regions():
    x = np.arange(36, dtype=np.float32).reshape(1, 1, 6, 6) - 10
    boxes = [[3, 3, 3, 3], [1, 1, 4, 4], [2, 3, 2, 5], [4, 4, 1, 1], [-9, -9, -5, -5], [4, 4, 20, 20], [3, 1, 1, 4]]
    boxes, of = np.array(boxes, np.float32), np.zeros(7, np.int64)
    size = {"output_height": 2, "output_width": 2, "near": 1e-6}
    for mode in ["avg", "max"]:
        for way in ["half_pixel", "output_half_pixel"]:
            for ratio in [0, 2]:
                more = {"spatial_scale": 0.5, "sampling_ratio": ratio, "mode": mode, "coordinate_transformation_mode": way}
                case("RoiAlign", [x, boxes, of], **size, **more)
    case("RoiAlign", [x + 10, boxes[:2], of[:2]], given=3, spatial_scale=0.5, sampling_ratio=0, **size)
    exact = f32(0, 0, 5, 5, 0.1, 0.3, 4.9, 5.7).reshape(2, 4)
    case("RoiAlign", [x, exact, of[:2]], given=3, spatial_scale=1.0, sampling_ratio=0, **size)
    rois = [[1, 1, 4, 4], [3, 3, 3, 3], [4, 4, 1, 1], [-9, -9, -5, -5], [4, 4, 20, 20], [0.5, 1.5, 2.5, 3.5], [9, 9, 12, 12]]
    rois = np.array([[0, *roi] for roi in rois], np.float32)
    case("MaxRoiPool", [x, rois], pooled_shape=[2, 2], spatial_scale=1.0)
    case("MaxRoiPool", [x, rois[:1]], given=2, pooled_shape=[3, 2], spatial_scale=0.3)


def suppression():
    def nms(boxes, scores, *more, **attributes):
        inputs = [np.array([boxes], np.float32), np.array([[scores]], np.float32), *more]
        case("NonMaxSuppression", inputs, given=2, **attributes)

    one = [[0, 0, 1, 1], [0, 0, 1, 1]]
    nms([[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1], [1, 1, 0, 0]], [0.5, 0.6, 0.7, 0.8], i64(9), f32(0))
    nms(one, [0.5, 0.6], i64(9), f32(1))
    nms(one, [0.5, 0.6], i64(-1), f32(0.5))
    nms([[0, 0, 1, 1], [0, 0, 1, 2]], [0.5, 0.5], i64(9), f32(0.5))
    nms([[0, 0, 1, 1], [5, 5, 6, 6]], [0.5, 0.5], i64(9), f32(0.5), f32(0.5))
    nms([[0, 0, 1, 1], [5, 5, 6, 6]], [-0.0, 0.0], i64(9), f32(0.5))
    centred = [[0, 0, -2, -2], [0, 0, 2, 2], [0, 0, 0, 0], [0, 0, 0, 0]]
    nms(centred, [0.5, 0.6, 0.3, 0.2], i64(9), f32(0.1), center_point_box=1)
    nms([[0, 0, -2, 2], [0, 0, 2, 2]], [0.5, 0.6], i64(9), f32(0.1), center_point_box=1)


def clipped():
    x, w, r = np.full((3, 1, 1), 3, np.float32), np.full((1, 4, 1), 2, np.float32), np.ones((1, 4, 1), np.float32)
    for clip in [0.5, 2.0]:
        case("LSTM", [x, w, r], 3, near=1e-6, hidden_size=1, clip=clip)
    case("LSTM", [x, w, r], 3, near=1e-6, hidden_size=1, clip=0.5, input_forget=1)


def pools_and_pads():
    x = (np.arange(20) * 7 % 19).reshape(1, 1, 4, 5).astype(np.float32)
    x = np.concatenate([x, -x - 1], 1)
    uneven = {"kernel_shape": [2, 2], "pads": [1, 0, 0, 1], "strides": [2, 2]}
    case("MaxPool", [x], 2, kernel_shape=[2, 3], pads=[0, 1, 1, 2])
    case("MaxPool", [x], 2, **uneven)
    case("MaxPool", [x], 2, storage_order=1, **uneven)
    case("MaxPool", [x], 2, kernel_shape=[3, 2], pads=[0, 1, 2, 0], dilations=[1, 2])
    case("MaxPool", [x], 2, kernel_shape=[2, 2], auto_pad="SAME_UPPER")
    case("MaxPool", [x], 2, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, pads=[0, 0, 1, 0])
    case("MaxPool", [x.reshape(1, 2, 20)[:, :, :7].copy()], 2, kernel_shape=[3], pads=[0, 2])
    case("MaxPool", [np.full((1, 1, 2, 2), -np.inf, np.float32)], 2, kernel_shape=[2, 2], pads=[1, 0, 0, 0])
    for pads in [[5, 7], [3, 3], [-1, 5], [4, -2], [0, 10]]:
        case("Pad", [f32(1, 2, 3), i64(*pads)], mode="wrap")
    case("Pad", [f32(0, 1, 2, 3, 4, 5).reshape(2, 3), i64(3, 4, 1, 5)], mode="wrap")
    case("Pad", [i64(1, 2, 3), i64(4, 5)], mode="wrap")


def qlinear(zero, scale):
    for kind, low in [(np.uint8, 0), (np.int8, -128)]:
        at = lambda value: zero(kind, low + value)  # noqa: E731
        x = (np.arange(16) * 17 + low).astype(kind)
        one = [x, scale(0.05), at(120)]
        case(":QLinearSigmoid", [*one, scale(0.0043), at(3)])
        case(":QLinearSigmoid", [x, scale(0.05), None, scale(0.0043), None])
        case(":QLinearLeakyRelu", [*one, scale(0.031), at(33)], alpha=0.3)
        case(":QLinearLeakyRelu", [*one, scale(0.0037), at(200)])
        rows = [x.reshape(2, 2, 4), scale(0.011), at(120), scale(1 / 256), at(0)]
        case(":QLinearSoftmax", rows, opset=13)
        case(":QLinearSoftmax", rows, opset=13, axis=1)
        case(":QLinearSoftmax", rows, opset=12)
        case(":QLinearSoftmax", rows, opset=12, axis=1)
        parts = [x.reshape(2, 8), scale(0.05), at(120), x.reshape(4, 4)[:2].copy(), scale(0.031), at(7)]
        case(":QLinearConcat", [scale(0.043), at(90), *parts], axis=1)
        image = ((np.arange(2 * 3 * 4 * 5) * 37 % 251) + low).astype(kind).reshape(2, 3, 4, 5)
        last = np.ascontiguousarray(image.transpose(0, 2, 3, 1))
        pooled = {"kernel_shape": [2, 2]}
        # Scales that are powers of 2 give halves, which are rounded with the zero point.
        for more in [[scale(0.05), at(120), scale(0.031), at(90)], [scale(0.25), at(1), scale(0.5), at(1)]]:
            case(":QLinearGlobalAveragePool", [image, *more])
            case(":QLinearGlobalAveragePool", [last, *more], channels_last=1)
            case(":QLinearAveragePool", [image, *more], **pooled)
            case(":QLinearAveragePool", [last, *more], **pooled, channels_last=1, strides=[2, 1])
        case(":QLinearAveragePool", [image, *more], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        case(":QLinearAveragePool", [image, *more], kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)
        case(":QLinearAveragePool", [image, *more], kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1)
        a = [(np.arange(12) * 53 % 256 + low).astype(kind).reshape(3, 4), scale(0.05), at(120)]
        for b, zeros in [(np.int8, i8(1, 2)), (np.uint8, u8(127, 130))]:
            if kind == np.int8 and b == np.uint8:
                continue
            matrix = (np.arange(8) * 71 % 256 + np.iinfo(b).min).astype(b).reshape(4, 2)
            columns = [matrix, f32(0.02, 0.03), zeros, i32([-700, 900])]
            case(":QGemm", [*a, *columns, scale(0.41), at(100)])
            case(":QGemm", [*a, *columns], near=1e-6, alpha=0.7)
            single = [matrix.T.copy(), scale(0.02), zeros[0], None, scale(0.41), at(100)]
            case(":QGemm", [*a, *single], alpha=0.7, transB=1)
            case(":QGemm", [a[0].T.copy(), *a[1:], *columns, scale(0.3), at(1)], transA=1)
        case(":DequantizeLinear", [x.reshape(2, 8), f32(0.1, 0.2), np.array([low, low + 9], kind)], axis=0)
        case(":QuantizeLinear", [f32(-3, -0.6, 0.4, 0.6, 7.7), scale(0.5), at(128)])


def quantised():
    zero = lambda kind, value: number(kind, value)  # noqa: E731
    scale = lambda value: number(np.float32, value)  # noqa: E731
    for op in [":QLinearAdd", ":QLinearMul"]:
        a, b = (u8(0, 100, 200, 255), scale(0.1), zero(np.uint8, 128)), (u8(255, 3, 7, 200), scale(0.05), zero(np.uint8, 10))
        case(op, [*a, *b, scale(0.15), zero(np.uint8, 100)])
        a = (i8(-128, 100, 20, -5).reshape(2, 2), scale(0.1), zero(np.int8, -3))
        case(op, [*a, i8(25, 3), scale(0.07), zero(np.int8, 1), scale(0.2), zero(np.int8, 5)])
    qlinear(zero, scale)
    a = (np.arange(8, dtype=np.float32).reshape(2, 4) - 3) * f32(0.37)
    b = i8(1, -2, 3, 4, 5, -6, -7, 8, 9, 10, -11, 12).reshape(4, 3)
    case(":DynamicQuantizeMatMul", [a, b, scale(0.02)], near=1e-6)
    case(":DynamicQuantizeMatMul", [a, b, f32(0.02, 0.03, 0.01), i8(1, -2, 0), f32(0.5, -0.5, 1)], near=1e-6)
    unsigned = (b.astype(np.int32) + 20).astype(np.uint8)
    case(":DynamicQuantizeMatMul", [a, unsigned, scale(0.02), zero(np.uint8, 20), f32(0.5, -0.5, 1)], near=1e-6)
    hidden, width = 2, 3
    for count, direction in [(1, "forward"), (1, "reverse"), (2, "bidirectional")]:
        w = ((np.arange(count * width * 4 * hidden).reshape(count, width, 4 * hidden) * 7) % 41 - 20).astype(np.int8)
        r = ((np.arange(count * hidden * 4 * hidden).reshape(count, hidden, 4 * hidden) * 5) % 37 - 18).astype(np.int8)
        steps = np.arange(3 * width).reshape(3, 1, width)
        # No element is half-way between two steps of the scale.
        x = ((steps * 3 % 11 - 4) * 0.3 + steps * 0.013).astype(np.float32)
        bias = ((np.arange(count * 8 * hidden).reshape(count, 8 * hidden) * 3) % 7 - 3).astype(np.float32) * f32(0.1)
        zeros = np.zeros(count, np.int8)
        scales = [np.full(count, 0.02, np.float32), zeros, np.full(count, 0.03, np.float32), zeros]
        how = {"near": 3e-6, "hidden_size": hidden, "direction": direction}
        none = [None] * 4
        case(":DynamicQuantizeLSTM", [x, w, r, bias, *none, *scales], 3, **how)
        columns = ((np.arange(count * 4 * hidden).reshape(count, 4 * hidden) % 5 + 1) * 0.01).astype(np.float32)
        zeros = np.zeros((count, 4 * hidden), np.int8)
        case(":DynamicQuantizeLSTM", [x, w, r, None, *none, columns, zeros, columns, zeros], 3, **how)
        w, r = (w.astype(np.int32) + 128).astype(np.uint8), (r.astype(np.int32) + 120).astype(np.uint8)
        scales[1], scales[3] = np.full(count, 128, np.uint8), np.full(count, 120, np.uint8)
        case(":DynamicQuantizeLSTM", [x, w, r, bias, *none, *scales], 3, **how)


def fused():
    x = (np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4) - 8) * f32(0.25)
    w, bias = f32(1, -1, 0.5, 2, -1, 0.5, 1, -2).reshape(2, 1, 2, 2), f32(0.1, -0.2)
    added = (np.arange(18, dtype=np.float32).reshape(1, 2, 3, 3) - 9) * f32(0.5)
    params = {"Relu": [], "Sigmoid": [], "Tanh": [], "LeakyRelu": [0.1], "Clip": [-1.0, 2.0], "HardSigmoid": [0.3, 0.4]}
    for name, values in params.items():
        more = {"activation_params": values} if values else {}
        case(":FusedConv", [x, w, bias], near=2e-6, kernel_shape=[2, 2], activation=name, **more)
    case(":FusedConv", [x, w, bias, added], given=4, near=2e-6, kernel_shape=[2, 2], activation="Relu")
    case(":FusedConv", [x, w, None, added], near=2e-6, kernel_shape=[2, 2])
    a, b, c = f32(1, -2, 3, 0.5, 1, -1).reshape(2, 3), f32(1, 0, 2, -1, -1, 0.5).reshape(3, 2), f32(0.3, -0.1)
    alpha, beta, gamma = "activation_alpha", "activation_beta", "activation_gamma"
    both = {alpha: 1.5, beta: 1.1}
    activations = {
        "Relu": {}, "LeakyRelu": {alpha: 0.1}, "Sigmoid": {}, "Tanh": {}, "Elu": {alpha: 0.5}, "Softplus": {}, "Softsign": {},
        "HardSigmoid": {alpha: 0.3, beta: 0.4}, "ThresholdedRelu": {alpha: 0.5}, "Selu": {alpha: 1.5, gamma: 1.1},
        "ScaledTanh": both, "ParametricSoftplus": both,
    }
    for name, more in activations.items():
        case(":FusedGemm", [a, b, c], near=2e-6, activation=name, alpha=0.5, beta=2.0, **more)
    case(":FusedGemm", [a, b.T.copy()], given=2, near=2e-6, activation="Relu", transB=1)


def attention():
    x = ((np.arange(24) * 5 % 13 - 6).reshape(2, 3, 4) * 0.1).astype(np.float32)
    w = ((np.arange(48) * 7 % 17 - 8).reshape(4, 12) * 0.1).astype(np.float32)
    bias = ((np.arange(12) * 3 % 5 - 2) * 0.1).astype(np.float32)

    def one(more=(), count=1, given=1, **attributes):
        case(":Attention", [x, w, bias, *more], count, given=given, near=3e-6, num_heads=2, **attributes)

    keys = i32([[1, 1, 0], [0, 1, 1]])
    one(given=3)
    one(unidirectional=1)
    one([i32([2, 3])])
    one([i32([3, 2, 1, 0])])
    one([keys])
    one([i32([[[1, 0, 1], [1, 1, 0], [1, 1, 1]]] * 2)])
    one([keys], unidirectional=1)
    one([keys], mask_filter_value=-1.0)
    one(scale=0.3)
    past = ((np.arange(32) * 3 % 7 - 3).reshape(2, 2, 2, 2, 2) * 0.1).astype(np.float32)
    one([None, past], 2, unidirectional=1)
    one([i32([[1, 0, 1, 1, 1], [1, 1, 1, 0, 1]]), past], 2)
    one([None, None, ((np.arange(36) * 3 % 7 - 3).reshape(2, 2, 3, 3) * 0.1).astype(np.float32)])
    case(":Attention", [x, w[:, :10].copy(), bias[:10]], near=3e-6, num_heads=2, qkv_hidden_sizes=[4, 4, 2])
    case(":Attention", [x, w], near=3e-6, num_heads=2)


def group_query():
    def made(*shape, by=5):
        return ((np.arange(np.prod(shape)) * by % 13 - 6).reshape(shape) * 0.1).astype(np.float32)

    turns = np.outer(np.arange(8), 0.5 ** np.arange(8))
    tables = [np.round(f(turns), 3).astype(np.float32) for f in (np.cos, np.sin)]

    def one(length, past, last, **attributes):
        """Four heads of width 16 that share two, `length` tokens after `past`; `last` is that of each sample."""
        batch, total = len(last), past + length
        caches = [made(batch, 2, past, 16, by=by) for by in (3, 11)]
        new = [made(batch, length, 64), made(batch, length, 32, by=7), made(batch, length, 32, by=9)]
        rotary = tables if attributes.get("do_rotary") else []
        inputs = [*new, *caches, i32(last), i32([total]), *rotary]
        case(":GroupQueryAttention", inputs, 3, **{"given": 3, "near": 3e-6, "num_heads": 4, "kv_num_heads": 2, **attributes})

    one(3, 0, [2])
    one(3, 0, [2, 2], do_rotary=1)
    one(1, 3, [3], do_rotary=1, scale=0.3)
    one(1, 3, [3, 3], given=7)
    one(1, 3, [3, 3], do_rotary=1, rotary_interleaved=1)
    one(2, 3, [4], do_rotary=1)
    one(1, 3, [3], local_window_size=2)
    one(3, 0, [2], local_window_size=2)
    one(1, 3, [3], softcap=2.0)
    # What follows the last key of a sample in its cache is left open.
    one(1, 3, [3, 1], shown=1, do_rotary=1)


for part in [regions, suppression, clipped, pools_and_pads, quantised, fused, attention, group_query]:
    part()
with open(sys.argv[1], "w", encoding="utf-8") as file:
    file.write("\n".join(lines) + "\n")
