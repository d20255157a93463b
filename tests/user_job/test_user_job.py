"""`glean run`: when a job of one's own is saved, what is kept of it, and what becomes of it."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.pretended_runtime import PretendedRuntime
from tests.privileged import slurm
from tests.recorded import recording

from gleaner.agent.checkpoints import workdir_tar
from gleaner.agent.checkpoints.archive import FolderArchive
from gleaner.agent.checkpoints.interface import ArchiveBroken, StorageError, checkpoint_key
from gleaner.agent.job import lifecycle
from gleaner.agent.job.job_checkpoints import JobCheckpoints
from gleaner.agent.job_spec import JobSpec
from gleaner.agent.messages import Assignment, Checkpoint
from gleaner.agent.node.facts import node_facts
from gleaner.agent.privileged.common.slurm_job import JobHandle, SlurmJobRecord, parse
from gleaner.agent.runtime.interface import ContainerId, ContainerSpec
from gleaner.agent.user_job import main, program, slurm_reporter
from gleaner.agent.user_job.catalog import Catalog, program_of
from gleaner.agent.user_job.program import UserJob
from gleaner.agent.user_job.slurm_reporter import FAILED, TERMINATED, deliver
from gleaner.agent.user_job.when_to_save import SavePlan, SaveWish, by_clock, by_signal, is_started_by_gleaner
from gleaner.control.slurm.snapshot import ASKED_TO_SAVE


def job(**changes: Any) -> SlurmJobRecord:
    return parse(json.dumps({"jobs": [slurm.job(**changes)]}), "66")


# ── when ──


def test_it_is_saved_in_time_for_slurm_to_find_nothing_at_its_end() -> None:
    plan = SavePlan(end_s=1000, kill_wait_s=30, every_s=None, began_s=0)
    leave = [now_s for now_s in range(1000) if by_clock(plan, now_s=now_s, since_s=0, save_s=10)]
    assert leave[0] == 1000 - 30 - 5 - 10


@given(save_s=st.floats(0, 2000), end_s=st.floats(0, 2000), now_s=st.floats(0, 2000), kill_wait_s=st.floats(0, 600))
def test_no_job_leaves_before_it_has_computed_for_as_long_as_its_save_takes(
    save_s: float, end_s: float, now_s: float, kill_wait_s: float
) -> None:
    plan = SavePlan(end_s=end_s, kill_wait_s=kill_wait_s, every_s=None, began_s=0)
    if by_clock(plan, now_s=now_s, since_s=0, save_s=save_s):
        assert now_s >= save_s


def test_it_is_saved_as_often_as_it_was_asked() -> None:
    plan = SavePlan(end_s=None, kill_wait_s=30, every_s=60, began_s=0)
    assert by_clock(plan, now_s=159, since_s=100, save_s=1) is None
    assert by_clock(plan, now_s=160, since_s=100, save_s=1) is SaveWish.SAVE


WISHES: list[tuple[int, list[str], SaveWish]] = [
    (signal.SIGUSR1, ["RUNNING"], SaveWish.VACATE),
    (signal.SIGTERM, ["RUNNING"], SaveWish.VACATE),
    (signal.SIGTERM, ["TIMEOUT", "COMPLETING"], SaveWish.VACATE),
    (signal.SIGTERM, ["CANCELLED", "COMPLETING"], SaveWish.END),
    (signal.SIGTERM, ["PENDING", "COMPLETING"], SaveWish.VACATE_REQUEUED),
    (signal.SIGTERM, ["PENDING", "REQUEUE_HOLD", "COMPLETING"], SaveWish.VACATE_REQUEUED),
]


@pytest.mark.parametrize(("number", "states", "wish"), WISHES)
def test_what_a_signal_means_depends_on_the_job(number: int, states: list[str], wish: SaveWish) -> None:
    assert by_signal(number, job(job_state=states)) is wish


def test_where_slurm_does_not_answer_a_job_is_saved_rather_than_ended() -> None:
    assert by_signal(signal.SIGTERM, None) is SaveWish.VACATE
    assert not is_started_by_gleaner(None)


def test_a_job_that_gleaner_lets_start_is_known_by_its_comment() -> None:
    assert is_started_by_gleaner(job(admin_comment="gleaner: waits for its turn"))
    assert not is_started_by_gleaner(job(admin_comment="my gleaner"))


# ── what is kept ──


def catalog(place: Path, what: str = "p") -> Catalog:
    return Catalog(place / "home" / "cluster", 66, what)


def saved(at: Catalog, attempt: int, number: int) -> Checkpoint:
    with at.storage.draft(f"jobs/66/attempt-{attempt}/checkpoint-{number}") as draft:
        draft.add("folder.tar", [b"x"])
        published = draft.publish({})
    found = Checkpoint(
        attempt=attempt,
        number=number,
        digest=published.digest,
        size_bytes=published.size_bytes,
        log_lines=0,
    )
    at.record_checkpoint(found)
    return found


def test_the_newest_two_checkpoints_stay_and_nothing_after_the_end(tmp_path: Path) -> None:
    at = catalog(tmp_path)
    at.set_up(is_first=True, now_s=0)
    assert (at.latest(), at.next_attempt()) == ((), 1)
    first, second, third = (saved(at, 1, number) for number in (1, 2, 3))
    assert at.latest() == (third, second)
    assert (at.before(third), at.before(second), at.before(first)) == (second, None, None)
    assert len(at.storage.keys("jobs/66")) == 2
    assert at.next_attempt() == 2
    at.set_aside(third)
    assert at.latest() == (second,)
    (at.root / ".broken" / "jobs--661--attempt-1--checkpoint-1--0").mkdir()
    at.clear()
    assert not (at.root / "jobs").exists()
    assert [one.name for one in (at.root / ".broken").iterdir()] == ["jobs--661--attempt-1--checkpoint-1--0"]


def test_older_checkpoints_go_only_when_the_record_that_does_not_name_them_is_on_the_disk(tmp_path: Path) -> None:
    at = catalog(tmp_path)
    at.set_up(is_first=True, now_s=0)
    first = saved(at, 1, 1)
    saved(at, 1, 2)
    with recording() as calls:
        saved(at, 1, 3)
    record = at.root / "jobs" / "66" / "latest.json"
    named, synced = calls.last(("rename", record)), calls.last(("fsync", record.parent))
    assert calls.index(("fsync", record.with_name(f"{record.name}.new"))) < named < synced
    away = [at_ for at_, (what, path) in enumerate(calls.all) if what == "rename" and path.parent.name == ".drafts"]
    assert len(away) == 1
    assert away[0] > synced
    assert checkpoint_key(66, first.attempt, first.number) not in at.storage.keys("jobs/66")


def test_results_are_on_the_disk_before_what_was_saved_goes(tmp_path: Path) -> None:
    place, results = tmp_path / "job", tmp_path / "home" / "results"
    (place / "plots").mkdir(parents=True)
    results.parent.mkdir()
    (place / "plots" / "a.png").write_bytes(b"picture")
    with recording() as calls:
        deliver(place, results)
    draft = results.with_name(".results.new")
    named = calls.index(("rename", results))
    for path in (draft / "plots" / "a.png", draft / "plots", draft):
        assert calls.index(("fsync", path)) < named
    assert calls.last(("fsync", results.parent)) > named


def test_what_another_program_has_saved_is_not_for_this_one(tmp_path: Path) -> None:
    at = catalog(tmp_path, program_of("pi", ["a"]))
    at.set_up(is_first=True, now_s=0)
    saved(at, 1, 1)
    assert catalog(tmp_path, program_of("pi", ["b"])).latest() == ()
    assert program_of("pi", ["a", "b"]) != program_of("pi", ["a b"])


@pytest.mark.parametrize("harm", ["it cannot be read", "it is cut off"])
def test_a_record_that_cannot_be_read_lets_nothing_begin_anew_and_nothing_go(tmp_path: Path, harm: str) -> None:
    at = catalog(tmp_path)
    at.set_up(is_first=True, now_s=0)
    saved(at, 1, 1)
    record = at.root / "jobs" / str(at.job) / "latest.json"
    there, before = at.storage.keys(""), record.read_bytes()
    record.unlink()
    if harm == "it cannot be read":
        record.mkdir()
    else:
        record.write_bytes(before[:20])
    for act in (at.latest, lambda: saved(at, 2, 1)):
        with pytest.raises(StorageError, match=f"latest.json.*scontrol requeue {at.job}") as refused:
            act()
        assert "\n" not in str(refused.value)
    assert set(there) <= set(at.storage.keys(""))


def test_a_job_that_starts_for_the_first_time_has_nothing_of_an_older_one_of_its_number(tmp_path: Path) -> None:
    at = catalog(tmp_path)
    at.set_up(is_first=True, now_s=0)
    saved(at, 1, 1)
    at.set_up(is_first=False, now_s=0)
    assert len(at.latest()) == 1
    at.set_up(is_first=True, now_s=0)
    assert at.latest() == ()


def test_what_is_left_of_jobs_that_slurm_has_forgotten_is_removed(tmp_path: Path) -> None:
    at = catalog(tmp_path)
    at.set_up(is_first=True, now_s=0)
    saved(at, 1, 1)
    other = Catalog(at.root, 67, "q")
    other.remove_forgotten(frozenset({"66", "67"}))
    assert len(at.latest()) == 1
    other.remove_forgotten(frozenset({"67"}))
    assert (at.latest(), at.storage.keys("")) == ((), [])


# ── how it goes ──


class UserJobHarness:
    """One start of a job under a Slurm of our own."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = place
        self.runtime = PretendedRuntime()
        self.runtime.first_lines = []
        self.catalog = catalog(place)
        self.catalog.set_up(is_first=True, now_s=0)
        self.says: list[str] = []
        self.readmitted: list[int] = []
        for pause in ("_TICK_S", "_AGAIN_S"):
            monkeypatch.setattr(program, pause, 0.05)
        monkeypatch.setenv("PATH", str(place), prepend=":")
        slurm.answering(place, slurm.job())
        (place / "scontrol").rename(place / "show")
        (place / "scontrol").write_text(
            f'#!/bin/sh\ncase $1 in requeue*) [ ! -e {place}/refused ] || {{ echo "Requeue refused" >&2; exit 1; }}\n'
            f'echo "$1 $2" >>{place}/requeued ;; *) exec {place}/show "$@" ;; esac\n'
        )
        (place / "scontrol").chmod(0o755)

    def start(self, *command: str, every_s: float | None = None, image: str = "pi") -> UserJob:
        work = self.place / "work"
        work.mkdir(exist_ok=True)
        workdir_tar.clear(work)
        latest = self.catalog.latest()
        given = Assignment(
            job=66, attempt=self.catalog.next_attempt(), group="own", memory_mib=100,
            spec=JobSpec(name="own-1-66", image=image, command=command), checkpoint=latest[0] if latest else None,
        )  # fmt: skip
        self.job = UserJob(
            slurm_job=JobHandle("66"),
            runtime=self.runtime,
            checkpoints=JobCheckpoints(
                self.catalog.storage, given, node_facts(self.runtime.facts(), cpus=1, memory_mib=100), work
            ),
            catalog=self.catalog,
            spec=ContainerSpec("own-1-66", image, command, {}, 1, 100, work, {}),
            plan=SavePlan(end_s=2e9, kill_wait_s=30, every_s=every_s, began_s=time.time()),
            results=self.place / "results",
            begin_with=None,
            signals=queue.SimpleQueue(),
            readmit=lambda: self.readmitted.append(self.runtime.restores),
            say=self.says.append,
        )
        self.codes: list[int] = []
        self.thread = threading.Thread(target=lambda: self.codes.append(self.job.run()), daemon=True)
        self.thread.start()
        return self.job

    def until(self, found: Callable[[], object]) -> None:
        give_up_s = time.monotonic() + 60
        while not found():
            assert time.monotonic() < give_up_s, self.says
            time.sleep(0.02)

    def computes(self) -> bool:
        """It has written something, and what comes now comes to a job that has begun."""
        return isinstance(self.job.executor.state, lifecycle.Running) and (self.place / "work" / "events.csv").exists()

    @property
    def requeued(self) -> list[str]:
        try:
            return (self.place / "requeued").read_text().splitlines()
        except FileNotFoundError:
            return []

    def end(self) -> int:
        self.thread.join(60)
        return self.codes[0]

    def leave(self) -> int:
        """It is asked to leave, and when it has had itself requeued Slurm ends it; its exit code."""
        self.job.signals.put(signal.SIGUSR1)
        self.until(lambda: self.requeued)
        self.job.signals.put(signal.SIGTERM)
        return self.end()

    def leave_two_checkpoints(self) -> None:
        self.start("count", "100000", every_s=0.01)
        self.until(lambda: len(self.catalog.latest()) == 2)
        self.leave()


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UserJobHarness]:
    found = UserJobHarness(tmp_path, monkeypatch)
    yield found
    found.runtime.kill_all()
    found.thread.join(60)  # else it says its last words in the next test


