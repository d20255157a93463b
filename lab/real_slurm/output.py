"""The tables and lines of a validation."""

import numpy as np

from gleaner.control.simulation.metrics.tables import Table, duration, percent
from gleaner.control.simulation.model import Seconds
from lab.real_slurm.validation import Validation

_WITHIN_S = (1, 5, 30, 60, 300)
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def tables(found: Validation) -> tuple[Table, ...]:
    """Return the tables of the differences between starts, and of the waits."""
    return (_differences(found), _waits(found))


def lines(found: Validation) -> tuple[str, ...]:
    """Return the lines that a reader of the tables needs."""
    plan = found.plan
    places = f"{plan.offsets} place{'s' if plan.offsets > 1 else ''} in the cycle of backfilling"
    replays = len(found.records)
    return (
        f"{len(found.workload)} jobs on {found.machine.nodes} nodes, replayed {_times(replays)} by Slurm, "
        f"{plan.speed:g} times faster than the clock: {places}, {_times(plan.repeats)} each",
        "both sides: whole nodes, order of submission, EASY (bf_job_part_count_reserve=1), "
        f"bf_interval={plan.interval_s}, bf_resolution={plan.resolution_s}, limits of whole minutes",
        "limits of whole minutes alone give "
        f"{percent(found.moved_by_limits, 1)} of the jobs another start in our replay",
        _from_run_to_run(found),
    )


def _from_run_to_run(found: Validation) -> str:
    """Return a sentence that compares our difference from Slurm with Slurm's own spread from run to run."""
    if found.plan.repeats < 2:
        return "one replay does not say how much Slurm varies from run to run: --repeats 2"
    ours, spread = np.abs(found.difference_s), found.spread_s()
    return (
        f"from run to run a start of the real Slurm varies by {duration(spread.mean())} on average, by "
        f"{duration(float(np.median(spread)))} in the median; our replay is {duration(ours.mean())} from the median of "
        f"its runs on average, {duration(float(np.median(ours)))} in the median"
    )


def _times(count: int) -> str:
    """Return a number of times in words.

    >>> _times(1), _times(4)
    ('once', '4 times')
    """
    return "once" if count == 1 else f"{count} times"


def _differences(found: Validation) -> Table:
    rows = (
        ("real Slurm - our replay", *_row(found.difference_s)),
        ("real Slurm, again at the same place", *_row(found.spread_s())),
        ("real Slurm, all replays", *_row(found.spread_of_offsets_s())),
    )
    columns = ("starts apart by", *(f"{100 * q:.0f} %" for q in _QUANTILES), "mean", *(f"≤ {s} s" for s in _WITHIN_S))
    return Table(columns, rows, "Per job: the median of the replays against ours; the range of the replays")


def _row(apart_s: Seconds) -> tuple[str, ...]:
    within = (percent(float((np.abs(apart_s) <= limit_s).mean()), 1) for limit_s in _WITHIN_S)
    quantiles_s: list[float] = np.quantile(apart_s, _QUANTILES).tolist()
    return (*map(duration, quantiles_s), duration(float(apart_s.mean())), *within)


def _waits(found: Validation) -> Table:
    rows = [("our replay", *_wait(found.simulated.wait_s, found.simulated.end_s))]
    for place, one in enumerate(found.records, start=1):
        waits_s = one.start_s - found.workload.submit_s
        rows.append((f"real Slurm {place}, from {one.offset_s:g} s of the cycle", *_wait(waits_s, one.end_s)))
    return Table(("", "mean wait", "median", "95th", "last end"), tuple(rows))


def _wait(waits_s: Seconds, end_s: Seconds) -> tuple[str, ...]:
    figures = (waits_s.mean(), np.median(waits_s), np.quantile(waits_s, 0.95), end_s.max())
    return tuple(duration(float(one)) for one in figures)
