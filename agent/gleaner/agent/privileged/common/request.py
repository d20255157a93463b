"""Check, field by field, what an agent, or a user within a user job, asks of the node helper.

The module is pure and never touches the system. Every field is a plain value of one type, within limits, and unknown
fields are refused. No field is a path of the caller's choice. A container is identified by a plain name, a container
image by its name or digest, and a folder by a descriptor. A mount must be one of those in the privileged settings.
"""

from __future__ import annotations  # the node may have Python 3.9

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ...system.ipc import Message
from . import mount_folders

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{1,60}\Z")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}\Z")
_IMAGE_ID = re.compile(r"sha256:[0-9a-f]{64}\Z")
_VARIABLE = re.compile(r"[^=\0]{1,1024}\Z", re.DOTALL)
_LABEL = re.compile(r"[a-z0-9][a-z0-9._-]{0,126}\Z")
_LONGEST = 128 * 2**10
"""The kernel's own limit for one argument or variable (MAX_ARG_STRLEN)."""
_MOST_TEXTS = 4096
_MOST_CPUS = 4096
_MOST_MEMORY_MIB = 2**26
_LEAST_MEMORY_MIB = 6
"""The memory that runc itself needs to start."""
LABEL_END = "org.gleaner.end-s"
"""The label with the time by which the container's agent must have ended, in seconds since the epoch."""
SIGNALS = ("KILL", "TERM", "INT", "HUP", "QUIT", "USR1", "USR2")


class Refused(Exception):
    """The helper does not grant the request. The message is one line that names the field."""


class Spec(NamedTuple):
    """One container, as the agent requests it."""

    name: str
    image: str
    command: list[str]
    environment: dict[str, str]
    cpus: int
    memory_mib: int
    labels: dict[str, str]
    restore: bool
    """True if the process is restored from a checkpoint instead of started."""
    inputs: bool
    """True if the container has a folder of inputs, which is passed with `run`."""
    mounts: list[str]
    """The node's folders that the container sees, each at its own path."""


def check_fields(message: Message, **rules: Callable[[Any], bool]) -> Message:
    """Return the message without `do` if it has exactly these fields and each field passes its check. Raises `Refused`.

    >>> check_fields({"do": "wait", "name": "gleaner-7-1"}, name=is_name)
    {'name': 'gleaner-7-1'}
    """
    fields = {key: value for key, value in message.items() if key != "do"}
    for field in sorted(set(fields) ^ set(rules)):
        raise Refused(f"{field[:40]!r} is {'missing' if field in rules else 'no field of this request'}")
    for field, is_right in rules.items():
        if not is_right(fields[field]):
            raise Refused(f"{field!r} is not what it must be: {str(fields[field])[:80]!r}")
    return fields


def spec(message: Message) -> Spec:
    """Return the container that a `create` request describes. Raises `Refused`."""
    return Spec(
        **check_fields(
            message,
            name=is_name,
            image=is_image,
            command=_is_command,
            environment=_is_environment,
            cpus=_within(1, _MOST_CPUS),
            memory_mib=_within(_LEAST_MEMORY_MIB, _MOST_MEMORY_MIB),
            labels=_are_labels,
            restore=_is_flag,
            inputs=_is_flag,
            mounts=_are_mounts,
        )
    )


def end_s(labels: Mapping[str, str]) -> int | None:
    """Return the time by which a container's agent must have ended, or None if the labels do not contain it.

    >>> end_s({LABEL_END: "100"}), end_s({LABEL_END: "100.5"}), end_s({LABEL_END: "soon"}), end_s({})
    (100, 100, None, None)
    """
    digits = labels.get(LABEL_END, "").partition(".")[0]
    return int(digits) if digits.isascii() and digits.isdigit() else None


def is_name(value: Any) -> bool:
    """Return True for a container's name. It is one plain word that can name a folder and a cgroup."""
    return isinstance(value, str) and bool(_NAME.match(value)) and ".." not in value


def is_image(value: Any) -> bool:
    """Return True for a container image's name, as users write it, or its id."""
    return isinstance(value, str) and bool(_IMAGE.match(value))


def is_image_id(value: Any) -> bool:
    """Return True for the digest of a container image's configuration.

    >>> is_image_id("sha256:" + "0" * 64), is_image_id("sha256:../x")
    (True, False)
    """
    return isinstance(value, str) and bool(_IMAGE_ID.match(value))


def is_signal(value: Any) -> bool:
    """Return True for the name of a signal, without SIG."""
    return isinstance(value, str) and value in SIGNALS


def _within(least: int, most: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value <= most


def is_text(value: Any) -> bool:
    """Return True for a text that can be a program's argument."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        return len(value.encode()) < _LONGEST
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is(kind: type, value: Any) -> bool:
    return type(value) is kind


def _is_command(value: Any) -> bool:
    return _is(list, value) and len(value) <= _MOST_TEXTS and all(is_text(one) for one in value)


def _is_environment(value: Any) -> bool:
    return (
        _is(dict, value)
        and len(value) <= _MOST_TEXTS
        and all(is_text(name) and _VARIABLE.match(name) and is_text(text) for name, text in value.items())
    )


def _are_mounts(value: Any) -> bool:
    return (
        _is(list, value)
        and len(value) <= mount_folders.MOST
        and all(isinstance(one, str) for one in value)
        and not mount_folders.fault_of_list(value)
    )


def _are_labels(value: Any) -> bool:
    return (
        _is(dict, value)
        and len(value) <= 32
        and all(isinstance(name, str) and _LABEL.match(name) for name in value)
        and all(is_text(text) and len(text) <= 256 for text in value.values())
    )
