"""A node's helper that serves users, and three accounts that ask it."""

import pwd
import socket
import threading
from pathlib import Path
from typing import Any

from tests.privileged import slurm
from tests.privileged.slurm import NODE
from tests.runtime.account_harness import acting_as

from gleaner.agent.privileged.common import bundle
from gleaner.agent.privileged.common.bundle import Bundle
from gleaner.agent.privileged.common.config import Config
from gleaner.agent.privileged.common.request import LABEL_END
from gleaner.agent.privileged.common.slurm_job import Slurm
from gleaner.agent.privileged.common.user_jobs import Owner, UserJobs, job_of, name_of
from gleaner.agent.privileged.helper.main import Helper
from gleaner.agent.system.ipc import Handshake

ALICE, BOB, AGENT = (Owner(uid, pwd.getpwuid(uid).pw_gid) for uid in (1, 2, 3))
"""Three accounts that every system has."""
MINE, BOBS = name_of(ALICE.uid, "66"), name_of(BOB.uid, "67")


class Node:
    """A helper that serves users, and the Slurm that it asks."""

    def __init__(self, place: Path) -> None:
        self.place = place
        key = place / "key"
        key.write_bytes(b"k" * 32)
        self.settings = Config(
            AGENT.uid,
            bundles=str(place / "root"),
            own=str(place / "own"),
            helper_socket=str(place / "socket"),
            user_jobs_key=str(key),
            users_work=str(place / "work"),
            scontrol=slurm.answering(place, slurm.job(), slurm.job(job_id=67, user_id=BOB.uid)),
            node_name=NODE,
        )
        bundle.folder(self.settings)
        self.user_jobs = UserJobs(self.settings, Slurm(self.settings.scontrol, cached_for_s=0))
        self.user_jobs.set_up()
        self.helper = Helper(self.settings)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(self.settings.helper_socket)
        listener.listen(8)
        threading.Thread(target=self.helper.serve, args=(listener,), daemon=True).start()

    def ask(self, who: Owner, descriptor: int | None = None, **message: object) -> dict[str, Any]:
        with acting_as(*who), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(self.settings.helper_socket)
            handshake = Handshake(connection, 10)
            handshake.say(message, descriptor)
            return handshake.hear()[0]

    def knows(self, **changes: Any) -> None:
        """Set Slurm's answer from now on."""
        slurm.answering(self.place, slurm.job(**changes))

    def user_jobs_asked(self, who: Owner, number: str) -> None:
        self.ask(who, do="admit", slurm_job=number)

    def forget(self) -> None:
        """Drop what the helper remembers of Slurm's answers, as it does by itself after some seconds."""
        node_known = self.helper._user_jobs
        assert node_known is not None
        node_known._slurm._cache.clear()

    def made(self, name: str, who: Owner, end_s: float = 2e9) -> Bundle:
        found = Bundle(self.settings, name)
        labels = {LABEL_END: str(int(end_s)), "org.gleaner.slurm-job": job_of(name) or ""}
        found.make({"labels": labels, "image_id": "i", "rootfs": "/nowhere", "made_s": 1, "uid": who.uid}, {})
        return found
