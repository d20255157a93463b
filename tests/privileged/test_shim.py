"""`gleaner-runc` hands on what does not concern it: the same words, the same exit status, and nothing imported."""

import base64
import json
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import gleaner.agent.privileged
from gleaner.agent.privileged.shim.main import RESTORED, parse
from gleaner.agent.privileged.shim.own_config import END, INIT, INIT_PROGRAM, packed_init, put_init

PACKAGE = Path(gleaner.agent.privileged.__file__).parents[3]
ROOTS = "gleaner.agent.privileged"
PROGRAM = f"import sys; sys.path.insert(0, {str(PACKAGE)!r}); from {ROOTS}.shim.main import main; main(sys.argv.pop(1))"
SLOW = {
    "json", "typing", "subprocess", "re", "socket", "collections", f"{ROOTS}.common.config", f"{ROOTS}.shim.transfer"
}  # fmt: skip
PROCESS = {"args": ["x"], "user": {"uid": 4200, "gid": 4201}}


class Shim:
    """The shim, with a runc that says what it was called with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runc = folder / "runc"
        self.runc.write_text('#!/bin/sh\necho runc "$@"\nexit 7\n')
        self.runc.chmod(0o755)

    def __call__(self, *words: str, options: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-IS", *options, "-c", PROGRAM, str(self.runc), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def bundle(self, **config: object) -> str:
        (self.folder / "config.json").write_text(json.dumps({"process": PROCESS, "mounts": [], **config}))
        return str(self.folder)

    def container(self, name: str, **state: object) -> Path:
        place = self.folder / name
        place.mkdir()
        (place / "state.json").write_text(json.dumps(state))
        return place


@pytest.fixture
def shim(tmp_path: Path) -> Shim:
    return Shim(tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        ["--version"],
        ["state", "c"],
        ["--root", "/r", "--log", "/no/log", "--log-format", "json", "start", "c"],
        ["--root=/r", "delete", "--force", "c"],
        ["--root", "/r", "kill", "--all", "c", "9"],
        ["--root", "/r", "exec", "--process", "/p", "--pid-file", "/f", "c"],
        ["--root", "/r", "restore", "--image-path", "/i", "c"],
        ["create", "--bundle", "/nowhere", "c"],
        ["checkpoint", "--image-path", "/i", "c"],
        ["create", "--bundle"],
        ["--root"],
        ["start"],
        [],
    ],
)
def test_what_does_not_concern_it_goes_to_runc_as_it_is(shim: Shim, words: list[str]) -> None:
    said = shim(*words)
    assert (said.returncode, said.stdout) == (7, " ".join(["runc", *words]) + "\n")


def test_handing_on_imports_nothing_that_takes_time(shim: Shim) -> None:
    bundle = shim.bundle(annotations={}, process={"args": ["sh"]})
    for words in (["state", "c"], ["create", "--bundle", bundle, "c"], ["--root", "/r", "start", "c"]):
        said = shim(*words, options=("-X", "importtime"))
        assert said.returncode == 7
        imported = {line.rpartition("|")[2].strip() for line in said.stderr.splitlines()}
        assert f"{ROOTS}.shim" in imported
        assert imported & SLOW == set()


@pytest.mark.parametrize(
    "config",
    [
        {"process": {"env": ["org.gleaner.restore=yes", "org.gleaner.handshake=x"]}},
        {"process": {"args": ["org.gleaner.restore"]}, "annotations": None},
        {"hostname": "org.gleaner.restore", "annotations": {"org.gleaner.handshake": "x", "org.gleaner.restore": ""}},
        {"labels": {"org.gleaner.restore": "yes", "org.gleaner.handshake": "x"}, "annotations": {"a": "b"}},
    ],
    ids=["environment", "arguments", "no request", "labels"],
)
def test_only_an_annotation_asks_for_a_restore(shim: Shim, config: dict[str, object]) -> None:
    said = shim("create", "--bundle", shim.bundle(**config), "c")
    assert (said.returncode, said.stdout.split()[:2]) == (7, ["runc", "create"])


def test_a_checkpoint_of_a_container_that_only_names_us_is_runcs_own(shim: Shim) -> None:
    shim.container("c", config={"labels": ["bundle=/x", "a=org.gleaner.handshake=x", "org.gleaner.handshake"]})
    said = shim("--root", str(shim.folder), "checkpoint", "--image-path", "/i", "c")
    assert (said.returncode, said.stdout.split()[:2]) == (7, ["runc", "--root"])


def test_a_restore_without_settings_fails_with_one_line_and_starts_nothing(shim: Shim) -> None:
    bundle, log = (
        shim.bundle(annotations={"org.gleaner.restore": "yes", "org.gleaner.handshake": "x"}),
        shim.folder / "log",
    )
    said = shim("--log", str(log), "create", "--bundle", bundle, "c")
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr.startswith("gleaner-runc: ")
    assert len(said.stderr.splitlines()) == 1
    assert json.loads(log.read_text()) == {"level": "error", "msg": said.stderr.strip()}


@pytest.mark.parametrize(
    ("controller", "file", "goes_on", "stands"),
    [
        ("freezer", "freezer.state", "THAWED\n", "FROZEN\n"),
        ("", "cgroup.events", "populated 1\nfrozen 0\n", "populated 1\nfrozen 1\n"),
    ],
    ids=["version 1", "version 2"],
)
def test_a_container_that_goes_on_already_may_go_on(
    shim: Shim, controller: str, file: str, goes_on: str, stands: str
) -> None:
    """Else, where CRIU was killed, the engine would take it for paused, and a save would be of a job that runs on."""
    for name, labels in (("ours", ["org.gleaner.handshake=1"]), ("another", [])):
        shim.container(name, cgroup_paths={controller: str(shim.folder)}, config={"labels": labels})
    root = str((shim.folder / "x").parent)
    for state, status in ((stands, 7), (goes_on, 0), ("", 7)):
        (shim.folder / file).write_text(state)
        (shim.folder / "cgroup.procs").write_text("7\n")
        (shim.folder / "cgroup.freeze").write_text("0\n")
        assert shim("--root", root, "resume", "ours").returncode == status
        assert shim("--root", root, "resume", "another").returncode == 7


def test_a_container_that_is_about_to_stand_does_not_go_on(shim: Shim) -> None:
    shim.container("c", cgroup_paths={"": str(shim.folder)}, config={"labels": ["org.gleaner.handshake=1"]})
    (shim.folder / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    for order, status in (("1\n", 7), ("0\n", 0)):
        (shim.folder / "cgroup.freeze").write_text(order)
        assert shim("--root", str(shim.folder), "resume", "c").returncode == status


def test_a_container_that_cannot_be_frozen_does_not_freeze_later(shim: Shim) -> None:
    """With cgroups of version 2 runc leaves the order standing when it gives up."""
    shim.container("c1", cgroup_paths={"": str(shim.folder)}, config={"labels": ["org.gleaner.handshake=1"]})
    order, events = shim.folder / "cgroup.freeze", shim.folder / "cgroup.events"
    order.write_text("1\n")
    events.write_text("populated 1\nfrozen 0\n")
    pause = shim("--root", str(order.parent), "pause", "c1")
    assert (pause.returncode, pause.stdout) == (7, f"runc --root {order.parent} pause c1\n")
    assert order.read_text() == "0\n"
    order.write_text("1\n")
    events.write_text("populated 1\nfrozen 1\n")
    assert shim("--root", str(order.parent), "pause", "c1").returncode == 0, "it stands frozen after all"
    assert order.read_text() == "1\n"
    events.write_text("populated 1\nfrozen 0\n")
    shim.container("c2", cgroup_paths={"": str(shim.folder)})
    assert shim("--root", str(order.parent), "pause", "c2").returncode == 7
    assert order.read_text() == "1\n", "not one of ours"
    shim.runc.write_text("#!/bin/sh\n")
    order.write_text("1\n")
    assert shim("--root", str(order.parent), "pause", "c1").returncode == 0
    assert order.read_text() == "1\n"


def test_a_container_that_a_killed_runc_has_frozen_is_paused(shim: Shim) -> None:
    """Else, with cgroups of version 1, it would stand still to the agent's end: runc freezes no frozen one."""
    shim.container("c", cgroup_paths={"freezer": str(shim.folder)}, config={"labels": ["org.gleaner.handshake=1"]})
    state, inside = shim.folder / "freezer.state", shim.folder / "cgroup.procs"
    for was, processes, status, left in (
        ("FROZEN\n", "7\n", 0, "FROZEN\n"),
        ("FREEZING\n", "7\n", 7, "THAWED\n"),
        ("FROZEN\n", "", 7, "THAWED\n"),
    ):
        state.write_text(was)
        inside.write_text(processes)
        assert shim("--root", str(shim.folder), "pause", "c").returncode == status
        assert state.read_text()[: len(left)] == left


