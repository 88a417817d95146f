#!/usr/bin/env python3
"""Times a decoder of a language model with packed weights in `anygpu run --generate` and in ONNX Runtime, as a Markdown table.

    cargo build --release -p anygpu-cli
    python3 -m venv v && v/bin/pip install onnx onnxruntime numpy
    python3 -m venv w && w/bin/pip install onnxruntime-webgpu numpy
    v/bin/python benches/peers/decoder.py FOLDER --devices cpu,soft:0 --webgpu w/bin/python

The decoder is that of a Llama with random weights of a seed, in operators and names that ONNX Runtime's model builder writes: tables
of embeddings, root mean square norms, attention with groups of heads, rotary positions and a cache, SwiGLU. Its matrices are
MatMulNBits: integers of 4 bits in blocks, a scale each. FOLDER gets model.onnx and model.data, unless they are there already.

Each run reads a prompt and then generates tokens one at a time: the most likely one each, with the cache of all tokens before it.
In each turn every program runs once, in a process of its own. A process generates all tokens twice; the times are those of the second
time, and the tokens per second the inverse of the median of a token after the prompt. The most memory is the process's resident memory at its peak, as the system counts it (`ru_maxrss`). The tokens have to be the same everywhere.

The WebGPU provider is in a package that takes the place of onnxruntime, so it needs a Python of its own. It chooses its adapter
itself: VK_DRIVER_FILES has to leave one driver only, which `--webgpu-driver` names for its processes.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

MIB = 2**20


class Net:
    """A graph that is written node by node."""

    def __init__(self, seed):
        import numpy

        self.nodes, self.weights, self.sizes = [], [], {}
        self.random = numpy.random.default_rng(seed)

    def weight(self, name, array, kind):
        from onnx import numpy_helper

        self.sizes[kind] = self.sizes.get(kind, 0) + array.nbytes
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def __call__(self, op, inputs, name, outputs=1, domain="com.microsoft", **attributes):
        from onnx import helper

        names = [name if i == 0 else f"{name}.{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, name, domain=domain, **attributes))
        return names if outputs > 1 else name

    def table(self, name, rows, columns):
        return self.weight(name, self.random.standard_normal((rows, columns), dtype="float32"), "table")

    def norm(self, name, width):
        return self.weight(name, 1 + 0.1 * self.random.standard_normal(width, dtype="float32"), "norms")

    def product(self, x, name, k, n, bits, block, level):
        """Multiplies with a random matrix whose products have about the size of `x`."""
        import numpy

        blocks, middle = -(-k // block), 2 ** (bits - 1)
        # Without the least integer, so that the mean is the zero point. Else all products of a token share a part.
        integers = self.random.integers(1, 2 * middle, (n, blocks, block), dtype=numpy.uint8)
        if bits == 4:
            integers = integers[..., ::2] | integers[..., 1::2] << 4
        deviation = ((2 * middle - 1) ** 2 - 1) ** 0.5 / 12**0.5
        scales = self.random.uniform(0.5, 1.5, (n, blocks)).astype(numpy.float32) / numpy.float32(deviation * k**0.5)
        inputs = [x, self.weight(f"{name}.integers", integers, "packed"), self.weight(f"{name}.scales", scales.reshape(-1), "scales")]
        return self("MatMulNBits", inputs, name, K=k, N=n, bits=bits, block_size=block, accuracy_level=level)


def make(folder, sizes):
    """Writes the decoder, and a file with the sizes of its weights."""
    import numpy
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    net, width = Net(sizes.seed), sizes.hidden // sizes.heads
    plain = lambda *args, **attributes: net(*args, domain="", **attributes)
    whole = lambda name, value: net.weights.append(numpy_helper.from_array(numpy.array(value, numpy.int64), name)) or name
    seen = plain("ReduceSum", ["attention_mask", whole("one_axis", [1])], "seen", keepdims=1)
    last = plain("Cast", [plain("Sub", [seen, whole("one", [1])], "last_of_each")], "last", to=TensorProto.INT32)
    shape = plain("Shape", ["attention_mask"], "shape")
    total = plain("Cast", [plain("Gather", [shape, whole("column", 1)], "length", axis=0)], "total", to=TensorProto.INT32)
    angles = numpy.outer(numpy.arange(sizes.context), 10000.0 ** (-numpy.arange(0, width, 2) / width))
    tables = [net.weight(name, f(angles).astype(numpy.float32), "positions") for name, f in (("cos", numpy.cos), ("sin", numpy.sin))]

    def product(x, name, k, n):
        return net.product(x, name, k, n, sizes.bits, sizes.block, sizes.accuracy_level)

    norm = {"epsilon": 1e-5}
    x = plain("Gather", [net.table("embedding", sizes.vocabulary, sizes.hidden), "input_ids"], "embedded")
    caches, before = [], None
    for i in range(sizes.layers):
        layer, weight = f"layer.{i}", net.norm(f"layer.{i}.norm_1.weight", sizes.hidden)
        if before is None:
            y = plain("SimplifiedLayerNormalization", [x, weight], f"{layer}.norm_1", axis=-1, stash_type=1, **norm)
        else:
            y, _, _, x = net("SkipSimplifiedLayerNormalization", [x, before, weight], f"{layer}.norm_1", outputs=4, **norm)
        q = product(y, f"{layer}.q", sizes.hidden, sizes.hidden)
        k, v = (product(y, f"{layer}.{part}", sizes.hidden, sizes.kv_heads * width) for part in "kv")
        past = [f"past_key_values.{i}.{part}" for part in ("key", "value")]
        present = [f"present.{i}.{part}" for part in ("key", "value")]
        attributes = {"num_heads": sizes.heads, "kv_num_heads": sizes.kv_heads, "do_rotary": 1, "scale": width**-0.5}
        net.nodes.append(helper.make_node(
            "GroupQueryAttention", [q, k, v, *past, last, total, *tables], [f"{layer}.attention", *present], f"{layer}.attention",
            domain="com.microsoft", **attributes,
        ))
        caches.append((past, present))
        before = product(f"{layer}.attention", f"{layer}.out", sizes.hidden, sizes.hidden)
        weight = net.norm(f"{layer}.norm_2.weight", sizes.hidden)
        y, _, _, x = net("SkipSimplifiedLayerNormalization", [x, before, weight], f"{layer}.norm_2", outputs=4, **norm)
        gate, up = (product(y, f"{layer}.{part}", sizes.hidden, sizes.ffn) for part in ("gate", "up"))
        silu = plain("Mul", [gate, plain("Sigmoid", [gate], f"{layer}.sigmoid")], f"{layer}.silu")
        before = product(plain("Mul", [silu, up], f"{layer}.gated"), f"{layer}.down", sizes.ffn, sizes.hidden)
    weight = net.norm("norm.weight", sizes.hidden)
    y, _, _, _ = net("SkipSimplifiedLayerNormalization", [x, before, weight], "norm", outputs=4, **norm)
    product(y, "logits", sizes.hidden, sizes.vocabulary)
    # An output that nothing reads has no name.
    read = {name for node in net.nodes for name in node.input} | {name for _, present in caches for name in present} | {"logits"}
    for node in net.nodes:
        names = [name if name in read else "" for name in node.output]
        while not names[-1]:
            names.pop()
        node.output[:] = names

    def info(name, kind, *shape):
        return helper.make_tensor_value_info(name, kind, shape)

    def cache(name, length):
        return info(name, TensorProto.FLOAT, "batch_size", sizes.kv_heads, length, width)

    inputs = [
        info("input_ids", TensorProto.INT64, "batch_size", "sequence_length"),
        info("attention_mask", TensorProto.INT64, "batch_size", "total_sequence_length"),
        *[cache(name, "past_sequence_length") for past, _ in caches for name in past],
    ]
    outputs = [
        info("logits", TensorProto.FLOAT, "batch_size", "sequence_length", sizes.vocabulary),
        *[cache(name, "total_sequence_length") for _, present in caches for name in present],
    ]
    graph = helper.make_graph(net.nodes, "decoder", inputs, outputs, net.weights)
    sets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=sets, ir_version=10)
    onnx.save(model, folder / "model.onnx", save_as_external_data=True, location="model.data", size_threshold=1024)
    return net.sizes


def theirs(folder, provider, prompt, count):
    """Generates in this process with ONNX Runtime; prints the tokens and the times as JSON."""
    import numpy
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    webgpu = provider == "webgpu"
    providers = [("WebGpuExecutionProvider", {"validationMode": "disabled"})] if webgpu else []
    start = time.perf_counter()
    session = onnxruntime.InferenceSession(folder / "model.onnx", options, providers=[*providers, "CPUExecutionProvider"])
    loaded = time.perf_counter() - start
    past = [info for info in session.get_inputs() if info.name.startswith("past_key_values.")]
    names = [info.name.replace("past_key_values.", "present.") for info in past]
    value = onnxruntime.OrtValue.ortvalue_from_numpy
    whole = lambda numbers: value(numpy.array([numbers], numpy.int64))

    def generate(count):
        caches = [value(numpy.zeros([1, info.shape[1], 0, info.shape[3]], numpy.float32)) for info in past]
        ids, length, tokens, times = prompt, 0, [], []
        while len(tokens) < count:
            start = time.perf_counter()
            length += len(ids)
            binding = session.io_binding()
            binding.bind_ortvalue_input("input_ids", whole(ids))
            binding.bind_ortvalue_input("attention_mask", whole([1] * length))
            for info, cache in zip(past, caches):
                binding.bind_ortvalue_input(info.name, cache)
            binding.bind_output("logits", "cpu")
            for name in names:
                # The cache stays where the provider has it.
                binding.bind_output(name, "webgpu" if webgpu else "cpu")
            session.run_with_iobinding(binding)
            logits, *caches = binding.get_outputs()
            token = int(logits.numpy()[0, -1].argmax())
            times.append(time.perf_counter() - start)
            tokens.append(token)
            ids = [token]
        return tokens, times

    generate(count)
    tokens, times = generate(count)
    print("JSON" + json.dumps({
        "tokens": tokens, "prompt_seconds": times[0], "tokens_per_second": 1 / statistics.median(times[1:]),
        "load_seconds": loaded, "version": onnxruntime.__version__,
    }))


def run(command, env=None):
    """The lines that a process prints, and its most resident memory in bytes."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(map(str, command))}: failed with the status {status}\n{text}")
    return text.splitlines(), usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measured(arguments, program, prompt):
    """One run of a program: a device of ours, or a provider."""
    if program not in ("CPU provider", "WebGPU provider"):
        ids = f"input_ids=[{','.join(map(str, prompt))}]"
        lines, peak = run([
            arguments.program, "run", arguments.folder / "model.onnx", "--devices", program, "--input", ids, "--generate",
            str(arguments.tokens), "--bench", "1", "--json",
        ])
        found = json.loads(lines[-1])["generate"]
    else:
        webgpu = program.startswith("WebGPU")
        python = arguments.webgpu if webgpu else sys.executable
        env = dict(os.environ)
        if webgpu and arguments.webgpu_driver:
            env = {name: value for name, value in env.items() if name != "VK_ADD_DRIVER_FILES"}
            env["VK_DRIVER_FILES"] = str(arguments.webgpu_driver)
        provider = "webgpu" if webgpu else "cpu"
        command = [python, __file__, str(arguments.folder), "--theirs", provider, "--tokens", str(arguments.tokens)]
        lines, peak = run([*command, "--prompt", str(arguments.prompt)], env)
        found = next(json.loads(line[4:]) for line in lines if line.startswith("JSON"))
    found["peak"] = peak
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--ffn", type=int, default=2816)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--bits", type=int, default=4, choices=[4, 8])
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--accuracy-level", type=int, default=0, help="1: products of f32; 4: of integers of 8 bits, in ONNX Runtime")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--prompt", type=int, default=32, help="the tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=32, help="the tokens to generate")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--devices", default="cpu", help="devices of anygpu")
    parser.add_argument("--program", default="target/release/anygpu")
    parser.add_argument("--webgpu", help="a Python with onnxruntime-webgpu")
    parser.add_argument("--webgpu-driver", help="the file that describes the Vulkan driver for it")
    parser.add_argument("--theirs", help=argparse.SUPPRESS)
    parser.add_argument("--make", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    prompt = [(7919 * i + 11) % min(arguments.vocabulary, 32000) for i in range(arguments.prompt)]
    if arguments.theirs:
        return theirs(arguments.folder, arguments.theirs, prompt, arguments.tokens)

    arguments.folder.mkdir(parents=True, exist_ok=True)
    about = arguments.folder / "sizes.json"
    if arguments.make:
        about.write_text(json.dumps(make(arguments.folder, arguments)))
        return None
    if not about.exists():
        # In a process of its own: a process that this one starts is counted with the most memory that this one had.
        run([sys.executable, __file__, *sys.argv[1:], "--make"])
    sizes = json.loads(about.read_text())
    total, packed = sum(sizes.values()), sizes["packed"] + sizes["scales"]
    print(f"weights {total / MIB:.1f} MiB, of which {packed / MIB:.1f} are read for each token but the table: {sizes}")
    programs = [*filter(None, arguments.devices.split(",")), "CPU provider", *(["WebGPU provider"] if arguments.webgpu else [])]
    found = {program: [] for program in programs}
    for turn in range(arguments.turns):
        for program in programs:
            found[program].append(measured(arguments, program, prompt))
            line = found[program][-1]
            print(f"turn {turn + 1}, {program}: {line['tokens_per_second']:.2f} tokens/s", file=sys.stderr, flush=True)
    expected = found["CPU provider"][0]["tokens"]
    print("\n| program | prompt, s | tokens/s | of the turns | peak of the process, MiB | weights held, MiB | tokens as the CPU provider's |")
    print("|---|---|---|---|---|---|---|")
    for program, runs in found.items():
        rates = sorted(line["tokens_per_second"] for line in runs)
        prompts = statistics.median(line["prompt_seconds"] for line in runs)
        peak = max(line["peak"] for line in runs) / MIB
        held = f"{runs[0]['weights_bytes'] / MIB:.1f}" if "weights_bytes" in runs[0] else "not told"
        same = min(next((i for i, pair in enumerate(zip(line["tokens"], expected)) if pair[0] != pair[1]), len(expected)) for line in runs)
        spread = f"{rates[0]:.1f} to {rates[-1]:.1f}"
        print(f"| {program} | {prompts:.3g} | {statistics.median(rates):.1f} | {spread} | {peak:.0f} | {held} | {same} of {len(expected)} |")


if __name__ == "__main__":
    main()
