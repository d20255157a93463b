"""The dead man's switch: what it lets go, from what Slurm answers. tests/cluster has it on the real one."""

import importlib.util
import subprocess
import sys
import threading
import time
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest
from tests import doc_pages
from tests.slurm_admin import facts

from gleaner.control.slurm import snapshot
from gleaner.control.slurm_admin import rules, settings

DEADMAN = Path(__file__).parents[2] / "deploy" / "deadman"
SETTINGS = "heartbeat {folder}/alive\ndead-after-s 300\npartition shared preemptible\n"
SQUEUE = """\
7|0|JobHeldUser|3|0|gleaner: waits for its turn
8|2000004330|Resources|-1999999997|0|gleaner: released on top
9|0|JobHeldAdmin|0|0|gleaner: waits for its turn
10|0|JobHeldUser|0|0|gleaner: released
11|0|job requeued in held state|-2000000000|1|gleaner: released on top
12|0|JobHeldUser|0|0|ask Bob before you release it
13|0|JobHeldUser|0|0|(null)
14|4000|None|0|0|gleaner: released
20_1|0|JobHeldUser|0|0|gleaner: 12 of | 10 CPUs
20_4|0|JobHeldUser|0|0|gleaner: 12 of | 10 CPUs
"""
SINFO = """\
n1|gleaner-slurm-admin|gleaner: drained by alice
n1|gleaner-slurm-admin|gleaner: drained by alice
n2|root|gleaner: drained by alice
n3|gleaner-slurm-admin|new memory
n4|root|new | memory
"""
AT_ONCE = ("--looks-again-s", "0")
PROGRAM = """#!/bin/sh
echo "$(basename $0) $*" >>{folder}/told
case "$(basename $0) $*" in {fails}) echo no >&2; exit 1;; esac
cat {folder}/$(basename $0).says 2>/dev/null || true
"""


