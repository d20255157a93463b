"""The written files between root and an agent: out, in again, and what an agent may do meanwhile."""

import contextlib
import io
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.privileged.root import only_root
from tests.privileged.scripts import in_own_mounts

from gleaner.agent.privileged.shim import written_layer
from gleaner.agent.privileged.shim.written_layer import Layers, NotTaken, layers_of_mount
from gleaner.agent.system.ipc import Handshake, HandshakeFailed
from gleaner.agent.system.tar_policy import SizeLimit

LATER_S = time.time() + 3600


@contextlib.contextmanager
def agent(act: Callable[[Handshake, int], None]) -> Iterator[Handshake]:
    """Root's side of a handshake with an agent that does this with the pipe that it gets."""
    ours, theirs = socket.socketpair()

    def talk() -> None:
        side = Handshake(theirs)
        said, pipe = side.hear()
        assert said == {"layer": True}
        assert pipe is not None
        act(side, pipe)

    talking = threading.Thread(target=talk)
    talking.start()
    with ours, theirs:
        yield Handshake(ours)
        talking.join()


@pytest.fixture
def found(tmp_path: Path) -> Layers:
    for name in ("upper", "image", "root"):
        (tmp_path / name).mkdir()
    (tmp_path / "upper" / "file").write_bytes(os.urandom(300_000))  # more than a pipe holds
    return Layers(str(tmp_path / "upper"), [str(tmp_path / "image")])


def saved(found: Layers) -> bytes:
    content = io.BytesIO()

    def read(_: Handshake, pipe: int) -> None:
        with open(pipe, "rb") as source:
            content.write(source.read())

    with agent(read) as side:
        written_layer.send(side, found, SizeLimit(2**20), LATER_S)
    return content.getvalue()


def put(content: bytes, root: Path, *, limit: SizeLimit | None = None, end_s: float = LATER_S) -> None:
    def write(_: Handshake, pipe: int) -> None:
        with contextlib.suppress(BrokenPipeError), open(pipe, "wb") as sink:
            sink.write(content)

    with agent(write) as side:
        written_layer.receive(side, str(root), limit or SizeLimit(2**20), end_s)


def test_what_goes_out_comes_in_again(found: Layers, tmp_path: Path) -> None:
    put(saved(found), tmp_path / "root")
    assert (tmp_path / "root" / "file").read_bytes() == (tmp_path / "upper" / "file").read_bytes()


def test_a_layer_that_is_too_large_malformed_or_cut_off_is_refused_in_one_line(found: Layers, tmp_path: Path) -> None:
    content = saved(found)
    for wrong, limit in ((content, SizeLimit(1000)), (content[:5000], None), (b"x" * 5000, None), (b"", None)):
        with pytest.raises(NotTaken, match="its written files cannot be put back: ") as refused:
            put(wrong, tmp_path / "root", limit=limit)
        assert "\n" not in str(refused.value)


def test_an_agent_that_has_gone_is_no_reason_to_wait(found: Layers) -> None:
    with agent(lambda _, pipe: os.close(pipe)) as side, pytest.raises(NotTaken, match="Broken pipe"):
        written_layer.send(side, found, SizeLimit(2**20), LATER_S)


def test_an_agent_that_does_nothing_is_left_at_its_end(found: Layers, tmp_path: Path) -> None:
    held: list[int] = []
    for act in (
        lambda side: written_layer.send(side, found, SizeLimit(2**20), time.time() + 0.05),
        lambda side: written_layer.receive(side, str(tmp_path / "root"), SizeLimit(2**20), time.time() + 0.05),
    ):
        with agent(lambda _, pipe: held.append(pipe)) as side, pytest.raises(HandshakeFailed, match="end has come"):
            act(side)
    for pipe in held:
        os.close(pipe)


def test_what_cannot_be_put_back_is_not_saved(found: Layers, tmp_path: Path) -> None:
    tmp_path.joinpath("upper", *"d" * 300).mkdir(parents=True)
    with pytest.raises(NotTaken, match="folders deep") as refused:
        saved(found)
    assert refused.value.lasts


def test_folders_are_those_that_the_mount_names() -> None:
    options = {"lowerdir": "l/A:l/B", "upperdir": "7/diff", "workdir": "7/work"}
    assert layers_of_mount("/d/7/merged", options) == Layers("/d/7/diff", ["/d/l/A", "/d/l/B"])
    for wrong in ({}, {"lowerdir": "/a"}, {"upperdir": "/a"}):
        with pytest.raises(ValueError, match="must be overlay2"):
            layers_of_mount("/d/7/merged", wrong)


ON_OVERLAY = """
import os, shutil, subprocess, sys
from gleaner.agent.privileged.common import config, mounts
from gleaner.agent.system.tar_policy import SizeLimit
from gleaner.agent.privileged.shim import written_layer
place = sys.argv[1]
subprocess.check_call(["mount", "-t", "tmpfs", "x", place])
os.chdir(place)
for name in ("low/d/a", "low/d/b", "top/d/c", "low/e/f"):
    os.makedirs(name)
    open(name + "/file", "w").write(name)
def started(name):
    for inside in ("merged", "diff", "work"):
        os.makedirs(f"{name}/{inside}")
    options = f"lowerdir=top:low,upperdir={name}/diff,workdir={name}/work"
    subprocess.check_call(["mount", "-t", "overlay", "x", "-o", options, f"{name}/merged"])
    return f"{place}/{name}/merged"
def seen(root):
    for folder, _, files in sorted(os.walk(root)):
        print(folder[len(root):], *((name, open(f"{folder}/{name}").read()) for name in sorted(files)))
first, second = started("1"), started("2")
shutil.rmtree(first + "/d")
os.makedirs(first + "/d/b")
shutil.rmtree(first + "/e/f")
open(first + "/d/b/new", "w").write("new")
os.link(first + "/d/b/new", first + "/e/other")
found = written_layer.layers(config.Config(1), "c", first)
written_layer.put_back(written_layer.pack(found, SizeLimit(10**6)), second, SizeLimit(10**6))
seen(first)
print("--")
seen(second)
print("--", os.path.samefile(second + "/d/b/new", second + "/e/other"), end="")
"""


@only_root
def test_what_was_written_on_an_overlay_of_several_layers_comes_back_on_another(tmp_path: Path) -> None:
    said = subprocess.run(in_own_mounts(ON_OVERLAY, str(tmp_path)), capture_output=True, text=True, check=False)
    first, second, same = said.stdout.split("--")
    assert first.split() == second.split() != [], said.stderr
    assert "new" in first
    assert "low/d/a" not in first
    assert same == " True"
