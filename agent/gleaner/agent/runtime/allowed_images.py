"""The container images that jobs may run: the admin's list, and how the name of a container image is read.

A name is read as Docker reads it: `pi` is `docker.io/library/pi:latest`. The registry of a pattern and the rest of it
are compared apart, so that no wildcard reaches from one into the other.
"""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

EVERYTHING = "*"
_DOCKER_HUB, _ITS_OWN = "docker.io", "library/"
_ID = re.compile(r"(sha256:)?[0-9a-f]{64}\Z")


def is_id(image: str) -> bool:
    """Return True if the text names an image's content, and so none of the places that it may come from.

    >>> is_id("sha256:" + "0" * 64), is_id("0" * 64), is_id("0123456789ab")
    (True, True, False)
    """
    return bool(_ID.match(image))


def full_name(image: str) -> str:
    """Return registry, path, and tag or digest. The engine takes a full name for nothing else.

    A short name could also be the start of an id.

    >>> full_name("pi"), full_name("gleaner/pi:demo"), full_name("localhost/x"), full_name("r.site:5000/a/b@sha256:1")
    ('docker.io/library/pi:latest', 'docker.io/gleaner/pi:demo', 'localhost/x:latest', 'r.site:5000/a/b@sha256:1')
    """
    registry, path = _parts(image)
    if "@" not in path and ":" not in path:
        path += ":latest"
    return f"{registry}/{path}"


def refusal(image: str, allowed: Sequence[str]) -> str:
    """Return one line that says why the image may not run; "" if it may.

    >>> refusal("registry.site/physics/pythia:8", ["registry.site/physics/*"]), refusal("pi", ["*"])
    ('', '')
    >>> refusal("other.site/x", ["r.site/*"])
    'the image other.site/x may not run here: images_allowed in the settings of the agents has r.site/*'
    >>> refusal("r.site/physics/../other", ["r.site/physics/*"])
    "the image 'r.site/physics/../other' may not run here: that is no image's name"
    """
    if not image.isprintable() or not {"", ".", ".."}.isdisjoint(image.split("/")):
        return f"the image {image!r} may not run here: that is no image's name"
    if any(_matches(image, pattern) for pattern in allowed):
        return ""
    listed = ", ".join(allowed) or "nothing"
    return f"the image {image} may not run here: images_allowed in the settings of the agents has {listed}"


def _matches(image: str, pattern: str) -> bool:
    if pattern == EVERYTHING:
        return True
    if is_id(image):
        return False  # an id may come from any registry
    wanted_registry, wanted = _parts(pattern)
    registry, path = _parts(full_name(image))
    is_bare = "@" not in wanted and ":" not in wanted and not wanted.endswith("*")
    return fnmatchcase(registry, wanted_registry) and (
        fnmatchcase(path, wanted) or (is_bare and fnmatchcase(re.split("[:@]", path)[0], wanted))
    )


def _parts(image: str) -> tuple[str, str]:
    """Return the registry and the rest of the name."""
    first, slash, rest = image.partition("/")
    if slash and (first == "localhost" or re.search("[.:*]", first)):
        return (first, _ITS_OWN + rest) if first == _DOCKER_HUB and "/" not in rest else (first, rest)
    return _DOCKER_HUB, image if slash else _ITS_OWN + image
