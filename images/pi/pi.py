"""Estimate pi by throwing points at a square.

    pi.py --samples N --seed S --out DIR [--memory MIB]

It keeps so much random memory in use, as a larger workload would. Standard output: `start ...`, a line `progress P`
for each percent, `cpu_s SECONDS`. DIR/pi.txt holds the result, which depends on the arguments only. Exit codes: 0 done,
2 the arguments are wrong.
"""

import os
import random
import sys
import time

USAGE = "usage: pi.py --samples N --seed S --out DIR [--memory MIB]"
REQUIRED = {"--samples", "--seed", "--out"}
MIB = 2**20


def arguments(words: list[str]) -> tuple[int, int, str, int]:
    """Samples, seed, folder and memory. (argparse is not in Debian's smallest Python.)"""
    given = dict(zip(words[::2], words[1::2], strict=False))
    if len(words) != 2 * len(given) or set(given) - {"--memory"} != REQUIRED:
        raise ValueError(USAGE)
    samples, seed = int(given["--samples"]), int(given["--seed"])
    if not 1 <= samples <= 10**12:
        raise ValueError(f"--samples {samples} is not between 1 and 10^12")
    memory_mib = int(given.get("--memory", "0"))
    if not 0 <= memory_mib <= 10**6:
        raise ValueError(f"--memory {memory_mib} is not between 0 and 10^6")
    return samples, seed, given["--out"], memory_mib


def main() -> None:
    try:
        samples, seed, out, memory_mib = arguments(sys.argv[1:])
    except ValueError as wrong:
        print(f"pi.py: {wrong}", file=sys.stderr)
        raise SystemExit(2) from None
    sys.stdout.reconfigure(line_buffering=True)
    print(f"start samples={samples} seed={seed}")
    kept = [os.urandom(MIB) for _ in range(memory_mib)]
    draw = random.Random(seed).random
    inside = done = 0
    cpu_s = before_s = 0.0
    for percent in range(1, 101):
        until = samples * percent // 100
        for _ in range(until - done):
            x, y = draw(), draw()
            inside += x * x + y * y <= 1.0
        done = until
        print(f"progress {percent}")
        now_s = time.process_time()
        cpu_s += max(0.0, now_s - before_s)
        before_s = now_s
    with open(f"{out}/pi.txt", "w") as result:
        result.write(f"{4 * inside / samples!r} from {samples} points, seed {seed}\n")
    print(f"cpu_s {cpu_s:.2f}")
    del kept


if __name__ == "__main__":
    main()