@pytest.fixture(scope="module")
def deadman() -> ModuleType:
    loader = SourceFileLoader("deadman", str(DEADMAN))
    spec = importlib.util.spec_from_loader("deadman", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    loader.exec_module(module)
    sys.dont_write_bytecode = before
    return module


def test_it_lets_go_what_we_hold_and_nothing_that_others_hold(deadman: ModuleType) -> None:
    done = [[" ".join(command) for command in commands] for commands in deadman.for_jobs(SQUEUE)]
    let_go = "AdminComment=gleaner: released by the dead man's switch"
    assert done == [
        ["scontrol release 7", f"scontrol update JobId=7 {let_go}"],
        [f"scontrol update JobId=8 Nice=3 {let_go}"],
        ["scontrol release 11", f"scontrol update JobId=11 Nice=0 {let_go}"],
        ["scontrol release 20_[1,4]", f"scontrol update JobId=20_[1,4] {let_go}"],
    ]


def test_only_nodes_that_our_account_drained_with_our_mark_are_set_back(deadman: ModuleType) -> None:
    assert deadman.for_nodes(SINFO, facts.ACCOUNT) == [[["scontrol", "update", "NodeName=n1", "State=UNDRAIN"]]]


def test_it_knows_the_same_marks_as_the_slurm_admin(deadman: ModuleType) -> None:
    assert (deadman.OURS, deadman.RELEASED) == (snapshot.OURS, snapshot.RELEASED)
    assert (deadman.DRAINED_BY, deadman.TOP_NICE) == (snapshot.DRAINED_BY, rules.TOP_NICE)
    assert str(settings.FILE) == deadman.SETTINGS
    script = (DEADMAN.parent / "slurm" / "job_submit.lua").read_text()
    assert f'local OURS = "{snapshot.OURS}"' in script
    assert snapshot.WAITS_FOR_ITS_TURN.removeprefix(snapshot.OURS) in script


def test_it_reads_the_shipped_settings_as_the_slurm_admin_does(deadman: ModuleType) -> None:
    text = (DEADMAN.parent / "settings" / "slurm-admin.conf").read_text()
    shipped = settings.parse(text, "slurm-admin.conf")
    assert deadman.parse(text) == (str(shipped.heartbeat), shipped.dead_after_s)


class Head:
    """A machine whose Slurm's programs write down what they are told."""

    def __init__(self, folder: Path, fails: str = "nothing") -> None:
        self.folder = folder
        (folder / "slurm-admin.conf").write_text(SETTINGS.format(folder=folder))
        (folder / "squeue.says").write_text(SQUEUE)
        (folder / "sinfo.says").write_text(SINFO)
        for name in ("squeue", "sinfo", "scontrol"):
            (folder / name).write_text(PROGRAM.format(folder=folder, fails=fails))
            (folder / name).chmod(0o755)

    def switch(self, *options: str) -> "subprocess.CompletedProcess[str]":
        """Run the program itself."""
        command = [
            sys.executable,
            "-I",
            str(DEADMAN),
            "--settings",
            str(self.folder / "slurm-admin.conf"),
            *AT_ONCE,
            *options,
        ]
        environment = {"PATH": f"{self.folder}:/usr/bin:/bin"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    @property
    def told(self) -> list[str]:
        """Return the command lines of Slurm's programs so far."""
        path = self.folder / "told"
        return path.read_text().splitlines() if path.exists() else []


def test_while_control_lives_slurm_is_not_even_asked(tmp_path: Path, deadman: ModuleType) -> None:
    head = Head(tmp_path)
    (tmp_path / "alive").write_text("99999999999\n")
    assert deadman.silent_s(tmp_path / "alive", 99999999999 + 299) == 299
    (tmp_path / "alive").write_text(f"{time.time():.0f}\n")
    assert head.switch().returncode == 0
    assert head.told == []


@pytest.mark.parametrize("beat", [None, "", "soon", "1000", "99999999999"], ids=repr)
def test_a_heartbeat_that_is_old_missing_or_nonsense_is_none(tmp_path: Path, beat: str | None) -> None:
    head = Head(tmp_path)
    if beat is not None:
        (tmp_path / "alive").write_text(beat)
    assert head.switch().returncode == 0
    assert "scontrol release 7" in head.told


@pytest.mark.slow
def test_after_a_clock_has_jumped_control_has_a_moment_to_say_that_it_lives(tmp_path: Path) -> None:
    """The heartbeat in the file does not count after the jump, until control has written it again."""
    head = Head(tmp_path)
    alive = tmp_path / "alive"
    alive.write_text("1000\n")
    (tmp_path / "fresh").write_text("1005\n")
    soon = threading.Timer(0.5, (tmp_path / "fresh").replace, (alive,))
    soon.start()
    assert head.switch("--looks-again-s", "1.5").returncode == 0
    soon.join()
    assert head.told == []
    head.switch()
    assert "scontrol release 7" in head.told, "nobody writes any more"


def test_a_control_that_drains_and_has_entitlements_off_keeps_its_nodes_but_no_jobs(tmp_path: Path) -> None:
    head = Head(tmp_path)
    (tmp_path / "alive.nodes").write_text(f"{time.time():.0f}\n")
    assert head.switch().returncode == 0
    assert "scontrol release 7" in head.told
    assert not any("UNDRAIN" in line or line.startswith("sinfo") for line in head.told)
    (tmp_path / "alive.nodes").write_text(f"{time.time() - 301:.0f}\n")
    head.switch()
    assert any(line.startswith("sinfo") for line in head.told)


@pytest.mark.parametrize("while_it_asks_for", ["squeue", "sinfo"])
def test_a_node_that_control_drains_meanwhile_stays_drained(tmp_path: Path, while_it_asks_for: str) -> None:
    head = Head(tmp_path)
    with (tmp_path / while_it_asks_for).open("a") as program:
        program.write(f"date +%s >{tmp_path}/alive.nodes\n")
    assert head.switch().returncode == 0
    assert "scontrol release 7" in head.told
    assert not any("UNDRAIN" in line for line in head.told)


def test_what_fails_does_not_keep_it_from_the_rest(tmp_path: Path) -> None:
    head = Head(tmp_path, fails='"scontrol release 7" | "sinfo "*')
    done = head.switch()
    assert done.returncode == 1
    assert "deadman: scontrol release 7: no" in done.stderr
    assert "scontrol release 11" in head.told
    assert not any(line.startswith("scontrol update JobId=7 ") for line in head.told)


def test_what_is_held_in_a_partition_that_is_not_named_any_more_is_let_go_too(tmp_path: Path) -> None:
    """The Slurm admin service refuses it then, so nobody else would."""
    head = Head(tmp_path)
    (tmp_path / "slurm-admin.conf").write_text(f"heartbeat {tmp_path}/alive\n")
    assert head.switch().returncode == 0
    assert "scontrol release 7" in head.told
    asked = next(line for line in head.told if line.startswith("squeue"))
    assert "--all" in asked and "--partition" not in asked


def test_for_good_no_job_carries_our_mark_any_more(tmp_path: Path, deadman: ModuleType) -> None:
    """One that runs and carries it would requeue itself held, and nobody would be there to release it."""
    head = Head(tmp_path)
    (tmp_path / "squeue.says").write_text(SQUEUE + "40|4330|None|0|0|gleaner: released on top\n")
    assert head.switch("--for-good").returncode == 0
    gone = [line for line in head.told if line.endswith(f"AdminComment={deadman.GONE}")]
    marked = ["7", "8", "9", "10", "11", "14", "20_[1,4]", "40"]
    assert gone == [f"scontrol update JobId={job} AdminComment={deadman.GONE}" for job in marked]
    assert head.told.index("scontrol release 7") < head.told.index(gone[0])
    asked = [line for line in head.told if line.startswith("squeue")]
    assert ["--states=PENDING" in line for line in asked] == [True, False]
    head.switch()
    assert f"JobId=40 AdminComment={deadman.LET_GO}" not in "".join(head.told), "the switch leaves what runs alone"


def test_the_files_of_the_page_are_put_in_place_and_taken_away(tmp_path: Path) -> None:
    """Its `install` and `rm`, below a folder. The other lines change accounts, Slurm and systemd."""
    for folder in ("etc/gleaner", "etc/systemd/system"):
        (tmp_path / folder).mkdir(parents=True)
    page = (doc_pages.ROOT / "docs" / "admin" / "entitlements.md").read_text()
    for program, files in (("install", 5), ("rm /etc.*", 0)):
        lines = "\n".join(doc_pages.commands(page, program))
        script = lines.replace(" /etc/", f" {tmp_path}/etc/").replace(" /usr/", f" {tmp_path}/usr/")
        subprocess.run(["bash", "-ec", script], cwd=doc_pages.ROOT, check=True, timeout=60)
        assert sum(path.is_file() for path in tmp_path.rglob("*")) == files


def test_for_good_nothing_is_done_while_control_enforces_entitlements(tmp_path: Path) -> None:
    head = Head(tmp_path)
    (tmp_path / "alive").write_text(f"{time.time():.0f}\n")
    done = head.switch("--for-good")
    assert done.returncode == 1
    assert done.stderr == (
        "deadman: nothing is done, since control enforces entitlements: set its mode to off,"
        f" then rm {tmp_path}/alive\n"
    )
    assert head.told == []
