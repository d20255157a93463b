"""The program that delivers one result (see `child_process`): it copies the files from the storage to the target.

First the whole result is unpacked where nobody looks; then each file gets its name by one rename. So a reader never
sees half a file. At the end comes `job-7.sha256`, a list for `sha256sum --check`: when it is there, all is there.
"""

import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import FOLDER_PART, StorageError, output_key
from gleaner.agent.common import allowed_urls
from gleaner.agent.common.quantities import size
from gleaner.agent.staging.child_process import MayNot, MayPass, serve
from gleaner.agent.staging.credentials import Credential
from gleaner.agent.staging.servers import AddressGuard
from gleaner.agent.staging.stage import (
    SAYS_WHILE_SILENT,
    Names,
    list_line,
    list_name,
    note_name,
    passing_name,
    read_staged,
    remove_stages,
    stage_folder,
    staged_files,
    sync_staged,
)
from gleaner.agent.staging.webdav import WebDav
from gleaner.agent.system import listed_folders, openat, tar_unpack
from gleaner.agent.system.keep_patterns import Keep
from gleaner.agent.system.tar_policy import MALFORMED, Hostile, Policy, SizeLimit

if TYPE_CHECKING:
    from gleaner.agent.staging.s3 import S3Target

LIST = ".gleaner-list"
PROGRESS = b"."
"""Written for each piece that was copied: a target that takes nothing for long hangs."""

MOST_TIMES_STORED, MOST_HOLES_BYTES = 16, 2**30
"""The files of a result are larger than what is stored of them by such a factor and so much at most: by their holes."""


@dataclass(frozen=True, slots=True)
class DeliverRequest:
    """A result, its target, and what the admin says about it."""

    storage: str
    job: int
    attempt: int
    digest: str
    to: str
    number: int
    keep: Sequence[str]
    allowed: Sequence[str]
    control_host: str
    """The host of control's address: its addresses are refused."""
    silent_s: float
    """A server that takes nothing for so long hangs."""
    spool: str
    """A folder on the node's disk, for a result on its way to a server."""
    reserve_bytes: int
    """So much of that disk stays free."""
    only_clears: bool = False
    """Nothing is delivered: what a killed try has left at the target is removed."""
    credential: Credential | None = None
    """It comes by this process's standard input: others see neither its arguments nor its environment with it."""

    def to_json(self) -> bytes:
        """Return the request as the child reads it."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: str) -> "DeliverRequest":
        """Return the request that was sent."""
        fields = json.loads(text)
        credential = fields.pop("credential")
        return cls(**fields, credential=None if credential is None else Credential(**credential))


def unpack_result(
    request: DeliverRequest, stage: int, progress: Callable[[], None], *, most_bytes: float = math.inf
) -> None:
    """Unpack the result into an open folder. Symbolic links are left out. Raises `MayNot` or `MayPass`."""
    stored_bytes = 0

    def chunks() -> Iterator[bytes]:
        nonlocal stored_bytes
        archive = FolderStorage(Path(request.storage)).open(output_key(request.job, request.attempt), request.digest)
        stored_bytes = archive.parts[FOLDER_PART].size_bytes
        if stored_bytes > most_bytes:
            raise MayPass("this node has no room for the result on its way")
        for chunk in archive.read(FOLDER_PART):
            progress()
            yield chunk

    source = tar_unpack.Source(chunks())
    try:
        tar_unpack.unpack(source, stage, Policy(SizeLimit(math.inf, math.inf), has_holes=True, links=[]))
        source.finish()
    except StorageError as error:
        raise MayPass(f"the result cannot be read: {error}") from None
    except (Hostile, *MALFORMED) as error:
        raise MayNot(f"the result cannot be unpacked: {error}") from None
    _refuse_holes(request, stage, stored_bytes)


def _refuse_holes(request: DeliverRequest, stage: int, stored_bytes: int) -> None:
    """Raise `MayNot` if holes make files so large that to read them would hold up all other deliveries."""
    keep, size_bytes = Keep(request.keep), 0
    for folder, names in staged_files(stage):
        if not request.keep or keep(names):
            size_bytes += os.stat(names[-1], dir_fd=folder, follow_symlinks=False).st_size
    if size_bytes > MOST_TIMES_STORED * stored_bytes + MOST_HOLES_BYTES:
        sizes = f"{size(size_bytes)}, of which {size(stored_bytes)} are stored"
        raise MayNot(f"the files are mostly holes ({sizes}): take the result from the storage with glean results")


def clear_folder(request: DeliverRequest, _progress: Callable[[], None]) -> None:
    """Remove the folders that killed tries have left in the target's folder."""
    with _open_target(request) as target:
        remove_stages(target, request.job)


