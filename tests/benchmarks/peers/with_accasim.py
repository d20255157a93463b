"""AccaSim's EASY backfilling on a trace, run by a Python that has AccaSim and not us. Prints what it took as JSON.

AccaSim 1.1.3 is of 2021: it asks the standard library for a name that has moved since. A processor is a node of one
core to it. Of its output it writes the least that says when each job started.
"""

import argparse
import collections
import collections.abc
import json
import sys
import time
from pathlib import Path

collections.Mapping = collections.abc.Mapping  # type: ignore[attr-defined]

from accasim.base.allocator_class import FirstFit  # noqa: E402  # pyright: ignore[reportMissingImports]
from accasim.base.scheduler_class import EASYBackfilling  # noqa: E402  # pyright: ignore[reportMissingImports]
from accasim.base.simulator_class import Simulator  # noqa: E402  # pyright: ignore[reportMissingImports]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("trace", type=Path)
    parser.add_argument("--processors", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    system = options.folder / "system.json"
    system.write_text(
        json.dumps(
            {
                "groups": {"all": {"core": 1}},
                "resources": {"all": options.processors},
                "equivalence": {"processor": {"core": 1}},
                "start_time": 0,
            }
        )
    )
    began_s = time.process_time()
    simulator = Simulator(
        str(options.trace),
        str(system),
        EASYBackfilling(FirstFit()),
        statistics_output=False,
        show_statistics=False,
        RESULTS_FOLDER_PATH=str(options.folder),
        LOG_LEVEL="ERROR",
        SCHEDULE_OUTPUT={
            "format": "{job};{submit};{start}",
            "attributes": {"job": ("id", "str"), "submit": ("queued_time", "int"), "start": ("start_time", "int")},
        },
    )
    files = simulator.start_simulation()
    took_s = time.process_time() - began_s
    rows = [line.split(";") for line in Path(next(iter(files.values()))).read_text().split()]
    waits = {job: int(start) - int(submit) for job, submit, start in rows}
    json.dump({"seconds": took_s, "waits": waits}, sys.stdout)


if __name__ == "__main__":
    main()
