"""Campaigns and the removal of jobs, over HTTP: who is allowed what, and what is gone afterwards."""

import pytest
from tests.api.api_harness import ApiHarness, Caller, detail

from gleaner.control.daemon.storage_gc import remove_archives
from gleaner.control.queue import retention
from gleaner.control.settings import OutputSettings


def remove(harness: ApiHarness, who: Caller, what: str) -> tuple[int, str]:
    answer = harness.client.delete(f"/v1/{what}", headers=who.headers)
    return answer.status_code, answer.json().get("detail", "")


def keep(harness: ApiHarness, days: float) -> None:
    settings = harness.state.settings
    harness.state.settings = settings.model_copy(update={"outputs": OutputSettings(keep_days=days)})


def ended(harness: ApiHarness, indices: tuple[int, ...] | None = None) -> list[int]:
    """Submit jobs, and let each succeed with a result in the storage."""
    first = harness.user.submit(indices=indices)
    agent = harness.agent()
    works = agent.claim(most=8)
    for work in works:
        agent.completed(work["job"], 1, harness.publish_output(work["job"], 1))
    assert works[0]["job"] == first
    return [work["job"] for work in works]


def test_a_user_sees_the_campaigns_of_the_own_group_with_the_dates_of_their_results(harness: ApiHarness) -> None:
    ended(harness, indices=(1, 2))
    other = harness.caller("user", "bob", "cms")
    other.submit(indices=[1])
    (row,) = harness.user.get("/v1/campaigns").json()["campaigns"]
    assert (row["id"], row["submitter"], row["succeeded"], row["kept_until_s"]) == (1, "alice", 2, None)
    keep(harness, 10)
    for path in ("/v1/campaigns", "/v1/jobs"):
        rows = harness.user.get(path, mine="true").json()[path.removeprefix("/v1/")]
        assert {each["kept_until_s"] for each in rows} == {harness.now_s + 10 * retention.DAY_S}
        assert harness.caller("user", "carol", "atlas").get(path, mine="true").json()["total"] == 0
        detail(harness.user.get(path, group="cms"), 403)
    assert harness.admin.get("/v1/campaigns", text="pi", limit=1).json()["total"] == 2
    assert "another group" in detail(other.get("/v1/campaigns/1/detail"), 403)
    assert detail(harness.user.get("/v1/campaigns/9/detail"), 404) == "there is no campaign 9"


@pytest.mark.parametrize("what", ["jobs/1", "campaigns/1"])
def test_whoever_may_cancel_a_job_may_remove_it_and_then_its_result_goes(harness: ApiHarness, what: str) -> None:
    (job,) = ended(harness, indices=(1,))
    waiting = harness.user.submit()
    assert remove(harness, harness.caller("user", "bob", "cms"), what)[0] == 403
    code, why = remove(harness, harness.caller("user", "bob", "atlas"), what)
    assert (code, why.partition(":")[0]) == (403, f"{what.replace('s/', ' ')} was submitted by alice")
    assert remove_archives(harness.state) == []
    assert remove(harness, harness.user, what) == (200, "")
    assert [row["id"] for row in harness.user.get("/v1/jobs").json()["jobs"]] == [waiting]
    assert remove_archives(harness.state) == [f"jobs/{job}/attempt-1/output"]
    assert detail(harness.user.get(f"/v1/jobs/{job}/output"), 404).startswith(f"job {job} has no output")
    assert "no failed job" in detail(harness.user.post("/v1/campaigns/1/rerun"), 409)
    code, why = remove(harness, harness.user, f"jobs/{waiting}")
    assert (code, why) == (409, f"job {waiting} cannot be removed: it is New; `glean cancel` ends it")
    assert remove(harness, harness.user, "jobs/99") == (404, "there is no job 99")


def test_results_go_at_their_date_and_stay_without_one(harness: ApiHarness) -> None:
    (job,) = ended(harness)
    state = harness.state
    harness.now_s += 50 * retention.DAY_S
    for days, left in ((None, []), (51, []), (49, [f"jobs/{job}/attempt-1/output"])):
        if days is not None:
            keep(harness, days)
        retention.remove_old_rows(state.engine, state.writing, state.settings, harness.now_s)
        assert remove_archives(state) == left
    (row,) = harness.user.get("/v1/jobs").json()["jobs"]
    assert (row["outcome"], row["kept_until_s"]) == ("succeeded", None)