def deliver_to_folder(request: DeliverRequest, progress: Callable[[], None]) -> tuple[int, int]:
    """Deliver into a folder that every node has."""
    keep, lines, size_bytes = Keep(request.keep), list[bytes](), 0
    with _open_target(request) as target, stage_folder(target, request.job, request.number) as stage:
        unpack_result(request, stage, progress)
        for folder, names in staged_files(stage):
            if request.keep and not keep(names):
                os.unlink(names[-1], dir_fd=folder)
                continue
            with openat.closing_fd(openat.open_plain(folder, names[-1])) as file:
                digest, of_file_bytes = read_staged(file, progress)
                sync_staged(file, of_file_bytes, progress, say_every_s=request.silent_s / SAYS_WHILE_SILENT)
            lines.append(list_line(digest, names))
            size_bytes += of_file_bytes
        folders = {()} | {_move(folder, names, target, request) for folder, names in staged_files(stage)}
        for above in folders:
            with openat.walk(target, above) as folder:
                os.fsync(folder)
        with openat.closing_fd(os.open(LIST, openat.NEW_FILE, 0o644, dir_fd=stage)) as file:
            openat.write_all(file, b"".join(lines))
            os.fsync(file)
        os.rename(LIST, list_name(request.job), src_dir_fd=stage, dst_dir_fd=target)
        os.fsync(target)
    return len(lines), size_bytes


@contextmanager
def _open_target(request: DeliverRequest) -> Generator[int]:
    """Yield the target's folder, made if need be, below one that an admin allows. No link on the way is followed."""
    steps = allowed_urls.location(request.to).folders
    listed = [allowed_urls.location(entry) for entry in request.allowed]
    within = (one.folders for one in listed if one.scheme == "file" and steps[: len(one.folders)] == one.folders)
    top = max(within, key=len)
    path, own = f"/{'/'.join(top)}", (request.storage, request.spool)
    try:
        listed = listed_folders.open_listed(path, owners=(0, os.geteuid()), own=own, for_writing=True)
    except listed_folders.FolderRefused as error:
        raise MayPass(f"{path}: {error}; an admin must make this folder on all nodes") from None
    with openat.closing_fd(listed):
        root = os.open(".", openat.FOLDER, dir_fd=listed)
    with openat.closing_fd(root):
        folder = _descend(root, steps[len(top) :], request)
        with openat.closing_fd(folder):
            yield folder


def _descend(start: int, names: Sequence[str], request: DeliverRequest) -> int:
    try:
        return openat.descend(start, names, 0o755)
    except OSError as error:
        if error.errno not in openat.NO_FOLDER:
            raise
        where = f"{allowed_urls.shown(request.to)}: {'/'.join(names)}"
        raise MayNot(f"{where} leads through a file or a link, and results go into folders only") from None


def _move(folder: int, names: Names, target: int, request: DeliverRequest) -> Names:
    """Give a file its name at the target; return the names of its folder there."""
    with openat.closing_fd(_descend(target, names[:-1], request)) as there:
        try:
            os.rename(names[-1], names[-1], src_dir_fd=folder, dst_dir_fd=there)
        except IsADirectoryError:
            where = f"{allowed_urls.shown(request.to)}: {'/'.join(names)}"
            raise MayNot(f"{where} is a folder there, and a file of the result") from None
    return names[:-1]


