"""Container images that groups push, and the API's answers about them."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import StringConstraints

from gleaner.agent.job_spec import Digest, Name, Shape
from gleaner.agent.system.image_names import matches
from gleaner.control.models.base import Reply
from gleaner.control.models.uploads import UploadBytes

EVERYBODY = "*"
"""The group of an image that an admin has published for the jobs of all groups."""
ImageName = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}(:[A-Za-z0-9_][A-Za-z0-9._-]{0,62})?$")
]
"""A group's own name for an image, with or without a tag: `pythia:8.3`. It has no slash, so it never hides an image of
the site (`gleaner/pi`)."""
RegistryImage = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,254}$")]
"""A registry's name for an image: `registry.site/physics/pythia:8.3`."""


def dockers_word(architecture: str) -> str:
    """Return Docker's name for an architecture, given the kernel's name for it.

    >>> dockers_word("x86_64"), dockers_word("riscv64")
    ('amd64', 'riscv64')
    """
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(architecture, architecture)


def registry_refusal(image: str, allowed: Sequence[str]) -> str:
    """Return, in one line, why an image in a registry must not be pushed, or "" if it can be pushed."""
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
    """An image that was uploaded completely, in the form in which it is stored."""

    name: ImageName
    image_id: Digest
    """The digest of the image's configuration."""
    size_bytes: UploadBytes
    """The size of the upload."""
    group: Name | None = None
    """The group. Only an admin can name a group other than the token's own."""
    registry_image: RegistryImage | None = None
    """The name in the registry, if the client has fetched the image from one."""


class SiteImage(Reply):
    """An image on the nodes that a job can name, although it was not pushed by a group."""

    name: str
    nodes: int
    """The number of agents that have the image."""


class SiteImages(Reply):
    """The images that live agents reported when they started or, if no agent is live, those of the agents that ended
    last."""

    agents: int
    """The number of live agents."""
    images: tuple[SiteImage, ...]
    """The images, sorted by name."""
    brings: tuple[str, ...]
    """Patterns for the names of images that a node pulls when a job needs them."""
    registries: tuple[str, ...] = ()
    """Patterns for the names of images in registries that a client is allowed to fetch and push."""


class ImageRow(Reply):
    """An image that a group has pushed."""

    name: str
    group: str
    """The group, or `*` if an admin has published the image for all groups."""
    image_id: str
    architecture: str
    size_bytes: int
    """The size of its archive in the storage, with all its layers uncompressed."""
    pushed_s: float
    pusher: str
    """The user who pushed it."""
    jobs: int
    """The number of jobs with this image that have not ended. Jobs of all groups count if the image is published."""
