"""All functions that read bytes from outside, with the errors that each may raise.

What answers at a socket is tried in `api/test_doors.py` and `api/test_schema.py` (control's API), `cli/test_client.py`
and `reporting/test_client.py` (control). Messages, seals, images and pipes that come to root, and the output of
containers, have properties of their own beside their other tests.
"""

from tests.readers.node import AGENTS, ON_A_NODE, ROOTS
from tests.readers.peoples import PEOPLES
from tests.readers.reader import Reader

READERS: tuple[Reader, ...] = (*ON_A_NODE, *ROOTS, *AGENTS, *PEOPLES)
