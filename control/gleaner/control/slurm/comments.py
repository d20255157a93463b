"""The words that owners and Gleaner write in jobs' comments and in nodes' reasons. Pure.

An owner declares a job's class in its Comment. Gleaner's marks are in a job's AdminComment, which only administrators
can write, and in the reason of a drained node. slurmctld's job_submit.lua and the dead man's switch use the same words.
"""

from gleaner.control.slurm.snapshot import SlurmJob

DEFAULT_CLASS = "non-preemptible"
"""The class of a job that declares none. Gleaner never acts on such a job once it runs."""
PREEMPTIBLE = "preemptible"
CHECKPOINTABLE = "checkpointable"
CLASSES = (DEFAULT_CLASS, PREEMPTIBLE, CHECKPOINTABLE)

_WORD = "gleaner:"

OURS = "gleaner: "
WAITS_FOR_ITS_TURN = OURS + "waits for its turn"
ASKED_TO_SAVE = OURS + "was asked to save itself, and waits for its turn"
RELEASED = OURS + "released"
RELEASED_ON_TOP = RELEASED + " on top"
DRAINED_BY = OURS + "drained by "

_BY_AN_ADMIN = "JobHeldAdmin"


def is_held_for_us(job: SlurmJob) -> bool:
    """Return True if a job is held for Gleaner, and not by its owner or an administrator.

    After a requeue any of our marks is enough, because such a job held itself to wait for its turn. Slurm shows
    `JobHeldUser` both for our holds and for the owner's. Only an administrator's hold has another reason.
    """
    is_marked = job.admin_comment.startswith(OURS)
    is_released = job.admin_comment.startswith(RELEASED) and job.restarts == 0
    return job.is_held and is_marked and not is_released and job.reason != _BY_AN_ADMIN


def class_of(comment: str) -> str | None:
    """Return the class that a job's comment declares, or None if the comment names an unknown class or two classes.

    >>> class_of("mine gleaner:preemptible"), class_of(""), class_of("gleaner:mortal")
    ('preemptible', 'non-preemptible', None)
    """
    words = comment.replace(",", " ").replace(";", " ").split()
    declared = {word.removeprefix(_WORD) for word in words if word.startswith(_WORD)}
    if not declared:
        return DEFAULT_CLASS
    return declared.pop() if len(declared) == 1 and declared <= set(CLASSES) else None
