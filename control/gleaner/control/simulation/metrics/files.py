"""Files that a simulation writes for other programs: the schedule as CSV, the figures as JSON."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic_core import to_json

from gleaner.control.simulation.run import Ground, Outcome
from gleaner.control.simulation.scenario import Scenario
from gleaner.control.simulation.schedule import Schedule
from gleaner.control.simulation.workload import Seconds

_BLOCK = 100_000


def write_schedule(path: Path, schedule: Schedule) -> None:
    """Write one line per job, in order of submission: job, submit, start, end, in seconds.

    A time that had not come is empty. Whole numbers have no point. Raise `OSError` if the file cannot be written.
    """
    columns = (schedule.workload.submit_s, schedule.start_s, schedule.end_s)
    with path.open("w", encoding="ascii", newline="\n") as file:
        file.write("job,submit,start,end\n")
        for first in range(0, len(schedule.workload), _BLOCK):
            block = slice(first, first + _BLOCK)
            texts = [_written(column[block]) for column in columns]
            jobs = schedule.workload.job[block].tolist()
            file.writelines(
                f"{job},{submit},{start},{end}\n" for job, submit, start, end in zip(jobs, *texts, strict=True)
            )


def run_value(outcome: Outcome, ground: Ground) -> dict[str, object]:
    """Return the value that `--json` writes for one run."""
    return _common(ground, outcome.scenario) | _outcome_value(outcome)


def comparison_value(outcomes: Sequence[Outcome], ground: Ground) -> dict[str, object]:
    """Return the value that `--json` writes for a comparison: its runs, in the order in which they were asked for."""
    runs = [_outcome_value(outcome) for outcome in outcomes]
    return _common(ground, outcomes[0].scenario) | {"runs": runs}


def write_json(path: Path, value: object) -> None:
    """Write the value as JSON. Equal values give equal bytes. Raise `OSError` if the file cannot be written."""
    path.write_bytes(to_json(value, indent=2) + b"\n")


def _common(ground: Ground, scenario: Scenario) -> dict[str, object]:
    machine = ground.machine
    return {
        "workload": {
            "name": ground.workload.name,
            "jobs": len(ground.workload),
            "read": ground.cleaning.read,
            "rules": [{"rule": rule, "jobs": count} for rule, count in ground.cleaning.rules],
            "conventions": scenario.workload.conventions,
            "until_s": scenario.workload.until_s,
            "keep_waiting": scenario.workload.keep_waiting,
        },
        "machine": {
            "nodes": machine.nodes,
            "cores": machine.cores,
            "units": machine.units,
            "allocation": machine.allocation,
            "classes": machine.classes,
        },
    }


def _outcome_value(outcome: Outcome) -> dict[str, object]:
    return {
        "label": outcome.label,
        "scheduler": outcome.scenario.scheduler,
        "agents": outcome.scenario.agents,
        "measures": outcome.measures,
    }


def _written(times_s: Seconds) -> list[str]:
    """Return the shortest texts that read as the same numbers; an empty text for NaN."""
    if bool(np.all(np.isfinite(times_s) & (times_s == np.rint(times_s)) & (np.abs(times_s) < 2**53))):
        return [str(whole) for whole in times_s.astype(np.int64).tolist()]
    return ["" if math.isnan(time_s) else _shortest(time_s) for time_s in times_s.tolist()]


def _shortest(time_s: float) -> str:
    return str(int(time_s)) if time_s.is_integer() else repr(time_s)
