"""Decide on which nodes a checkpoint can be restored, by comparing kinds of nodes. Pure.

A restored process still relies on the features of its old processor, so the new node must have each of them (CRIU's
`--cpu-cap` checks the same). CRIU reads images from its own version and from older ones. A checkpoint is restored only
by the runtime family that saved it. A checkpoint without memory fits every node.
"""

import re
from dataclasses import dataclass

_VERSION = re.compile(r"\d+(?:\.\d+)*")
MOST_FEATURES_NAMED = 5
"""At most this many missing features are named. The others are only counted."""


@dataclass(frozen=True, slots=True)
class NodeKind:
    """The properties of nodes that decide what can be restored on them."""

    architecture: str
    family: str
    """The name of the container runtime, without its version."""
    criu: str
    """CRIU's version; empty if no memory can be saved."""
    cpu_features: frozenset[str]

    @property
    def saves(self) -> bool:
        """True if the memory of a job can be saved on such a node."""
        return bool(self.criu)


def kind(*, architecture: str, runtime: str, criu: str, cpu_features: tuple[str, ...]) -> NodeKind:
    """Return the kind of a node with these facts.

    >>> kind(architecture="x86_64", runtime="docker 26.1.5", criu="4.1.1", cpu_features=("avx",)).family
    'docker'
    """
    return NodeKind(architecture, runtime.partition(" ")[0], criu, frozenset(cpu_features))


def version(text: str) -> tuple[int, ...]:
    """Return the first version number in a text, in a form that can be compared. Without a number it is empty, which
    counts as older than any version.

    >>> version("4.10") > version("4.9.2"), version("4.1.0") == version("Version: 4.1 (gitid 0)"), version("")
    (True, True, ())
    """
    match = _VERSION.search(text)
    parts = [int(part) for part in match[0].split(".")] if match else []
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def lacks(node: NodeKind, saved_on: NodeKind) -> tuple[str, ...]:
    """Return what the node lacks to restore a checkpoint from that kind of node, the most important first.

    >>> old = NodeKind("x86_64", "docker", "4.1", frozenset({"avx", "sse"}))
    >>> new = NodeKind("x86_64", "docker", "4.1.1", frozenset({"avx", "sse", "avx512f"}))
    >>> lacks(new, saved_on=old), lacks(old, saved_on=new)
    ((), ('CRIU >= 4.1.1', 'CPU feature avx512f'))
    """
    missing_things: list[str] = []
    if node.architecture != saved_on.architecture:
        missing_things.append(f"architecture {saved_on.architecture}")
    if node.family != saved_on.family:
        missing_things.append(f"runtime {saved_on.family}")
    if version(node.criu) < version(saved_on.criu):
        missing_things.append(f"CRIU >= {saved_on.criu}")
    missing = sorted(saved_on.cpu_features - node.cpu_features)
    if missing and node.architecture == saved_on.architecture:
        more = len(missing) - MOST_FEATURES_NAMED
        features = ", ".join(missing[:MOST_FEATURES_NAMED]) + (f" and {more} more" if more > 0 else "")
        missing_things.append(f"CPU feature{'s' * (len(missing) > 1)} {features}")
    return tuple(missing_things)
