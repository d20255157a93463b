"""Reports that wait on the storage: each counts or is dropped, and none keeps another from counting."""

import json
from pathlib import Path

from tests.control.stage import Stage

from gleaner.agent.protocol import Assignment, Checkpointed, Completed, Farewell, Generation, Message, Saved, Slice
from gleaner.control.left_reports import take_left_reports
from gleaner.control.rounds import sweep_tokens

SLICE = Slice(started_s=1.0)


def an_agent_with_a_job(stage: Stage) -> tuple[str, Assignment]:
    stage.submit_jobs(1)
    stage.round()
    name = stage.agents()[-1].name
    stage.register(name, "n1")
    return name, stage.claim(name).jobs[0]


def leave(stage: Stage, agent: str, number: int, path: str, message: Message) -> Path:
    folder = stage.folder / "agents" / agent / "reports"
    folder.mkdir(exist_ok=True)
    file = folder / f"{number:06}.json"
    file.write_text(json.dumps({"path": path, "body": message.model_dump_json()}))
    return file


def test_a_report_that_can_never_be_right_is_dropped_and_holds_up_no_other(stage: Stage) -> None:
    agent, given = an_agent_with_a_job(stage)
    attempt = f"/jobs/{given.job}/attempts/{given.attempt}"
    of_another = Generation(attempt=7, number=1, digest="sha256:" + "0" * 64, size_bytes=1, log_lines=0)
    leave(stage, agent, 0, f"{attempt}/saved", Saved(generation=of_another, slice=SLICE))
    leave(stage, agent, 1, f"{attempt}/completed", Completed(exit_code=0, slice=SLICE))
    (stage.folder / "agents" / "a-stranger").mkdir()
    leave(stage, "a-stranger", 0, "/agents/a-stranger/farewell", Farewell(ended_s=1.0))
    assert take_left_reports(stage.site, stage.now_s) == 1
    assert stage.state_of(given.job) == "Complete"
    assert not list((stage.folder / "agents").glob("*/reports"))


def test_periodic_saves_that_waited_on_the_storage_count(stage: Stage) -> None:
    agent, given = an_agent_with_a_job(stage)
    for number in (1, 2):
        made = Generation(attempt=given.attempt, number=number, digest="sha256:" + "0" * 64, size_bytes=1, log_lines=0)
        path = f"/jobs/{given.job}/attempts/{given.attempt}/checkpointed"
        leave(stage, agent, number, path, Checkpointed(generation=made, slice=SLICE))
    leave(stage, agent, 3, f"/agents/{agent}/farewell", Farewell(ended_s=1.0))
    assert take_left_reports(stage.site, stage.now_s) == 3
    assert stage.state_of(given.job) == "Saved"


def test_reports_that_cannot_be_read_now_hold_up_no_other_agent(stage: Stage) -> None:
    agent, given = an_agent_with_a_job(stage)
    leave(stage, agent, 0, f"/jobs/{given.job}/attempts/{given.attempt}/completed", Completed(exit_code=0, slice=SLICE))
    unreadable = stage.folder / "agents" / "a-first" / "reports" / "000000.json"
    unreadable.mkdir(parents=True)  # reading it fails whoever runs this test
    assert take_left_reports(stage.site, stage.now_s) == 1
    assert stage.state_of(given.job) == "Complete"


def test_what_an_agent_left_half_written_keeps_no_other_agents_token_from_being_removed(stage: Stage) -> None:
    for name in ("a-1", "a-2"):
        (stage.folder / "agents" / name).mkdir(parents=True)
        (stage.folder / "agents" / name / "token").write_text("secret")
    half = stage.folder / "agents" / "a-1" / "reports" / ".000000.json"
    half.parent.mkdir()
    half.write_text("{")
    sweep_tokens(stage.site, stage.now_s)
    assert not list((stage.folder / "agents").glob("*/token"))
    assert half.exists()
