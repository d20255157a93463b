"""When what stands on held jobs is written anew: each is a call to the scheduler, so not at each change. Pure."""

from collections.abc import Mapping

from gleaner.control.policy.governing_view import Ruling, Verdict
from gleaner.control.steward.marks import OURS
from gleaner.control.steward.request import LONGEST_TEXT

AT_ONCE = 20
"""So many are written at most in one round."""
AGAIN_S = 60.0
"""How old a job's reason is at least when it is written anew; a first one is written at once."""


class Reasons:
    """When each job's reason was written last, or was tried to be."""

    def __init__(self) -> None:
        self._written_s: dict[str, float] = {}

    def due(self, rulings: tuple[Ruling, ...], said: Mapping[str, str], now_s: float) -> list[tuple[str, str]]:
        """Jobs with what is to be written on them now, those first that wait longest for it. They count as written."""
        texts = {ruling.job: (OURS + ruling.why)[:LONGEST_TEXT] for ruling in rulings if ruling.verdict is Verdict.HOLD}
        self._written_s = {job: at_s for job, at_s in self._written_s.items() if job in texts}
        stale = [
            job
            for job, text in texts.items()
            if said[job] != text and (job not in self._written_s or now_s >= self._written_s[job] + AGAIN_S)
        ]
        first = sorted(stale, key=lambda job: self._written_s.get(job, float("-inf")))[:AT_ONCE]
        self._written_s |= dict.fromkeys(first, now_s)
        return [(job, texts[job]) for job in first]

    def forget(self, job: str) -> None:
        """Something else has been written on it since: its next reason is a first one."""
        self._written_s.pop(job, None)
