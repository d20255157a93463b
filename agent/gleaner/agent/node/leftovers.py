"""Remove what earlier agents left on this node, for example because they were killed: containers, folders, sockets.

The watchdog removes sockets and logs too, but only what is left for some time. A new agent on a node of its own need
not wait for that.
"""

import contextlib
import os
from pathlib import Path

import structlog

from gleaner.agent.checkpoints import workdir_tar as folder
from gleaner.agent.privileged.common import agent_leftovers, config, request
from gleaner.agent.runtime.interface import LABEL_AGENT, ContainerId, Runtime

log = structlog.get_logger()


def reap(runtime: Runtime, *, agent: str, whole_node: bool, now_s: float) -> list[ContainerId]:
    """Remove containers that other agents left on this node; return them.

    An agent that has the whole node knows that no other one lives here. Elsewhere (agents as processes of one
    machine) only those go whose agent's end has passed.
    """
    gone: list[ContainerId] = []
    for container, labels in runtime.our_containers().items():
        end_s = request.end_s(labels)
        is_left = whole_node or (end_s is not None and end_s < now_s)
        if labels.get(LABEL_AGENT) == agent or not is_left:
            continue
        log.warning("removing a container that an earlier agent left", container=container, labels=dict(labels))
        runtime.kill(container)
        runtime.remove(container)
        gone.append(container)
    return gone


def sweep(work: Path, *, agent: str, now_s: float) -> None:
    """Remove the jobs' folders that earlier agents left on this node. Only for an agent that has the whole node."""
    with contextlib.suppress(OSError):  # logs of agents that ended when the storage did not answer
        agent_leftovers.remove_old_logs(str(work), owner_uid=work.stat().st_uid, now_s=now_s)
    for left in work.iterdir():
        if left.name == agent or not left.is_dir():
            continue
        try:
            folder.clear(left)
            left.rmdir()
        except OSError as error:
            log.warning("cannot remove what an earlier agent left", folder=str(left), reason=str(error))


def sweep_sockets() -> int:
    """Remove the sockets of earlier agents that were killed while they waited for root; return how many.

    Only for an agent that has the whole node: elsewhere another agent may be waiting at its socket just now.
    """
    try:
        return agent_leftovers.remove_sockets(config.load().handshakes, owner_uid=os.getuid())
    except config.Misconfigured:  # this node saves without root
        return 0
    except OSError as error:
        log.warning("cannot remove the sockets of earlier agents", reason=str(error))
        return 0
