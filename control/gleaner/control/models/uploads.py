"""Images and inputs that clients upload to control. Each is one file, which the client sends in parts.

A part is stored at its position in the file. The answer is the size of the file so far, so an upload that was
interrupted continues from there. A part without content only returns the size.
"""

from typing import Annotated, Literal

from pydantic import Field

from gleaner.agent.job_spec import NUMBER
from gleaner.control.models.base import Reply

UPLOADS = ".uploads"
"""The folder in the storage for uploads. It contains a folder for each kind, which contains a folder for each group
with a file for each upload."""
KEEP_UPLOADS_S = 7 * 24 * 3600.0
"""An upload that does not grow is removed after this time."""
PART_BYTES = 4 * 2**20
"""The largest part of an upload."""
MOST_BYTES = 200 * 2**30

Kind = Literal["images", "inputs"]
UploadBytes = Annotated[int, Field(ge=0, le=MOST_BYTES), NUMBER]


class Uploaded(Reply):
    """The part of an upload that control has received so far."""

    size_bytes: int
