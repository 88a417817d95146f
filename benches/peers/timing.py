"""The method of `anygpu bench`: repeats of at least 50 ms, some that are not measured before them, and the median."""

import statistics
import time

LEAST = 0.05
MOST_RUNS = 512


def seconds(run, wait, repeats, warm_up, most_runs=MOST_RUNS):
    """The time of one run, in seconds, in each repeat. `wait` returns when the device has finished."""

    def repeat(runs):
        start = time.perf_counter()
        for _ in range(runs):
            run()
        wait()
        return max(time.perf_counter() - start, 1e-9) / runs

    repeat(1)
    runs = min(max(int(-(-LEAST // repeat(1))), 1), most_runs)
    for _ in range(warm_up):
        repeat(runs)
    return [repeat(runs) for _ in range(repeats)]


def median(values):
    return statistics.median(values)
