"""The conversion of an Apptainer (Singularity) image, a SIF file, into an image that our nodes can run.

The image's programs find the same environment as under Apptainer: the variables that its scripts set, and its
runscript, but no setuid files or devices. All files of the image are owned by root, and their times and order are kept,
so that the same file always results in the same image.

`unsquashfs` unpacks the image's file system with the rights of the user who pushes the image. An image that is too
large is refused afterwards.
"""

import hashlib
import json
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gleaner.agent.system import openat, tar_pack
from gleaner.agent.system.image_archive import ArchivedImage, ArchivedLayer
from gleaner.agent.system.tar_policy import Hostile, Policy, SizeLimit
from gleaner.control.input_errors import one_line
from gleaner.control.models.uploads import MOST_BYTES

MOST_FILES = 1_000_000
UNPACK_S = 3600.0
_MAGIC, _MAGIC_AT = b"SIF_MAGIC", 32
_HEAD = struct.Struct("<88xqq24x")
"""The number and position of the descriptors."""
_OBJECT = struct.Struct("<i?12xq176xii2s374x")
"""The kind, the flag of a used descriptor, the beginning, and for a file system the format, the part and the
processor."""
_MOST_OBJECTS = 10_000
_PARTITION, _PRIMARY, _SQUASHFS, _ENCRYPTED, _OCI = 0x4004, 2, 1, 5, (0x400A, 0x400B)
_PROCESSORS = {b"01": "386", b"02": "amd64", b"03": "arm", b"04": "arm64", b"06": "ppc64le", b"11": "s390x"}
_NOT_ALL_ATTRIBUTES = 2
"""The exit code of unsquashfs if it wrote all files, but could not set owners or create devices, which needs root."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_START = ".gleaner-start"
_START_SCRIPT = f"""#!/bin/sh
# As `apptainer run` does it, and with `exec` as the first word `apptainer exec`: the image's scripts set the
# environment, what the job was given counts more, and then the runscript or the program starts in the job's folder.
# Apptainer reads the scripts with a shell like bash, so the image's bash reads them here; another shell lacks `source`.
if [ -z "${{BASH_VERSION-}}" ]; then
    for gleaner_bash in /bin/bash /usr/bin/bash; do
        if [ -x "$gleaner_bash" ]; then exec "$gleaner_bash" /{_START} "$@"; fi
    done
    source() {{ . "$@"; }}
fi
gleaner_folder=$(pwd -P)
gleaner_given=$(export -p)
for gleaner_script in /.singularity.d/env/*.sh; do
    if [ -f "$gleaner_script" ]; then . "$gleaner_script"; fi
done
set +eu
gleaner_path=$PATH
eval "$gleaner_given"
if [ "$PATH" = {_PATH} ]; then PATH=$gleaner_path; fi
export PATH
cd "$gleaner_folder"
unset gleaner_bash gleaner_given gleaner_script gleaner_path gleaner_folder OLDPWD
if [ "${{1-}}" = exec ]; then
    shift
    exec "$@"
fi
exec /.singularity.d/runscript "$@"
"""
_START_FILE = tar_pack.File(_START, len(_START_SCRIPT), [_START_SCRIPT.encode()], 0o755)


def is_sif(path: Path) -> bool:
    """Return True if a file begins like a SIF file. Raises `OSError`."""
    with path.open("rb") as file:
        file.seek(_MAGIC_AT)
        return file.read(len(_MAGIC)) == _MAGIC


@contextmanager
def opened(path: Path, *, architecture: str) -> Generator[ArchivedImage]:
    """Open the image in a SIF file. Its two layers are stored in a temporary file. Raises `Hostile`."""
    start = str(file_system(path, architecture))
    if (unsquashfs := shutil.which("unsquashfs")) is None:
        raise Hostile("unsquashfs, which unpacks SIF files, is not installed here: install squashfs-tools")
    with tempfile.TemporaryDirectory(prefix="gleaner-sif-") as made:
        folder = Path(made)
        root = folder / "root"
        _run(unsquashfs, "-no-progress", "-no-xattrs", "-d", str(root), "-o", start, str(path))
        _check_start(root)
        layers = (
            _layer(folder / "files", _files_of(root)),
            _layer(folder / "start", tar_pack.pack_files([_START_FILE])),
        )
        yield ArchivedImage(_config(path.name, architecture, layers), architecture, layers)


def _files_of(root: Path) -> Iterator[bytes]:
    """Yield the archive of the unpacked files, and remove them. Devices are left out, and setuid bits are cleared."""
    policy = Policy(SizeLimit(MOST_BYTES, MOST_FILES), is_overlaid=True, modes=0o1777)
    with openat.closing_fd(os.open(root.parent, openat.FOLDER)) as folder:
        with openat.walk(folder, (root.name,)) as opened:
            yield from tar_pack.pack(opened, policy)
        openat.remove_tree(folder, root.name)


def _layer(path: Path, chunks: Iterable[bytes]) -> ArchivedLayer:
    """Write a layer to a file."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for chunk in chunks:
            digest.update(chunk)
            file.write(chunk)
        return ArchivedLayer(f"sha256:{digest.hexdigest()}", file.tell(), lambda: path.open("rb"))


def file_system(path: Path, architecture: str) -> int:
    """Return the position of the file system with which the image is to run. Raises `Hostile` or `OSError`.

    The format is defined by the package `sif` of its authors: a header, and a table of descriptors.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD.size)
        total, at = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0)
        file.seek(at)
        table = file.read(min(total, _MOST_OBJECTS) * _OBJECT.size)
    objects = list(_OBJECT.iter_unpack(table[: len(table) // _OBJECT.size * _OBJECT.size]))
    for kind, is_used, start, form, part, processor in objects:
        if not is_used or kind != _PARTITION or part != _PRIMARY:
            continue
        if form != _SQUASHFS:
            why = "it is encrypted" if form == _ENCRYPTED else "its file system is not a squashfs"
            raise Hostile(f"{why}, which cannot be used here: build it with a plain squashfs")
        found = _PROCESSORS.get(processor[:2], "another processor")
        if found != architecture:
            raise Hostile(f"it is for {found}, and linux/{architecture} is wanted")
        return int(start)
    if any(is_used and kind in _OCI for kind, is_used, *_ in objects):
        raise Hostile("it is an OCI-SIF: push the OCI image from which it was made, or build a plain SIF from that")
    raise Hostile("there is no file system in it that could run")


def _run(*words: str) -> None:
    """Run a program that reads the file. Raises `Hostile`."""
    name = Path(words[0]).name
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=UNPACK_S, check=False)
    except subprocess.TimeoutExpired:
        raise Hostile(f"{name} did not read it within {UNPACK_S:.0f} s") from None
    if done.returncode not in (0, _NOT_ALL_ATTRIBUTES):
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise Hostile(one_line(f"{name} cannot read it: {lines[0]}"))


def _check_start(root: Path) -> None:
    """Raise `Hostile` if files that the image needs to start are missing."""
    for needed, what in (("bin/sh", "which runs its scripts"), (".singularity.d/runscript", "with which it starts")):
        if not os.path.lexists(root / needed):
            raise Hostile(f"it has no /{needed}, {what}")


def _config(name: str, architecture: str, layers: Sequence[ArchivedLayer]) -> bytes:
    """Return the image's configuration (OCI image-spec, config.md)."""
    return json.dumps(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {
                "Env": [f"PATH={_PATH}", f"APPTAINER_NAME={name}", f"SINGULARITY_NAME={name}"],
                "Entrypoint": [f"/{_START}"],
            },
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        }
    ).encode()
