"""Jobs as decisions name them. Stored decisions are found by these words, and `glean why` takes them."""


def job_subject(job: int) -> str:
    """A job of our queue.

    >>> job_subject(7)
    'job 7'
    """
    return f"job {job}"


def slurm_subject(scheduler_id: str) -> str:
    """A job of the scheduler's.

    >>> slurm_subject("4711_2")
    'slurm 4711_2'
    """
    return f"slurm {scheduler_id}"
