"""Change the configuration of a container of ours before runc reads it: its sockets, and the name of its user."""

from __future__ import annotations  # the node may have Python 3.9

import json
import os
from typing import Any

from ...system import atomic, untrusted
from ..common import socket_filter
from . import user_name

MALFORMED = (ValueError, KeyError, TypeError, AttributeError)
"""The errors that Python raises for a malformed configuration."""


def change(bundle: str, annotation: str) -> None:
    """Change config.json in a container's bundle, if the container carries the annotation.

    Raises `OSError`, or one of `MALFORMED`.
    """
    path = os.path.join(bundle, "config.json")
    with open(path, "rb") as file:
        config: dict[str, Any] = untrusted.json_of(file.read())
    if annotation not in (config.get("annotations") or ()):
        return
    socket_filter.restrict(config)
    user, names = config["process"]["user"], os.path.abspath(os.path.join(bundle, user_name.FILE))
    atomic.replace(names, user_name.passwd(int(user["uid"]), int(user["gid"])).encode(), mode=0o644)
    config["mounts"] = [*config["mounts"], user_name.mount(names)]
    atomic.replace(path, json.dumps(config).encode(), mode=os.stat(path).st_mode & 0o777)
