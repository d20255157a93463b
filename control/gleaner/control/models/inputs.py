"""Files and folders that jobs read: what is sent, and how a job names them.

An input is a tar archive whose one member, `content`, is the file or folder. It is known by the archive's SHA-256, so
a group stores it once, however many jobs read it.
"""

from typing import Annotated, cast

from pydantic import AfterValidator, Discriminator, Field, StringConstraints, Tag
from pydantic_core import PydanticCustomError

from gleaner.agent.messages import NUMBER, Digest, Flag
from gleaner.agent.privileged.common import mount_folders
from gleaner.agent.staging.allowed_urls import LONGEST_URL
from gleaner.control.models.base import MAX_ID, Name, Reply, Shape
from gleaner.control.models.images import Pieces

MOST_INPUTS = 100
InputName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$")]


class InputSpec(Shape):
    """An input of a job."""

    name: InputName
    """Its name in `/inputs`."""
    content: Digest
    """The SHA-256 of its tar archive."""
    into_job: Flag = False
    """True: it is copied into the job's folder at the first start, and is the job's own from then on."""


class UrlInputSpec(Shape):
    """An input of a job that the agent fetches."""

    name: InputName
    """Its name in `/inputs`."""
    url: Annotated[str, StringConstraints(pattern=r"^(https|s3|roots?|file)://[!-~]+$", max_length=LONGEST_URL)]
    """One that the site allows (`urls` in `[inputs]` of control's settings)."""
    sha256: Digest | None = None
    """The SHA-256 of the file. None: what is fetched first counts for all jobs of the submission."""
    content: Digest | None = None
    """The `content` that an earlier job has read. While the group has it, it is read again, and nothing is fetched."""
    into_job: Flag = False
    """True: it is copied into the job's folder at the first start, and is the job's own from then on."""


def _kind(one: object) -> str:
    has_url = "url" in cast("dict[str, object]", one) if isinstance(one, dict) else isinstance(one, UrlInputSpec)
    return "url" if has_url else "stored"


_AnyInput = Annotated[
    Annotated[InputSpec, Tag("stored")] | Annotated[UrlInputSpec, Tag("url")],
    Discriminator(_kind),
]


def _each_once(inputs: tuple[_AnyInput, ...]) -> tuple[_AnyInput, ...]:
    names = [one.name for one in inputs]
    for name in names:
        if names.count(name) > 1:
            raise PydanticCustomError("unique_names", "two inputs are called {name}", {"name": name})
    return inputs


InputSpecs = Annotated[tuple[_AnyInput, ...], Field(max_length=MOST_INPUTS), AfterValidator(_each_once)]


def _mountable(folders: tuple[str, ...]) -> tuple[str, ...]:
    if why := mount_folders.fault_of_list(list(folders)):
        raise PydanticCustomError("mountable", "{why}", {"why": why})
    return tuple(sorted(folders))


Mounts = Annotated[tuple[str, ...], Field(max_length=mount_folders.MOST), AfterValidator(_mountable)]


class JobInput(Reply):
    """An input of a job."""

    name: str
    into_job: bool
    content: str | None = None
    """None: it comes from a URL, and nobody has fetched it yet."""
    size_bytes: int | None = None
    url: str | None = None
    sha256: str | None = None
    """As it was submitted with the URL."""

    @property
    def spec(self) -> InputSpec | UrlInputSpec:
        """The input as another job names it: the same bytes, or what the URL has if they are not stored any more."""
        if self.url is not None:
            named = {"name": self.name, "url": self.url, "sha256": self.sha256, "content": self.content}
            return UrlInputSpec.model_validate(named | {"into_job": self.into_job})
        return InputSpec(name=self.name, content=str(self.content), into_job=self.into_job)


class InputList(Shape):
    """The inputs that a client is about to use."""

    contents: Annotated[tuple[Digest, ...], Field(max_length=MOST_INPUTS)]
    group: Name | None = None
    """Only an admin may name a group other than the token's own."""


class InputMissing(Reply):
    """The inputs that the group has not stored, in the order of the question, each once."""

    missing: tuple[str, ...]


class InputPut(Shape):
    """A whole input whose pieces have been sent: its tar archive, cut into pieces as an image's layers are."""

    content: Digest
    size_bytes: Annotated[int, Field(ge=1, le=MAX_ID), NUMBER]
    pieces: Pieces
    group: Name | None = None


class InputRow(Reply):
    """An input that a group has stored."""

    content: str
    group: str
    size_bytes: int
    used_s: float
    """The latest time at which somebody stored it, or submitted a job with it."""
