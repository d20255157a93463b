"""One suite for all runtimes, on real nodes with real CRIU: nothing is lost, nothing is done twice, nothing is left.

Docker with the shim, and the node helper (see `nodes.Node`).
"""

import json
import re
import threading
from pathlib import Path

import pytest
from tests.effort import IS_WHOLE
from tests.runtime.escapes import replaced
from tests.runtime.nodes_harness import AGENT, IMAGE, USER, Node, Work, wait_for

from gleaner.agent.checkpoints.archive import FolderArchive
from gleaner.agent.checkpoints.interface import ArchiveBroken
from gleaner.agent.privileged.common.config import Config
from gleaner.agent.runtime.criu_streams import LAYER_PART, PREFIX
from gleaner.agent.runtime.interface import (
    LABEL_AGENT,
    CannotRestore,
    ContainerExited,
    ContainerId,
    ContainerKilled,
    End,
    ImageMissing,
    RuntimeFault,
)
from gleaner.agent.system.image_names import full_name


@pytest.fixture(params=["shim", "criu"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


COUNTER = """
import hashlib, os, sys, time
memory = os.urandom(int(sys.argv[1]) << 20)
digest = hashlib.sha256(memory).digest()
out, upper = open("/job/out", "a", buffering=1), open("/var/tmp/upper", "a", buffering=1)
shared = open("/dev/shm/shared", "w+b", buffering=0)
count = 0
print("start")
while not os.path.exists("/job/stop"):
    print(count)
    for file in (out, upper):
        file.write(f"{count}\\n")
    shared.write(b"x")
    count += 1
    time.sleep(0.02)
numbers = list(range(count))
for path in ("/job/out", "/var/tmp/upper"):
    assert [int(line) for line in open(path)] == numbers, path
assert os.path.getsize("/dev/shm/shared") == count
assert hashlib.sha256(memory).digest() == digest
print("end")
"""


@pytest.mark.nodes
@pytest.mark.timeout(600)
def test_saves_on_alternating_nodes_lose_nothing_and_do_nothing_twice(pair: tuple[Node, Node], work: Work) -> None:
    here, there = pair
    container = work.start(here, COUNTER, "20")
    for _ in range(10 if IS_WHOLE else 4):
        work.until(str(len(work.lines) + 5))
        saved = work.save(here, container)
        work.end(here, container)
        here, there = there, here
        container = work.restore(here, saved, COUNTER, "20")
    work.until(str(len(work.lines) + 5))
    (work.folder(here) / "stop").touch()
    assert here.runtime.wait(container).exit_code == 0
    work.read_to_end()
    assert work.lines == ["start", *(str(number) for number in range(len(work.lines) - 2)), "end"]
    here.runtime.remove(container)
    assert [node.containers() for node in pair] == [[], []]


@pytest.mark.nodes
def test_what_was_written_after_the_save_is_undone_by_a_restore_on_the_same_node(node: Node, work: Work) -> None:
    container = work.start(node, COUNTER, "1")
    work.until("10")
    saved = work.save(node, container)
    lines_then = (work.folder(node) / "out").read_text().splitlines()
    node.runtime.unpause(container)
    work.until(str(len(lines_then) + 30))
    (work.folder(node) / "later").touch()
    work.end(node, container)
    assert len((work.folder(node) / "out").read_text().splitlines()) > len(lines_then)

    container = work.restore(node, saved, COUNTER, "1")
    (work.folder(node) / "stop").touch()
    assert node.runtime.wait(container).exit_code == 0  # the workload compares its file with what it remembers
    work.read_to_end()
    assert work.lines[-1] == "end"
    assert not (work.folder(node) / "later").exists()


READER = """
import os, time
steering = open("/inputs/steering")
print(steering.readline().strip())
new, append = (lambda: open("/inputs/new", "w")), (lambda: open("/inputs/steering", "a"))
for act in (new, append, lambda: os.unlink("/inputs/steering")):
    try:
        act()
        print("changed")
    except OSError as error:
        print(error.strerror)
print(os.listdir("/inputs"), open("/inputs/data").read())
while not os.path.exists("/job/stop"):
    time.sleep(0.02)
print(steering.readline().strip(), os.listdir("/inputs"), open("/inputs/data").read())
try:
    open("/inputs/new", "w")
except OSError as error:
    print(error.strerror)
print("end")
"""


@pytest.mark.nodes
def test_inputs_are_read_only_in_no_checkpoint_and_there_before_a_restore(pair: tuple[Node, Node], work: Work) -> None:
    here, there = pair
    inputs = [work.bring(node, steering="first\nsecond\n", data="of " + "the common input" * 1000) for node in pair]
    before = [(path.stat().st_mtime_ns, sorted(one.name for one in path.iterdir())) for path in inputs]
    container = work.start(here, READER)
    work.until("first")
    wait_for(lambda: len(work.lines) >= 5, "it has tried to write")
    assert work.lines[1:4] == ["Read-only file system"] * 3
    saved = work.save(here, container)
    archive = work.storage.open(saved.key, saved.digest)
    for part in {"folder.tar", LAYER_PART} & archive.parts.keys():  # its memory may have what it has read
        assert b"the common input" not in b"".join(archive.read(part))
    work.end(here, container)
    container = work.restore(there, saved, READER)
    (work.folder(there) / "stop").touch()
    assert there.runtime.wait(container).exit_code == 0
    work.read_to_end()
    assert work.lines[-1] == "end"
    assert work.lines[-2] == "Read-only file system"
    assert work.lines[-3] == f"second {work.lines[4]}"
    there.runtime.remove(container)
    assert [(path.stat().st_mtime_ns, sorted(one.name for one in path.iterdir())) for path in inputs] == before


@pytest.mark.nodes
def test_a_node_whose_init_was_compiled_differently_restores_it_all_the_same(
    pair: tuple[Node, Node], work: Work
) -> None:
    """As after an update of Gleaner: CRIU takes no program of another size or build for the one that it saved."""
    here, there = pair
    container = work.start(here, COUNTER, "1")
    work.until("5")
    saved = work.save(here, container)
    work.end(here, container)
    init = Path(Config(1).library, "gleaner/agent/privileged/init/gleaner-init")
    with replaced(there, init, there.outside(init).read_bytes() + b"of another compiler"):
        container = work.restore(there, saved, COUNTER, "1")
        work.until(str(len(work.lines) + 5))
        again = work.save(there, container)
        work.end(there, container)
    container = work.restore(here, again, COUNTER, "1")
    (work.folder(here) / "stop").touch()
    assert here.runtime.wait(container) == End(0)
    here.runtime.remove(container)


DELETER = """
import os, time
for path in ("/open/two", "/open/inner/one", "/open/inner/sub/three"):
    os.unlink(path)
for path in ("/open/inner/sub", "/open/inner"):
    os.rmdir(path)
os.makedirs("/open/inner/sub")
open("/open/inner/new", "w").close()
os.chmod("/open/inner", 0o750)
def seen():
    found = sorted((folder, sorted(folders + files)) for folder, folders, files in os.walk("/open"))
    return repr(found + [oct(os.stat("/open/inner").st_mode)])
print(seen())
before = seen()
while not os.path.exists("/job/stop"):
    time.sleep(0.05)
print(seen())
raise SystemExit(seen() != before)
"""


@pytest.mark.nodes
def test_what_the_job_has_deleted_from_its_image_stays_deleted(pair: tuple[Node, Node], work: Work) -> None:
    here, there = pair
    container = work.start(here, DELETER)
    wait_for(lambda: len(work.lines) == 1, "its first line")
    for _ in range(2):
        saved = work.save(here, container)
        work.end(here, container)
        here, there = there, here
        container = work.restore(here, saved, DELETER)
    (work.folder(here) / "stop").touch()
    assert here.runtime.wait(container).exit_code == 0
    work.read_to_end()
    assert work.lines[0] == work.lines[1]
    assert "three" not in work.lines[0]


@pytest.mark.nodes
def test_an_exit_wins_against_a_pause(node: Node, work: Work) -> None:
    container = work.start(node, "raise SystemExit(7)")
    assert node.runtime.wait(container).exit_code == 7
    with pytest.raises(ContainerExited, match="exit code 7"):
        node.runtime.pause(container)
    node.runtime.unpause(container)
    node.runtime.kill(container)
    for _ in range(2):
        node.runtime.remove(container)
        node.runtime.kill(container)


@pytest.mark.nodes
def test_a_paused_container_is_killed_without_another_step(node: Node, work: Work) -> None:
    container = work.start(node, COUNTER, "1")
    work.until("10")
    node.runtime.pause(container)
    written = (work.folder(node) / "out").read_text()
    node.runtime.kill(container)
    with pytest.raises(ContainerKilled, match="killed from outside"):
        node.runtime.wait(container)
    assert (work.folder(node) / "out").read_text() == written
    with pytest.raises(RuntimeFault, match="killed"), work.storage.draft("late") as draft:
        node.runtime.checkpoint(container, draft)


HEEDING = """
import signal, time
print([signal.getsignal(getattr(signal, name)) == signal.SIG_IGN for name in ("SIGHUP", "SIGINT", "SIGTERM")])
heard = []
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, _: heard.append(number))
print("ready")
while len(set(heard)) < 2:
    time.sleep(0.02)
raise SystemExit(85)
"""


@pytest.mark.nodes
def test_a_signal_reaches_the_job_as_if_nobody_were_in_between(node: Node, work: Work) -> None:
    container = work.start(node, HEEDING)
    work.until("ready")
    for name in ("SIGUSR1", "SIGTERM"):
        node.runtime.signal(container, name)
    assert node.runtime.wait(container).exit_code == 85
    work.read_to_end()
    assert work.lines == ["[False, False, False]", "ready"]
    node.runtime.signal(container, "SIGTERM")


@pytest.mark.nodes
@pytest.mark.parametrize("paused", [False, True])
def test_a_container_that_somebody_removes_is_no_exit_of_its_job(node: Node, work: Work, paused: bool) -> None:
    container = work.start(node, COUNTER, "1")
    work.until("10")
    if paused:
        node.runtime.pause(container)
    removing = threading.Timer(1, node.remove_behind, (container,))
    removing.start()
    with pytest.raises(ContainerKilled):
        node.runtime.wait(container)
    removing.join()
    with pytest.raises(ContainerKilled, match="removed"):
        node.runtime.wait(container)


@pytest.mark.nodes
def test_an_image_that_is_nowhere_gives_one_clear_line(node: Node, work: Work) -> None:
    with pytest.raises(
        ImageMissing, match=r"no\.such\.place/image:1 is not on the node and cannot be pulled"
    ) as missing:
        node.runtime.start(work.spec("x", image="no.such.place/image:1"))
    assert "\n" not in str(missing.value)
    assert node.containers() == []


@pytest.mark.nodes
@pytest.mark.parametrize(
    ("program", "exit_code", "why"),
    [
        ("/no/such/program", 127, "No such file or directory"),
        ("/open/no-program", 126, "Permission denied"),
        ("nope", 127, "No such file or directory"),
    ],
)
def test_a_command_that_cannot_start_says_so(node: Node, work: Work, program: str, exit_code: int, why: str) -> None:
    image = f"{IMAGE.partition(':')[0]}:{work.job}"
    node.image(image, program)
    try:
        container = work.start(node, "argument", image=image)
        assert node.runtime.wait(container) == End(exit_code, f"cannot run {program}: {why}")
        work.read_to_end()
        assert work.lines == [f"gleaner: cannot run {program}: {why}"]
        assert not (work.folder(node) / ".gleaner-end").exists()
        node.runtime.remove(container)
    finally:
        node.remove_image(image)


INTROSPECTION = """
import json, os, socket
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
mounts = [line.split()[1] for line in open("/proc/self/mounts")]
print(json.dumps({
    "uids": status["Uid"].split(), "groups": status["Groups"].split(), "caps": {k: int(status[k], 16) for k in
    ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}, "no_new_privileges": status["NoNewPrivs"],
    "seccomp": status["Seccomp"], "interfaces": [name for _, name in socket.if_nameindex()], "mounts": mounts,
    "here": os.getcwd(), "greeting": os.environ["GREETING"], "terminal": os.isatty(1),
    "cpus": open("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").read().strip() if os.path.exists("/sys/fs/cgroup/cpu") else
    open("/sys/fs/cgroup/cpu.max").read().split()[0],
}))
"""


@pytest.mark.nodes
def test_a_job_has_no_rights_no_network_and_one_mount(node: Node, work: Work) -> None:
    container = work.start(node, INTROSPECTION)
    assert node.runtime.wait(container).exit_code == 0
    work.read_to_end()
    seen = json.loads(work.lines[0])
    assert seen["uids"] == [str(USER[0])] * 4
    assert set(seen["groups"]) <= {str(USER[1])}
    assert set(seen["caps"].values()) == {0}
    assert seen["no_new_privileges"] == "1"
    assert seen["seccomp"] == "2"
    assert set(seen["interfaces"]) <= {"lo"}
    of_the_system = ("/proc", "/sys", "/dev", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/etc/passwd")
    assert [mount for mount in seen["mounts"] if not mount.startswith(of_the_system)] == ["/", "/job"]
    assert (seen["here"], seen["greeting"], seen["terminal"], seen["cpus"]) == ("/job", "hello", False, "100000")


PART_TOO_LARGE = """
import subprocess, sys
sys.exit(3 if subprocess.run([sys.executable, "-c", sys.argv[1]]).returncode else 0)
"""


@pytest.mark.nodes
def test_a_program_that_ends_after_a_part_of_it_met_the_memory_limit_says_so(node: Node, work: Work) -> None:
    container = work.start(node, PART_TOO_LARGE, "x = bytearray(1 << 30)", memory_mib=50)
    assert node.runtime.wait(container) == End(3, out_of_memory=True)
    work.end(node, container)
    container = work.start(node, PART_TOO_LARGE, "raise SystemExit(1)", memory_mib=50)
    assert node.runtime.wait(container) == End(3)


GROWS = """
import os, time
print("ready")
while not os.path.exists("/job/more"):
    time.sleep(0.02)
held = b"x" * (150 << 20)
print("grown")
"""


@pytest.mark.nodes
def test_a_job_that_met_its_memory_limit_goes_on_elsewhere_with_more(pair: tuple[Node, Node], work: Work) -> None:
    here, there = pair
    container = work.start(here, GROWS, memory_mib=100)
    work.until("ready")
    saved = work.save(here, container)
    here.runtime.unpause(container)
    (work.folder(here) / "more").touch()
    assert here.runtime.wait(container) == End(137, out_of_memory=True)
    work.end(here, container)
    container = work.restore(there, saved, GROWS, memory_mib=300)
    (work.folder(there) / "more").touch()
    assert there.runtime.wait(container) == End(0)
    work.read_to_end()
    assert work.lines == ["ready", "grown"]


@pytest.mark.nodes
def test_a_checkpoint_with_a_flipped_bit_is_broken_and_leaves_nothing(node: Node, work: Work, tmp_path: Path) -> None:
    saved = _save_and_end(node, work)
    pack = tmp_path / "storage" / saved.key / "blocks.pack"
    whole = pack.read_bytes()
    archive = work.storage.open(saved.key, saved.digest)
    assert isinstance(archive, FolderArchive)
    for name in (f"{PREFIX}pages-1.img", LAYER_PART):
        at = archive.layout.blocks[name][0].offset
        pack.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ArchiveBroken, match=name):
            work.restore(node, saved, COUNTER, "1")
        pack.write_bytes(whole)
        assert node.containers() == []
    work.restore(node, saved, COUNTER, "1")


@pytest.mark.nodes
def test_a_checkpoint_that_criu_does_not_take_leaves_nothing(node: Node, work: Work) -> None:
    saved = _save_and_end(node, work)
    good = work.storage.open(saved.key, saved.digest)
    with work.storage.draft("jobs/1/wrong") as draft:
        for name in good.parts:
            if not name.endswith("pages-1.img"):
                draft.add(name, good.read(name))
        wrong = draft.publish(good.facts)
    with pytest.raises(CannotRestore, match="CRIU cannot restore it: ") as refused:
        work.restore(node, wrong, COUNTER, "1")
    assert re.fullmatch("CRIU cannot restore it: [^()]*", str(refused.value)), str(refused.value)
    assert node.containers() == []


@pytest.mark.nodes
def test_an_image_that_was_changed_meanwhile_is_not_used_for_a_restore(node: Node, work: Work) -> None:
    saved = _save_and_end(node, work)
    good = work.storage.open(saved.key, saved.digest)
    with work.storage.draft("jobs/1/other-image") as draft:
        for name in good.parts:
            draft.add(name, good.read(name))
        other = draft.publish({"image_id": f"sha256:{'0' * 64}"})
    with pytest.raises(ImageMissing):
        work.restore(node, other, COUNTER, "1")
    assert node.containers() == []


def _save_and_end(node: Node, work: Work):
    container = work.start(node, COUNTER, "1")
    work.until("10")
    saved = work.save(node, container)
    work.end(node, container)
    return saved


@pytest.mark.nodes
def test_a_line_begun_before_a_save_is_ended_after_the_restore(pair: tuple[Node, Node], work: Work) -> None:
    program = r"""
import os, time
os.write(1, b"in the middle of caf\xc3")
open("/job/begun", "w").close()
while not os.path.exists("/job/stop"):
    time.sleep(0.05)
os.write(1, b"\xa9\n")
"""
    here, there = pair
    container = work.start(here, program)
    wait_for((work.folder(here) / "begun").exists, "the line is begun")
    saved = work.save(here, container)
    work.end(here, container)
    assert (work.lines, work.split.beginnings) == ([], {1: b"in the middle of caf\xc3"})
    container = work.restore(there, saved, program)
    (work.folder(there) / "stop").touch()
    assert there.runtime.wait(container).exit_code == 0
    work.read_to_end()
    assert work.lines == ["in the middle of caf\u00e9"]


@pytest.mark.nodes
def test_the_memory_in_use_is_that_which_would_be_saved_of_all_that_run(node: Node, work: Work) -> None:
    busy = """
import os, time
with open("/job/cached", "wb") as file:
    file.write(bytes(60 << 20))
memory = os.urandom(40 << 20)
print("ready")
time.sleep(600)
"""
    running = work.start(node, busy)
    work.until("ready")
    other = Work(work.storage)
    ended = other.start(node, "print('done')")
    node.runtime.wait(ended)
    assert node.runtime.memory_bytes(ended) is None
    assert node.runtime.memory_bytes(ContainerId("gone")) is None
    assert 40 << 20 < node.runtime.memory_bytes(running) < 60 << 20
    node.runtime.pause(running)
    assert node.runtime.memory_bytes(running) > 40 << 20


@pytest.mark.nodes
def test_containers_are_found_by_their_labels(node: Node, work: Work, kind: str) -> None:
    container = work.start(node, "import time; time.sleep(600)")
    labels = node.runtime.our_containers()[container]
    assert labels[LABEL_AGENT] == AGENT
    assert node.runtime.image_id(container).startswith("sha256:")
    facts = node.runtime.facts()
    assert full_name(IMAGE) in facts.images
    assert facts.runtime.startswith("runc 1" if kind == "criu" else "docker 2")
    assert kind != "criu" or facts.criu  # Docker's runtime looks for it where it runs, which is not the node here
