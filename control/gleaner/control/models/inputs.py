"""Files and folders that jobs read: what is sent, and how a job names them.

An input is a tar archive whose one member, `content`, is the file or folder. It is known by the archive's SHA-256, so
a group stores it once, however many jobs read it.
"""

from typing import Annotated

from pydantic import Field

from gleaner.agent.job_spec import MOST_INPUTS, Digest, InputSpec, Name, Shape, UrlInputSpec
from gleaner.control.models.base import Reply
from gleaner.control.models.uploads import UploadBytes


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
        """The input as another job names it. What a URL has is fetched anew."""
        if self.url is not None:
            return UrlInputSpec(name=self.name, url=self.url, sha256=self.sha256, into_job=self.into_job)
        return InputSpec(name=self.name, content=str(self.content), into_job=self.into_job)


class InputList(Shape):
    """The inputs that a client is about to use."""

    contents: Annotated[tuple[Digest, ...], Field(fail_fast=True, max_length=MOST_INPUTS)]
    group: Name | None = None
    """Only an admin may name a group other than the token's own."""


class InputMissing(Reply):
    """The inputs that the group has not stored, in the order of the question, each once."""

    missing: tuple[str, ...]


class InputPut(Shape):
    """An input whose tar archive has been sent whole."""

    content: Digest
    size_bytes: UploadBytes
    group: Name | None = None


class InputRow(Reply):
    """An input that a group has stored."""

    content: str
    group: str
    size_bytes: int
    used_s: float
    """The latest time at which somebody stored it, or submitted a job with it."""
