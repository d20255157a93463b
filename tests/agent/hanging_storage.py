"""An agent process whose storage hangs when it is to save: every draft waits for a pipe that nobody writes to.

Such a wait ends when the process is killed, as those of NFS and Lustre do.
"""

import os
import sys
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from tests.agent.pretended_runtime import PretendedRuntime

from gleaner.agent import main
from gleaner.agent.agent import Agent
from gleaner.agent.checkpoints.archive import FolderArchive
from gleaner.agent.checkpoints.draft import FolderDraft
from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.node.facts import node_facts
from gleaner.agent.reporting.client import ControlClient, Outbox
from gleaner.agent.settings import SiteAgentSettings

KILL_WAIT_S = 1.0


class HangingStorage(FolderStorage):
    """Its drafts never begin."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._pipe = root / "never-written"
        os.mkfifo(self._pipe)

    def draft(self, key: str, before: FolderArchive | None = None) -> AbstractContextManager[FolderDraft]:
        os.close(os.open(self._pipe, os.O_RDONLY))
        return super().draft(key, before)


class StuckOutbox(Outbox):
    """Whoever looks at it waits for ever, the event loop too."""

    def room_bytes(self, path: str) -> int:
        threading.Event().wait()
        return 0


def live() -> None:
    """Arguments: the control program's address, the folder, the agent's token and its end."""
    url, folder, token, end_s = sys.argv[1], Path(sys.argv[2]), sys.argv[3], float(sys.argv[4])
    settings = SiteAgentSettings(
        control_url=(url,),
        storage=folder / "storage",
        work=folder / "work",
        margin_s=4,
        shortest_slice_s=1,
        early_saves=False,
        images_allowed=("*",),
    )
    runtime = PretendedRuntime()
    agent = Agent(
        name="a1",
        end_s=end_s,
        slurm_job=None,
        settings=settings,
        client=ControlClient(urls=[url], name="a1", token=token, ca_file=None, timeout_s=settings.request_timeout_s),
        runtime=runtime,
        storage=FolderStorage(folder / "disk") if "frozen" in sys.argv else HangingStorage(folder / "storage"),
        facts=node_facts(runtime.facts(), cpus=4, memory_mib=1000),
        kill_wait_s=KILL_WAIT_S,
    )
    if "stuck" in sys.argv:  # all of it hangs, as when its log is on that storage
        agent.outbox = StuckOutbox(agent.client.report, agent.client.token_hash)
        agent._context = replace(agent._context, outbox=agent.outbox)
    threading.Thread(target=end_soon, args=(agent, runtime), daemon=True).start()
    main.run_to_end(agent)


def end_soon(agent: Agent, runtime: PretendedRuntime) -> None:
    """Bring the agent's end forward when its job has begun to count, however long that takes."""
    while not runtime.counting():
        time.sleep(0.02)
    agent.end_earlier(time.time() + agent.settings.margin_s + KILL_WAIT_S, kill_wait_s=KILL_WAIT_S)


if __name__ == "__main__":
    live()
