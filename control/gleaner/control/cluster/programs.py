"""Running Slurm's command-line programs. Their failures are translated here, once."""

import os
import subprocess
from collections.abc import Mapping, Sequence

from gleaner.control.cluster import slurm_words
from gleaner.control.cluster.gateway import GatewayError, GatewayUnavailable


def passed_on() -> dict[str, str]:
    """All that Slurm's programs get of this program's environment."""
    return {name: os.environ[name] for name in ("PATH", "SLURM_CONF") if name in os.environ}


def run(words: Sequence[str], environment: Mapping[str, str], *, timeout_s: float, given: str = "") -> str:
    """What the program printed. Raises `GatewayUnavailable` if there was no answer, `GatewayError` if it refuses."""
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
    said = slurm_words.complaint(done.stderr)
    if slurm_words.is_no_answer(done.stderr):
        raise GatewayUnavailable(f"Slurm does not answer: {program} says {said!r}")
    raise GatewayError(f"Slurm refuses: {program} says {said!r}")
