"""The user's view while Slurm does not answer: one line, nothing lost, and verbs that go on working."""

import json

import pytest
from tests.cli.cli_harness import CliHarness

AWAY = "Slurm does not answer: sinfo says 'Unable to contact slurm controller (connect failure)'"


@pytest.mark.slow
def test_while_slurm_does_not_answer_nodes_and_show_say_so_and_jobs_are_taken(harness: CliHarness) -> None:
    harness.state.problem = AWAY
    assert harness.good("nodes").splitlines()[-1] == f"problem: {AWAY}"
    assert json.loads(harness.good("nodes", "--json"))["problem"] == AWAY
    (job,) = json.loads(harness.good("submit", "--image", "gleaner/pi", "--json"))["jobs"]
    shown = json.loads(harness.good("show", str(job), "--json"))
    assert shown["job"]["state"] == "New"
    assert AWAY in shown["waits_because"]
