"""Remove containers and folders that earlier agents left on this node, for example because they were killed.

The node's watchdog removes the sockets of such agents.
"""

import contextlib
from pathlib import Path

import structlog

from gleaner.agent.checkpoints import workdir_tar as folder
from gleaner.agent.privileged.common import agent_leftovers, request
from gleaner.agent.runtime.interface import LABEL_AGENT, ContainerId, Runtime

log = structlog.get_logger()


def remove_containers(runtime: Runtime, *, agent: str, whole_node: bool, now_s: float) -> list[ContainerId]:
    """Remove containers that other agents left on this node, and return them.

    If an agent has a whole node, no other agent runs there. Otherwise (with several agents as processes on one machine)
    only containers whose agent's end has passed are removed.
    """
    removed: list[ContainerId] = []
    for container, labels in runtime.our_containers().items():
        end_s = request.end_s(labels)
        if labels.get(LABEL_AGENT) != agent and (whole_node or (end_s is not None and end_s < now_s)):
            log.warning("removing a container that an earlier agent left", container=container, labels=dict(labels))
            runtime.kill(container)
            runtime.remove(container)
            removed.append(container)
    return removed


def remove_folders(work: Path, *, agent: str, now_s: float) -> None:
    """Remove the jobs' folders that earlier agents left on this node.

    This is only for an agent that has the whole node.
    """
    with contextlib.suppress(OSError):  # logs that agents left when the storage did not answer at their end
        agent_leftovers.remove_old_logs(str(work), owner_uid=work.stat().st_uid, now_s=now_s)
    for entry in work.iterdir():
        if entry.name == agent or not entry.is_dir():
            continue
        try:
            folder.clear(entry)
            entry.rmdir()
        except OSError as error:
            log.warning("cannot remove what an earlier agent left", folder=str(entry), reason=str(error))
