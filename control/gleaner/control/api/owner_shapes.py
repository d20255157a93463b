"""What the API says of governed owners."""

from gleaner.control.api.shapes import Reply


class OwnerRow(Reply):
    """One owner: what it is entitled to, and what it has."""

    owner: str
    entitled_cpus: int
    used_cpus: int
    leaving_cpus: int
    """Of jobs that were told to give way: not counted as used."""
    waiting_jobs: int
    waiting_cpus: int


class WaitingRow(Reply):
    """One waiting job of an owner's, and what was ruled of it at the last look."""

    job: str
    owner: str
    job_class: str
    cpus: int
    released: bool
    verdict: str
    victims: tuple[str, ...]
    why: str


class OwnersStatus(Reply):
    """How governing stands at the last look."""

    mode: str
    """`off`, `dry-run` or `on`."""
    read_s: float | None
    """None: not read yet."""
    problem: str
    cpus: int
    idle_cpus: int
    owners: tuple[OwnerRow, ...]
    waiting: tuple[WaitingRow, ...]
