"""The recommendation as settings files: those of control and of the agents."""

import math
from collections.abc import Sequence

from gleaner.control.simulation.tuning.evidence import exact
from gleaner.control.simulation.tuning.trial import safety
from gleaner.control.simulation.tuning.tune import Tuning

_WIDTH = 96


def control_settings(tuning: Tuning) -> str | None:
    """Return `[rounds]` of the control program's file; None without a recommendation."""
    setting = tuning.recommendation.setting
    if setting is None:
        return None
    lines = [
        "# Recommended by glean simulate tune.",
        *_comments(tuning.recommendation.reasons),
        "",
        "[rounds]",
        f"length_s = {_number(setting.length_s)}",
        f"synchronised = {'true' if setting.synchronised else 'false'}",
        f"shortest_slice_s = {_number(tuning.question.slice_s)}",
    ]
    return "\n".join(lines) + "\n"


def agent_settings(tuning: Tuning) -> str | None:
    """Return the settings of the agents' file; None without a recommendation."""
    setting = tuning.recommendation.setting
    if setting is None:
        return None
    return f"# Recommended by glean simulate tune.\nmargin_s = {_number(setting.margin_s)}\n"


def slurm_words(tuning: Tuning) -> str | None:
    """Return in one sentence what the agents' partition needs in slurm.conf; None without a recommendation."""
    setting = tuning.recommendation.setting
    if setting is None:
        return None
    if not setting.preemption:
        return (
            "In slurm.conf, the agents' partition has PreemptMode=OFF; Slurm then never ends an agent before its time."
        )
    grace_s = 60 * math.ceil((tuning.question.save_s * safety(tuning.question.save_spread) + setting.margin_s) / 60)
    return (
        f"In slurm.conf, the agents' partition has PreemptMode=REQUEUE and GraceTime={max(60, grace_s)} "
        f"({exact(max(60, grace_s))}: a save with its safety and the margin)."
    )


def _number(seconds: float) -> str:
    return str(int(seconds)) if seconds.is_integer() else repr(seconds)


def _comments(sentences: Sequence[str]) -> list[str]:
    """Return the sentences as comment lines, broken between words."""
    lines: list[str] = []
    for sentence in sentences:
        line = "#"
        for word in sentence.split():
            if len(line) + 1 + len(word) > _WIDTH:
                lines.append(line)
                line = "#"
            line += f" {word}"
        lines.append(line)
    return lines