def test_a_container_that_runc_takes_for_ended_is_killed_all_the_same(shim: Shim) -> None:
    """A job could trace its init, and end the init's main thread: the others would go on beyond the job's time."""
    shim.container("c", cgroup_paths={"freezer": str(shim.folder)}, config={"labels": ["org.gleaner.handshake=1"]})
    (shim.folder / "freezer.state").touch()
    with subprocess.Popen(["sleep", "1000"]) as process:
        (shim.folder / "cgroup.procs").write_text(f"{process.pid}\n")
        assert shim("--root", str(shim.folder), "kill", "c", "KILL").returncode == 0
        assert process.wait(60) == -9
    assert (shim.folder / "freezer.state").read_text() == "THAWED\n"


def test_the_start_after_a_restore_only_lets_go_on_and_the_next_one_is_runcs(shim: Shim) -> None:
    place = shim.container("c", cgroup_paths={"freezer": str(shim.folder)})
    (place / RESTORED).touch()
    (shim.folder / "freezer.state").write_text("FROZEN\n")
    first = shim("--root", str(shim.folder), "start", "c")
    assert (shim.folder / "freezer.state").read_text() == "THAWED\n"
    second = shim("--root", str(shim.folder), "start", "c")
    assert (first.returncode, first.stdout) == (0, "")
    assert second.returncode == 7


