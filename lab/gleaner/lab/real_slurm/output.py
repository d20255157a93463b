"""Output of a validation: tables for people, all figures for programs."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict

import numpy as np

from gleaner.control.simulation.metrics.tables import Table, duration, number, percent
from gleaner.control.simulation.model import Seconds
from gleaner.lab.real_slurm.explain import Reason, Verdicts
from gleaner.lab.real_slurm.record import Record
from gleaner.lab.real_slurm.validation import QUANTILES, Distribution, Validation, distribution

_WITHIN_S = (1, 5, 30, 60, 300)
_WORDS: Mapping[Reason, str] = {
    Reason.TOGETHER: "no more than {together} apart",
    Reason.SUBMITTED: "sbatch itself came later",
    Reason.SCHEDULER: "its turn, and its nodes free: ending a job and looking again take Slurm that long",
    Reason.PASS: "it could overtake; Slurm sees that only every {interval}",
    Reason.MISSED: "it could overtake between two passes, and at the next no longer",
    Reason.NODES: "for the first waiting job Slurm keeps certain nodes, not a number of them",
    Reason.TIMES: "Slurm rounds its plan to {resolution}, and takes ends that are close together as one",
    Reason.PLAN: "a pass left it, EASY would not, and Slurm's plan does not say why",
    Reason.EARLIER: "by our rule it would have delayed the first waiting job, and no plan says why it did not",
    Reason.HANDED_ON: "jobs before it had run at other times",
}


def tables(found: Validation) -> tuple[Table, ...]:
    """Return the tables of the differences between starts, of their reasons, and of the waits."""
    return (_differences(found), _reasons(found), _waits(found))


def lines(found: Validation) -> tuple[str, ...]:
    """Return the facts that a reader of the tables needs."""
    plan = found.plan
    places = f"{plan.offsets} place{'s' if plan.offsets > 1 else ''} in the cycle of backfilling"
    replays = len(found.records)
    return (
        f"{len(found.workload)} jobs on {found.machine.nodes} nodes, replayed {_times(replays)} by Slurm "
        f"{found.place}, {plan.speed:g} times faster than the clock: {places}, {_times(plan.repeats)} each",
        "both sides: whole nodes, order of submission, EASY (bf_job_part_count_reserve=1), "
        f"bf_interval={plan.interval_s}, bf_resolution={plan.resolution_s}, limits of whole minutes",
        "limits of whole minutes alone give "
        f"{percent(found.moved_by_limits, 1)} of the jobs another start in our replay",
        _from_run_to_run(found),
    )


def _from_run_to_run(found: Validation) -> str:
    """Return a sentence that compares our distance from Slurm with Slurm's own spread from run to run."""
    if len(found.records) < 2:
        return "one replay does not say how much Slurm varies from run to run: --repeats 2"
    ours, spread = distribution(np.abs(found.difference_s)), distribution(_spread_s(found))
    return (
        f"from run to run a start of the real Slurm varies by {duration(spread.mean_s)} on average, by "
        f"{duration(spread.median_s)} in the median; our replay is {duration(ours.mean_s)} from the median of its runs "
        f"on average, {duration(ours.median_s)} in the median"
    )


def _spread_s(found: Validation) -> Seconds:
    """Return the spread at one place in the cycle if a place has several replays, else the spread over all places."""
    return found.spread_s() if found.plan.repeats > 1 else found.spread_of_offsets_s()


def _times(count: int) -> str:
    """Return a count of times in words.

    >>> _times(1), _times(4)
    ('once', '4 times')
    """
    return "once" if count == 1 else f"{count} times"


def _differences(found: Validation) -> Table:
    rows = [
        ("real Slurm - our replay", *_row(found.difference_s)),
        *(() if found.plan.repeats < 2 else (("real Slurm, again at the same place", *_row(found.spread_s())),)),
        *(() if found.plan.offsets < 2 else (("real Slurm, all replays", *_row(found.spread_of_offsets_s())),)),
    ]
    columns = ("starts apart by", *(f"{100 * q:.0f} %" for q in QUANTILES), "mean", *(f"≤ {s} s" for s in _WITHIN_S))
    return Table(columns, tuple(rows), "Per job: the median of the replays against ours; the range of the replays")


