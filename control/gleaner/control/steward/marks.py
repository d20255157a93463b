"""The marks that Gleaner leaves in Slurm, and what they say of a job that is held.

In a job's AdminComment, which only administrators write, and in the reason of a drained node. slurmctld's
job_submit.lua and the dead man's switch know the same words.
"""

OURS = "gleaner: "
WAITS_FOR_ITS_TURN = OURS + "waits for its turn"
ASKED_TO_SAVE = OURS + "was asked to save itself, and waits for its turn"
RELEASED = OURS + "released"
RELEASED_ON_TOP = RELEASED + " on top"
DRAINED_BY = OURS + "drained by "

_BY_AN_ADMIN = "JobHeldAdmin"


def is_held_for_us(mark: str, *, restarted: bool, reason: str) -> bool:
    """Whether a job that is held is so for us, and neither its owner nor an administrator did that.

    After a requeue any mark of ours will do: such a job held itself to wait for its turn. To Slurm both our holds and
    its owner's are `JobHeldUser`; only an administrator's is told apart.

    >>> is_held_for_us("gleaner: released", restarted=False, reason="JobHeldUser")
    False
    """
    return mark.startswith(OURS) and (restarted or not mark.startswith(RELEASED)) and reason != _BY_AN_ADMIN
