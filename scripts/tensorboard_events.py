#!/usr/bin/env python3
"""Reads tests/data/events.tfevents, which src/watch/events.rs writes byte for byte, with TensorBoard's own package.

    python3 -m venv v && v/bin/pip install tensorboard && v/bin/python scripts/tensorboard_events.py [FILE ...]

TensorBoard checks the checksums and parses the events; the values of the committed file are checked here.
"""

import pathlib
import sys

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXPECTED = [("loss/train", 0, 2.5), ("loss/train", 1, 1.25), ("loss/train", 300, 2.5 / 301), ("größe", 7, -1e30)]


def events(path):
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            # The loader turns simple values into tensors of one element.
            yield value.tag, event.step, value.tensor.float_val[0] if value.HasField("tensor") else value.simple_value


def main():
    if len(sys.argv) > 1:
        for path in sys.argv[1:]:
            for event in events(path):
                print(*event)
        return
    found = list(events(ROOT / "tests/data/events.tfevents"))
    assert len(found) == len(EXPECTED), found
    for (tag, step, value), expected in zip(found, EXPECTED):
        assert (tag, step) == expected[:2] and abs(value - expected[2]) <= 1e-6 * abs(expected[2]), (tag, step, value)
    print("\n".join(f"{tag} {step} {value}" for tag, step, value in found))


if __name__ == "__main__":
    main()
