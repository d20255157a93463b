"""Workloads that the real Slurm can replay in minutes, which are synthetic or the first jobs of a trace with shortened
times."""

from dataclasses import replace

import numpy as np

from gleaner.control.simulation.model import Machine, Workload
from gleaner.control.simulation.workloads import synthetic
from gleaner.control.simulation.workloads.synthetic import Exponential, LimitSettings, SyntheticSettings, Uniform
from lab.real_slurm.configuration import limits_s

_SHARE_OF_NODES = 0.1
"""The mean size of a synthetic job, as a share of the nodes."""


def made(machine: Machine, *, jobs: int, length_s: float, load: float, seed: int) -> Workload:
    """Return jobs that are submitted within `length_s` seconds, the first at 0, and use the share `load` of the
    machine.

    The limits are up to three times the run times.
    """
    size = max(1, _SHARE_OF_NODES * machine.nodes)
    workload = synthetic.make(
        SyntheticSettings(
            jobs=jobs,
            load=load,
            seed=seed,
            sizes=Exponential(mean=size),
            run_s=Exponential(mean=length_s * machine.nodes * load / (jobs * size)),
            limits=LimitSettings(factor=Uniform(low=1, high=3)),
        ),
        machine,
    )
    return replace(workload, submit_s=workload.submit_s - workload.submit_s[0])


def cut(workload: Workload, *, jobs: int, length_s: float) -> tuple[Workload, float]:
    """Return the first `jobs` jobs, and the factor that shortens all times so that the last job is submitted within
    `length_s` seconds."""
    first = workload.only(np.arange(min(jobs, len(workload))))
    since_s = first.submit_s - first.submit_s[0]
    factor = min(1.0, length_s / since_s[-1]) if since_s[-1] else 1.0
    run_s = np.maximum(1, np.ceil(first.run_s * factor))
    shortened = replace(
        first,
        submit_s=np.floor(since_s * factor),
        run_s=run_s,
        limit_s=np.maximum(run_s, np.ceil(first.limit_s * factor)),
    )
    return shortened, factor


def as_slurm_has_it(workload: Workload) -> Workload:
    """Return the workload with limits in whole minutes, because Slurm supports no others."""
    return replace(workload, limit_s=limits_s(workload))
