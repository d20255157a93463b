"""Estimate pi by throwing points at a square.

    pi.py --samples N --seed S --out DIR [--memory MIB] [--rest SECONDS]

With `--memory`, it keeps this much random memory in use, as a larger workload would. With `--rest`, it pauses after
each hundred thousand points, for tests that need a running job but no processor time. Its standard output is
`start ...`, a line `progress P` for each percent, and `cpu_s SECONDS`. DIR/pi.txt contains the result, which depends
only on the samples and the seed. The exit code is 0, or 2 if the arguments are wrong.
"""

import os
import random
import sys
import time

USAGE = "usage: pi.py --samples N --seed S --out DIR [--memory MIB] [--rest SECONDS]"
REQUIRED = {"--samples", "--seed", "--out"}
MIB = 2**20
AT_ONCE = 100_000


def arguments(words: list[str]) -> tuple[int, int, str, int, float]:
    """Return samples, seed, folder, memory and rest. Debian's smallest Python does not have argparse."""
    given = dict(zip(words[::2], words[1::2], strict=False))
    if len(words) != 2 * len(given) or set(given) - {"--memory", "--rest"} != REQUIRED:
        raise ValueError(USAGE)
    samples, seed = int(given["--samples"]), int(given["--seed"])
    if not 1 <= samples <= 10**12:
        raise ValueError(f"--samples {samples} is not between 1 and 10^12")
    memory_mib = int(given.get("--memory", "0"))
    if not 0 <= memory_mib <= 10**6:
        raise ValueError(f"--memory {memory_mib} is not between 0 and 10^6")
    return samples, seed, given["--out"], memory_mib, float(given.get("--rest", "0"))


def main() -> None:
    try:
        samples, seed, out, memory_mib, rest_s = arguments(sys.argv[1:])
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
        while done < until:
            step = min(AT_ONCE, until - done)
            for _ in range(step):
                x, y = draw(), draw()
                inside += x * x + y * y <= 1.0
            done += step
            if rest_s:
                time.sleep(rest_s)
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
