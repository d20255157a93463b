"""What a user sees while Slurm does not answer: one line, nothing lost, and verbs that go on working."""

import json

import pytest
from tests.cli.desk import Desk

AWAY = "Slurm does not answer: sinfo says 'Unable to contact slurm controller (connect failure)'"


@pytest.mark.slow
def test_while_slurm_does_not_answer_nodes_and_show_say_so_and_jobs_are_taken(desk: Desk) -> None:
    desk.site.problem = AWAY
    assert desk.good("nodes").splitlines()[-1] == f"problem: {AWAY}"
    assert json.loads(desk.good("nodes", "--json"))["problem"] == AWAY
    (job,) = json.loads(desk.good("submit", "--image", "gleaner/pi", "--json"))["jobs"]
    shown = json.loads(desk.good("show", str(job), "--json"))
    assert shown["job"]["state"] == "New"
    assert AWAY in shown["waits_because"]
