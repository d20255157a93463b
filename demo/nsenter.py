"""Running programs in containers without the engine, because `docker exec` uses two cores for a tenth of a second.

As with `docker exec`, a program has the container's namespaces, control groups and environment, and the user's groups
and home. Its limits are those of the process that starts it. Only root can do this.
"""

import json
import re
import subprocess
from functools import cache
from pathlib import Path

SOCKET = "unix:///run/gleaner/docker.sock"
"""The address of our engine, in which the containers run."""
OUTER = ("docker", "-H", SOCKET)
CGROUPS = Path("/sys/fs/cgroup")
_BOUND = re.compile(r"^CapBnd:\s*(\w+)", re.MULTILINE)
_ENTER = 'for each in $1; do echo $$ >"$each/cgroup.procs" || exit 125; done; shift; exec nsenter --all --target "$@"'


class NotThere(Exception):
    """The error for a container that is not running."""


def words(container: str, *command: str, user: str = "root") -> list[str]:
    """Return the command line that runs a command in a container of our engine. Raises `NotThere`."""
    number, pid, environment = _inspected(container)
    if number not in _cgroup(pid):  # it has been restarted
        _inspected.cache_clear()
        number, pid, environment = _inspected(container)
    groups = " ".join(_cgroup_folders(number, _cgroup(pid)))
    number_of_user, group, home = _user(pid, user)
    become = ["setpriv", f"--reuid={number_of_user}", f"--regid={group}", "--init-groups"]
    become += [f"--bounding-set={beyond}"] if (beyond := _beyond(pid)) else []
    clean = ["env", "-i", f"HOME={home}", *environment]
    return ["sh", "-c", _ENTER, "sh", groups, str(pid), *clean, *become, "--", *command]


@cache
def _inspected(container: str) -> tuple[str, int, tuple[str, ...]]:
    """Return the container's id, the number of its first process, and its environment."""
    shown = subprocess.run([*OUTER, "inspect", container], capture_output=True, check=False)
    if shown.returncode:
        raise NotThere(container)
    (found,) = json.loads(shown.stdout)
    if not found["State"]["Pid"]:
        raise NotThere(container)
    return found["Id"], found["State"]["Pid"], (f"HOSTNAME={found['Config']['Hostname']}", *found["Config"]["Env"])


def _cgroup(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return ""


def _cgroup_folders(number: str, lines: str) -> list[str]:
    """Return the folder of the container in each hierarchy of control groups."""
    folders = []
    for controllers, path in re.findall(rf"^\d+:([^:]*):(\S*{number})", lines, re.MULTILINE):
        hierarchy = CGROUPS / (controllers.removeprefix("name=") or "unified")
        folder = (hierarchy if hierarchy.is_dir() else CGROUPS) / path.lstrip("/")
        folders += [str(folder)] if folder.is_dir() else []  # the hierarchy might not be mounted
    return folders


def _beyond(pid: int) -> str:
    """Return the capabilities that we have and the container does not, in the form in which `setpriv` drops them."""
    theirs, ours = (int(_BOUND.findall(Path(f"/proc/{of}/status").read_text())[0], 16) for of in (pid, "self"))
    return ",".join(f"-cap_{bit}" for bit in range(64) if (ours & ~theirs) >> bit & 1)


def _user(pid: int, name: str) -> tuple[int, int, str]:
    """Return the uid, the group and the home of a user of the container, given the user's name or uid."""
    for line in Path(f"/proc/{pid}/root/etc/passwd").read_text().splitlines():
        login, _, number, group, _, home, _ = line.split(":")
        if name in {login, number}:
            return int(number), int(group), home
    raise NotThere(f"no user {name}")
