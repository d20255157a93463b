"""Container images that groups push: what is sent, piece by piece, and the rows that answer it."""

import hashlib
from typing import Annotated

from pydantic import Field, StringConstraints

from gleaner.agent.job_spec import MAX_ID, NUMBER, Digest, Name, Shape
from gleaner.control.models.base import Reply

PIECE_BYTES = 4 * 2**20
"""The size of every piece of an image except for the last one."""
PIECES = ".pieces"
"""The folder of the pieces in the storage, beside the images or the inputs, with a folder for each group."""
KEEP_PIECES_S = 7 * 24 * 3600.0
"""Pieces that nobody goes on to push are removed after this long."""
MOST_LAYERS = 512
LONGEST_CONFIG = 1_000_000
MOST_PIECES = 50_000

EVERYBODY = "*"
"""In place of a group: the image is one that an admin has published for the jobs of all groups."""
ImageName = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}(:[A-Za-z0-9_][A-Za-z0-9._-]{0,62})?$")
]
"""A group's own name for an image, with a tag or without one: `pythia:8.3`. It has no slash, so it never hides an image
of the site's (`gleaner/pi`)."""
RegistryImage = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,254}$")]
"""A name by which a registry has an image: `registry.site/physics/pythia:8.3`."""
Pieces = Annotated[tuple[Digest, ...], Field(max_length=MOST_PIECES)]


def dockers_word(architecture: str) -> str:
    """Return Docker's word for an architecture that the kernel names.

    >>> dockers_word("x86_64"), dockers_word("riscv64")
    ('amd64', 'riscv64')
    """
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(architecture, architecture)


def tagged(name: str) -> str:
    """Return the name with its tag.

    >>> tagged("pythia"), tagged("pythia:8.3")
    ('pythia:latest', 'pythia:8.3')
    """
    return name if ":" in name else f"{name}:latest"


class ImageLayer(Shape):
    """One layer, uncompressed: the SHA-256 of its tar archive, and its size."""

    diff_id: Digest
    size_bytes: Annotated[int, Field(ge=0, le=MAX_ID), NUMBER]


class PieceList(Shape):
    """The digests of pieces that a client is about to send."""

    pieces: Pieces
    group: Name | None = None


class ImagePieceList(PieceList):
    """The digests of an image's pieces that a client is about to send."""

    registry_image: RegistryImage | None = None
    """The registry's name, if the client fetches the image from a registry. With no pieces: may it do so?"""


class PieceMissing(Reply):
    """The digests of the pieces that control lacks, in the order of the question, each once."""

    missing: tuple[str, ...]


class PieceStored(Reply):
    """The digest of a piece, as it arrived."""

    digest: str


class ImagePush(Shape):
    """A whole image whose pieces have been sent: the contents of all layers one after another, cut into pieces."""

    name: ImageName
    group: Name | None = None
    """Only an admin may name a group other than the token's own."""
    config: Annotated[str, StringConstraints(min_length=2, max_length=LONGEST_CONFIG)]
    """The image's configuration, to the letter: its SHA-256 is the image's id."""
    layers: Annotated[tuple[ImageLayer, ...], Field(min_length=1, max_length=MOST_LAYERS)]
    """The layers, the lowest first."""
    pieces: Pieces
    registry_image: RegistryImage | None = None
    """The registry's name, if the client has fetched the image from a registry."""

    @property
    def image_id(self) -> str:
        """The image's id."""
        return f"sha256:{hashlib.sha256(self.config.encode()).hexdigest()}"

    @property
    def size_bytes(self) -> int:
        """The size of all layers together."""
        return sum(layer.size_bytes for layer in self.layers)


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


class ImageRow(Reply):
    """An image that a group has pushed."""

    name: str
    group: str
    """`*` if an admin has published it for all groups."""
    image_id: str
    architecture: str
    size_bytes: int
    """The size of all its layers, uncompressed."""
    pushed_s: float
    pusher: str
    """The user who pushed it."""
    jobs: int
    """The jobs of its group, or of all, that were submitted with this very image and have not ended."""
