"""Running Slurm's command-line programs. Their failures are translated here, once."""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence

from gleaner.control.cluster.gateway import GatewayRefused, GatewayUnavailable

_NO_ANSWER = (
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
)
"""What Slurm's programs say, in lower case, when asking again later may help."""


def passed_on() -> dict[str, str]:
    """All that Slurm's programs get of this program's environment."""
    return {name: os.environ[name] for name in ("PATH", "SLURM_CONF") if name in os.environ}


def run(words: Sequence[str], environment: Mapping[str, str], *, timeout_s: float, given: str = "") -> str:
    """What the program printed. Raises `GatewayUnavailable` if there was no answer, `GatewayRefused` if it refuses."""
    program = words[0]
    try:
        done = subprocess.run(
            words,
            input=given,
            env={**passed_on(), **environment},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise GatewayUnavailable(f"Slurm does not answer: {program} took more than {timeout_s:g} s") from error
    except OSError as error:
        raise GatewayUnavailable(
            f"{program} cannot be run ({error.strerror}); install Slurm's client programs here"
        ) from error
    if done.returncode == 0:
        return done.stdout
    said = complaint(done.stderr)
    if is_no_answer(without(done.stderr, words)):
        raise GatewayUnavailable(f"Slurm does not answer: {program} says {said!r}")
    raise GatewayRefused(f"Slurm refuses: {program} says {said!r}")


def is_no_answer(stderr: str) -> bool:
    """Whether a program failed because Slurm did not answer, rather than refused."""
    lower = stderr.lower()
    return any(sign in lower for sign in _NO_ANSWER)


def without(stderr: str, words: Sequence[str]) -> str:
    """Return what a program said, without the names that it was given: one may read like a sign of `is_no_answer`.

    >>> without("Node munge1 not found", ["scontrol", "show", "nodes", "n1,munge1"])
    'Node  not found'
    """
    given = {name for word in words for name in re.split(r"[,=]", word) if name}
    return re.sub(r"[\w.-]+", lambda found: "" if found[0] in given else found[0], stderr)


def complaint(stderr: str) -> str:
    """What a Slurm program complained of, as one line without the program's own prefixes.

    >>> complaint("sbatch: error: Batch job submission failed: Invalid partition name specified")
    'Invalid partition name specified'
    """
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return lines[-1].rpartition("error: ")[2].removeprefix("Batch job submission failed: ") if lines else "no message"
