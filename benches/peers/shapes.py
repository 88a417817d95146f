"""What a line of `anygpu bench --json` measured, read from its shape, so that a peer does the same work."""

import re


def numbers(text):
    return [int(number) for number in re.findall(r"\d+", text)]


def product(values):
    result = 1
    for value in values:
        result *= value
    return result


def convolution(line):
    """Images, weights and the padding, which follows from the number of operations."""
    images, weights = (numbers(part) for part in line["shape"].split("*"))
    outputs = line["flops"] / (2 * product(weights))
    side = round((outputs / images[0]) ** 0.5)
    padding = (side + weights[2] - 1 - images[2]) // 2
    return images, weights, padding


def batch_and_image(line):
    """Of `training, batch 32 of 3x96x96` the batch and the image; LeNet's images have no size there."""
    batch, *image = numbers(line["shape"].split("batch")[1])
    return batch, image or [1, 28, 28]


def transformer(line):
    """Of `training, 8 of 128 tokens, 4 layers of 256` the four numbers."""
    return numbers(line["shape"])


HEADS, VOCABULARY = 8, 128
"""Of the transformer: as in cli/src/bench/transformer.rs."""


def is_training(line):
    return line["shape"].startswith("training")


def rate(line, seconds):
    """The figure of a run of so many seconds, in the unit of the line. The work of a run follows from the line."""
    if line["unit"] == "GFLOP/s":
        return line["flops"] / seconds * 1e-9
    if line["unit"] == "GB/s":
        work = line["bytes"] or numbers(line["shape"])[0] * 2**20  # a transfer of so many MiB
        return work / seconds * 1e-9
    if line["unit"] == "µs":
        return seconds / numbers(line["shape"])[0] * 1e6
    if line["unit"] == "tokens/s":
        sequences, tokens, *_ = transformer(line)
        return sequences * tokens / seconds
    return batch_and_image(line)[0] / seconds
