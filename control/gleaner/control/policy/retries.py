"""The cause of a job's own failure, the decision whether the job is retried, and the pause before the retry.

The module is pure.
"""

from collections.abc import Collection

FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 600.0
LONGEST_ELSEWHERE_S = 600.0
"""The longest time for which a job waits for a node on which it has not failed. Afterwards any node can take the
job."""

_MEANINGS = {
    126: "the command cannot be run: its file is not executable",
    127: "the command was not found",
    **{
        128 + number: f"{name}, {meaning}"
        for number, name, meaning in (
            (4, "SIGILL", "an instruction that this processor does not have"),
            (6, "SIGABRT", "the program has ended itself after an error that it has found"),
            (7, "SIGBUS", "an access to memory or a mapped file that is not there"),
            (8, "SIGFPE", "a wrong calculation, such as a division of integers by zero"),
            (9, "SIGKILL", "it was killed"),
            (11, "SIGSEGV", "an access to memory that is not the program's"),
            (13, "SIGPIPE", "nobody reads the pipe to which it writes"),
            (14, "SIGALRM", "an alarm that it has set itself"),
            (15, "SIGTERM", "it was told to end"),
            (24, "SIGXCPU", "a limit of computing time that it has set itself"),
            (25, "SIGXFSZ", "a limit of the size of its files that it has set itself"),
        )
    },
}
"""The usual meanings of exit codes: those of a shell, and 128 plus the number of the signal that ended the program."""


def cause(exit_code: int, reason: str = "") -> str:
    """Return, in one line, why the program failed. `reason` is the agent's text.

    >>> cause(3), cause(127, "cannot run x: No such file or directory")
    ('exit code 3', 'exit code 127: cannot run x: No such file or directory')
    >>> cause(152, "the program itself returned it")
    'exit code 152: the program itself returned it'
    >>> cause(139)
    "exit code 139: SIGSEGV, an access to memory that is not the program's"
    """
    meaning = reason or _MEANINGS.get(exit_code, "")
    return f"exit code {exit_code}: {meaning}" if meaning else f"exit code {exit_code}"


def refusal(exit_code: int, *, retry_on: Collection[int] | None, never_retry_on: Collection[int] | None) -> str:
    """Return why a job is not retried after this exit code, even if it has retries left, or "" if it can be retried.

    If `retry_on` is None, all codes can be retried.

    >>> refusal(2, retry_on=None, never_retry_on=(2,))
    'never_retry_on names exit code 2'
    >>> refusal(2, retry_on=(75,), never_retry_on=None)
    'retry_on does not name exit code 2'
    >>> refusal(75, retry_on=(75,), never_retry_on=(2,))
    ''
    """
    if exit_code in (never_retry_on or ()):
        return f"never_retry_on names exit code {exit_code}"
    if retry_on is not None and exit_code not in retry_on:
        return f"retry_on does not name exit code {exit_code}"
    return ""


def pause_s(failures: int) -> float:
    """Return the pause, in seconds, of a job after this number of failures (at least one). The pause doubles up to a
    bound.

    >>> [pause_s(failures) for failures in (1, 2, 3, 7, 99)]
    [10.0, 20.0, 40.0, 600.0, 600.0]
    """
    return backoff_s(FIRST_PAUSE_S, failures, LONGEST_PAUSE_S)


def backoff_s(first_s: float, times: int, most_s: float) -> float:
    """Return a pause in seconds, which is `first_s` the first time, twice as long each further time, and at most
    `most_s`."""
    return min(first_s * 2.0 ** min(max(times, 1) - 1, 30), most_s)
