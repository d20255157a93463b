"""Reports that wait on the storage: each counts or is dropped, and none keeps another from counting."""

import json
from pathlib import Path
from shutil import rmtree

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.daemon.daemon_harness import DaemonHarness
from tests.effort import examples
from tests.queue.queue_harness import checkpoint
from tests.readers.changes import changed
from tests.recorded import recording

from gleaner.agent.messages import (
    Assignment,
    Checkpointed,
    Completed,
    Deregistration,
    LogLines,
    Message,
    Saved,
    Slice,
)
from gleaner.agent.reporting.spooled_report import hash_of, prove
from gleaner.control.daemon.report_spool import take_spooled_reports
from gleaner.control.daemon.storage_gc import forget_tokens, remove_tokens
from gleaner.control.queue import agents, attempt_reports, queries, tokens
from gleaner.control.queue.database import snapshot

SLICE = Slice(started_s=1.0)


def an_agent_with_a_job(harness: DaemonHarness) -> tuple[str, Assignment]:
    harness.submit_jobs(1)
    harness.round()
    name = harness.agents()[-1].name
    harness.register(name, "n1")
    return name, harness.claim(name).jobs[0]


def leave(harness: DaemonHarness, agent: str, number: int, path: str, message: Message) -> Path:
    folder = harness.folder / "agents" / agent / "reports"
    folder.mkdir(exist_ok=True)
    file = folder / f"{number:06}.json"
    file.write_text(proved(harness, agent, path, message.model_dump_json()))
    return file


def proved(harness: DaemonHarness, agent: str, path: str, body: str) -> str:
    """Return a report as the agent writes it, with its token; of an agent without one, as anybody else might."""
    token = harness.folder / "agents" / agent / "token"
    key = hash_of(token.read_text().strip()) if token.exists() else "guessed"
    return prove(path, body, key).model_dump_json()


def unread(harness: DaemonHarness, agent: str) -> list[tuple[str, str]]:
    """Return those of an agent's reports that were set aside, with the reasons."""
    place = harness.folder / "agents" / agent / "unread"
    found = sorted(place.glob("*.json"))
    return [(file.read_text(), file.with_suffix(".reason").read_text()) for file in found]


def test_a_report_that_can_never_be_right_is_kept_with_the_reason_and_holds_up_no_other(harness: DaemonHarness) -> None:
    agent, given = an_agent_with_a_job(harness)
    attempt = f"/jobs/{given.job}/attempts/{given.attempt}"
    wrong = leave(harness, agent, 0, f"{attempt}/saved", Saved(checkpoint=checkpoint(7), slice=SLICE)).read_text()
    unknown = f"/jobs/{given.job}/attempts/99/completed"
    unknown = leave(harness, agent, 1, unknown, Completed(exit_code=0, slice=SLICE)).read_text()
    leave(harness, agent, 2, f"{attempt}/completed", Completed(exit_code=0, slice=SLICE))
    (harness.folder / "agents" / "a-stranger").mkdir()
    strange = leave(harness, "a-stranger", 0, "/agents/a-stranger/farewell", Deregistration(ended_s=1.0)).read_text()
    assert take_spooled_reports(harness.state, harness.now_s) == 1
    assert harness.state_of(given.job) == "Complete"
    assert not list((harness.folder / "agents").glob("*/reports"))
    remove_tokens(harness.state.engine, harness.folder / "agents")
    aside, reasons = zip(*unread(harness, agent), strict=True)
    assert aside == (wrong, unknown)
    assert reasons[0] == f"attempt {given.attempt} of job {given.job} reports a checkpoint of attempt 7\n"
    ((kept, reason),) = unread(harness, "a-stranger")
    assert kept == strange
    assert reason.count("\n") == 1


def test_a_report_of_another_agents_attempt_is_set_aside(harness: DaemonHarness) -> None:
    _, given = an_agent_with_a_job(harness)
    path = f"/jobs/{given.job}/attempts/{given.attempt}"
    (harness.folder / "agents" / "another").mkdir()
    (harness.folder / "agents" / "another" / "token").write_text("secret")
    with harness.state.writing() as db:
        agents.expect(db, name="another", end_s=9e9, token_hash=hash_of("secret"), now_s=harness.now_s)
    leave(harness, "another", 0, f"{path}/completed", Completed(exit_code=0, slice=SLICE))
    leave(harness, "another", 1, f"{path}/log", LogLines(first=0, lines=("not mine",)))
    assert take_spooled_reports(harness.state, harness.now_s) == 0
    assert harness.state_of(given.job) == "Running"
    said = f"attempt {given.attempt} of job {given.job} belongs to another agent\n"
    assert [reason for _, reason in unread(harness, "another")] == [said, said]


def test_a_file_that_its_agent_has_not_written_is_no_report_wherever_it_lies(harness: DaemonHarness) -> None:
    agent, given = an_agent_with_a_job(harness)
    path = f"/jobs/{given.job}/attempts/{given.attempt}/completed"
    failed, passed = (Completed(exit_code=code, slice=SLICE).model_dump_json() for code in (1, 0))
    true = prove(path, failed, hash_of((harness.folder / "agents" / agent / "token").read_text().strip()))
    forged = [
        prove(path, failed, hash_of("another agent's token")),
        prove(path, failed, ""),
        true.model_copy(update={"body": passed}),
        true.model_copy(update={"path": path.replace("completed", "saved")}),
    ]
    contents = [one.model_dump_json() for one in forged] + [true.model_dump_json(exclude={"proof"})]
    folder = harness.folder / "agents" / agent / "reports"
    folder.mkdir()
    for number, content in enumerate(contents):
        (folder / f"{number:06}.json").write_text(content)
    assert take_spooled_reports(harness.state, harness.now_s) == 0
    assert harness.state_of(given.job) == "Running"
    kept = unread(harness, agent)
    assert [content for content, _ in kept] == contents
    assert [reason for _, reason in kept[:-1]] == [f"it has no proof that {agent} has written it\n"] * len(forged)


