"""The output of a run or a comparison, namely tables for users, all figures as JSON for programs, and the schedule as
CSV."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from gleaner.control.simulation.metrics.measures import Change, Measures, OwnerFigures, SizeClass, Waits
from gleaner.control.simulation.metrics.tables import Table, change, duration, number, percent, shortest
from gleaner.control.simulation.model import Cleaning, Schedule, Seconds
from gleaner.control.simulation.run import Ground, ReplayOutcome
from gleaner.control.simulation.scenario import Scenario

_OWNERS = 10
"""The number of users or groups that a table shows. JSON has all of them."""


def machine_table(measures: Measures) -> Table:
    """Return a table of the use of the machine's time."""
    effect, has_agents = measures.effect, measures.agents > 0
    nodes = (measures.nodes_full, measures.nodes_mixed, measures.nodes_empty)
    rows = (
        ("effective load", percent(measures.effective_load), _before(effect.effective_load if effect else None)),
        ("regular load", percent(measures.regular_load), _before(effect.regular_load if effect else None)),
        ("agents computing", percent(measures.parts.agents_compute if has_agents else None), ""),
        ("saving", percent(measures.saving or None), ""),
        ("restoring", percent(measures.restoring or None), ""),
        ("lost", percent(measures.lost or None), ""),
        ("idle", percent(measures.idle), _before(effect.idle if effect else None)),
        ("agents", number(measures.agents or None, 0), ""),
        ("saves of agents' nodes", number(measures.agent_saves if has_agents else None, 0), ""),
        ("low-priority jobs completed", number(measures.agent_jobs_done, 0), ""),
        ("nodes full / mixed / empty", " / ".join(percent(share, 1) for share in nodes) if nodes[1] > 0 else "", ""),
        ("saves of regular jobs", number(measures.job_saves or None, 0), ""),
    )
    return _without_empty(Table(("machine", "", "without agents"), tuple(row for row in rows if row[1])))


def jobs_table(measures: Measures) -> Table:
    """Return a table of the waits of regular jobs."""
    waits, effect = measures.waits, measures.effect
    rows: list[tuple[str, ...]] = [
        ("jobs", number(measures.jobs, 0), "", ""),
        ("mean wait", duration(waits.mean_s), *_compared(effect.mean_wait_s if effect else None)),
        ("median wait", duration(waits.median_s), *_compared(effect.median_wait_s if effect else None)),
        ("95th percentile", duration(waits.p95_s), *_compared(effect.p95_wait_s if effect else None)),
        ("99th percentile", duration(waits.p99_s), *_compared(effect.p99_wait_s if effect else None)),
        ("mean bounded slowdown", number(waits.mean_slowdown, 2), *_slowed(effect.mean_slowdown if effect else None)),
    ]
    if never := _never_started(measures):
        rows.append(("never started", never, "", ""))
    if effect is not None:
        rows.append(("start later, earlier", f"{percent(effect.later, 1)}, {percent(effect.earlier, 1)}", "", ""))
    return _without_empty(Table(("regular jobs", "", "without agents", "change"), tuple(rows)))


def sizes_table(measures: Measures, unit: str) -> Table:
    """Return a table of the waits by the size of jobs."""
    columns: dict[str, Callable[[SizeClass], str]] = {
        unit: lambda one: size_name(one.smallest, one.largest),
        "jobs": lambda one: number(one.waits.jobs, 0),
        "mean wait": lambda one: duration(one.waits.mean_s),
        "median": lambda one: duration(one.waits.median_s),
        "95th": lambda one: duration(one.waits.p95_s),
        "slowdown": lambda one: number(one.waits.mean_slowdown, 2),
        "mean without agents": lambda one: duration(one.baseline.mean_s) if one.baseline else "",
        "change": lambda one: _grown(one.baseline, one.waits),
    }
    return _without_empty(Table.of(measures.size_classes, columns, right=tuple(columns)[1:]))


def owners_table(owners: Sequence[OwnerFigures], what: str, jain: float | None) -> Table:
    """Return a table of the owners' shares of the machine."""
    rows = [(one.name, number(one.jobs, 0), percent(one.share), duration(one.mean_wait_s)) for one in owners[:_OWNERS]]
    if len(owners) > _OWNERS:
        rest = owners[_OWNERS:]
        rows.append((f"{len(rest)} others", number(sum(one.jobs for one in rest), 0), percent(_shares(rest)), ""))
    title = "" if jain is None else f"Jain's index over {len(owners)} {what}s: {jain:.3f}"
    return Table((what, "jobs", "share of the machine", "mean wait"), tuple(rows), title)


