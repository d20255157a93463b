"""The privileged side's settings: one JSON file that only root may write.

{"agent_uid": 4200, "runc": "/usr/sbin/runc", "meetings": "/run/gleaner-agent", "own": "/run/gleaner-root",
 "criu": "/usr/sbin/criu", "bundles": "/var/lib/gleaner-root"}
"""

from __future__ import annotations  # the node may have Python 3.9

import json
import os
import re
import stat
from typing import Any, NamedTuple

CONFIG_FILE = "/etc/gleaner/privileged.json"
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}\Z")
_LEAST_KEY_BYTES = 32


class Misconfigured(Exception):
    """The settings are missing, wrong, or could have been written by somebody else than root."""


class Config(NamedTuple):
    """The settings, checked."""

    agent_uid: int
    """The service account that agents run as: the only one that is listened to."""
    runc: str = "/usr/sbin/runc"
    meetings: str = "/run/gleaner-agent"
    """The one folder in which agents wait for us, each at a socket of its own; the agents' account owns it."""
    own: str = "/run/gleaner-root"
    """A folder of root's alone, for what lives no longer than a boot."""
    criu: str = "/usr/sbin/criu"
    """CRIU itself, or a wrapper of the site's around it."""
    library: str = "/usr/local/lib/gleaner"
    """Where these programs are installed."""
    bundles: str = "/var/lib/gleaner-root"
    """The node helper's bundles and written layers; root's alone."""
    cgroup_parent: str = "/gleaner"
    """The node helper's containers live in this cgroup."""
    shim: str = "/usr/local/sbin/gleaner-runc"
    """The OCI runtime shim, which the node helper calls as an engine would."""
    helper_socket: str = "/run/gleaner-helper.sock"
    """Where the node helper listens for agents."""
    own_jobs_key: str = ""
    """A file of root's with at least 32 random bytes, the same on every node. Where it is set, the node helper also
    serves the owners of Slurm jobs that run here (`glean run`), and seals what it saves for them with it."""
    users_work: str = "/var/lib/gleaner-users"
    """In it lie their jobs' folders, on the node's own disk, and where their programs wait for root."""
    scontrol: str = "/usr/bin/scontrol"
    """Slurm's program that says whose a job is."""
    node_name: str = ""
    """This node's name in Slurm, where it is not the short host name."""
    most_image_bytes: int = 64 * 2**30
    """The node helper keeps no more than this of images, and"""
    most_container_bytes: int = 64 * 2**30
    """no more than this of what containers have written, in"""
    most_container_files: int = 2**21
    """no more than so many files and folders."""

    @property
    def notify(self) -> str:
        """CRIU's action script."""
        return f"{self.library}/privileged/notify.sh"


def load(path: str = CONFIG_FILE) -> Config:
    """The settings. Raises `Misconfigured` with one line that says what to do."""
    try:
        with open(path, encoding="utf-8") as file:
            facts = os.fstat(file.fileno())
            if facts.st_uid != 0 or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise Misconfigured(f"{path} must be root's, and nobody else's to write: chown root, chmod 644")
            given: dict[str, Any] = json.load(file)
    except (OSError, ValueError) as error:
        raise Misconfigured(f"cannot read {path}: {error}") from error
    if type(given) is not dict:
        raise Misconfigured(f"{path}: a JSON object is wanted")
    unknown = set(given) - set(Config._fields)
    if unknown:
        raise Misconfigured(f"{path}: unknown key {sorted(unknown)[0]!r}")
    if type(given.get("agent_uid")) is not int or given["agent_uid"] <= 0:
        raise Misconfigured(f"{path}: agent_uid must be the number of an ordinary account")
    for name, value in given.items():
        if name.startswith("most_"):
            if type(value) is not int or value <= 0:
                raise Misconfigured(f"{path}: {name} must be a number above 0")
        elif name == "node_name":
            if not (isinstance(value, str) and _NODE_NAME.match(value)):
                raise Misconfigured(f"{path}: node_name must be the node's name in Slurm")
        elif name != "agent_uid" and not (isinstance(value, str) and value.startswith("/")):
            raise Misconfigured(f"{path}: {name} must be an absolute path")
    return Config(**given)


def key(settings: Config) -> bytes:
    """What saves of users' own jobs are sealed with. Raises `Misconfigured`."""
    path = settings.own_jobs_key
    try:
        with open(path, "rb") as file:
            facts = os.fstat(file.fileno())
            if facts.st_uid != 0 or facts.st_mode & 0o077:
                raise Misconfigured(f"{path} must be root's, and nobody else's to read: chown root, chmod 600")
            found = file.read()
    except OSError as error:
        raise Misconfigured(f"cannot read own_jobs_key: {error}") from error
    if len(found) < _LEAST_KEY_BYTES:
        raise Misconfigured(f"{path} is too short for a key: at least {_LEAST_KEY_BYTES} random bytes are wanted")
    return found
