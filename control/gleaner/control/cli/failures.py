"""The failures of the command line, and their exit codes.

Every message is one line for a person: what is wrong, and what to do. `main` prints it on stderr after `glean: `.
"""


class Failure(Exception):
    """The answer is negative: a failed or unknown job, a refused move."""

    exit_code = 1


class BadInput(Failure):
    """A wrong option, campaign file or settings file; nothing was done."""

    exit_code = 2


class Unreachable(Failure):
    """Control cannot be reached or cannot answer now; asking again later may help."""

    exit_code = 3


class NotConnected(Unreachable):
    """There is no connection to control, so nothing of what was asked has arrived there."""


class TimedOut(Unreachable):
    """Control took the question and did not answer in time; asking again at once would only wait again."""


class Conflict(Failure):
    """The thing is in a state that does not allow this: a job that has ended cannot be cancelled."""


class NoToken(Failure):
    """There is no usable token, or control does not know it: nothing else will work either."""

    exit_code = 3


class Forbidden(Failure):
    """Control does not allow this to the owner of this token."""

    exit_code = 3
