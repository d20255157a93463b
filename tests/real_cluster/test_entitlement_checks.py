"""Control's checks of Slurm's accounting before entitlements begin, on the real cluster."""

import pytest
from demo import cluster
from demo.entitlements import ENTITLEMENTS
from tests.real_cluster import cluster_harness, owners_harness
from tests.real_cluster import slurm_admin_harness as s

pytestmark = [pytest.mark.cluster, pytest.mark.extended, pytest.mark.timeout(1200)]


def test_an_account_that_slurm_does_not_know_is_one_clear_line_and_nobody_is_released_or_held(quiet: None) -> None:
    owners_harness.enforce()
    runs = owners_harness.sleeper("bob", 5)
    owners_harness.wait_until_they_run(runs)
    held = owners_harness.sleeper("bob", 2)
    cluster.until(
        "the job to be held with the reason", lambda: "chemistry may have 5 CPUs" in s.mark(held), timeout_s=30
    )
    decided = set(owners_harness.decisions_about(runs, held))
    mark = s.mark(held)

    unknown = {"physics": 50, "chemistry": 30, "alchemy": 20}
    cluster.configure(
        {"rounds": {"length_s": 600, "shortest_slice_s": 15}, "entitlements": ENTITLEMENTS | {"entitled": unknown}}
    )
    said = cluster.until("control to say what is wrong", lambda: owners_harness.status()["problem"], timeout_s=30)
    assert said.startswith("[entitlements] entitled names alchemy, which is no account of Slurm's; there are biology, ")
    assert "\n" not in said
    cluster_harness.until_control_has_looked(4)
    assert (owners_harness.status()["problem"], owners_harness.status()["read_s"]) == (said, None), (
        "nothing is looked at until then"
    )
    assert owners_harness.runs(runs)
    assert owners_harness.restarts([runs]) == {runs: 0}
    assert (s.priority(held), s.mark(held)) == (0, mark)
    assert set(owners_harness.decisions_about(runs, held)) == decided

    owners_harness.enforce()
    claim = owners_harness.sleeper("carol", 3)
    owners_harness.wait_until_they_run(claim)
    assert owners_harness.status()["problem"] == ""
    assert owners_harness.runs(runs)
    assert s.priority(held) == 0, "it is held as before, by who decides again"
