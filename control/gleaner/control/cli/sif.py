"""An Apptainer (Singularity) image, a SIF file, made into an image that our nodes can run.

Its programs find what they would find under Apptainer: the environment that the image's scripts set, its runscript,
and nothing that is setuid or a device. All its files belong to root, and their times and order are kept, so that the
same file always gives the same image.

`siftool` (or Apptainer itself) and `unsquashfs` take the file apart, as the user who pushes it and with limits.
"""

import hashlib
import json
import os
import re
import resource
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from gleaner.control.cli.image_archive import MOST_BYTES, NotAnImage, Place, SavedImage
from gleaner.control.models.images import ImageLayer
from gleaner.control.validation_messages import one_line

MOST_FILES = 1_000_000
LIST_S = 60.0
UNPACK_S = 3600.0
_MAGIC, _MAGIC_AT = b"SIF_MAGIC", 32
_ROW = re.compile(r"\d+\s*\|.*\|(?P<start>\d+)-(?P<end>\d+)\s*\|(?P<what>.+)")
_MAIN = re.compile(r"FS \((?P<format>[^/]+)/\*System/(?P<architecture>\w+)\)")
_ENTRY = re.compile(r"(?P<mode>[a-z-][rwxstST-]{9})\s+\S+\s+(?P<size>\d+|\d+,\s*\d+)\s")
_MOST_LINKS = 40
"""The most links that Linux follows in one name."""
_NOT_ALL_ATTRIBUTES = 2
"""The exit code of unsquashfs if all files are there, but not each owner or device: only root could make these."""
_LISTERS = (("siftool",), ("apptainer", "sif"), ("singularity", "sif"))
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_START = ".singularity.d/gleaner-start"
_START_SCRIPT = f"""#!/bin/sh
# As `apptainer run` does it, and with `exec` as the first word `apptainer exec`: the image's scripts set the
# environment, what the job was given counts more, and then the runscript or the program starts.
gleaner_given=$(export -p)
for gleaner_script in /.singularity.d/env/*.sh; do
    if [ -f "$gleaner_script" ]; then . "$gleaner_script"; fi
done
gleaner_path=$PATH
eval "$gleaner_given"
if [ "$PATH" = {_PATH} ]; then PATH=$gleaner_path; fi
export PATH
unset gleaner_given gleaner_script gleaner_path
if [ "${{1-}}" = exec ]; then
    shift
    exec "$@"
fi
exec /.singularity.d/runscript "$@"
"""


def is_sif(path: Path) -> bool:
    """Return True if a file begins as a SIF file does. Raises `OSError`."""
    with path.open("rb") as file:
        file.seek(_MAGIC_AT)
        return file.read(len(_MAGIC)) == _MAGIC


@contextmanager
def opened(path: Path, *, architecture: str) -> Generator[SavedImage]:
    """Open the image in a SIF file; its one layer is in a temporary file meanwhile. Raises `NotAnImage`."""
    start = str(file_system(_rows(path), architecture))
    if (unsquashfs := shutil.which("unsquashfs")) is None:
        raise NotAnImage("a SIF file is unpacked by unsquashfs, which is not here: install squashfs-tools")
    with tempfile.TemporaryDirectory(prefix="gleaner-sif-") as made:
        folder = Path(made)
        _check_size(_run(unsquashfs, "-lln", "-o", start, str(path), within_s=LIST_S), folder)
        root = folder / "root"
        _run(unsquashfs, "-no-progress", "-no-xattrs", "-d", str(root), "-o", start, str(path), within_s=UNPACK_S)
        _check_start(root)
        layer = _layer(root, folder / "layer.tar")
        with layer.open("rb") as file:
            digest = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
            size_bytes = file.tell()
            config = _config(path.name, architecture, digest)
            layers = (ImageLayer(diff_id=digest, size_bytes=size_bytes),)
            yield SavedImage(config, architecture, layers, file, (Place(0, size_bytes),))


def _rows(path: Path) -> list[str]:
    """Return the place and kind of each object in the file, as the format's own tool lists them."""
    lister = next((words for words in _LISTERS if shutil.which(words[0])), None)
    if lister is None:
        raise NotAnImage("a SIF file is read by siftool: install it, or Apptainer, which has it as `apptainer sif`")
    listed = _run(*lister, "list", str(path), within_s=LIST_S)
    return [f"{row['start']} {row['what']}" for line in listed.splitlines() if (row := _ROW.match(line.strip()))]


def file_system(rows: Sequence[str], architecture: str) -> int:
    """Return where the file system begins that the image is to run with. Raises `NotAnImage`.

    >>> file_system(["32768 FS (Raw/System/386)", "36864 FS (Squashfs/*System/amd64)"], "amd64")
    36864
    """
    for row in rows:
        start, _, what = row.partition(" ")
        if (found := _MAIN.match(what.strip())) is None:
            continue
        if found["format"] != "Squashfs":
            why = "it is encrypted" if "ncrypted" in found["format"] else f"its file system is {found['format']}"
            raise NotAnImage(f"{why}, which cannot be used here: build it with a plain squashfs")
        if found["architecture"] != architecture:
            raise NotAnImage(
                f"it is for {found['architecture']}, and linux/{architecture} is wanted (--architecture says another)"
            )
        return int(start)
    if any("Unknown" in row or "OCI" in row for row in rows):
        raise NotAnImage("it is an OCI-SIF: push the OCI image from which it was made, or build a plain SIF from that")
    raise NotAnImage("there is no file system in it that could run")


