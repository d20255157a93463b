"""Simultaneous Fair-Share compared with linear priority, for Alice, Bob and Chris on 1400 nodes (Steffen, HPCSYSPROS
2019)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gleaner.control.simulation.model import Schedule, Seconds, Workload, of_nodes
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import PrioritySettings, SchedulerKind, SchedulerSettings, ShareSettings
from lab.experiments.comparison import Experiment, Facts, Reproduction, Row

DAY_S = 86_400.0


class _User(Facts):
    name: str
    jobs: int
    nodes: int
    wall_s: float
    first_day: int
    target: float


class _Start(Facts):
    printed: str
    program: float
    least: float
    most: float


class _SetUp(Facts):
    name: str
    kind: SchedulerKind
    per_unit: float
    starts: dict[str, _Start]


class _Published(Facts):
    bob_runs: float
    bob_steady: str
    utilisation: float
    tolerance: float
    """The largest accepted difference between our shares and the published ones."""


class FairShareSettings(Experiment):
    """The settings in `fair_share.toml`."""

    nodes: int
    decide_every_s: float
    days: int
    run_share: tuple[float, float]
    seeds: int
    submitted_after_s: float
    users: tuple[_User, ...]
    set_ups: tuple[_SetUp, ...]
    published: dict[SchedulerKind, _Published]


@dataclass(frozen=True, slots=True)
class RunFigures:
    """The figures of one run of one set-up."""

    starts_days: Mapping[str, float]
    """The time from each user's first submission to the user's first start."""
    bob_runs: float
    """The share of the days of submission in which at least one of Bob's jobs runs."""
    bob_steady: float
    """The share of these days in which Bob reaches his target."""
    utilisation: float
    """The utilisation until the last job ends."""
    utilisation_of_days: float
    """The utilisation during the days of submission."""


def run(settings: Mapping[str, object], *, quick: bool) -> Reproduction:
    """Replay the four set-ups over all seeds, or over 8 seeds with `quick`, and compare the results with the published
    ones.

    The rows also show the effect of the one detail that was not published.
    """
    told = FairShareSettings.model_validate(settings)
    seeds = range(min(told.seeds, 8) if quick else told.seeds)
    at_once = told.model_copy(update={"submitted_after_s": 0.0})
    rows: list[Row] = []
    for kind in (SchedulerKind.PRIORITY, SchedulerKind.SFS):
        of_kind: list[RunFigures] = []
        for set_up in told.set_ups:
            if set_up.kind is kind:
                founds = [found(told, set_up, seed) for seed in seeds]
                rows += _starts(set_up, founds, [found(at_once, set_up, seed) for seed in seeds])
                of_kind += founds
        rows += _shares("linear" if kind is SchedulerKind.PRIORITY else "SFS", of_kind, told.published[kind])
    return told.compared(rows, seeds=len(seeds))


def found(settings: FairShareSettings, set_up: _SetUp, seed: int) -> RunFigures:
    """Replay one set-up with one seed, and return its figures."""
    workload = submitted(settings, seed)
    scheduler = SchedulerSettings(
        kind=set_up.kind,
        decide_every_s=settings.decide_every_s,
        priority=PrioritySettings(per_second=1, per_unit=set_up.per_unit),
        sfs=ShareSettings(targets={user.name: user.target for user in settings.users}),
    )
    schedule = replay(workload, of_nodes(settings.nodes), scheduler)
    starts_days: dict[str, float] = {}
    for code, user in enumerate(workload.users):
        own = workload.user == code
        starts_days[user] = float(schedule.start_s[own].min() - workload.submit_s[own].min()) / DAY_S
    bobs = workload.user == workload.users.index("Bob")
    target = next(user.target for user in settings.users if user.name == "Bob")
    until_s = settings.days * DAY_S
    return RunFigures(
        starts_days=starts_days,
        bob_runs=_share_of_time(schedule, bobs, units=1, until_s=until_s),
        bob_steady=_share_of_time(schedule, bobs, units=target, until_s=until_s),
        utilisation=_utilisation(schedule, float(schedule.end_s.max())),
        utilisation_of_days=_utilisation(schedule, until_s),
    )