def test_a_job_that_ends_delivers_its_files_and_its_exit_code_and_leaves_nothing(harness: UserJobHarness) -> None:
    harness.start("count", "5", "3", every_s=0.01)
    assert harness.end() == 3
    assert (harness.place / "results" / "events.csv").read_text().split() == ["1", "2", "3", "4", "5"]
    assert harness.catalog.storage.keys("jobs/66") == []


@pytest.mark.slow
def test_asked_to_leave_it_is_saved_requeued_and_goes_on_where_it_was(harness: UserJobHarness) -> None:
    harness.start("count", "120")
    harness.until(harness.computes)
    assert (harness.leave(), harness.requeued) == (TERMINATED, ["requeue 66"])
    assert "the job is requeued" in harness.says[-1]
    harness.start("count", "120")
    assert harness.end() == 0
    assert harness.runtime.restores == 1, harness.says
    lines = (harness.place / "results" / "events.csv").read_text().split()
    assert lines == [str(number) for number in range(1, 121)]


@pytest.mark.parametrize(("restarts", "leaves"), [(0, True), (1, False)])
def test_a_signal_that_came_before_anybody_could_hear_it_is_obeyed_all_the_same(
    harness: UserJobHarness, restarts: int, leaves: bool
) -> None:
    told = slurm.job(admin_comment=ASKED_TO_SAVE, restart_cnt=restarts)
    (harness.place / "66.json").write_text(json.dumps({"jobs": [told]}))
    at = harness.start("count", "100000")
    if not leaves:  # that was before it was released again
        harness.until(harness.computes)
        assert harness.requeued == []
        at.signals.put(signal.SIGUSR1)
    harness.until(lambda: harness.requeued)
    assert harness.requeued == ["requeuehold 66"]
    assert len(harness.catalog.latest()) == (0 if leaves else 1), "what has not begun has nothing to save"