def _check_size(listed: str, folder: Path) -> None:
    """Raise `NotAnImage` if the files that `unsquashfs -lln` has listed are too many, or have no room in the folder."""
    files = size_bytes = 0
    for line in listed.splitlines():
        if found := _ENTRY.match(line):
            files += 1
            size_bytes += int(found["size"]) if found["size"].isdigit() else 0
    if files > MOST_FILES:
        raise NotAnImage(f"it holds more than {MOST_FILES:,} files")
    if size_bytes > MOST_BYTES:
        raise NotAnImage(f"its files are larger than {MOST_BYTES // 2**30} GiB")
    if (free := shutil.disk_usage(folder).free) < 2 * size_bytes:
        raise NotAnImage(
            f"{folder.parent} has {free // 2**20:,} MiB free, and to unpack it takes {2 * size_bytes // 2**20:,} MiB:"
            " set TMPDIR to a larger place"
        )


def _run(*words: str, within_s: float) -> str:
    """Run a program that reads the file, and return what it prints. Raises `NotAnImage`."""
    name = Path(words[0]).name
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=within_s,
            check=False,
            preexec_fn=_limited,
        )
    except subprocess.TimeoutExpired:
        raise NotAnImage(f"{name} did not read it within {within_s:.0f} s") from None
    except OSError as error:
        raise NotAnImage(f"{name} cannot be started: {error.strerror}") from None
    if done.returncode not in (0, _NOT_ALL_ATTRIBUTES):
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise NotAnImage(one_line(f"{name} cannot read it: {lines[0]}"))
    return done.stdout.decode("utf-8", "surrogateescape")


def _limited() -> None:
    """Limit what the next program may do: a file that was made to harm must not fill a disk or leave a core file."""
    for what, most in ((resource.RLIMIT_FSIZE, MOST_BYTES), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(what)
        resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _check_start(root: Path) -> None:
    """Raise `NotAnImage` if what its start needs is missing."""
    for needed, what in (("bin/sh", "which runs its scripts"), (".singularity.d/runscript", "with which it starts")):
        if not has_file(root, needed):
            raise NotAnImage(f"it has no /{needed}, {what}")


def has_file(root: Path, path: str) -> bool:
    """Return True if a program in the image finds a file at the path. No link leads to a file of this machine."""
    at: list[str] = []
    left, links = path.split("/")[::-1], 0
    while left:
        step = left.pop()
        here = root.joinpath(*at, step)
        if step == "..":
            at = at[:-1]
        elif here.is_symlink():
            target, links = str(here.readlink()), links + 1
            if links > _MOST_LINKS:
                return False
            at = [] if target.startswith("/") else at
            left += target.split("/")[::-1]
        elif step not in ("", "."):
            at.append(step)
    return root.joinpath(*at).is_file()


def _layer(root: Path, path: Path) -> Path:
    """Pack the unpacked files into one layer at `path`, remove them, and return `path`."""
    first: dict[tuple[int, int], str] = {}
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT, errors="surrogateescape") as layer:
        for name, about in _entries(root):
            member = tarfile.TarInfo(name)
            member.mode, member.mtime = about.st_mode & 0o1777, int(about.st_mtime)
            if stat.S_ISLNK(about.st_mode):
                member.type, member.linkname = tarfile.SYMTYPE, str((root / name).readlink())
            elif stat.S_ISDIR(about.st_mode):
                member.type = tarfile.DIRTYPE
            elif not stat.S_ISREG(about.st_mode):
                continue  # a device, a pipe or a socket
            elif (same := first.setdefault((about.st_dev, about.st_ino), name)) != name:
                member.type, member.linkname = tarfile.LNKTYPE, same
            else:
                member.size = about.st_size
                (root / name).chmod(0o600)
                with (root / name).open("rb") as content:
                    layer.addfile(member, content)
                continue
            layer.addfile(member)
        start = tarfile.TarInfo(_START)
        start.mode, start.size = 0o755, len(_START_SCRIPT)
        layer.addfile(start, BytesIO(_START_SCRIPT.encode()))
    shutil.rmtree(root)
    return path


def _entries(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the names of all files and folders, always in the same order, and what they were when unpacked.

    A folder may not be readable for its owner; it is made so.
    """

    def fail(error: OSError) -> None:
        raise error

    for folder, folders, files in os.walk(root, onerror=fail):
        folders.sort()
        for name in sorted((*folders, *files)):
            path = Path(folder, name)
            about = path.lstat()
            if stat.S_ISDIR(about.st_mode):
                path.chmod(0o700)
            yield str(path.relative_to(root)), about


def _config(name: str, architecture: str, layer: str) -> str:
    """Return the image's configuration (OCI image-spec, config.md)."""
    return json.dumps(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {
                "Env": [f"PATH={_PATH}", f"APPTAINER_NAME={name}", f"SINGULARITY_NAME={name}"],
                "Entrypoint": [f"/{_START}"],
            },
            "rootfs": {"type": "layers", "diff_ids": [layer]},
        }
    )