class TargetServer(Protocol):
    """A server that takes files. A file has its name there when all of it is there."""

    def put(self, names: Names, file: IO[bytes]) -> None:
        """Send a file, from its beginning. Raises `MayNot` or `MayPass`."""
        ...

    def find_left(self) -> None:
        """Find what tries before have left, if others could leave more of the same form later."""
        ...

    def remove_left(self, names: Names) -> None:
        """Remove what tries before may have left of a file."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


def _webdav(request: DeliverRequest, progress: Callable[[], None]) -> WebDav:
    return WebDav(
        request.to,
        request.allowed,
        passing_name=lambda name, before: passing_name(request.job, request.number - before, name),
        silent_s=request.silent_s,
        check=AddressGuard(request.allowed, request.control_host).check,
        progress=progress,
        credential=request.credential,
    )


def _bucket(request: DeliverRequest, progress: Callable[[], None]) -> "S3Target":
    from gleaner.agent.staging.s3 import S3Server, S3Target  # slow to load

    guard = AddressGuard(request.allowed, request.control_host)
    return S3Target(
        request.to,
        S3Server(request.to, guard, silent_s=request.silent_s, credential=request.credential),
        note=Path(request.spool) / note_name(request.job),
        silent_s=request.silent_s,
        progress=progress,
    )


SERVERS: dict[str, Callable[[DeliverRequest, Callable[[], None]], TargetServer]] = {"https": _webdav, "s3": _bucket}


def deliver_to_server(request: DeliverRequest, progress: Callable[[], None]) -> tuple[int, int]:
    """Deliver to a server, by way of the node's disk: a server may want a file to be sent twice."""
    keep, lines, size_bytes = Keep(request.keep), list[bytes](), 0
    server = SERVERS[allowed_urls.location(request.to).scheme](request, progress)
    room_bytes = shutil.disk_usage(request.spool).free - request.reserve_bytes
    with (
        closing(server),
        openat.closing_fd(os.open(request.spool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as spool,
        stage_folder(spool, request.job, request.number) as stage,
    ):
        if request.number > 1:  # tries before may have died
            server.find_left()  # now: a newer try may begin while the result is unpacked
        unpack_result(request, stage, progress, most_bytes=room_bytes)
        for folder, names in staged_files(stage):
            if request.keep and not keep(names):
                continue
            with os.fdopen(openat.open_plain(folder, names[-1]), "rb") as file:
                digest, of_file_bytes = read_staged(file.fileno(), progress)
                if request.number > 1:
                    server.remove_left(names)
                server.put(names, file)
            lines.append(list_line(digest, names))
            size_bytes += of_file_bytes
        with tempfile.TemporaryFile(dir=request.spool) as file:
            file.write(b"".join(lines))
            file.flush()
            server.put((list_name(request.job),), file)
    return len(lines), size_bytes


def clear_bucket(request: DeliverRequest, progress: Callable[[], None]) -> None:
    """Remove the parts of the upload that was under way when a try was killed."""
    _bucket(request, progress).clear()


CLEARERS: dict[str, Callable[[DeliverRequest, Callable[[], None]], None]] = {
    "file": clear_folder,
    "s3": clear_bucket,
}
"""By scheme: what removes what a killed try has left."""
TARGETS: dict[str, Callable[[DeliverRequest, Callable[[], None]], tuple[int, int]]] = {
    "file": deliver_to_folder,
    "https": deliver_to_server,
    "s3": deliver_to_server,
}


def deliver(request: DeliverRequest) -> Iterator[bytes]:
    """Deliver, and yield a line with the number of files and their size. Raises `MayNot` or `MayPass`."""
    where = allowed_urls.shown(request.to)
    if reason := allowed_urls.refusal(request.to, request.allowed, allowed_urls.DELIVER):
        raise MayNot(reason)
    try:
        scheme, progress = allowed_urls.location(request.to).scheme, lambda: openat.write_all(1, PROGRESS)
        if request.only_clears:
            CLEARERS[scheme](request, progress)
            return
        files, size_bytes = TARGETS[scheme](request, progress)
    except OSError as error:
        raise MayPass(f"{where}: {error.strerror or error}") from None
    yield f"\n{json.dumps({'files': files, 'size_bytes': size_bytes})}".encode()


def main() -> int:
    """Answer one request; return the exit status."""
    os.umask(0o022)  # who may read is decided by the folder that the admin allows
    os.nice(19)  # jobs go first
    os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])  # one core, whatever threads the storage uses
    request = DeliverRequest.from_json(sys.stdin.read())
    return serve(deliver(request), request.credential)


if __name__ == "__main__":
    status = main()
    os._exit(status)  # at once, whatever threads of the storage still do
