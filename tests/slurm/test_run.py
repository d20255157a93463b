"""The meaning of a failure of Slurm's programs."""

import pytest

from gleaner.control.slurm import run


@pytest.mark.parametrize(
    ("stderr", "is_no_answer"),
    [
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", True),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", True),
        ("slurm_load_partitions: Protocol authentication error", True),
        ("sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying", True),
        ("sbatch: error: Batch job submission failed: Invalid partition name specified", False),
        ("sbatch: error: Batch job submission failed: Invalid qos specification", False),
        ("sbatch: error: Batch job submission failed: Requested time limit is invalid", False),
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available", False),
    ],
)
def test_asking_again_is_for_an_absent_slurm_only(stderr: str, is_no_answer: bool) -> None:
    assert run.is_no_answer(stderr) is is_no_answer
