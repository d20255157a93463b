"""Control's client of the Slurm admin service, with one method for each request, and the errors of a request."""

import json
import socket
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from gleaner.agent.system import untrusted
from gleaner.control.slurm.interface import ClusterRefused, ClusterUnavailable
from gleaner.control.slurm_admin.request import LONGEST_BYTES


class SlurmAdminClient:
    """A Slurm admin service that listens on the socket at this path. Each call is one connection. Several threads can
    use the client.

    Every method can raise `ClusterRefused` and `ClusterUnavailable`, the latter for example if the service is not
    running.

    `epoch` returns control's current epoch. `submitted_s` is the submission time of the job as control has seen it.
    Another job with the same number is left alone.
    """

    def __init__(self, path: Path, timeout_s: float, epoch: Callable[[], int | None] = lambda: None) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._epoch = epoch

    def alive(self, partitions: Collection[str]) -> None:
        """Report that control is alive and enforces entitlements in these partitions.

        Jobs are held for us only while this report is repeated. Do not send it in a dry run, because jobs would be
        held. The service refuses if these partitions are not exactly those whose jobs are held.
        """
        self._ask(do="alive", partitions=sorted(set(partitions)))

    def awake(self) -> None:
        """Report that control is alive, so that the nodes that it drained stay drained. This does not require
        entitlements to be on.

        Nodes stay drained for us only while this report is repeated.
        """
        self._ask(do="awake")

    def release(self, job: str, *, top: bool, submitted_s: float | None = None) -> None:
        """Release a job that we hold. With `top`, it comes before all other jobs of its tier."""
        self._ask_of_job("release", job, submitted_s, top=top)

    def set_reason(self, job: str, text: str, *, submitted_s: float | None = None) -> None:
        """Write the reason why a job is held into its comment, after `gleaner: `.

        `squeue -O JobArrayID,admin_comment` shows it.
        """
        self._ask_of_job("reason", job, submitted_s, text=text)

    def hold(self, job: str, *, submitted_s: float | None = None) -> None:
        """Hold again a job that we released and that has not started."""
        self._ask_of_job("hold", job, submitted_s)

    def requeue(self, job: str, *, submitted_s: float | None = None) -> None:
        """Requeue a preemptible job. It then waits, held, and starts from its beginning when it is released."""
        self._ask_of_job("requeue", job, submitted_s)

    def signal(self, job: str, *, submitted_s: float | None = None) -> None:
        """Tell a checkpointable job to save itself. The job then requeues itself, held."""
        self._ask_of_job("signal", job, submitted_s)

    def drain(self, nodes: Sequence[str], *, by: str = "control") -> None:
        """Drain either all of these nodes or none of them, so that nothing new starts there.

        `by` names the requester in one word.
        """
        self._ask(do="drain", nodes=list(nodes), by=by)

    def resume(self, nodes: Sequence[str]) -> None:
        """Resume nodes that we drained, either all of them or none."""
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
            raise ClusterUnavailable(f"the Slurm admin service at {self._path} does not answer: {error}") from error
        check_answer(line)


def check_answer(line: bytes) -> None:
    """Raise `ClusterRefused` or `ClusterUnavailable` unless the answer confirms the request."""
    try:
        answer = untrusted.json_of(line, for_display=True)
        done, kind, why = answer["ok"], answer.get("kind"), str(answer.get("why"))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ClusterUnavailable(f"the Slurm admin service said {line[:80]!r}") from error
    if done is not True:
        raise ClusterUnavailable(why) if kind == "away" else ClusterRefused(why)
