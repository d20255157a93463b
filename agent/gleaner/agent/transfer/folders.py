"""Files in folders that every node has. Folders that other users could replace are never entered (`listed_folders`)."""

import os
import stat
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gleaner.agent.common import allowed_urls
from gleaner.agent.system import listed_folders, openat
from gleaner.agent.transfer.process import CHUNK_BYTES, PermanentFailure, TemporaryFailure
from gleaner.agent.transfer.rules import Access
from gleaner.agent.transfer.stage import Names, StagedFile


class ListedFolder:
    """A file to read, or a folder that receives files, below a folder that an admin lists."""

    def __init__(self, url: str, access: Access) -> None:
        self._shown, self._access = allowed_urls.shown(url), access
        self._names = allowed_urls.location(url).folders
        places = map(allowed_urls.location, access.allowed)
        self._listed = [place.folders for place in places if place.scheme == "file"]
        self._top = max((each for each in self._listed if self._names[: len(each)] == each), key=len)

    def read(self, **_: bool) -> Iterator[bytes]:
        """Yield the content of a file that every user of this node can read. Links within the list are followed."""
        path, above = f"/{'/'.join(self._names)}", self._top[: len(self._names) - 1]
        below = "/".join(self._names[len(above) :])
        with self._open_listed(above) as listed:
            try:
                file = os.open(below, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=listed)
            except OSError as error:
                raise PermanentFailure(f"{path}: {error.strerror}") from None
        with openat.closing_fd(file):
            # The open file is checked and not its name, which might refer to another file a moment later.
            real = Path(f"/proc/self/fd/{file}").readlink()
            if not any(real.is_relative_to(Path("/", *each)) for each in self._listed):
                raise PermanentFailure(f"{path} leads to {real}, which is not below a folder that this site allows")
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise PermanentFailure(f"{path} is no file")
            if not os.fstat(file).st_mode & stat.S_IROTH or not all(
                folder.stat().st_mode & stat.S_IXOTH for folder in real.parents
            ):
                line = f"{path} is not readable by everybody: Gleaner would give it to who may not read it"
                raise PermanentFailure(line)
            while chunk := os.read(file, CHUNK_BYTES):
                yield chunk

    @contextmanager
    def opened(self, names: Names = ()) -> Generator[int]:
        """Yield the target's folder, or one below it, which is made if necessary. Links on the way are not followed."""
        steps = (*self._names[len(self._top) :], *names)
        with self._open_listed(self._top, for_writing=True) as listed:
            try:
                folder = openat.descend(listed, (".", *steps), 0o755)
            except OSError as error:
                if error.errno not in openat.NO_FOLDER:
                    raise
                line = f"{self._shown}: {'/'.join(steps)} leads through a file or a link, and results go into folders"
                raise PermanentFailure(f"{line} only") from None
        with openat.closing_fd(folder):
            yield folder

    def put(self, names: Names, file: StagedFile) -> None:
        """Give a file its name by one rename from a folder in the same file system."""
        while file.read(CHUNK_BYTES):
            pass
        file.progress.work(lambda: os.fsync(file.fileno()), file.size_bytes)
        with self.opened(names[:-1]) as folder:
            try:
                os.rename(file.file_name, names[-1], src_dir_fd=file.folder, dst_dir_fd=folder)
            except IsADirectoryError:
                line = f"{self._shown}: {'/'.join(names)} is a folder there, and a file of the result"
                raise PermanentFailure(line) from None
            os.fsync(folder)

    @contextmanager
    def _open_listed(self, names: Sequence[str], *, for_writing: bool = False) -> Generator[int]:
        path, owners = f"/{'/'.join(names)}", (0, os.geteuid())
        try:
            folder = listed_folders.open_listed(path, owners=owners, own=self._access.own, for_writing=for_writing)
        except listed_folders.FolderRefused as error:
            advice = "; an admin must make this folder on all nodes" if for_writing else ""
            raise TemporaryFailure(f"{error}{advice}") from None
        with openat.closing_fd(folder):
            yield folder
