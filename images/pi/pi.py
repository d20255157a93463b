"""Estimate pi by throwing points at a square.

    pi.py --samples N --seed S --out DIR

Standard output: `start ...`, a line `progress P` for each percent, `cpu_s SECONDS`. DIR/pi.txt holds the result, which
depends on the arguments only. Exit codes: 0 done, 2 the arguments are wrong.
"""

import random
import sys
import time

USAGE = "usage: pi.py --samples N --seed S --out DIR"


def arguments(words: list[str]) -> tuple[int, int, str]:
    """Samples, seed and folder. (argparse is not in Debian's smallest Python.)"""
    given = dict(zip(words[::2], words[1::2], strict=False))
    if len(words) != 6 or set(given) != {"--samples", "--seed", "--out"}:
        raise ValueError(USAGE)
    samples, seed = int(given["--samples"]), int(given["--seed"])
    if not 1 <= samples <= 10**12:
        raise ValueError(f"--samples {samples} is not between 1 and 10^12")
    return samples, seed, given["--out"]


def main() -> None:
    try:
        samples, seed, out = arguments(sys.argv[1:])
    except ValueError as wrong:
        print(f"pi.py: {wrong}", file=sys.stderr)
        raise SystemExit(2) from None
    sys.stdout.reconfigure(line_buffering=True)
    print(f"start samples={samples} seed={seed}")
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


if __name__ == "__main__":
    main()
