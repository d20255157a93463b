"""The base of clusters that tests make: each of them overrides what its test asks."""

from collections.abc import Sequence

from gleaner.control.slurm.interface import AgentRequest, SchedulerId
from gleaner.control.slurm.snapshot import Snapshot


class UnaskedCluster:
    """A `Cluster` that nobody may ask anything: a call that a test did not foresee fails it."""

    def read(self, now_s: float) -> Snapshot:
        raise NotImplementedError

    def read_nodes(self, nodes: Sequence[str], now_s: float) -> Snapshot:
        raise NotImplementedError

    def is_held(self, job: str) -> bool | None:
        raise NotImplementedError

    def check_owners(self, owners: Sequence[str]) -> None:
        raise NotImplementedError

    def submit(self, request: AgentRequest, now_s: float) -> SchedulerId:
        raise NotImplementedError

    def withdraw(self, ids: Sequence[SchedulerId]) -> None:
        raise NotImplementedError

    def vacate(self, agents: Sequence[str], *, gone_s: float) -> None:
        raise NotImplementedError
