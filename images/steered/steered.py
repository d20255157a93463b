"""Generate collisions according to a steering file, and weight each event by a table, as a user's own program might.

    steered.py --seed N

/inputs/steering.txt has a line `NAME = VALUE` for each of `process` and `events`. /inputs/weights.bin is a table of
numbers of 8 bytes each. It stays open from the first event to the last, so the job has it open at each save. If the
steering file has `constants`, it names one of the site's files with a line `scale = N`, and each weight is multiplied
by N.

The standard output is the same as that of `generate.py`. In the working folder, the program writes `events.csv`, and at
the end `result.json` with the SHA-256 of the table, which is read at the beginning and again at the end.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import generate

STEERING, WEIGHTS = Path("/inputs/steering.txt"), Path("/inputs/weights.bin")
STRIDE = 7919 * 8


def main() -> None:
    if sys.argv[1:2] != ["--seed"] or not sys.argv[2:]:
        generate.refuse("usage: steered.py --seed N")
    seed = int(sys.argv[2])
    lines = (line.partition("=") for line in STEERING.read_text().splitlines())
    steering = {name.strip(): value.strip() for name, equals, value in lines if equals}
    process, events = steering["process"], int(steering["events"])
    scale = int(Path(steering["constants"]).read_text().partition("=")[2]) if "constants" in steering else 1
    sys.stdout.reconfigure(line_buffering=True)
    print(f"start process={process} seed={seed} events={events}")
    digests = [digest()]
    pythia = generate.generator(seed, process)
    weights = os.open(WEIGHTS, os.O_RDONLY)
    table_bytes = os.fstat(weights).st_size - 8
    rows = os.open("events.csv", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    cpu_s, before_s = 0.0, 0.0
    for number in range(1, events + 1):
        while not pythia.next():
            pass
        charged = sum(1 for particle in pythia.event if particle.isFinal() and particle.isCharged())
        weight = int.from_bytes(os.pread(weights, 8, number * STRIDE % table_bytes), "little") * scale
        os.write(rows, f"{number},{charged},{weight}\n".encode())
        print(f"event {number}")
        now_s = time.process_time()
        cpu_s += max(0.0, now_s - before_s)
        before_s = now_s
    digests.append(digest())
    result = {"process": process, "seed": seed, "events": events, "weights": digests}
    Path("result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"cpu_s {cpu_s:.2f}")


def digest() -> str:
    with WEIGHTS.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    main()
