"""The health of the control program."""

from gleaner.control.models.base import Reply


class Health(Reply):
    """The health of control: the only answer that needs no token."""

    status: str
    leader: bool
    version: str
    queue: str
    """`ok`, or what is wrong with the database."""
    failing: tuple[str, ...] = ()
    """The steps of control whose last round failed by a bug; control's log says how."""