def submitted(settings: FairShareSettings, seed: int) -> Workload:
    """Return the jobs of all days. Time 0 is the start of day 1."""
    rows = [
        ((day - 1) * DAY_S + settings.submitted_after_s, user.wall_s, user.nodes, code)
        for day in range(1, settings.days + 1)
        for code, user in enumerate(settings.users)
        if day >= user.first_day
        for _ in range(user.jobs)
    ]
    submit_s, limit_s, nodes, user = (np.array(column) for column in zip(*rows, strict=True))
    draw = np.random.Generator(np.random.PCG64(seed))
    return Workload(
        name="Alice, Bob and Chris",
        job=np.arange(1, len(rows) + 1),
        submit_s=submit_s,
        run_s=limit_s * draw.uniform(*settings.run_share, len(rows)),
        limit_s=limit_s,
        processors=nodes.astype(np.int64),
        memory_mib=np.zeros(len(rows)),
        user=user.astype(np.int32),
        group=np.zeros(len(rows), np.int32),
        job_class=np.zeros(len(rows), np.int8),
        users=tuple(user.name for user in settings.users),
    )


def _utilisation(schedule: Schedule, until_s: float) -> float:
    runs_s = np.minimum(schedule.end_s, until_s) - np.minimum(schedule.start_s, until_s)
    return float(runs_s @ schedule.workload.processors) / (schedule.machine.nodes * until_s)


def _share_of_time(schedule: Schedule, jobs: np.ndarray, *, units: float, until_s: float) -> float:
    """Return the share of the time up to `until_s` in which these jobs hold at least `units`."""
    at_s = np.concatenate((schedule.start_s[jobs], schedule.end_s[jobs]))
    change = np.tile(schedule.workload.processors[jobs], 2)
    change[len(change) // 2 :] *= -1
    order = np.argsort(at_s, kind="stable")
    at_s = np.minimum(np.append(at_s[order], until_s), until_s)
    held: Seconds = np.cumsum(change[order]).astype(np.float64)
    return float(np.diff(at_s)[held >= units].sum()) / until_s


def _starts(set_up: _SetUp, founds: Sequence[RunFigures], at_once: Sequence[RunFigures]) -> list[Row]:
    """Return one row per user, with the wait for the first start beside the published one."""
    rows: list[Row] = []
    for user, start in set_up.starts.items():
        days = [found.starts_days[user] for found in founds]
        mean = sum(days) / len(days)
        if_seen = sum(found.starts_days[user] for found in at_once) / len(at_once)
        lies = "inside" if start.least <= mean <= start.most else "OUTSIDE"
        rows.append(
            Row(
                f"{set_up.name}: {user}'s first start, days after submission",
                f"{start.printed} (their program: {start.program:g})",
                round(mean, 4),
                f"{lies} {start.least:g} to {start.most:g}; seeds {min(days):.4g} to {max(days):.4g}; "
                f"{if_seen:.4f} if jobs are seen at once",
            )
        )
    return rows


def _shares(name: str, founds: Sequence[RunFigures], published: _Published) -> list[Row]:
    """Return the rows for the figures that exist for both set-ups of a kind."""
    return [
        _share(
            f"{name}: share of days 1 to 7 with a job of Bob's", published.bob_runs, [one.bob_runs for one in founds]
        ),
        _share(f"{name}: share in which Bob has his target", published.bob_steady, [one.bob_steady for one in founds]),
        _share(f"{name}: utilisation until the last job ends", published.utilisation, [o.utilisation for o in founds]),
        _share(f"{name}: utilisation of days 1 to 7", None, [one.utilisation_of_days for one in founds]),
    ]


def _share(what: str, published: str | float | None, shares: Sequence[float]) -> Row:
    return Row(what, published, round(sum(shares) / len(shares), 4), f"seeds {min(shares):.3f} to {max(shares):.3f}")
