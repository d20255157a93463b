"""Generate proton-proton collisions at 13 TeV with Pythia 8 and fill histograms of their charged particles.

    generate.py --seed N --events N --process NAME --out DIR

The standard output is a line `start ...`, a line `event N` for each event, and at the end `cpu_s SECONDS`. In DIR, one
line per event is appended to `events.csv`, which stays open, and `histograms.json` is written at the end. Both depend
only on the arguments, so two runs with the same arguments agree byte for byte.

The program does not know that it is saved and restored. So it does not empty `events.csv` at its start. If it were
started again in the folder of an interrupted run, it would leave a file that is visibly wrong.

The exit code is 0, or 1 if the generator or the file system failed, or 2 if the arguments are wrong.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

PROCESSES = {
    "minbias": ("SoftQCD:nonDiffractive = on",),
    "hardqcd": ("HardQCD:all = on", "PhaseSpace:pTHatMin = 20."),
    "ttbar": ("Top:gg2ttbar = on", "Top:qqbar2ttbar = on"),
    "zmumu": ("WeakSingleBoson:ffbar2gmZ = on", "23:onMode = off", "23:onIfAny = 13"),
}
SEED_MAX = 900_000_000  # Pythia's own limit, Random:seed
EVENTS_MAX = 10_000_000


class Histogram:
    """Counts in equal bins. Values outside the range are also counted, so no entry is lost."""

    def __init__(self, low: float, high: float, bins: int) -> None:
        self.low, self.high, self.counts = low, high, [0] * bins
        self.below = self.above = 0
        self.sum = 0.0

    def fill(self, value: float) -> None:
        self.sum += value
        if value < self.low:
            self.below += 1
        elif value >= self.high:
            self.above += 1
        else:
            self.counts[int((value - self.low) / (self.high - self.low) * len(self.counts))] += 1


def in_range(text: str, low: int, high: int) -> int:
    """Return the whole number in `text`. argparse turns an error into one line and exit code 2."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"{value} is not between {low} and {high}")
    return value


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="generate.py", usage="%(prog)s --seed N --events N --process NAME --out DIR")
    parser.add_argument("--seed", required=True, type=lambda text: in_range(text, 1, SEED_MAX))
    parser.add_argument("--events", required=True, type=lambda text: in_range(text, 1, EVENTS_MAX))
    parser.add_argument("--process", required=True)
    parser.add_argument("--out", required=True, type=Path)
    asked = parser.parse_args(words)
    if asked.process not in PROCESSES:
        refuse(f"unknown process {asked.process!r}; known are {', '.join(PROCESSES)}")
    if not asked.out.is_dir():
        refuse(f"--out {asked.out}: no such folder")
    return asked


def refuse(why: str) -> None:
    print(f"generate.py: {why}", file=sys.stderr)
    raise SystemExit(2)


def generator(seed: int, process: str):  # noqa: ANN201  (the bindings have no types)
    import pythia8mc

    pythia = pythia8mc.Pythia("", False)
    for line in ("Print:quiet = on", "Beams:eCM = 13000.", "Random:setSeed = on", f"Random:seed = {seed}"):
        pythia.readString(line)
    for line in PROCESSES[process]:
        pythia.readString(line)
    if not pythia.init():
        print(f"generate.py: Pythia could not set up {process}", file=sys.stderr)
        raise SystemExit(1)
    return pythia


def main() -> None:
    asked = parse(sys.argv[1:])
    sys.stdout.reconfigure(line_buffering=True)
    print(f"start process={asked.process} seed={asked.seed} events={asked.events}")
    pythia = generator(asked.seed, asked.process)
    multiplicity, pt_gev, eta = Histogram(0, 500, 100), Histogram(0, 50, 200), Histogram(-10, 10, 80)
    cpu_s, before_s = 0.0, 0.0
    events_file = os.open(asked.out / "events.csv", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in range(1, asked.events + 1):
        while not pythia.next():  # Pythia sometimes gives up an event, and the next try continues its sequence
            pass
        charged, sum_pt_gev = 0, 0.0
        for particle in pythia.event:
            if particle.isFinal() and particle.isCharged():
                charged += 1
                sum_pt_gev += particle.pT()
                pt_gev.fill(particle.pT())
                eta.fill(particle.eta())
        multiplicity.fill(charged)
        os.write(events_file, f"{number},{charged},{sum_pt_gev!r}\n".encode())
        print(f"event {number}")
        # Summed for each event, because the kernel counts per process, and a restored process begins at 0.
        now_s = time.process_time()
        cpu_s += max(0.0, now_s - before_s)
        before_s = now_s
    os.close(events_file)
    named = {"multiplicity": multiplicity, "pt_gev": pt_gev, "eta": eta}
    result = {"process": asked.process, "seed": asked.seed, "events": asked.events}
    result["sigma_mb"] = pythia.infoPython().sigmaGen()
    result["histograms"] = {name: vars(histogram) for name, histogram in named.items()}
    unfinished = asked.out / "histograms.json.part"
    unfinished.write_text(json.dumps(result, indent=1) + "\n")
    unfinished.rename(asked.out / "histograms.json")
    print(f"cpu_s {cpu_s:.2f}")


if __name__ == "__main__":
    main()