def comparison_table(outcomes: Sequence[ReplayOutcome]) -> Table:
    """Return a table of several replays side by side."""
    columns: dict[str, Callable[[ReplayOutcome], str]] = {
        "": lambda one: one.label,
        "effective": lambda one: percent(one.measures.effective_load),
        "regular": lambda one: percent(one.measures.regular_load),
        "idle": lambda one: percent(one.measures.idle),
        "mean wait": lambda one: duration(one.measures.waits.mean_s),
        "median": lambda one: duration(one.measures.waits.median_s),
        "95th": lambda one: duration(one.measures.waits.p95_s),
        "99th": lambda one: duration(one.measures.waits.p99_s),
        "slowdown": lambda one: number(one.measures.waits.mean_slowdown, 2),
        "wait change": lambda one: change(one.measures.effect.mean_wait_s.relative) if one.measures.effect else "",
        "never started": lambda one: _never_started(one.measures),
    }
    return _without_empty(Table.of(outcomes, columns, right=tuple(columns)[1:]))


def cleaning_lines(cleaning: Cleaning, jobs: int) -> tuple[str, ...]:
    """Return lines about the changes that were made to the trace before its use."""
    if not cleaning.rules:
        return (f"{cleaning.read:,} jobs read, all of them used as they are",)
    return (
        f"{cleaning.read:,} jobs read, {jobs:,} used",
        *(f"{rule}: {count:,}" for rule, count in cleaning.rules),
    )


def size_name(smallest: int, largest: int) -> str:
    """Return the name of a size class.

    >>> size_name(1, 1), size_name(5, 16)
    ('1', '5-16')
    """
    return str(smallest) if smallest == largest else f"{smallest:,}-{largest:,}"


def _before(found: Change | None) -> str:
    return percent(found.before) if found else ""


def _compared(found: Change | None) -> tuple[str, str]:
    return (duration(found.before), _relative(found)) if found else ("", "")


def _slowed(found: Change | None) -> tuple[str, str]:
    return (number(found.before, 2), _relative(found)) if found else ("", "")


def _relative(found: Change) -> str:
    if found.relative is None:
        return "" if not found.absolute else f"+{duration(found.absolute)}"
    return change(found.relative)


def _never_started(found: Measures) -> str:
    return number(found.jobs - found.started, 0) if found.started < found.jobs else ""


def _grown(before: Waits | None, after: Waits) -> str:
    if before is None or not before.mean_s or after.mean_s is None:
        return ""
    return change(after.mean_s / before.mean_s - 1)


def _shares(owners: Sequence[OwnerFigures]) -> float:
    return sum(one.share for one in owners)


def _without_empty(table: Table) -> Table:
    """Return the table without empty columns."""
    kept = [0, *(place for place in range(1, len(table.columns)) if any(row[place] for row in table.rows))]
    rows = tuple(tuple(row[place] for place in kept) for row in table.rows)
    return replace(table, columns=tuple(table.columns[place] for place in kept), rows=rows)


_BLOCK = 100_000


def write_schedule(path: Path, schedule: Schedule) -> None:
    """Write one line per job, in order of submission, with the job's number and its submission, start and end in
    seconds.

    A start or an end that the replay did not reach is empty. Whole numbers have no decimal point. Raise `OSError` if
    the file cannot be written.
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


def run_value(outcome: ReplayOutcome, ground: Ground) -> dict[str, object]:
    """Return the value that `--json` writes for one run."""
    return _common(ground, outcome.scenario) | _outcome_value(outcome)


def comparison_value(outcomes: Sequence[ReplayOutcome], ground: Ground) -> dict[str, object]:
    """Return the value that `--json` writes for a comparison, with its runs in the requested order."""
    runs = [_outcome_value(outcome) for outcome in outcomes]
    return _common(ground, outcomes[0].scenario) | {"runs": runs}


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


def _outcome_value(outcome: ReplayOutcome) -> dict[str, object]:
    return {
        "label": outcome.label,
        "scheduler": outcome.scenario.scheduler,
        "agents": outcome.scenario.agents,
        "measures": outcome.measures,
    }


def _written(times_s: Seconds) -> list[str]:
    """Return the shortest texts that are read as the same numbers, and an empty text for NaN."""
    return ["" if math.isnan(time_s) else shortest(time_s) for time_s in times_s.tolist()]
