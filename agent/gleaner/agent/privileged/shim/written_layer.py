"""Send a container's written files to the agent at a save, and put them back at a restore.

These are the files in the container's own file system. They pass as an archive through a pipe that we have made. The
agent receives only one end of the pipe. An agent that stops halfway cannot hold us up beyond its end.
"""

from __future__ import annotations  # the node may have Python 3.9

import contextlib
import os
import select
import time
from typing import TYPE_CHECKING, NamedTuple

from ...system import ipc, openat, tar_pack, tar_unpack
from ...system.tar_policy import MALFORMED, Hostile, Links, Policy, SizeLimit
from ..common import bundle, config, mounts

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator


class NotTaken(Exception):
    """The written files cannot be saved or put back. The message is one line.

    `lasts` has the meaning of `unsavable.Reason.lasts`.
    """

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

    The helper mounts a container's files only in the monitor's mount namespace, so its bundle names them. Docker's
    files are mounted where we see them. We read our own table of mounts, which no container can change.
    """
    of_helper = bundle.Bundle(settings, container)
    if root == of_helper.inside("rootfs"):
        return Layers(of_helper.inside("upper"), [of_helper.facts()["rootfs"]])
    return layers_of_mount(root, mounts.mount_options(root, "overlay"))


def layers_of_mount(root: str, options: dict[str, str]) -> Layers:
    """Return the layers in the options of an overlay mount. Raises `ValueError`.

    To keep the options short, Docker gives the paths of many layers relative to its own folder, which is two levels
    above the root.

    >>> layers_of_mount("/d/overlay2/7/merged", {"upperdir": "7/diff", "lowerdir": "/x:/y"})
    Layers(upper='/d/overlay2/7/diff', image=['/x', '/y'])
    """
    if not {"upperdir", "lowerdir"} <= set(options):
        raise ValueError(f"{root} is no overlay mount with an upper layer: Docker's storage driver must be overlay2")
    home = os.path.dirname(os.path.dirname(root))
    return Layers(
        os.path.realpath(os.path.join(home, options["upperdir"])),
        [os.path.realpath(os.path.join(home, one)) for one in options["lowerdir"].split(":")],
    )


def send(agent: ipc.Handshake, layers: Layers, limit: SizeLimit, end_s: float) -> None:
    """Send the agent all the files that the container has written.

    Raises `NotTaken`, or `HandshakeFailed` past `end_s`.
    """
    source, sink = os.pipe()
    try:
        with openat.closing_fd(sink):
            with openat.closing_fd(source):
                agent.say({"layer": True}, source)
            os.set_blocking(sink, False)
            for chunk in pack(layers, limit):
                rest = memoryview(chunk)
                while rest:
                    _wait(sink, select.POLLOUT, end_s)
                    rest = rest[os.write(sink, rest[: openat.CHUNK_BYTES]) :]
    except Hostile as error:
        raise NotTaken(f"its written files cannot be saved: {error}", lasts=True) from error
    except OSError as error:
        raise NotTaken(f"its written files cannot be saved: {error}", lasts=False) from error


def receive(agent: ipc.Handshake, root: str, limit: SizeLimit, end_s: float, *, links: Links | None = None) -> None:
    """Put the files from the agent into a container that has not started, through its mounted root.

    If `links` is given, symbolic links are appended to it instead of being made. Raises `NotTaken`, or
    `HandshakeFailed` past `end_s`.
    """
    source, sink = os.pipe()
    try:
        with openat.closing_fd(source):
            with openat.closing_fd(sink):
                agent.say({"layer": True}, sink)
            put_back(_chunks(source, end_s), root, limit, links)
    except (OSError, Hostile, *MALFORMED) as error:
        raise NotTaken(f"its written files cannot be put back: {error}", lasts=False) from error


def pack(layers: Layers, limit: SizeLimit) -> Iterator[bytes]:
    """Yield the written files as an archive.

    The container's processes might do anything during the call, so no link is followed, and only folders and plain
    files are opened. Raises `Hostile` for entries that `put_back` would refuse.
    """
    with contextlib.ExitStack() as descriptors:
        upper, *image = [
            descriptors.enter_context(openat.closing_fd(os.open(path, openat.FOLDER)))
            for path in (layers.upper, *layers.image)
        ]
        yield from tar_pack.pack(upper, _policy(limit), image)


def put_back(chunks: Iterable[bytes], root: str, limit: SizeLimit, links: Links | None = None) -> None:
    """Put written files into a container that has not started.

    They pass through its mounted root, because the layers below a mounted overlay must not be changed. An overlay's
    mark of deletion does not become a file there. Instead, the file of that name is deleted. If `links` is given,
    symbolic links are appended to it instead of being made. Raises `Hostile`, or one of `MALFORMED`.
    """
    source = tar_unpack.TarSource(chunks)
    with openat.closing_fd(os.open(root, openat.FOLDER)) as target:
        tar_unpack.unpack(source, target, _policy(limit, links))
        source.finish()


def _policy(limit: SizeLimit, links: Links | None = None) -> Policy:
    return Policy(limit, has_owners=True, is_overlaid=True, has_own_links=True, links=links, is_live=True)


def _chunks(source: int, end_s: float) -> Generator[bytes, None, None]:
    while True:
        _wait(source, select.POLLIN, end_s)
        chunk = os.read(source, openat.CHUNK_BYTES)
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
