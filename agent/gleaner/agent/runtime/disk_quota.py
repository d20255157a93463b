"""Find out if Docker can limit what a container writes: only on overlay2 over XFS that is mounted with project quotas.

Docker refuses such a limit anywhere else, so this is checked and never assumed.
"""

from pathlib import Path, PurePath

_ON = frozenset({"pquota", "prjquota"})


def is_on(data_folder: str, *, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    """Return True if the file system of the engine's data folder is XFS with project quotas."""
    try:
        return has_quotas(data_folder, mounts.read_text(errors="surrogateescape"))
    except OSError:
        return False


def has_quotas(folder: str, mountinfo: str) -> bool:
    r"""Return True if the kernel's list of mounts (proc(5), mountinfo) shows XFS with project quotas for the folder.

    Of several mounts at one place, the last one counts.

    >>> has_quotas("/var/lib/docker", "7 1 8:1 / / rw - ext4 d rw\n8 7 8:2 / /var rw - xfs d rw,prjquota")
    True
    >>> has_quotas("/var/lib/docker", "7 1 8:1 / / rw - xfs d rw,pquota\n8 7 8:2 / /var rw - xfs d rw,noquota")
    False
    """
    best, found = -1, False
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        words, told = before.split(" "), after.split(" ")
        place = PurePath(words[4]) if len(words) > 4 else None
        if place is None or len(told) < 3 or not PurePath(folder).is_relative_to(place):
            continue
        if len(place.parts) >= best:
            best, found = len(place.parts), told[0] == "xfs" and bool(_ON & set(told[2].split(",")))
    return found