@pytest.mark.slow
def test_a_job_that_cannot_be_saved_says_so_and_goes_on(harness: UserJobHarness) -> None:
    harness.runtime.checkpoints_that_fail = 4
    at = harness.start("count", "250")
    harness.until(harness.computes)
    for number in range(4):
        at.signals.put(signal.SIGUSR1)
        harness.until(lambda number=number: len(harness.says) > number)  # type: ignore[misc]
    assert harness.end() == 0
    assert harness.says == ["cannot be saved, and goes on: it holds a device"] * 4
    assert harness.requeued == []


@pytest.mark.slow
def test_a_job_that_slurm_does_not_requeue_goes_on_here(
    harness: UserJobHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_reporter, "_REQUEUE_WITHIN_S", 0.0)
    (harness.place / "refused").touch()
    at = harness.start("count", "200")
    harness.until(harness.computes)
    at.signals.put(signal.SIGUSR1)
    assert harness.end() == 0
    assert "saved, but it continues here: Slurm does not requeue job 66: Requeue refused" in harness.says


@pytest.mark.slow
def test_a_job_that_somebody_else_requeues_while_it_is_saved_is_not_requeued_again(harness: UserJobHarness) -> None:
    harness.runtime.checkpoint_takes_s = 1.5
    at = harness.start("count", "100000")
    harness.until(harness.computes)
    at.signals.put(signal.SIGUSR1)
    harness.until(lambda: at.executor.is_saving)
    (harness.place / "66.json").write_text(json.dumps({"jobs": [slurm.job(job_state=["PENDING", "COMPLETING"])]}))
    at.signals.put(signal.SIGTERM)
    assert (harness.end(), harness.requeued) == (TERMINATED, [])
    assert harness.says[-1].endswith("the job has been requeued")
    assert len(harness.catalog.latest()) == 1


