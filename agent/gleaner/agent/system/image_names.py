"""Compare names of container images, which are read as Docker reads them.

For example, `pi` is `docker.io/library/pi:latest`. The registry and the rest of a pattern are compared separately, so
that no wildcard extends from one into the other.
"""

from __future__ import annotations  # the node may have Python 3.9

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

EVERYTHING = "*"
_ID = re.compile(r"(sha256:)?[0-9a-f]{64}\Z")


def is_id(image: str) -> bool:
    """Return True if the text is an image's id, which identifies its content but no registry.

    >>> is_id("sha256:" + "0" * 64), is_id("0" * 64), is_id("0123456789ab")
    (True, True, False)
    """
    return bool(_ID.match(image))


def refusal(image: str, allowed: Sequence[str]) -> str:
    """Return one line that explains why the image is not allowed to run, or "" if it is.

    >>> refusal("registry.site/physics/pythia:8", ["registry.site/physics/*"]), refusal("pi", ["*"])
    ('', '')
    >>> refusal("r.site/physics/../other", ["r.site/physics/*"])
    "the image 'r.site/physics/../other' may not run here: that is no image's name"
    """
    if not image.isprintable() or not {"", ".", ".."}.isdisjoint(image.split("/")):
        return f"the image {image!r} may not run here: that is no image's name"
    if any(matches(image, pattern) for pattern in allowed):
        return ""
    patterns = ", ".join(allowed) or "nothing"
    rule = f"images_allowed in the settings of the agents has {patterns}"
    return f"the image {image} may not run here: {rule}; push it with `glean image push`, and submit again"


def matches(image: str, pattern: str) -> bool:
    """Return True if the pattern covers the image, however the image's name is spelt.

    >>> matches("docker.io/gleaner/pi:1", "gleaner/*"), matches("other.site/gleaner/pi", "gleaner/*")
    (True, False)
    """
    if pattern == EVERYTHING:
        return True
    if is_id(image):
        return False  # an id can come from any registry
    pattern_registry, pattern_path = _parts(pattern)
    registry, path = _parts(full_name(image))
    is_bare = "@" not in pattern_path and ":" not in pattern_path and not pattern_path.endswith("*")
    return fnmatchcase(registry, pattern_registry) and (
        fnmatchcase(path, pattern_path) or (is_bare and fnmatchcase(re.split("[:@]", path)[0], pattern_path))
    )


def full_name(image: str) -> str:
    """Return the full name (registry, path, and tag or digest) that Docker uses for an image.

    >>> full_name("pi"), full_name("gleaner/pi:demo"), full_name("localhost/x"), full_name("r.site:5000/a/b@sha256:1")
    ('docker.io/library/pi:latest', 'docker.io/gleaner/pi:demo', 'localhost/x:latest', 'r.site:5000/a/b@sha256:1')
    """
    registry, path = _parts(image)
    if "@" not in path and ":" not in path:
        path += ":latest"
    return f"{registry}/{path}"


def _parts(image: str) -> tuple[str, str]:
    """Return the registry and the rest of the name."""
    first, slash, rest = image.partition("/")
    if slash and (first == "localhost" or re.search("[.:*]", first)):
        return (first, f"library/{rest}") if first == "docker.io" and "/" not in rest else (first, rest)
    return "docker.io", image if slash else f"library/{image}"
