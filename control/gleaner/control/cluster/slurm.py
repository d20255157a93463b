"""The gateway to Slurm by its command-line tools: sinfo, squeue, sbatch, scancel.

It runs programs and translates their failures, once; what they are told and what they said is
`cluster.slurm_words`. They get the PATH and SLURM_CONF of this program and nothing else of its environment.
"""

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gleaner.control.cluster import slurm_words
from gleaner.control.cluster.gateway import (
    AgentRequest,
    ClusterView,
    Gateway,
    GatewayError,
    GatewayUnavailable,
    SchedulerId,
)
from gleaner.control.settings import ClusterSettings

IDS_A_CALL = 500


class SlurmGateway:
    """Slurm, as the user that this program runs as. Not for several threads at once."""

    def __init__(self, settings: ClusterSettings, logs: Path) -> None:
        self._settings = settings
        self._logs = logs
        self._known: dict[str, SchedulerId] | None = None
        """Names that are taken, as of the last look and since; None before the first look."""
        self._doubtful: set[str] = set()
        """Names whose submission was not answered."""
        self._next_submit_s = 0.0

    def look(self, now_s: float) -> ClusterView:
        """See `Gateway.look`."""
        partition = self._settings.partition
        nodes = self._run(slurm_words.ask_nodes(partition), slurm_words.ASK_ENVIRONMENT)
        agents = self._run(slurm_words.ask_agents(partition), slurm_words.ASK_ENVIRONMENT)
        view = slurm_words.parse_view(nodes, agents, partition=partition, read_s=now_s)
        self._known = slurm_words.names(view.agents)
        self._doubtful -= self._known.keys()
        return view

    def submit(self, request: AgentRequest, now_s: float) -> SchedulerId:
        """See `Gateway.submit`. Waits, if need be, to keep to `submits_per_s`."""
        if (known := self._id_of(request.name)) is not None:
            return known
        self._pace()
        words = slurm_words.submit(self._settings, request, now_s)
        script = slurm_words.script(self._settings, self._logs, request)
        self._doubtful.add(request.name)
        try:
            answer = self._run(words, slurm_words.SUBMIT_ENVIRONMENT, given=script)
        except GatewayUnavailable:
            found = self._look_up(request.name)
            if found is None:
                raise
            answer = found
        except GatewayError as error:
            self._doubtful.discard(request.name)
            raise GatewayError(f"{error} ({self._asked()})") from error
        return self._remember(request.name, slurm_words.parse_submitted(answer))

    def withdraw(self, ids: Sequence[SchedulerId]) -> None:
        """See `Gateway.withdraw`."""
        for first in range(0, len(ids), IDS_A_CALL):
            try:
                self._run(slurm_words.withdraw(ids[first : first + IDS_A_CALL]), slurm_words.ASK_ENVIRONMENT)
            except GatewayUnavailable:
                raise
            except GatewayError as error:
                if "completed" not in str(error) and "Invalid job id" not in str(error):
                    raise

    def _id_of(self, name: str) -> SchedulerId | None:
        if self._known is not None and name in self._known:
            return self._known[name]
        if self._known is None or name in self._doubtful:
            found = self._look_up(name)
            return self._remember(name, found) if found is not None else None
        return None

    def _look_up(self, name: str) -> SchedulerId | None:
        ids = slurm_words.parse_ids(self._run(slurm_words.ask_name(name), slurm_words.ASK_ENVIRONMENT))
        return ids[0] if ids else None

    def _remember(self, name: str, found: SchedulerId) -> SchedulerId:
        self._doubtful.discard(name)
        if self._known is not None:
            self._known[name] = found
        return found

    def _pace(self) -> None:
        wait_s = self._next_submit_s - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        self._next_submit_s = time.monotonic() + 1 / self._settings.submits_per_s

    def _asked(self) -> str:
        settings = self._settings
        said = f"partition {settings.partition}"
        said += f", account {settings.account}" if settings.account else ""
        return said + (f", qos {settings.qos}" if settings.qos else "")

    def _run(self, words: Sequence[str], environment: Mapping[str, str], *, given: str = "") -> str:
        program = words[0]
        passed_on = {name: os.environ[name] for name in ("PATH", "SLURM_CONF") if name in os.environ}
        try:
            done = subprocess.run(
                words,
                input=given,
                env={**passed_on, **environment},
                capture_output=True,
                text=True,
                timeout=self._settings.timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            limit_s = self._settings.timeout_s
            raise GatewayUnavailable(f"Slurm does not answer: {program} took more than {limit_s:g} s") from error
        except OSError as error:
            raise GatewayUnavailable(
                f"{program} cannot be run ({error.strerror}); install Slurm's client programs here"
            ) from error
        if done.returncode == 0:
            return done.stdout
        said = slurm_words.complaint(done.stderr)
        if slurm_words.is_no_answer(done.stderr):
            raise GatewayUnavailable(f"Slurm does not answer: {program} says {said!r}")
        raise GatewayError(f"Slurm refuses: {program} says {said!r}")


if TYPE_CHECKING:
    _: type[Gateway] = SlurmGateway
