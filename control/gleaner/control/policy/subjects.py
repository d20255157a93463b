"""The names of jobs in stored decisions. Decisions are found by these names, and `glean why` accepts them."""


def job_subject(job: int) -> str:
    """Return the name of a job of our queue.

    >>> job_subject(7)
    'job 7'
    """
    return f"job {job}"


def slurm_subject(scheduler_id: str) -> str:
    """Return the name of a job of the scheduler.

    >>> slurm_subject("4711_2")
    'slurm 4711_2'
    """
    return f"slurm {scheduler_id}"
