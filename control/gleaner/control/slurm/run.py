"""Calls of Slurm's command-line programs. This module alone turns their failures into the errors of `interface`."""

import os
import re
from collections.abc import Mapping, Sequence

from gleaner.agent.privileged.common import system_programs
from gleaner.control.slurm.interface import ClusterRefused, ClusterUnavailable

SUBMIT_ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC"}
"""The environment of sbatch, which reads `--deadline` in its own time zone."""
ENVIRONMENT = {**SUBMIT_ENVIRONMENT, "SLURM_TIME_FORMAT": "%s"}
"""The environment of all other programs. It is not used for sbatch, because sbatch would pass the time format to the
agent."""
NO_ANSWER = "Slurm does not answer"
"""The beginning of each message which reports that Slurm does not answer."""
_SIGNS_OF_NO_ANSWER = (
    "unable to contact",
    "timed out",
    "connect failure",
    "connection refused",
    "error connecting",
    "zero bytes were transmitted",
    "temporarily un",
    "standby mode",
    "authentication",
    "munge",
    "configuration source",
    "not responding",
    "i/o error",
    "protocol_version",
    "unexpected message",
    "incompatible versions",
    "not connected",
    "no route to host",
    "unable to resolve",
    "unable to open slurmdbd",
)
"""Words in the messages of Slurm's programs, in lower case, which show that a later try might succeed. For example, an
upgrade is in progress, or the network, munge or slurmdbd is unavailable."""
_NO_REASON = "unspecified error"
"""Slurm's words for an internal failure. A refusal by a site's plug-in also ends with these words, after the plug-in's
reason."""
_PREFIX = re.compile(r"^(?:\w+:? )?(?:error|fatal): (?:Batch job submission failed: )?")


def run(words: Sequence[str], *, timeout_s: float, given: str = "", submits: bool = False) -> str:
    """Run a program and return its output. `submits` is True for sbatch (see `SUBMIT_ENVIRONMENT`).

    Raises `ClusterUnavailable` if Slurm does not answer, and `ClusterRefused` if it refuses.
    """
    environment = SUBMIT_ENVIRONMENT if submits else ENVIRONMENT
    program, done = words[0], result(words, environment, timeout_s=timeout_s, given=given)
    if done.status == 0:
        return done.stdout
    said = complaint(done.stderr)
    if is_no_answer(without(done.stderr, words)):
        raise ClusterUnavailable(f"{NO_ANSWER}: {program} says {said!r}")
    raise ClusterRefused(f"Slurm refuses: {program} says {said!r}")


def result(
    words: Sequence[str], environment: Mapping[str, str], *, timeout_s: float, given: str = ""
) -> system_programs.ProgramResult:
    """Run a program to its end, with only PATH and SLURM_CONF from this program's environment.

    Raises `ClusterUnavailable` if the program does not end in time, or cannot be run.
    """
    program, passed = words[0], {name: os.environ[name] for name in ("PATH", "SLURM_CONF") if name in os.environ}
    try:
        return system_programs.run(words, within_s=timeout_s, stdin=given, environment={**passed, **environment})
    except TimeoutError as error:
        raise ClusterUnavailable(f"{NO_ANSWER}: {program} took more than {timeout_s:g} s") from error
    except OSError as error:
        raise ClusterUnavailable(
            f"{program} cannot be run ({error.strerror}); install Slurm's client programs here"
        ) from error


def is_no_answer(stderr: str) -> bool:
    """Return True if a program failed because Slurm did not answer, rather than because Slurm refused."""
    lower = stderr.lower()
    return any(sign in lower for sign in _SIGNS_OF_NO_ANSWER) or complaint(stderr).lower() == _NO_REASON


def without(stderr: str, words: Sequence[str]) -> str:
    """Return a program's message without the names that were passed to the program.

    Otherwise a name could contain one of the words that `is_no_answer` searches for.

    >>> without("Node munge1 not found", ["scontrol", "show", "nodes", "n1,munge1"])
    'Node  not found'
    """
    given = {name for word in words for name in re.split(r"[,=]", word) if name}
    return re.sub(r"[\w.-]+", lambda found: "" if found[0] in given else found[0], stderr)


def complaint(stderr: str) -> str:
    r"""Return the complaint of a Slurm program in one line, without the program's own prefixes.

    If there are several lines, the first one usually names the cause, and the last one the operation that failed.

    >>> complaint("sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Job violates a policy")
    'AssocMaxSubmitJobLimit; Job violates a policy'
    """
    lines = [_PREFIX.sub("", line.strip()) for line in stderr.splitlines() if line.strip()]
    return "; ".join(dict.fromkeys((lines[0], lines[-1]))) if lines else "no message"
