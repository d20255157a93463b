"""Images and inputs on their way to control: one file each, which a client sends part by part.

A part is put at its place in the file. The answer is the size of what is there, so an upload that broke off continues
from there. A part without content only asks.
"""

from typing import Annotated, Literal

from pydantic import Field

from gleaner.agent.job_spec import NUMBER
from gleaner.control.models.base import Reply

UPLOADS = ".uploads"
"""The folder in the storage with a folder for each kind, in that one for each group, and in that a file each."""
KEEP_UPLOADS_S = 7 * 24 * 3600.0
"""An upload that nobody goes on with is removed after this long."""
PART_BYTES = 4 * 2**20
"""The most that is sent at once."""
MOST_BYTES = 200 * 2**30

Kind = Literal["images", "inputs"]
UploadBytes = Annotated[int, Field(ge=0, le=MOST_BYTES), NUMBER]


class Uploaded(Reply):
    """The part of an upload that control has, from its beginning on."""

    size_bytes: int
