"""The Slurm job that we are in, as its owner may ask about it and requeue it."""

from dataclasses import dataclass, field

from gleaner.agent.common.clock import Clock, SystemClock
from gleaner.agent.privileged.common import system_programs
from gleaner.agent.privileged.common.slurm_jobs import Slurm, SlurmJob, Unknown

SCONTROL = "scontrol"
_TIMEOUT_S = 10.0
_LOOK_WITHIN_S = 5.0
"""Short, since there may be only Slurm's kill wait left."""
_AGAIN_S = 1.0


class NotRequeued(Exception):
    """Slurm does not requeue the job; one line."""


@dataclass(slots=True)
class OwnSlurmJob:
    """One job, by its number."""

    number: str
    clock: Clock = field(default_factory=SystemClock)
    _slurm: Slurm = field(default_factory=lambda: Slurm(SCONTROL, kept_s=0, timeout_s=_LOOK_WITHIN_S))

    def look(self) -> SlurmJob | None:
        """Return what Slurm says of the job now; None if Slurm does not answer."""
        try:
            return self.must_look()
        except Unknown:
            return None

    def must_look(self) -> SlurmJob:
        """Return what Slurm says of the job now. Raises `Unknown`."""
        return self._slurm.job(self.number)

    def others(self) -> frozenset[str] | None:
        """Return the numbers of all of the owner's jobs that Slurm still knows; None if Slurm does not answer."""
        words = ["squeue", "--me", "--noheader", "--states=all", "--format=%A"]
        try:
            done = system_programs.run(words, within_s=_TIMEOUT_S)
        except OSError:
            return None
        return frozenset(done.stdout.split()) if done.status == 0 else None

    def requeue(self, *, held: bool, within_s: float) -> None:
        """Have Slurm end the job now and start it later; if `held`, when somebody releases it. Raises `NotRequeued`.

        Slurm ends our own processes soon after. If the controller is away, it is asked again for some time.
        """
        give_up_s = self.clock.monotonic_s() + within_s
        while True:
            try:
                done = system_programs.run(
                    [SCONTROL, "requeuehold" if held else "requeue", self.number], within_s=_TIMEOUT_S
                )
                if done.status == 0:
                    return
                why = " ".join(done.stderr.split())[:300]
            except OSError as error:
                why = str(error)
            if self.clock.monotonic_s() >= give_up_s:
                raise NotRequeued(f"Slurm does not requeue job {self.number}: {why or 'no reason given'}")
            self.clock.pause(_AGAIN_S)
