"""Files and folders that jobs read: the form in which they are sent, and their names in a job.

An input is a tar archive whose only member, `content`, is the file or folder. It is identified by the archive's
SHA-256, so a group stores it once, however many jobs read it.
"""

from typing import Annotated

from pydantic import Field

from gleaner.agent.job_spec import MOST_INPUTS, Digest, Name, Shape
from gleaner.control.models.base import Reply
from gleaner.control.models.uploads import UploadBytes


class JobInput(Reply):
    """An input of a job."""

    name: str
    into_job: bool
    content: str | None = None
    """The digest of the content, or None if the input comes from a URL and has not been fetched yet."""
    size_bytes: int | None = None
    url: str | None = None
    sha256: str | None = None
    """The digest that the user submitted with the URL."""


class InputList(Shape):
    """The inputs that a client is about to use."""

    contents: Annotated[tuple[Digest, ...], Field(fail_fast=True, max_length=MOST_INPUTS)]
    group: Name | None = None
    """The group. Only an admin can name a group other than the token's own."""


class InputMissing(Reply):
    """The inputs that the group has not stored, in the order of the request, each listed once."""

    missing: tuple[str, ...]


class InputPut(Shape):
    """An input whose tar archive was uploaded completely."""

    content: Digest
    size_bytes: UploadBytes
    group: Name | None = None


class InputRow(Reply):
    """An input that a group has stored."""

    content: str
    group: str
    size_bytes: int
    used_s: float
    """The latest time at which a user stored the input or submitted a job with it."""