def test_the_proof_counts_for_as_long_as_reports_wait_however_long_control_was_away(harness: DaemonHarness) -> None:
    agent, given = an_agent_with_a_job(harness)
    path = f"/jobs/{given.job}/attempts/{given.attempt}/completed"
    leave(harness, agent, 0, path, Completed(exit_code=0, slice=SLICE))
    leave(harness, agent, 1, f"/agents/{agent}/farewell", Deregistration(ended_s=harness.now_s))
    later_s = harness.now_s + 30 * 24 * 3600.0
    forget_tokens(harness.state, harness.folder / "agents", later_s)
    assert take_spooled_reports(harness.state, later_s) == 2
    assert harness.state_of(given.job) == "Complete"
    with snapshot(harness.state.engine) as db:
        assert len(tokens.agents_hashes(db, agent)) == 1
    forget_tokens(harness.state, harness.folder / "agents", later_s)
    with snapshot(harness.state.engine) as db:
        assert tokens.agents_hashes(db, agent) == ()


def test_a_report_that_came_too_late_is_dropped(harness: DaemonHarness) -> None:
    agent, given = an_agent_with_a_job(harness)
    attempt = f"/jobs/{given.job}/attempts/{given.attempt}"
    leave(harness, agent, 0, f"{attempt}/completed", Completed(exit_code=0, slice=SLICE))
    leave(harness, agent, 1, f"{attempt}/completed", Completed(exit_code=3, slice=SLICE))
    assert take_spooled_reports(harness.state, harness.now_s) == 1
    assert unread(harness, agent) == []
    assert not list((harness.folder / "agents").glob("*/reports"))


def test_a_report_is_in_its_new_place_with_the_reason_before_it_leaves_the_old_one(harness: DaemonHarness) -> None:
    agent, _ = an_agent_with_a_job(harness)
    leave(harness, agent, 0, "/painted", Deregistration(ended_s=1.0))
    with recording() as calls:
        take_spooled_reports(harness.state, harness.now_s)
    place = harness.folder / "agents" / agent / "unread"
    (file,), (reason,) = place.glob("*.json"), place.glob("*.reason")
    assert calls.index(("fsync", place.parent)) < calls.index(("rename", reason)) < calls.index(("rename", file))
    assert calls.last(("fsync", place)) > calls.index(("rename", file))


def test_a_periodic_save_that_control_has_heard_both_ways_counts_once(harness: DaemonHarness) -> None:
    """An agent puts it on the storage before the job goes on, and tells control too."""
    agent, given = an_agent_with_a_job(harness)
    path = f"/jobs/{given.job}/attempts/{given.attempt}/checkpointed"
    told = [Checkpointed(checkpoint=checkpoint(given.attempt, number), slice=SLICE) for number in (1, 2)]
    file = leave(harness, agent, 0, path, told[0])
    file.rename(file.with_name("00000-000000000.json"))
    for report in told:
        with harness.state.writing() as db:
            attempt_reports.record_checkpoint(db, given.job, given.attempt, report, now_s=harness.now_s)
    take_spooled_reports(harness.state, harness.now_s)
    assert unread(harness, agent) == []
    assert not list((harness.folder / "agents").glob("*/reports"))
    with snapshot(harness.state.engine) as db:
        numbers = [each.number for each in queries.job_detail(db, given.job).checkpoints]
    assert sorted(numbers) == [1, 2]
    assert harness.state_of(given.job) == "Running"


def test_reports_that_cannot_be_read_now_hold_up_no_other_agent(harness: DaemonHarness) -> None:
    agent, given = an_agent_with_a_job(harness)
    leave(
        harness, agent, 0, f"/jobs/{given.job}/attempts/{given.attempt}/completed", Completed(exit_code=0, slice=SLICE)
    )
    unreadable = harness.folder / "agents" / "a-first" / "reports" / "000000.json"
    unreadable.mkdir(parents=True)  # reading it fails whoever runs this test
    assert take_spooled_reports(harness.state, harness.now_s) == 1
    assert harness.state_of(given.job) == "Complete"


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_file_and_any_name_of_a_folder_is_a_report_or_is_set_aside(
    harness: DaemonHarness, data: st.DataObject
) -> None:
    good = [
        ("/agents/caf\udce9/farewell", Deregistration(ended_s=1.0)),
        ("/jobs/1/attempts/1/log", LogLines(first=0, lines=())),
    ]
    good += [("/jobs/1/attempts/1/saved", Saved(checkpoint=checkpoint(1), slice=SLICE))]
    files = [json.dumps({"path": path, "body": message.model_dump_json()}).encode() for path, message in good]
    rmtree(harness.folder / "agents", ignore_errors=True)
    place = harness.folder / "agents" / data.draw(st.sampled_from(["agent", "caf\udce9"]))
    (place / "reports").mkdir(parents=True)
    content = data.draw(st.binary(max_size=50) | changed(tuple(files)))
    (place / "reports" / "000000.json").write_bytes(content)
    assert take_spooled_reports(harness.state, harness.now_s) == 0
    assert not (place / "reports").exists()
    set_aside = list((place / "unread").glob("*.json")) if (place / "unread").exists() else []
    assert [one.read_bytes() for one in set_aside] in ([], [content])
