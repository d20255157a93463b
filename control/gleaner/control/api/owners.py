"""The owners of partitions with entitlements: their entitled and used CPUs, and their waiting jobs."""

from fastapi import APIRouter

from gleaner.control.api.access import User
from gleaner.control.api.problems import documented
from gleaner.control.models.owners import OwnerRow, OwnersStatus, WaitingRow
from gleaner.control.policy.entitlements_view import AGENTS, Decision, EntitlementView, RunningJob

router = APIRouter(prefix="/v1/owners", tags=["owners"])


@router.get("", responses=documented())
def owners(caller: User) -> OwnersStatus:
    """Return every owner and every waiting job of an owner, as last seen. All users can see them, as in Slurm."""
    now = caller.state.entitlements
    view = now.view
    return OwnersStatus(
        mode=caller.state.settings.entitlements.mode,
        read_s=view.now_s if view else None,
        problem=now.problem,
        cpus=sum(room.cpus for room in view.size.values()) if view else 0,
        idle_cpus=sum(room.cpus for room in view.free.values()) if view else 0,
        owners=_owners(view) if view else (),
        waiting=_waiting(view, now.decisions) if view else (),
    )


def _owners(view: EntitlementView) -> tuple[OwnerRow, ...]:
    names = {*view.entitled_cpus, *(job.owner for job in view.waiting), *(job.owner for job in view.running)}
    return tuple(
        OwnerRow(
            owner=name,
            entitled_cpus=view.entitled_cpus.get(name, 0),
            used_cpus=sum(_cpus(job, view) for job in view.running if job.owner == name and not job.leaving),
            leaving_cpus=sum(_cpus(job, view) for job in view.running if job.owner == name and job.leaving),
            waiting_jobs=sum(1 for job in view.waiting if job.owner == name),
            waiting_cpus=sum(job.wish.cpus for job in view.waiting if job.owner == name),
        )
        for name in sorted(names, key=lambda name: (name == AGENTS, name))
    )


def _cpus(job: RunningJob, view: EntitlementView) -> int:
    """Return the job's CPUs on usable nodes, as the policy counts them."""
    return sum(room.cpus for node, room in job.holds.items() if node in view.size)


def _waiting(view: EntitlementView, decisions: tuple[Decision, ...]) -> tuple[WaitingRow, ...]:
    decided = {decision.job: decision for decision in decisions}
    return tuple(
        WaitingRow(
            job=job.job,
            owner=job.owner,
            job_class=job.job_class.name.lower().replace("_", "-"),
            cpus=job.wish.cpus,
            released=job.released,
            verdict=decided[job.job].verdict.value,
            victims=decided[job.job].victims,
            why=decided[job.job].why,
        )
        for job in view.waiting
        if job.job in decided
    )
