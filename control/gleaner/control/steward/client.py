"""Control's side of the steward: one method for each request, and what can go wrong."""

import json
import socket
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from gleaner.control.cluster.gateway import GatewayRefused, GatewayUnavailable
from gleaner.control.steward.request import LONGEST_BYTES


class StewardRefuses(GatewayRefused):
    """The steward says no, and why; nothing was done, and it will say no again."""


class StewardSilent(GatewayUnavailable):
    """The steward is not there, or Slurm does not answer it: ask again later."""


class Steward:
    """The steward that listens at this path. Each call is one connection; safe for several threads.

    `epoch` says by which epoch control leads when it asks. `submitted_s`: the job's that is meant, as it was seen.
    """

    def __init__(self, path: Path, timeout_s: float, epoch: Callable[[], int | None] = lambda: None) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._epoch = epoch

    def alive(self, partitions: Collection[str]) -> None:
        """Say that control is alive and governs these. Not to be called in a dry run: jobs would be held."""
        self._ask(do="alive", partitions=sorted(set(partitions)))

    def awake(self) -> None:
        """Say that control is alive, whether it governs or not, so that the nodes that it drained stay drained."""
        self._ask(do="awake")

    def release(self, job: str, *, top: bool, submitted_s: float | None = None) -> None:
        """Let a job go that we hold; `top`: before all other jobs of its tier."""
        self._ask_of_job("release", job, submitted_s, top=top)

    def set_reason(self, job: str, text: str, *, submitted_s: float | None = None) -> None:
        """Say why a job is held, for `squeue -O JobArrayID,admin_comment`: there `gleaner: ` stands before it."""
        self._ask_of_job("reason", job, submitted_s, text=text)

    def hold(self, job: str, *, submitted_s: float | None = None) -> None:
        """Hold a job again that we released and that has not started."""
        self._ask_of_job("hold", job, submitted_s)

    def requeue(self, job: str, *, submitted_s: float | None = None) -> None:
        """Take a preemptible job off its nodes. It waits, held, and begins anew."""
        self._ask_of_job("requeue", job, submitted_s)

    def signal(self, job: str, *, submitted_s: float | None = None) -> None:
        """Ask a checkpointable job to save itself. It requeues itself, held."""
        self._ask_of_job("signal", job, submitted_s)

    def drain(self, nodes: Sequence[str], *, by: str = "control") -> None:
        """Let nothing new start on these nodes, all or none; `by`: for whom, one word."""
        self._ask(do="drain", nodes=list(nodes), by=by)

    def resume(self, nodes: Sequence[str]) -> None:
        """Set nodes back that we drained, all or none."""
        self._ask(do="resume", nodes=list(nodes))

    def _ask_of_job(self, do: str, job: str, submitted_s: float | None, **message: object) -> None:
        which = {} if submitted_s is None else {"submitted_s": int(submitted_s)}
        self._ask(do=do, job=job, **message, **which)

    def _ask(self, **message: object) -> None:
        epoch = self._epoch()
        if epoch is not None:
            message["epoch"] = epoch
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(self._timeout_s)
                connection.connect(str(self._path))
                connection.sendall(json.dumps(message).encode() + b"\n")
                with connection.makefile("rb") as answers:
                    line = answers.readline(LONGEST_BYTES)
        except OSError as error:
            raise StewardSilent(f"the steward at {self._path} does not answer: {error}") from error
        try:
            answer = json.loads(line)
            done, kind, why = answer["ok"], answer.get("kind"), str(answer.get("why"))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StewardSilent(f"the steward at {self._path} said {line[:80]!r}") from error
        if done is True:
            return
        raise StewardSilent(why) if kind == "away" else StewardRefuses(why)
