"""The gateway to Slurm through PySlurm, in a child process.

PySlurm asks the controller without a program being started for each question. It is never imported here: it holds the
interpreter for as long as a call takes, and it is under the GPL. The child gets the PATH and SLURM_CONF of this program
and nothing else of its environment. One that does not answer in time is killed; the next question starts another.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gleaner.control.cluster import programs, pyslurm_words, slurm_words
from gleaner.control.cluster.child import Child
from gleaner.control.cluster.gateway import (
    AgentRequest,
    ClusterView,
    Gateway,
    GatewayRefused,
    GatewayUnavailable,
    SchedulerId,
)
from gleaner.control.cluster.names import Names, known_only
from gleaner.control.settings import ClusterSettings

IDS_A_CALL = 50
"""Each is a call of the controller, and all of them have the time of one."""

_CHILD = Path(__file__).with_name("pyslurm_child.py")


class PySlurmGateway:
    """Slurm, as the user that this program runs as. Not for several threads at once."""

    def __init__(self, settings: ClusterSettings, logs: Path) -> None:
        self._settings = settings
        self._logs = logs
        self._names = Names(self._look_up, submits_per_s=settings.submits_per_s, asked=slurm_words.asked(settings))
        self._child: Child | None = None

    def check(self) -> pyslurm_words.Versions:
        """Start a child and ask for the versions. Raises `GatewayUnavailable` if it is no use for this cluster."""
        self.close()
        python = str(self._settings.pyslurm_python or sys.executable)
        environment = {**programs.passed_on(), **slurm_words.SUBMIT_ENVIRONMENT}
        self._child = Child("PySlurm", (python, "-I", str(_CHILD)), environment)
        versions = pyslurm_words.parse_versions(self._answer("versions"))
        if not versions.match:
            self.close()
            raise GatewayUnavailable(
                f"PySlurm {versions.pyslurm} was built for Slurm {versions.built}, and the cluster has "
                f'{versions.cluster}; build it for that one, or set [cluster] gateway = "slurm"'
            )
        return versions

    def look(self, now_s: float) -> ClusterView:
        """See `Gateway.look`."""
        partition = self._settings.partition
        said = self._ask("look", partition=partition)
        view = pyslurm_words.parse_view(said, partition=partition, read_s=now_s)
        self._names.looked(view.agents)
        return view

    def submit(self, request: AgentRequest, now_s: float) -> SchedulerId:
        """See `Gateway.submit`. Waits, if need be, to keep to `submits_per_s`."""

        def send(avoid: tuple[str, ...]) -> SchedulerId:
            facts = pyslurm_words.submit(self._settings, self._logs, replace(request, avoid=avoid), now_s)
            (id_,) = pyslurm_words.parse_ids([self._ask("submit", **facts)])
            self._complete(id_)
            return id_

        return self._names.submit(request.name, lambda: known_only(send, request.avoid, self._nodes))

    def _nodes(self) -> frozenset[str]:
        partition = self._settings.partition
        view = pyslurm_words.parse_view(self._ask("look", partition=partition), partition=partition, read_s=0)
        return frozenset(node.name for node in view.nodes)

    def withdraw(self, ids: Sequence[SchedulerId]) -> None:
        """See `Gateway.withdraw`."""
        for first in range(0, len(ids), IDS_A_CALL):
            wanted = [int(id_) for id_ in ids[first : first + IDS_A_CALL]]
            if left := pyslurm_words.parse_ids(self._ask("withdraw", ids=wanted)):
                raise GatewayRefused(f"Slurm refuses: job {', '.join(left)} did not end when PySlurm cancelled it")

    def close(self) -> None:
        """End the child, if there is one."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def _complete(self, id_: SchedulerId) -> None:
        """See `pyslurm_words.complete`. What cannot be completed is withdrawn again, if that can be."""
        try:
            programs.run(
                pyslurm_words.complete(id_), slurm_words.SUBMIT_ENVIRONMENT, timeout_s=self._settings.timeout_s
            )
        except GatewayRefused:  # after no answer the name is looked up; it is there, and starts a little later
            self.withdraw([id_])
            raise

    def _look_up(self, name: str) -> SchedulerId | None:
        ids = pyslurm_words.parse_ids(self._ask("find", name=name))
        return ids[0] if ids else None

    def _ask(self, ask: str, **facts: object) -> object:
        if self._child is None:
            self.check()
        return self._answer(ask, **facts)

    def _answer(self, ask: str, **facts: object) -> object:
        """What the child says. One that has no answer is ended, so that the next one reads slurm.conf anew."""
        assert self._child is not None  # noqa: S101 - `check` has started it
        try:
            answer = self._child.ask({"ask": ask, **facts}, timeout_s=self._settings.timeout_s)
        except GatewayUnavailable:
            self.close()
            raise
        if "failed" not in answer:
            return answer["said"]
        said = str(answer["failed"])
        if answer.get("is_absent"):
            self.close()
            python = self._settings.pyslurm_python or sys.executable
            raise GatewayUnavailable(f"PySlurm cannot be used: {python} says {said!r}; install it there")
        if programs.is_no_answer(said):
            self.close()
            raise GatewayUnavailable(f"Slurm does not answer: PySlurm says {said!r}")
        raise GatewayRefused(f"Slurm refuses: PySlurm says {said!r}")


if TYPE_CHECKING:
    _: type[Gateway] = PySlurmGateway
