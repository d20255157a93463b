"""What earlier agents left on this node, for example because they were killed: their containers, folders and
sockets."""

import contextlib
import stat
import time
from collections.abc import Mapping
from pathlib import Path

import structlog

from gleaner.agent import folder
from gleaner.agent.privileged import config
from gleaner.agent.runtime.protocol import LABEL_AGENT, LABEL_END, ContainerId, Runtime

log = structlog.get_logger()

LOG_AGE_S = 7 * 24 * 3600.0
"""What agents have printed is kept this long, here and in the storage."""


def reap(runtime: Runtime, *, agent: str, whole_node: bool) -> list[ContainerId]:
    """Remove containers that other agents left on this node; which.

    An agent that has the whole node knows that no other one lives here. Elsewhere (agents as processes of one
    machine) only those go whose agent's end has passed.
    """
    gone: list[ContainerId] = []
    for container, labels in runtime.ours().items():
        if labels.get(LABEL_AGENT) == agent or not (whole_node or _is_past(labels, time.time())):
            continue
        log.warning("removing a container that an earlier agent left", container=container, labels=dict(labels))
        runtime.kill(container)
        runtime.remove(container)
        gone.append(container)
    return gone


def sweep(work: Path, *, agent: str) -> None:
    """Remove the jobs' folders that earlier agents left on this node. Only for an agent that has the whole node."""
    for log_file in work.glob("*.log"):  # of agents that ended when the storage did not answer
        with contextlib.suppress(OSError):
            if log_file.stat().st_mtime < time.time() - LOG_AGE_S:
                log_file.unlink()
    for left in work.iterdir():
        if left.name == agent or not left.is_dir():
            continue
        try:
            folder.clear(left)
            left.rmdir()
        except OSError as error:
            log.warning("cannot remove what an earlier agent left", folder=str(left), reason=str(error))


def sweep_sockets() -> int:
    """Remove the sockets at which earlier agents waited for root, and were killed; how many. Only for an agent that
    has the whole node: any other one may be waiting at its own just now."""
    try:
        folder = Path(config.load().meetings)
    except config.Misconfigured:  # this node saves without root
        return 0
    return remove_sockets(folder)


def remove_sockets(folder: Path) -> int:
    """Remove all sockets of a folder, and nothing else; how many."""
    removed = 0
    try:
        for left in folder.iterdir():
            if stat.S_ISSOCK(left.lstat().st_mode):
                left.unlink(missing_ok=True)
                removed += 1
    except OSError as error:
        log.warning("cannot remove what earlier agents left", folder=str(folder), reason=str(error))
    return removed


def _is_past(labels: Mapping[str, str], now_s: float) -> bool:
    end = labels.get(LABEL_END, "")
    return end.isdigit() and int(end) < now_s
