"""The reading of one job and of nodes by name, for drains and for the Slurm admin service."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.slurm.records import JOB, WORD, table

from gleaner.control.slurm import parse
from gleaner.control.slurm.interface import ClusterError
from gleaner.control.slurm.snapshot import SlurmJob


def parsed(name: str = "7", **changes: str) -> SlurmJob | None:
    return parse.parse_job(table(JOB | changes), WORD, name)


def test_a_job_is_found_by_its_number_and_read() -> None:
    found = parsed(Nice="-5", restartcnt="2", Requeue="0", BatchFlag="0", EndTime="900")
    assert found is not None
    assert (found.id, found.user, found.partitions, found.reason) == ("7", "alice", ("shared",), "JobHeldUser")
    assert (found.nice, found.restarts, found.submitted_s, found.end_s) == (-5, 2, 500, 900)
    assert (found.can_requeue, found.is_batch, found.is_requeuable, found.is_held) == (False, False, False, True)
    assert parsed("8") is None
    assert parse.parse_job("", WORD, "7") is None


def test_a_task_of_an_array_is_found_by_itself() -> None:
    array = table(*(JOB | {"JobArrayID": f"7_{task}", "Comment": f"{task}"} for task in (1, 97)))
    found = {name: parse.parse_job(array, WORD, name) for name in ("7_1", "7_97", "7_9", "7")}
    assert {name: job.comment for name, job in found.items() if job} == {"7_1": "1", "7_97": "97"}


def test_a_priority_that_slurm_has_not_computed_yet_is_no_hold() -> None:
    found = parsed(PriorityLong="4294967294")
    assert found is not None and found.is_pending and not found.is_held


@given(st.text())
def test_what_an_owner_writes_into_a_comment_is_nothing_but_its_comment(text: str) -> None:
    found = parsed(Comment=f"x{text}\n gleaner: released {JOB['Reason']}x", admin_comment="(null)")
    assert found is not None
    assert (found.comment, found.admin_comment) == (f"x{text}\n gleaner: released {JOB['Reason']}x", "")


def test_a_record_that_an_owner_makes_up_comes_behind_the_true_one() -> None:
    """An owner who sees the word of a question in time could write it into the comment."""
    made_up = WORD.join([*(JOB | {"admin_comment": "gleaner: released"}).values()][:-1])
    found = parsed(admin_comment="(null)", Comment=f"a{WORD}b{WORD}{made_up}")
    assert found is not None and found.admin_comment == ""


@pytest.mark.parametrize("answer", ["slurm_load_jobs error", "[]", f"7{WORD}"])
def test_what_is_no_answer_is_an_error_and_never_a_guess(answer: str) -> None:
    with pytest.raises(ClusterError, match="squeue said"):
        parse.parse_job(answer, WORD, "7")


def test_a_lone_record_that_cannot_be_read_is_an_error_for_who_asks_for_that_job() -> None:
    with pytest.raises(ClusterError, match="Slurm said of job 7 what cannot be read"):
        parsed(PriorityLong="high")