@pytest.mark.slow
def test_a_job_that_is_cancelled_while_it_is_saved_leaves_nothing(harness: UserJobHarness) -> None:
    harness.runtime.checkpoint_takes_s = 1.5
    at = harness.start("count", "100000", every_s=0.01)
    harness.until(lambda: at.executor.is_saving)
    (harness.place / "66.json").write_text(json.dumps({"jobs": [slurm.job(job_state=["CANCELLED", "COMPLETING"])]}))
    at.signals.put(signal.SIGTERM)
    assert harness.end() == TERMINATED
    assert (harness.catalog.storage.keys("jobs/66"), harness.requeued) == ([], [])


def test_a_checkpoint_that_is_broken_costs_only_what_came_after_the_one_before(harness: UserJobHarness) -> None:
    harness.leave_two_checkpoints()
    newest = harness.catalog.latest()[0]
    place = harness.catalog.root / f"jobs/66/attempt-{newest.attempt}/checkpoint-{newest.number}"
    (place / "manifest.json").write_text("{}")
    harness.start("count", "100000")
    harness.until(lambda: harness.runtime.restores)
    harness.until(lambda: any("broken, and was set aside" in line for line in harness.says))
    assert newest not in harness.catalog.latest(), "else it would count as the one before the next"


def test_where_nothing_that_was_saved_can_be_read_nothing_begins_anew_and_all_of_it_stays(
    harness: UserJobHarness,
) -> None:
    """It may be this one node's fault."""
    harness.leave_two_checkpoints()
    known, there = harness.catalog.latest(), harness.catalog.storage.keys("jobs/66")
    for one in known:
        place = harness.catalog.root / f"jobs/66/attempt-{one.attempt}/checkpoint-{one.number}"
        (place / "manifest.json").write_text("{}")
    harness.start("count", "100000")
    assert harness.end() == FAILED
    assert (harness.catalog.latest(), harness.catalog.storage.keys("jobs/66")) == (known, there)
    assert any(f"rm {harness.catalog.record}" in line for line in harness.says)
    assert any("scontrol requeue 66" in line for line in harness.says)