def _row(apart_s: Seconds) -> tuple[str, ...]:
    told = distribution(apart_s)
    within = (percent(float((np.abs(apart_s) <= limit_s).mean()), 1) for limit_s in _WITHIN_S)
    return (*(duration(one) for one in told.quantiles_s), duration(told.mean_s), *within)


def _reasons(found: Validation) -> Table:
    starts = found.starts_s.size
    words = {"together": duration(found.plan.together_s), "interval": duration(found.plan.interval_s)}
    words["resolution"] = duration(found.plan.resolution_s)
    rows = [
        (reason.value, _WORDS[reason].format(**words), number(count, 0), percent(count / starts, 1), duration(median_s))
        for reason, (count, median_s) in found.counts().items()
    ]
    columns = ("why", "", "starts", "share", "median difference")
    return Table(columns, tuple(rows), f"Why: the largest part of each difference, over all {starts} starts", left=2)


def _waits(found: Validation) -> Table:
    rows = [("our replay", *_wait(found.simulated.wait_s, found.simulated.end_s))]
    for place, one in enumerate(found.records, start=1):
        waits_s = one.start_s - found.workload.submit_s
        rows.append((f"real Slurm {place}, from {one.offset_s:g} s of the cycle", *_wait(waits_s, one.end_s)))
    return Table(("", "mean wait", "median", "95th", "last end"), tuple(rows))


def _wait(waits_s: Seconds, end_s: Seconds) -> tuple[str, ...]:
    figures = (waits_s.mean(), np.median(waits_s), np.quantile(waits_s, 0.95), end_s.max())
    return tuple(duration(float(one)) for one in figures)


def as_json(found: Validation) -> dict[str, object]:
    """Return all figures. Times are seconds from the first submission."""
    simulated = found.simulated
    return {
        "workload": found.workload.name,
        "nodes": found.machine.nodes,
        "place": found.place,
        "plan": found.plan,
        "difference_s": _value(distribution(found.difference_s)),
        "spread_s": _value(distribution(found.spread_s())),
        "spread_of_offsets_s": _value(distribution(found.spread_of_offsets_s())),
        "within": {str(limit_s): found.within(limit_s) for limit_s in _WITHIN_S},
        "moved_by_limits": found.moved_by_limits,
        "reasons": {
            reason.value: {"starts": count, "median_s": median_s}
            for reason, (count, median_s) in found.counts().items()
        },
        "mean_wait_s": {
            "simulated": float(simulated.wait_s.mean()),
            "real": [float((one.start_s - found.workload.submit_s).mean()) for one in found.records],
        },
        "jobs": [
            {
                "job": int(found.workload.job[place]),
                "nodes": int(found.machine.units_asked(found.workload.processors)[place]),
                "submit_s": float(found.workload.submit_s[place]),
                "run_s": float(found.workload.run_s[place]),
                "limit_s": float(found.workload.limit_s[place]),
                "simulated_s": float(simulated.start_s[place]),
                "real_s": [float(one.start_s[place]) for one in found.records],
                "allowed_s": [_known(float(one.allowed_s[place])) for one in found.verdicts],
                "left_at_s": [_left_at_s(one, verdict, place) for one, verdict in _pairs(found)],
                "backfilled": [bool(one.by_backfill[place]) for one in found.records],
                "reasons": [one[place].value for one in found.reasons],
            }
            for place in range(len(found.workload))
        ],
    }


def _pairs(found: Validation) -> Iterable[tuple[Record, Verdicts]]:
    return zip(found.records, found.verdicts, strict=True)


def _left_at_s(real: Record, verdict: Verdicts, job: int) -> float | None:
    """Return the beginning of the pass that left the job though EASY would have started it; None if there was none."""
    left = int(verdict.left[job])
    return real.passes[left].at_s if left >= 0 else None


def _value(told: Distribution) -> dict[str, object]:
    value: dict[str, object] = asdict(told)
    return value | {"quantiles": QUANTILES}


def _known(value_s: float) -> float | None:
    return None if np.isnan(value_s) else value_s
