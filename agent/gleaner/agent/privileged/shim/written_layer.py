"""The files that a container has written to its own file system: out to the agent at a save, and in again at a restore.

They pass as an archive through a pipe of our own making. The agent gets one end of the pipe and nothing else. An agent
that stops in the middle cannot hold us past its end.
"""

from __future__ import annotations  # the node may have Python 3.9

import os
import select
import time
from typing import TYPE_CHECKING, NamedTuple

from ...system import ipc
from ..common import bundle, config, mounts, tar_stream
from ..common.untar import Hostile, Limit, Links
from . import overlay_tar

if TYPE_CHECKING:
    from collections.abc import Generator

_CHUNK_BYTES = 2**20


class NotTaken(Exception):
    """The written files cannot be saved or put back; one line. `lasts` is as in `reasons.Reason`."""

    def __init__(self, line: str, *, lasts: bool) -> None:
        super().__init__(line)
        self.lasts = lasts


class Layers(NamedTuple):
    """The folders of one container's files."""

    upper: str
    """The files that the container has written."""
    image: list[str]
    """The image's own layers, the uppermost first."""


def layers(settings: config.Config, container: str, root: str) -> Layers:
    """Return the layers of a container whose root is the folder `root`. Raises `ValueError`.

    The helper mounts a container's files in the monitor's mount namespace alone, so its bundle names them. Docker's are
    mounted where we see them. The table of mounts that is read is ours, which no container can change.
    """
    made = bundle.Bundle(settings, container)
    if root == made.inside("rootfs"):
        return Layers(made.inside("upper"), [made.facts()["rootfs"]])
    return mounted(root, mounts.mount_options(root, "overlay"))


def mounted(root: str, options: dict[str, str]) -> Layers:
    """Return the layers that the options of an overlay mount name. Raises `ValueError`.

    Docker names many layers by paths below its own folder, which is two steps above the root, to keep them short.

    >>> mounted("/d/overlay2/7/merged", {"upperdir": "7/diff", "lowerdir": "/x:/y"})
    Layers(upper='/d/overlay2/7/diff', image=['/x', '/y'])
    """
    if not {"upperdir", "lowerdir"} <= set(options):
        raise ValueError(f"{root} is no overlay mount with an upper layer: Docker's storage driver must be overlay2")
    home = os.path.dirname(os.path.dirname(root))
    return Layers(
        os.path.realpath(os.path.join(home, options["upperdir"])),
        [os.path.realpath(os.path.join(home, one)) for one in options["lowerdir"].split(":")],
    )


def send(agent: ipc.Handshake, found: Layers, limit: Limit, end_s: float) -> None:
    """Give the agent all that the container has written. Raises `NotTaken`, or `HandshakeFailed` past `end_s`."""
    source, sink = os.pipe()
    try:
        try:
            agent.say({"layer": True}, source)
        finally:
            os.close(source)
        os.set_blocking(sink, False)
        for chunk in overlay_tar.pack(found.upper, found.image, limit):
            rest = memoryview(chunk)
            while rest:
                _wait(sink, select.POLLOUT, end_s)
                rest = rest[os.write(sink, rest[:_CHUNK_BYTES]) :]
    except Hostile as error:
        raise NotTaken(f"its written files cannot be saved: {error}", lasts=True) from error
    except OSError as error:
        raise NotTaken(f"its written files cannot be saved: {error}", lasts=False) from error
    finally:
        os.close(sink)


def receive(agent: ipc.Handshake, root: str, limit: Limit, end_s: float, *, links: Links | None = None) -> None:
    """Put what the agent sends into a container that has not begun, through its mounted root.

    If `links` is given, symbolic links are added there instead. Raises `NotTaken`, or `HandshakeFailed` past `end_s`.
    """
    source, sink = os.pipe()
    try:
        try:
            agent.say({"layer": True}, sink)
        finally:
            os.close(sink)
        overlay_tar.put_back(_chunks(source, end_s), root, limit, links)
    except (OSError, Hostile, *tar_stream.MALFORMED) as error:
        raise NotTaken(f"its written files cannot be put back: {error}", lasts=False) from error
    finally:
        os.close(source)


def _chunks(source: int, end_s: float) -> Generator[bytes, None, None]:
    while True:
        _wait(source, select.POLLIN, end_s)
        chunk = os.read(source, _CHUNK_BYTES)
        if not chunk:
            return
        yield chunk


def _wait(pipe: int, event: int, end_s: float) -> None:
    """Wait until the pipe is ready. Raises `HandshakeFailed` past `end_s`, in seconds since the epoch."""
    watched = select.poll()
    watched.register(pipe, event)
    while not watched.poll(ipc.poll_ms(end_s)):
        if time.time() >= end_s:
            raise ipc.HandshakeFailed("the agent's end has come, and the written files have not passed")
