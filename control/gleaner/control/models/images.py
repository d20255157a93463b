"""Container images that groups push, and the rows that answer it."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import StringConstraints

from gleaner.agent.job_spec import Digest, Name, Shape
from gleaner.agent.system.image_names import matches
from gleaner.control.models.base import Reply
from gleaner.control.models.uploads import UploadBytes

EVERYBODY = "*"
"""In place of a group: the image is one that an admin has published for the jobs of all groups."""
ImageName = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}(:[A-Za-z0-9_][A-Za-z0-9._-]{0,62})?$")
]
"""A group's own name for an image, with a tag or without one: `pythia:8.3`. It has no slash, so it never hides an image
of the site's (`gleaner/pi`)."""
RegistryImage = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,254}$")]
"""A name by which a registry has an image: `registry.site/physics/pythia:8.3`."""


def dockers_word(architecture: str) -> str:
    """Return Docker's word for an architecture that the kernel names.

    >>> dockers_word("x86_64"), dockers_word("riscv64")
    ('amd64', 'riscv64')
    """
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(architecture, architecture)


def registry_refusal(image: str, allowed: Sequence[str]) -> str:
    """Return one line that says why an image in a registry may not be pushed; "" if it may."""
    if any(matches(image, pattern) for pattern in allowed):
        return ""
    what = f"only {', '.join(allowed)}" if allowed else "none"
    return f"of images in registries this site takes {what} ([images] registries in control's settings), not {image}"


def tagged(name: str) -> str:
    """Return the name with its tag.

    >>> tagged("pythia"), tagged("pythia:8.3")
    ('pythia:latest', 'pythia:8.3')
    """
    return name if ":" in name else f"{name}:latest"


class ImagePush(Shape):
    """An image that has been sent whole, in the form in which it is stored."""

    name: ImageName
    image_id: Digest
    """The digest of its configuration."""
    size_bytes: UploadBytes
    """The size of what was sent."""
    group: Name | None = None
    """Only an admin may name a group other than the token's own."""
    registry_image: RegistryImage | None = None
    """The registry's name, if the client has fetched the image from a registry."""


class SiteImage(Reply):
    """An image that nodes have and that a job can name, although no group has pushed it."""

    name: str
    nodes: int
    """The number of these agents that have it."""


class SiteImages(Reply):
    """The images that live agents reported when they began, or if none lives, the agents that ended last."""

    agents: int
    """The number of live agents."""
    images: tuple[SiteImage, ...]
    """Sorted by name."""
    brings: tuple[str, ...]
    """Patterns of the names of images that a node brings when a job needs one."""
    registries: tuple[str, ...] = ()
    """Patterns of the names of images in registries that a client may fetch and push."""


class ImageRow(Reply):
    """An image that a group has pushed."""

    name: str
    group: str
    """`*` if an admin has published it for all groups."""
    image_id: str
    architecture: str
    size_bytes: int
    """The size of its archive in the storage: all its layers, uncompressed."""
    pushed_s: float
    pusher: str
    """The user who pushed it."""
    jobs: int
    """The jobs of its group, or of all, that were submitted with this very image and have not ended."""