def test_a_command_line_is_taken_apart_as_runc_does() -> None:
    words = ["--root=/r", "--log", "/l", "create", "--bundle", "/b", "--no-pivot", "--pid-file=/p", "-b", "/c", "name"]
    call = parse(words)
    assert call is not None
    assert (call.folder, call.log, call.container) == ("/r/name", "/l", "name")
    assert call.options == [("--bundle", "/b"), ("--no-pivot", None), ("--pid-file", "/p"), ("-b", "/c")]
    assert call.option("--bundle", "-b") == "/c"


DOCKERS = {
    "defaultAction": "SCMP_ACT_ERRNO",
    "syscalls": [
        {"names": ["read", "socketpair", "socketcall"], "action": "SCMP_ACT_ALLOW"},
        {"names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": 40, "op": "SCMP_CMP_NE"}]},
        {"names": ["clone3", "socket"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38},
    ],
}


def let(shim: Shim, seccomp: object, *, annotations: object) -> list[dict[str, object]]:
    """The rules that concern sockets, after a container was made."""
    folder = shim.bundle(annotations=annotations, linux={"seccomp": seccomp})
    assert shim("create", "--bundle", folder, "c").returncode == 7
    made = json.loads((shim.folder / "config.json").read_text())["linux"]["seccomp"]
    return [rule for rule in made["syscalls"] if any("socket" in name for name in rule["names"])] if made else []


OURS = {"org.gleaner.handshake": "m"}


def test_containers_of_others_keep_their_filter(shim: Shim) -> None:
    for annotations in ({}, None, {"a": "org.gleaner.handshake"}):
        assert let(shim, DOCKERS, annotations=annotations) == DOCKERS["syscalls"]


def test_a_job_of_ours_gets_an_init_and_its_user_a_name_and_nobody_else_does(shim: Shim) -> None:
    mounts = [{"destination": "/proc"}]
    for annotations, is_ours in ((OURS, True), ({}, False)):
        folder = shim.bundle(annotations=annotations, mounts=mounts)
        assert shim("create", "--bundle", folder, "c").returncode == 7
        made = json.loads((shim.folder / "config.json").read_text())
        assert made["mounts"][:1] == mounts
        assert [(one["destination"], one["source"]) for one in made["mounts"][1:]] == is_ours * [
            ("/etc/passwd", f"{folder}/passwd"),
            (INIT, f"{folder}/gleaner-init"),
        ]
        assert made["process"]["args"] == [*(is_ours * [INIT, END]), *PROCESS["args"]]
    assert "gleaner:x:4200:4201:" in (shim.folder / "passwd").read_text()
    assert (shim.folder / "gleaner-init").read_bytes() == Path(INIT_PROGRAM).read_bytes()


def test_an_init_of_a_checkpoint_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gleaner-init").write_bytes(b"of this node")
    packed = packed_init(str(tmp_path))
    bomb = base64.b85encode(zlib.compress(bytes(2**25))).decode()
    for wrong in (None, 7, "", "\n", "é", packed[:-5], "0000", bomb):
        with pytest.raises(ValueError, match=r"base85|is not whole|ASCII"):
            put_init(str(tmp_path), wrong)
    assert (tmp_path / "gleaner-init").read_bytes() == b"of this node"
