"""The uninterrupted runs with which the demo and the tests compare their results, computed once per image and kept.

    python -m demo.reference        computes the missing runs, which it can do while other images are built

All runs compute at the same time, as they do on the cluster, because a run's processor time depends on the others.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from demo.proof import Run, cpu_s

DOCKER = ("docker", "--host", "unix:///run/gleaner/docker.sock")
IMAGE = "gleaner/pythia:demo"
KEPT_IN = Path("/var/lib/gleaner/reference")
RUNS = 12
PROCESS = "hardqcd"
SLICES = 4.2
"""The number of slices for which a job computes, if a slice is `computing_s` long, as on a machine with other work. On
a quiet machine, slices compute for 1.5 times as long and processors are faster, but a job is still restored twice."""
PER_NODE = 6
TRIAL_EVENTS = 800


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options of `generate.py` for one job. The campaign's index is the seed."""

    index: int
    events: int

    @property
    def arguments(self) -> tuple[str, ...]:
        """Return the image's arguments. The job's folder is the working folder."""
        return arguments(str(self.index), self.events)


def arguments(seed: str, events: int) -> tuple[str, ...]:
    """Return the image's arguments. For a whole campaign, `seed` can be `{index}`."""
    return ("--seed", seed, "--events", str(events), "--process", PROCESS, "--out", ".")


def folder(image_id: str) -> Path:
    """Return the folder in which this image's reference runs are kept."""
    return KEPT_IN / image_id.removeprefix("sha256:")[:24]


def image_id(image: str = IMAGE) -> str:
    """Return the content id of an image in our engine."""
    return _docker("image", "inspect", "--format", "{{.Id}}", image).strip()


def computing_s(cores: int) -> float:
    """Return the seconds in a round of one minute in which the jobs compute. Saves and restores need the rest.

    On a machine with two cores, which all nodes of the demo share, they need about 36 s of each round.

    >>> [round(computing_s(cores)) for cores in (2, 4, 16)]
    [24, 40, 52]
    """
    return 56.0 - 64.0 / max(2, cores)


def events_a_run(kept: Path, cores: int) -> int:
    """Return the number of events with which a job takes `SLICES` slices on this machine. The number is determined
    once."""
    found = kept / "events.json"
    if found.exists():
        return int(json.loads(found.read_text()))
    share = min(1.0, cores / RUNS)
    with ThreadPoolExecutor(max_workers=cores) as pool:
        trials = list(
            pool.map(lambda core: compute(Wanted(core + 1, TRIAL_EVENTS), kept / f"trial-{core}"), range(cores))
        )
    an_event_s = max(cpu_s(run.log) or 1.0 for run in trials) / TRIAL_EVENTS
    events = max(100, round(share * SLICES * computing_s(cores) / an_event_s))
    found.write_text(json.dumps(events))
    return events


def events_within(seconds: float, *, at_once: int) -> int:
    """Return the number of events with which each of `at_once` simultaneous runs computes for this long on this
    machine."""
    cores = os.cpu_count() or 1
    of_the_demo_s = SLICES * computing_s(cores) * min(1.0, cores / RUNS)
    return max(100, round(_kept()[1] * seconds * min(1.0, cores / at_once) / of_the_demo_s))


def compute(wanted: Wanted, kept: Path) -> Run:
    """Compute one job without interruption, unless an earlier run of it was kept."""
    return run_whole(IMAGE, wanted.arguments, kept)


def run_whole(
    image: str, words: Sequence[str], kept: Path, *, inputs: Path | None = None, mount: tuple[Path, str] | None = None
) -> Run:
    """Run an image without interruption, unless an earlier run was kept. The run finds `inputs` where a job finds them.

    `mount` is a folder, and the path at which the run finds it.
    """
    if not (kept / "log.txt").exists():
        work = kept / "files"
        subprocess.run(["rm", "-rf", str(kept)], check=True)
        work.mkdir(parents=True)
        work.chmod(0o777)
        more = [] if inputs is None else ["--volume", f"{inputs}:/inputs:ro"]
        more += [] if mount is None else ["--volume", f"{mount[0]}:{mount[1]}:ro"]
        printed = _docker(
            "run", "--rm", "--network", "none", "--user", "4200:4200", "--volume", f"{work}:/job", "--workdir", "/job",
            "--label", "org.gleaner.cluster=demo", *more, image, *words,
        )  # fmt: skip
        (kept / ".log").write_text(printed)
        (kept / ".log").rename(kept / "log.txt")
    return load(kept)


def load(kept: Path) -> Run:
    """Return a run that was kept."""
    files = {path.name: path.read_bytes() for path in sorted((kept / "files").iterdir())}
    return Run(files=files, log=(kept / "log.txt").read_text().splitlines())


def references() -> tuple[list[Wanted], list[Run]]:
    """Return the campaign and its uninterrupted runs. Missing runs are computed."""
    kept, events = _kept()
    wanted = [Wanted(index, events) for index in range(1, RUNS + 1)]
    return wanted, _computed(kept, wanted)


def longer(how_many: int, times: float) -> tuple[list[Wanted], list[Run]]:
    """Return `how_many` jobs that are `times` times as long as the campaign's, and their uninterrupted runs."""
    kept, events = _kept()
    wanted = [Wanted(index, round(times * events)) for index in range(RUNS + 1, RUNS + 1 + how_many)]
    return wanted, _computed(kept, wanted)


def _kept() -> tuple[Path, int]:
    kept = folder(image_id()) / f"jobs-of-{SLICES}-slices"
    kept.mkdir(parents=True, exist_ok=True)
    return kept, events_a_run(kept, os.cpu_count() or 1)


def _computed(kept: Path, wanted: Sequence[Wanted]) -> list[Run]:
    with ThreadPoolExecutor(max_workers=RUNS) as pool:
        return list(pool.map(lambda w: compute(w, kept / f"run-{w.index}-of-{w.events}-events"), wanted))


def _docker(*words: str) -> str:
    done = subprocess.run([*DOCKER, *words], capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode != 0:
        raise SystemExit(f"docker {' '.join(words[:3])}: {done.stderr.strip()[-500:]}")
    return done.stdout


def main(_words: Sequence[str]) -> None:
    """Compute the missing runs and print the length of a job."""
    wanted, runs = references()
    seconds = [cpu_s(run.log) or 0.0 for run in runs]
    print(f"references: {len(runs)} uninterrupted runs of {min(seconds):.0f} to {max(seconds):.0f} s each are kept")
    print(f"            ({wanted[0].events} events each)")


if __name__ == "__main__":
    main(sys.argv[1:])
