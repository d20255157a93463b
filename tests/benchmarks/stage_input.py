"""Stage one input as an agent does it, in a process that has loaded an agent's code and nothing else. For bench_image.

    stage_input.py STORAGE ASSIGNMENT PLACE

Print the most memory before and after, in MiB, and the seconds.
"""

import json
import sys
import threading
import time
from pathlib import Path

from gleaner.agent import main as _agent  # noqa: F401  # pyright: ignore[reportUnusedImport]
from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.common.clock import SystemClock
from gleaner.agent.job.inputs import Inputs
from gleaner.agent.messages import Assignment


def peak_mib() -> float:
    """Return the most memory that this program has had, proc(5).

    getrusage(2) would count the memory of the parent, too, from which this process was forked.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def main(storage: str, assignment: str, place: str) -> None:
    """Stage, and print the figures as JSON."""
    inputs = Inputs(Path(place), FolderStorage(Path(storage)), 0, SystemClock())
    idle_mib, began_s = peak_mib(), time.monotonic()
    inputs.stage(Assignment.model_validate_json(Path(assignment).read_text()), threading.Event())
    seconds = time.monotonic() - began_s
    print(json.dumps({"idle_mib": round(idle_mib, 1), "peak_mib": round(peak_mib(), 1), "seconds": round(seconds, 2)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
