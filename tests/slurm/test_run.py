"""The meaning of a failure of Slurm's programs. Their words are from public threads."""

import pytest

from gleaner.control.slurm import run

NO_ANSWERS = (
    "squeue: error: slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
    "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
    "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying",
    "sbatch: error: Slurm controller not responding, sleeping and retrying",
    'sbatch: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": No such file or directory',
    "sbatch: error: auth_g_pack: protocol_version 6500 not supported",
    "slurm_load_partitions: Protocol authentication error",
    "slurm_load_partitions: Zero Bytes were transmitted or received",
    "slurm_load_node: Unexpected message received",
    "squeue: error: slurm_unpack_received_msg: Incompatible versions of client and server code",
    "sinfo: error: fetch_config: DNS SRV lookup failed\nsinfo: fatal: Could not establish a configuration source",
    "slurm_load_jobs error: Transport endpoint is not connected",
    "slurm_load_jobs error: Slurm backup controller in standby mode",
    "sbatch: error: Batch job submission failed: Unspecified error",
    "sbatch: error: Batch job submission failed: I/O error writing script/output to file",
    "sbatch: error: Batch job submission failed: Resource temporarily unavailable",
    "squeue: error: Unable to open slurmdbd connection",
    "sacct: error: Problem talking to the database: Connection refused",
    "slurm_load_jobs error: No route to host",
    'error: getaddrinfo() failed: Name or service not known\nsqueue: error: slurm_set_addr: Unable to resolve "head"',
)
REFUSALS = (
    "sbatch: error: invalid partition specified: gleaner\n"
    "sbatch: error: Batch job submission failed: Invalid partition name specified",
    "sbatch: error: Batch job submission failed: Invalid qos specification",
    "sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)",
    "sbatch: error: Batch job submission failed: Requested node configuration is not available",
    "sbatch: error: Batch job submission failed: Required node not available (down, drained or reserved)",
    "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job violates"
    " accounting/QOS policy (job submit limit, user's size and/or time limits)",
    "sbatch: error: Your allocation is exhausted\nsbatch: error: Batch job submission failed: Unspecified error",
)


@pytest.mark.parametrize(
    ("stderr", "is_no_answer"), [*((said, True) for said in NO_ANSWERS), *((said, False) for said in REFUSALS)]
)
def test_asking_again_is_for_an_absent_slurm_only(stderr: str, is_no_answer: bool) -> None:
    assert run.is_no_answer(stderr) is is_no_answer


@pytest.mark.parametrize(
    ("stderr", "line"),
    [
        (REFUSALS[0], "invalid partition specified: gleaner; Invalid partition name specified"),
        (REFUSALS[-1], "Your allocation is exhausted; Unspecified error"),
        (NO_ANSWERS[10], "fetch_config: DNS SRV lookup failed; Could not establish a configuration source"),
        ("slurm_load_jobs error: Invalid job id specified\n", "Invalid job id specified"),
        ("", "no message"),
    ],
)
def test_a_complaint_keeps_the_line_that_names_the_cause(stderr: str, line: str) -> None:
    assert run.complaint(stderr) == line