def test_after_a_checkpoint_that_broke_while_it_was_restored_the_helper_makes_the_folder_again(
    harness: UserJobHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has taken it away together with the container that came to nothing."""
    harness.leave_two_checkpoints()
    restore = harness.runtime.restore

    def broken(spec: ContainerSpec, archive: FolderArchive) -> ContainerId:
        monkeypatch.setattr(harness.runtime, "restore", restore)
        raise ArchiveBroken("memory.tar is not what was stored")

    monkeypatch.setattr(harness.runtime, "restore", broken)
    harness.start("count", "100000")
    harness.until(lambda: harness.runtime.restores)
    assert harness.readmitted == [0]


def test_an_image_that_is_missing_is_one_line(harness: UserJobHarness) -> None:
    harness.start("count", "5", image="missing")
    assert (harness.end(), harness.says) == (FAILED, ["no image named missing"])


def test_files_are_delivered_whole_or_not_at_all(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    deliver(work, tmp_path / "results")
    assert not (tmp_path / "results").exists()
    (work / "a").write_text("x")
    deliver(work, tmp_path / "results")
    assert (tmp_path / "results" / "a").read_text() == "x"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["results", "work"]


# ── the command line ──


STEP = """#!/bin/sh
# Pretends to be srun. The first steps are killed before their shell ignores the signal.
echo step >>{folder}/steps
[ $(wc -l <{folder}/steps) -gt {killed} ] || exit {by}
while [ "$1" != sh ]; do shift; done
exec "$@"
"""


LISTENER = """
import os, signal
signal.signal(signal.SIGUSR1, print)  # the shell around it has ignored it
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
os.kill(os.getppid(), signal.SIGTERM)
while [line for line in open(f'/proc/{os.getppid()}/status') if line.startswith('ShdPnd') and int(line.split()[1], 16)]:
    pass
os.kill(os.getppid(), signal.SIGUSR1)
signal.sigwait({signal.SIGUSR1})
os._exit(7)
"""
"""A program that sends a signal to the script's shell, lets it be taken, and sends one that it is to hear itself."""


def run_in_steps(
    folder: Path, program: str, *, killed: int = 0, by: int = 138, has_file: bool = True
) -> tuple[int, int]:
    """Return the exit status of a batch script, of whose steps the first are killed, and the number of its steps."""
    folder.mkdir()
    (folder / "srun").write_text(STEP.format(folder=folder, killed=killed, by=by))
    (folder / "srun").chmod(0o755)
    if has_file:
        (folder / "deaf").touch()
    words = main.step_words({}, f"{folder}/srun", folder / "deaf", ["pi"])
    words[words.index(sys.executable) :] = ["sh", "-c", program]
    done = subprocess.run(words, check=False, timeout=60, start_new_session=True)
    assert not (folder / "deaf").exists()
    return done.returncode, len((folder / "steps").read_text().splitlines())


@pytest.mark.parametrize("killed", [1, 3])
@pytest.mark.parametrize("by", [138, 143])
def test_a_step_that_a_signal_kills_before_it_can_listen_is_run_again_and_knows_of_it(
    tmp_path: Path, killed: int, by: int
) -> None:
    ended = run_in_steps(tmp_path / "a", f"[ ${main._MISSED} = yes ] && exit 5", killed=killed, by=by)
    assert ended == (5, killed + 1)


def test_a_workload_that_ends_as_if_by_the_signal_is_not_run_again(tmp_path: Path) -> None:
    assert run_in_steps(tmp_path / "a", f"kill -USR1 $$; exit ${{{main._MISSED}:-138}}") == (138, 1)
    assert run_in_steps(tmp_path / "b", "exit 0", killed=1, has_file=False) == (138, 1)


def test_the_scripts_shell_passes_the_signal_on_and_outlives_it(tmp_path: Path) -> None:
    assert run_in_steps(tmp_path / "a", f'exec "{sys.executable}" -c "{LISTENER}"') == (7, 1)


@pytest.mark.parametrize("restarts", ["0", "1"])
def test_a_batch_script_becomes_a_step_beside_whose_folder_a_file_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: str
) -> None:
    (tmp_path / "srun").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    begun: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, words: begun.append(words))
    options = main.RunOptions("pi", (), tmp_path / "new" / "own", None, None, None, None, None, {})
    environment = {"SLURM_CPUS_ON_NODE": "4", "SLURM_RESTART_COUNT": restarts}
    main.become_step(environment, "66", options, ["pi", "--seed", "1"])
    ((*words, last),) = begun
    assert (words[-2:], last) == (["pi", "--seed"], "1")
    assert {str(tmp_path / "srun"), "--cpus-per-task=4"} <= set(words)
    # At a later start a folder that is not there is not made: this node does not see the shared one.
    assert (tmp_path / "new").exists() == (restarts == "0")
    if restarts == "0":
        (left,) = (tmp_path / "new" / "own").iterdir()
        assert str(left) in words
        Catalog(main.root_of(options.storage), 67, "q").remove_forgotten(frozenset({"66"}))
        assert left.exists()
        Catalog(main.root_of(options.storage), 67, "q").remove_forgotten(frozenset())
        assert not left.exists()


WRONG: dict[str, dict[str, str]] = {
    "submit that with sbatch": {},
    "more than one task": {"SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "4"},
}


@pytest.mark.parametrize("why", [*WRONG])
def test_where_it_cannot_run_it_says_what_to_do(why: str) -> None:
    with pytest.raises(main.Unfit, match=why):
        main.job_of(WRONG[why])


@pytest.mark.parametrize("wrong", ["A", "=x", ""])
def test_a_variable_is_name_and_value(wrong: str) -> None:
    with pytest.raises(main.Unfit, match="NAME=VALUE"):
        main.variables([wrong])


def test_places_are_looked_at_before_anything_is_computed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(main.Unfit, match="exists already"):
        main.check_places(tmp_path / "there", None)
    with pytest.raises(main.Unfit, match="--results"):
        main.check_places(tmp_path / "no" / "such", None)
    with pytest.raises(main.Unfit, match="--input"):
        main.check_places(tmp_path / "new", tmp_path / "nothing")
