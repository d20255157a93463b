"""Folders of the node in a job's container, in both runtimes, with real CRIU."""

from pathlib import Path

import pytest
from tests.runtime.nodes_harness import USER, Node, Work
from tests.suite.node_containers import MOUNTS

pytestmark = [pytest.mark.nodes, pytest.mark.extended]


@pytest.fixture(params=["shim", "criu"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


MOUNTER = """
import mmap, os, time
calib, software = "/opt/site/calib", "/opt/software"
constants, numbers = open(calib + "/constants"), open(software + "/table", "rb")
table = mmap.mmap(numbers.fileno(), 0, prot=mmap.PROT_READ)
print(constants.readline().strip(), table[:5].decode())
def change():
    for path in (calib + "/new", software + "/deep/new", software + "/table"):
        try:
            open(path, "w")
            print("changed", path)
        except OSError as error:
            print(error.strerror)
change()
options = {line.split()[1]: line.split()[3].split(",") for line in open("/proc/self/mounts")}
print([option in options[calib] for option in ("ro", "nosuid", "nodev")], sorted(os.listdir(software)))
print(os.listdir(software + "/below"))
print("begun")
while not os.path.exists("/job/stop"):
    time.sleep(0.02)
print(constants.readline().strip(), table[-4:].decode(), open(software + "/deep/tool").read())
change()
print("end")
"""


def test_a_job_with_mounts_is_saved_on_one_node_and_restored_on_another_which_it_cannot_change(
    pair: tuple[Node, Node], work: Work
) -> None:
    here, there = pair
    work.mounts = MOUNTS
    calib, software = MOUNTS
    for node in pair:
        node.run("rm", "-rf", "/opt/site", software)
        files = {f"{calib}/constants": "first\nsecond\n", f"{software}/table": f"begin{'0' * 9000}done"}
        files |= {f"{software}/deep/tool": "of the site"}
        for path, content in files.items():
            node.outside(Path(path)).parent.mkdir(parents=True, exist_ok=True)
            node.outside(Path(path)).write_text(content)
        node.run("chown", "-R", f"{USER[0]}:{USER[1]}", calib, software)  # so that only the mount keeps it from writing
        node.run("mkdir", f"{software}/below")
        node.run("mount", "-t", "tmpfs", "other", f"{software}/below")
        node.run("touch", f"{software}/below/hidden")
    try:
        container = work.start(here, MOUNTER)
        work.until("begun")
        nosuid_nodev = here.kind == "criu"
        assert work.lines == [
            "first begin",
            *["Read-only file system"] * 3,
            f"[True, {nosuid_nodev}, {nosuid_nodev}] ['below', 'deep', 'table']",
            "[]",
            "begun",
        ]
        saved = work.save(here, container)
        work.end(here, container)
        container = work.restore(there, saved, MOUNTER)
        again = work.save(there, container)
        work.end(there, container)
        container = work.restore(here, again, MOUNTER)
        (work.folder(here) / "stop").touch()
        assert here.runtime.wait(container).exit_code == 0
        work.read_to_end()
        assert work.lines[-5:] == ["second done of the site", *["Read-only file system"] * 3, "end"]
        here.runtime.remove(container)
        assert here.outside(Path(f"{calib}/constants")).read_text() == "first\nsecond\n", "the folder is not emptied"
    finally:
        for node in pair:
            node.run("umount", "-l", f"{software}/below")
