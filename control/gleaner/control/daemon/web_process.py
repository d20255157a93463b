"""The people's port, served by a separate process, so that agents are not affected if users overload, block or crash
it."""

import subprocess
import sys

from gleaner.agent.privileged.common.linux import gain_no_rights
from gleaner.control.api.app import Door
from gleaner.control.daemon.control_view import READ_EVERY_S, Follower
from gleaner.control.daemon.loops import JOIN_S, Loop
from gleaner.control.daemon.own_checks import own_checks
from gleaner.control.daemon.serving import HttpServer, door_app, ready_state, serve
from gleaner.control.queue.errors import QueueError
from gleaner.control.settings import Settings

COMMAND = (sys.executable, "-m", "gleaner.control.cli", "control", "web", "--with-parent")


def run(settings: Settings, *, with_parent: bool = False) -> None:
    """Serve the people's port until SIGTERM or SIGINT, or until the parent process ends. Raises `QueueError`."""
    if with_parent:
        gain_no_rights()
    state = ready_state(settings, follows=True)
    server = HttpServer(door_app(state, Door.PEOPLE), settings.api, settings.api.port)
    try:
        view = Loop(state.own_step("view"), READ_EVERY_S, Follower(state).follow, leader_only=False)
        serve(state, [view, *own_checks(state)], server, Door.PEOPLE)
    finally:
        state.engine.dispose()


class WebProcess:
    """The people's port as a child process of the control program, for the demo and small sites."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def keep(self, _now_s: float) -> None:
        """Start the process unless it is running. Raises `QueueError` if it had to be started again."""
        status = None if self._process is None else self._process.poll()
        if self._process is None or status is not None:
            self._process = subprocess.Popen(COMMAND)
        if status is not None:
            raise QueueError(f"the process of the people's port has ended, with status {status}")

    def end(self) -> None:
        """End the process, after a short wait for its remaining answers."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(JOIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
