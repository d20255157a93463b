"""The owners of governed partitions: what they are entitled to, what they have, and who waits for what."""

from fastapi import APIRouter

from gleaner.control.api.access import User
from gleaner.control.api.owner_shapes import OwnerRow, OwnersStatus, WaitingRow
from gleaner.control.api.problems import documented
from gleaner.control.policy.governing_view import AGENTS, GovernView, Ruling, RunningJob

router = APIRouter(prefix="/v1/owners", tags=["owners"])


@router.get("", responses=documented())
def owners(caller: User) -> OwnersStatus:
    """Every owner at the last look, and every waiting job of theirs; to everybody, as Slurm shows them."""
    now = caller.site.governing
    view = now.view
    return OwnersStatus(
        mode=caller.site.settings.governing.mode,
        read_s=view.now_s if view else None,
        problem=now.problem,
        cpus=sum(room.cpus for room in view.size.values()) if view else 0,
        idle_cpus=sum(room.cpus for room in view.free.values()) if view else 0,
        owners=_owners(view) if view else (),
        waiting=_waiting(view, now.rulings) if view else (),
    )


def _owners(view: GovernView) -> tuple[OwnerRow, ...]:
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


def _cpus(job: RunningJob, view: GovernView) -> int:
    """As the policy counts: on nodes that can be used."""
    return sum(room.cpus for node, room in job.holds.items() if node in view.size)


def _waiting(view: GovernView, rulings: tuple[Ruling, ...]) -> tuple[WaitingRow, ...]:
    ruled = {ruling.job: ruling for ruling in rulings}
    return tuple(
        WaitingRow(
            job=job.job,
            owner=job.owner,
            job_class=job.job_class.name.lower().replace("_", "-"),
            cpus=job.wish.cpus,
            released=job.released,
            verdict=ruled[job.job].verdict.value,
            victims=ruled[job.job].victims,
            why=ruled[job.job].why,
        )
        for job in view.waiting
        if job.job in ruled
    )
