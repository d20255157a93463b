"""The owners with entitlements, as the API shows them."""

from gleaner.control.models.base import Reply


class OwnerRow(Reply):
    """One owner, with its entitlement and the CPUs that it uses."""

    owner: str
    entitled_cpus: int
    used_cpus: int
    leaving_cpus: int
    """The CPUs of jobs that have been preempted but have not ended yet. They do not count as used."""
    waiting_jobs: int
    waiting_cpus: int


class WaitingRow(Reply):
    """One waiting job of an owner, and the decision on it in the last snapshot."""

    job: str
    owner: str
    job_class: str
    cpus: int
    released: bool
    verdict: str
    victims: tuple[str, ...]
    why: str


class OwnersStatus(Reply):
    """The state of entitlements in the last snapshot."""

    mode: str
    """`off`, `dry-run` or `on`."""
    read_s: float | None
    """The time of the snapshot, or None before the first one."""
    problem: str
    cpus: int
    idle_cpus: int
    owners: tuple[OwnerRow, ...]
    waiting: tuple[WaitingRow, ...]
