"""The gateway to Slurm by its command-line tools: sinfo, squeue, sbatch, scancel.

It runs programs; what they are told and what they said is `cluster.slurm_words`. They get the PATH and SLURM_CONF of
this program and nothing else of its environment.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gleaner.control.cluster import programs, slurm_words
from gleaner.control.cluster.gateway import (
    AgentRequest,
    ClusterView,
    Gateway,
    GatewayRefused,
    SchedulerId,
)
from gleaner.control.cluster.names import Names, known_only
from gleaner.control.settings import ClusterSettings

IDS_A_CALL = 500


class SlurmGateway:
    """Slurm, as the user that this program runs as. Not for several threads at once."""

    def __init__(self, settings: ClusterSettings, logs: Path) -> None:
        self._settings = settings
        self._logs = logs
        self._names = Names(self._look_up, submits_per_s=settings.submits_per_s, asked=slurm_words.asked(settings))

    def look(self, now_s: float) -> ClusterView:
        """See `Gateway.look`."""
        partition = self._settings.partition
        nodes = self._run(slurm_words.ask_nodes(partition), slurm_words.ASK_ENVIRONMENT)
        agents = self._run(slurm_words.ask_agents(partition), slurm_words.ASK_ENVIRONMENT)
        view = slurm_words.parse_view(nodes, agents, partition=partition, read_s=now_s)
        self._names.looked(view.agents)
        return view

    def _nodes(self) -> frozenset[str]:
        nodes = self._run(slurm_words.ask_nodes(self._settings.partition), slurm_words.ASK_ENVIRONMENT)
        return slurm_words.parse_names(nodes)

    def submit(self, request: AgentRequest, now_s: float) -> SchedulerId:
        """See `Gateway.submit`. Waits, if need be, to keep to `submits_per_s`."""
        script = slurm_words.script(self._settings, self._logs, request)

        def send(avoid: tuple[str, ...]) -> SchedulerId:
            words = slurm_words.submit(self._settings, replace(request, avoid=avoid), now_s)
            return slurm_words.parse_submitted(self._run(words, slurm_words.SUBMIT_ENVIRONMENT, given=script))

        return self._names.submit(request.name, lambda: known_only(send, request.avoid, self._nodes))

    def withdraw(self, ids: Sequence[SchedulerId]) -> None:
        """See `Gateway.withdraw`."""
        for first in range(0, len(ids), IDS_A_CALL):
            try:
                self._run(slurm_words.withdraw(ids[first : first + IDS_A_CALL]), slurm_words.ASK_ENVIRONMENT)
            except GatewayRefused as error:
                if "completed" not in str(error) and "Invalid job id" not in str(error):
                    raise

    def _look_up(self, name: str) -> SchedulerId | None:
        ids = slurm_words.parse_ids(self._run(slurm_words.ask_name(name), slurm_words.ASK_ENVIRONMENT))
        return ids[0] if ids else None

    def _run(self, words: Sequence[str], environment: Mapping[str, str], *, given: str = "") -> str:
        return programs.run(words, environment, timeout_s=self._settings.timeout_s, given=given)


if TYPE_CHECKING:
    _: type[Gateway] = SlurmGateway
