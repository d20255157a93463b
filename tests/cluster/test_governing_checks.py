"""What control asks Slurm's accounting before it governs, on the real cluster."""

import time

import pytest
from demo import cluster
from demo.entitlements import GOVERNING
from tests.cluster import owners
from tests.cluster import stewarding as s

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]


def test_an_account_that_slurm_does_not_know_is_one_clear_line_and_nobody_is_released_or_held(quiet: None) -> None:
    owners.govern()
    runs = owners.sleeper("bob", 5)
    owners.wait_until_they_run(runs)
    held = owners.sleeper("bob", 2)
    cluster.until(
        "the job to be held with the reason", lambda: "chemistry may have 5 CPUs" in s.mark(held), timeout_s=30
    )
    decided = set(owners.decisions_about(runs, held))
    mark = s.mark(held)

    unknown = {"physics": 50, "chemistry": 30, "alchemy": 20}
    cluster.configure(
        {"rounds": {"length_s": 600, "shortest_slice_s": 15}, "governing": GOVERNING | {"entitled": unknown}}
    )
    said = cluster.until("control to say what is wrong", lambda: owners.status()["problem"], timeout_s=30)
    assert said.startswith("[governing] entitled names alchemy, which is no account of Slurm's; there are biology, ")
    assert "\n" not in said
    time.sleep(10)  # it looks every two seconds
    assert (owners.status()["problem"], owners.status()["read_s"]) == (said, None), "nothing is looked at until then"
    assert owners.runs(runs)
    assert owners.restarts([runs]) == {runs: 0}
    assert (s.priority(held), s.mark(held)) == (0, mark)
    assert set(owners.decisions_about(runs, held)) == decided

    owners.govern()
    claim = owners.sleeper("carol", 3)
    owners.wait_until_they_run(claim)
    assert owners.status()["problem"] == ""
    assert owners.runs(runs)
    assert s.priority(held) == 0, "it is held as before, by who decides again"
