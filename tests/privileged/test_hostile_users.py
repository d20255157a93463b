"""Attacks of users on the node helper: to stay after their job, to fill the node, to hold up others."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.privileged import slurm
from tests.privileged.root import only_root
from tests.privileged.scripts import PACKAGE, in_own_mounts
from tests.privileged.test_request import GOOD
from tests.privileged.users_harness import AGENT, ALICE, BOB, MINE, Node
from tests.privileged.waiting import wait_until

from gleaner.agent.privileged.common import bundle, request, user_jobs
from gleaner.agent.privileged.common.bundle import Bundle
from gleaner.agent.privileged.common.request import LABEL_END
from gleaner.agent.privileged.common.slurm_job import Slurm
from gleaner.agent.privileged.helper import containers, main

pytestmark = only_root


def started(node: Node, monkeypatch: pytest.MonkeyPatch, then: Callable[[], None]) -> dict[str, Any]:
    """Its container is started by a runtime that does nothing; `then` happens meanwhile."""
    folder = node.ask(ALICE, do="admit", slurm_job="66")["folder"]
    node.made(MINE, ALICE)
    monkeypatch.setattr(containers, "run", lambda *_, **__: then())
    monkeypatch.setattr(containers, "remove", lambda _, made: made.remove())
    descriptor = os.open(folder, os.O_PATH)
    try:
        return node.ask(ALICE, descriptor, do="run", name=MINE)
    finally:
        os.close(descriptor)


def test_a_job_that_ends_while_its_container_is_started_leaves_no_container(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Epilog came too early to find it, and what Slurm said a second ago still counts otherwise."""
    said = started(node, monkeypatch, lambda: node.knows(job_state=["CANCELLED"]))
    assert "does not run" in said["why"]
    assert bundle.all_bundles(node.settings) == []
    assert list((node.place / "work").iterdir()) == []


