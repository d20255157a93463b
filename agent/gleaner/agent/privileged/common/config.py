"""The settings of the privileged side, from one JSON file that only root can write.

{"agent_uid": 4200, "runc": "/usr/sbin/runc", "handshakes": "/run/gleaner-agent", "own": "/run/gleaner-root",
 "criu": "/usr/sbin/criu", "bundles": "/var/lib/gleaner-root"}
"""

from __future__ import annotations  # the node may have Python 3.9

import os
import re
from typing import Any, NamedTuple

from ...system import untrusted
from . import mount_folders

CONFIG_FILE = "/etc/gleaner/privileged.json"
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}\Z")
_LEAST_KEY_BYTES = 32


class Misconfigured(Exception):
    """The settings are missing or wrong, or an account other than root could have written them."""


class Config(NamedTuple):
    """The checked settings."""

    agent_uid: int
    """The service account that agents run as. The helper and the shim listen to no other account."""
    runc: str = "/usr/sbin/runc"
    handshakes: str = "/run/gleaner-agent"
    """The one folder in which agents listen for the shim, each at its own socket. The agents' account owns it."""
    agent_logs: str = "/var/lib/gleaner/work"
    """The folder for the output of agents, as in `agent_logs` of control's settings. The agents' account owns it."""
    own: str = "/run/gleaner-root"
    """A folder that only root can enter, for files that are needed only until the next boot."""
    criu: str = "/usr/sbin/criu"
    """CRIU itself, or the site's wrapper around it."""
    library: str = "/usr/local/lib/gleaner"
    """The folder in which these programs are installed."""
    bundles: str = "/var/lib/gleaner-root"
    """The folder of the node helper's bundles and written layers, which only root can enter."""
    cgroup_parent: str = "/gleaner"
    """The cgroup that contains the node helper's containers."""
    shim: str = "/usr/local/sbin/gleaner-runc"
    """The OCI runtime shim, which the node helper calls as an engine would."""
    helper_socket: str = "/run/gleaner-helper.sock"
    """The socket at which the node helper listens for agents."""
    user_jobs_key: str = ""
    """A file that belongs to root, with at least 32 random bytes that are the same on every node.

    If it is set, the node helper also serves the owners of Slurm jobs that run here (`glean run`), and seals their
    checkpoints with this key.
    """
    users_work: str = "/var/lib/gleaner-users"
    """The folder on the node's own disk that contains the user jobs' folders, where their programs listen for the
    shim."""
    scontrol: str = "/usr/bin/scontrol"
    """Slurm's program that tells us to whom a job belongs."""
    node_name: str = ""
    """This node's name in Slurm, if it is not the short host name."""
    mounts: tuple[str, ...] = ()
    """The folders of this node that jobs can mount, read-only and each at its own path (`mount_folders`)."""
    most_image_bytes: int = 64 * 2**30
    """The largest total size of the container images that the node helper keeps."""
    most_container_bytes: int = 64 * 2**30
    """The largest total size of the files that all containers have written."""
    most_container_files: int = 2**21
    """The largest total number of files and folders that all containers have written."""

    @property
    def own_paths(self) -> list[str]:
        """Our own paths, which no job is allowed to see."""
        own = [self.handshakes, self.agent_logs, self.own, self.bundles, self.users_work]
        return own + [one for one in (self.helper_socket, self.user_jobs_key) if one]

    @property
    def notify(self) -> str:
        """The path of CRIU's action script."""
        return f"{self.library}/gleaner/agent/privileged/shim/notify.sh"


def load(path: str = CONFIG_FILE) -> Config:
    """Return the settings. Raises `Misconfigured` with one line that explains what to do."""
    try:
        content = _read_root_file(path, 0o022, "nobody else's to write: chown root, chmod 644")
        values: dict[str, Any] = untrusted.json_of(content)
    except (OSError, ValueError) as error:
        raise Misconfigured(f"cannot read {path}: {error}") from error
    if type(values) is not dict:
        raise Misconfigured(f"{path}: a JSON object is wanted")
    unknown = set(values) - set(Config._fields)
    if unknown:
        raise Misconfigured(f"{path}: unknown key {sorted(unknown)[0]!r}")
    if type(values.get("agent_uid")) is not int or values["agent_uid"] <= 0:
        raise Misconfigured(f"{path}: agent_uid must be the number of an ordinary account")
    for name, value in values.items():
        if name.startswith("most_"):
            if type(value) is not int or value <= 0:
                raise Misconfigured(f"{path}: {name} must be a number above 0")
        elif name == "mounts":
            if type(value) not in (list,) or not all(isinstance(one, str) for one in value):
                raise Misconfigured(f"{path}: mounts must be a list of folders")
        elif name == "node_name":
            if not (isinstance(value, str) and _NODE_NAME.match(value)):
                raise Misconfigured(f"{path}: node_name must be the node's name in Slurm")
        elif name != "agent_uid" and not (isinstance(value, str) and value.startswith("/")):
            raise Misconfigured(f"{path}: {name} must be an absolute path")
    values["mounts"] = tuple(values.get("mounts", ()))
    settings = Config(**values)
    _check_mounts(settings, path)
    return settings


def _check_mounts(settings: Config, path: str) -> None:
    """Check that jobs can be allowed to mount these folders. Raises `Misconfigured`."""
    for folder in settings.mounts:
        if why := mount_folders.fault(folder):
            raise Misconfigured(f"{path}: mounts: {folder[:255]!r} {why}")
    if why := mount_folders.conflict(settings.mounts, settings.own_paths):
        raise Misconfigured(f"{path}: mounts: {why}")


def key(settings: Config) -> bytes:
    """Return the key that seals the checkpoints of user jobs. Raises `Misconfigured`."""
    path = settings.user_jobs_key
    try:
        content = _read_root_file(path, 0o077, "nobody else's to read: chown root, chmod 600")
    except OSError as error:
        raise Misconfigured(f"cannot read user_jobs_key: {error}") from error
    if len(content) < _LEAST_KEY_BYTES:
        raise Misconfigured(f"{path} is too short for a key: at least {_LEAST_KEY_BYTES} random bytes are wanted")
    return content


def _read_root_file(path: str, forbidden: int, rule: str) -> bytes:
    """Return the content of a file that belongs to root and whose mode has none of the forbidden bits."""
    with open(path, "rb") as file:
        facts = os.fstat(file.fileno())
        if facts.st_uid != 0 or facts.st_mode & forbidden:
            raise Misconfigured(f"{path} must be root's, and {rule}")
        return file.read()