def test_where_slurm_is_away_just_then_it_is_asked_again_soon(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    assert started(node, monkeypatch, (node.place / "silent").touch)["ok"]
    labels = Bundle(node.settings, MINE).facts()["labels"]
    assert float(labels[LABEL_END]) <= time.time()


def test_an_answer_is_as_old_as_the_question(tmp_path: Path) -> None:
    asked = Slurm(slurm.answering(tmp_path, slurm.job()), cached_for_s=0.2)
    program = tmp_path / "scontrol"
    program.write_text(program.read_text().replace("#!/bin/sh", "#!/bin/sh\nsleep 0.3"))
    asked.job("66")
    slurm.answering(tmp_path, slurm.job(job_state=["CANCELLED"]))
    assert not asked.job("66").is_running
    slurm.answering(tmp_path, slurm.job())
    assert asked.job("66", anew=True).is_running


@pytest.mark.slow
def test_who_asks_for_what_is_not_there_keeps_nobody_else_waiting(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_jobs, "WRONG_S", 0.4)
    wrong = [threading.Thread(target=node.user_jobs_asked, args=(BOB, str(1000 + at)), daemon=True) for at in range(5)]
    began_s = time.monotonic()
    for one in wrong:
        one.start()
    time.sleep(0.05)
    assert node.ask(ALICE, do="admit", slurm_job="66")["ok"]
    assert sum(one.is_alive() for one in wrong) >= 3, "nobody waited for these"
    for one in wrong:
        one.join()
    assert time.monotonic() > began_s + 5 * 0.4, "one after the other"


def test_a_container_that_was_filled_and_never_begun_goes_when_there_is_too_much(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers, "remove", lambda _, made: made.remove())
    Path(node.made(MINE, ALICE).inside("upper"), "large").write_bytes(bytes(2**20))
    node.made("gleaner-7-1", AGENT)
    node.helper.watchdog._settings = node.settings._replace(most_container_bytes=2**19)
    node.helper.watchdog.keep_limit()
    assert [one.name for one in bundle.all_bundles(node.settings)] == ["gleaner-7-1"]


def test_what_a_user_puts_into_a_folder_without_container_counts_and_goes(node: Node) -> None:
    said = node.ask(ALICE, do="admit", slurm_job="66")
    node.made("gleaner-7-1", AGENT)
    for place in ("folder", "handshakes"):
        Path(said[place], "large").write_bytes(bytes(2**20))
    node.helper.watchdog._settings = node.settings._replace(most_container_bytes=2**20)
    node.helper.watchdog.keep_limit()
    assert list((node.place / "work").iterdir()) == []
    assert [one.name for one in bundle.all_bundles(node.settings)] == ["gleaner-7-1"]


def test_who_takes_all_the_disks_files_goes_as_who_takes_its_bytes(node: Node) -> None:
    said = node.ask(ALICE, do="admit", slurm_job="66")
    node.made("gleaner-7-1", AGENT)
    for number in range(200):
        Path(said["folder"], str(number)).touch()
    node.helper.watchdog._settings = node.settings._replace(most_container_files=150)
    node.helper.watchdog.keep_limit()
    assert list((node.place / "work").iterdir()) == []
    assert [one.name for one in bundle.all_bundles(node.settings)] == ["gleaner-7-1"]


def test_no_container_begins_where_there_are_too_many_files(node: Node) -> None:
    node.made("gleaner-7-1", AGENT)
    node.helper._settings = node.settings._replace(most_container_files=5)
    with pytest.raises(containers.Failed, match="have more than 5 files"):
        containers.create(node.helper._settings, request.spec(GOOD), AGENT)


MOUNTED = """
import os, sys
sys.path.insert(0, sys.argv[1])
from gleaner.agent.privileged.common.config import Config
from gleaner.agent.privileged.common.user_jobs import UserJobs
from gleaner.agent.privileged.common.request import Refused
mine = UserJobs(Config(1, users_work=sys.argv[2]), None)
try:
    with mine.open_folder(sys.argv[3]):
        print("opened")
except Refused as error:
    print(error)
print(os.listdir(mine.unmounted_folder(sys.argv[3]) + "/job"))
"""


def test_what_a_user_mounts_on_the_jobs_folder_is_refused_and_hides_nothing(node: Node) -> None:
    """FUSE lets users mount on a folder of their own, and its daemon could tell root anything."""
    folder = Path(node.ask(ALICE, do="admit", slurm_job="66")["folder"])
    (folder / "large").touch()
    script = f'mount -t tmpfs none {folder} && exec "$0" -c "$1" {PACKAGE} {folder.parents[1]} {MINE}'
    words = ["unshare", "-m", "sh", "-c", script, sys.executable, MOUNTED]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said == [f"something is mounted on {folder}: unmount it", "['large']"]


def test_folders_of_jobs_that_do_not_run_here_any_more_go_without_an_epilog(node: Node) -> None:
    folder = Path(node.ask(ALICE, do="admit", slurm_job="66")["folder"])
    (node.place / "work" / ".gone-x" / "rest").mkdir(parents=True)
    node.user_jobs.remove_forgotten()
    assert [one.name for one in (node.place / "work").iterdir()] == [MINE]
    node.knows(job_state=["COMPLETED"])
    node.user_jobs.remove_forgotten()
    assert not folder.exists()


@pytest.mark.parametrize("where", ["job", "job/a blank"])
def test_what_a_user_has_mounted_in_its_folder_keeps_the_helper_from_nothing(node: Node, where: str) -> None:
    """Anybody may mount with FUSE."""
    folder = Path(node.ask(ALICE, do="admit", slurm_job="66")["folder"]).parent
    script = f"""
import pathlib, subprocess, sys
from gleaner.agent.privileged.common import config; from gleaner.agent.privileged.common import user_jobs as user_jobs
place = pathlib.Path({str(folder)!r}, {where!r})
place.mkdir(exist_ok=True)
if subprocess.call(["mount", "-t", "tmpfs", "none", str(place)]):
    sys.exit("cannot")
user_jobs.UserJobs(config.Config(*{tuple(node.settings)!r}), None).set_up()
"""
    done = subprocess.run(in_own_mounts(script), capture_output=True, text=True, check=False)
    if "cannot" in done.stderr:
        pytest.skip("nothing can be mounted here")
    assert done.returncode == 0, done.stderr
    assert list((node.place / "work").iterdir()) == []


def test_agents_are_cleared_away_while_slurm_says_nothing_of_users_jobs(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers, "remove", lambda _, made: made.remove())
    (node.place / "silent").touch()
    node.made("own-1-1", ALICE, end_s=1)
    node.made("zz-7-1", AGENT, end_s=1)
    node.helper.watchdog.remove_overdue()
    assert [one.name for one in bundle.all_bundles(node.settings)] == ["own-1-1"]
    node.helper.watchdog.remove_users_overdue()
    assert [one.name for one in bundle.all_bundles(node.settings)] == ["own-1-1"], "Slurm does not say that it is over"


def test_who_keeps_root_waiting_while_it_restores_waits_no_longer_than_its_job_runs(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers, "_LOOK_S", 0.05)
    monkeypatch.setattr(sys, "argv", ["-c", "import time; time.sleep(3600)"])
    monkeypatch.setattr(sys, "executable", str(node.place / "monitor"))
    begun = node.place / "begun"
    (node.place / "monitor").write_text(f"#!/bin/sh\n: >{begun}\nexec sleep 3600\n")
    (node.place / "monitor").chmod(0o755)
    folder = node.ask(ALICE, do="admit", slurm_job="66")["folder"]
    node.made(MINE, ALICE)
    descriptor = os.open(folder, os.O_PATH)

    def cancel_when_root_waits() -> None:
        while not begun.exists():
            time.sleep(0.01)
        node.knows(job_state=["CANCELLED"])
        node.forget()

    threading.Thread(target=cancel_when_root_waits, daemon=True).start()
    assert "has ended" in node.ask(ALICE, descriptor, do="run", name=MINE)["why"]
    os.close(descriptor)


def test_roots_programs_are_called_for_one_user_only_so_often_at_once(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "_TURNS", 2)
    now, most, go = [0], [0], threading.Event()

    def facts(_settings: object) -> dict[str, Any]:
        now[0] += 1
        most[0] = max(most[0], now[0])
        go.wait(60)
        now[0] -= 1
        return {}

    monkeypatch.setattr(containers, "facts", facts)
    asked = [threading.Thread(target=node.ask, args=(ALICE,), kwargs={"do": "facts"}, daemon=True) for _ in range(6)]
    for one in asked:
        one.start()
    wait_until(lambda: most[0] >= 2, "two of them are there")
    assert node.ask(ALICE, do="admit", slurm_job="66")["ok"], "what takes long is not in the way, nor is this in its"
    others = threading.Thread(target=node.ask, args=(BOB,), kwargs={"do": "facts"}, daemon=True)
    others.start()
    wait_until(lambda: most[0] >= 3, "nobody waits for another's")
    go.set()
    for one in (*asked, others):
        one.join(60)
    assert (now, most) == ([0], [3])


def test_one_save_of_a_container_at_a_time(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    go, began = threading.Event(), threading.Event()

    def checkpoint(*_: object, **__: object) -> None:
        began.set()
        go.wait(60)

    monkeypatch.setattr(containers, "checkpoint", checkpoint)
    node.made(MINE, ALICE)
    first = threading.Thread(target=node.ask, args=(ALICE,), kwargs={"do": "checkpoint", "name": MINE}, daemon=True)
    first.start()
    assert began.wait(10)
    assert "is being saved" in node.ask(ALICE, do="checkpoint", name=MINE)["why"]
    monkeypatch.setattr(containers, "remove", lambda _, made: made.remove())
    assert node.ask(ALICE, do="remove", name=MINE)["ok"], "it can be removed meanwhile"
    go.set()
    first.join(60)
