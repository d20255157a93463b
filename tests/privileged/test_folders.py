"""Removing what others have written, and counting it."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.privileged.root import only_root
from tests.privileged.scripts import in_own_mounts

from gleaner.agent.privileged.common import bundle
from gleaner.agent.privileged.common.bundle import Bundle
from gleaner.agent.privileged.common.config import Config

DEEPER_THAN_PYTHON_RECURSES = 3000
LABELS = {"labels": {}, "image_id": "i", "rootfs": "/nowhere", "made_s": 1}


def dig(folder: Path, depth: int) -> None:
    """Make folders deeper than a path may be long, as a job may, with something at the bottom."""
    script = "import os, sys\nfor _ in range(int(sys.argv[1])): os.mkdir('d'); os.chdir('d')\n"
    script += "open('file', 'wb').write(bytes(2**20))"
    subprocess.run([sys.executable, "-c", script, str(depth)], cwd=folder, check=True)


def kept(settings: Config) -> list[str]:
    return [path.name for path in Path(bundle.folder(settings)).iterdir()]


@pytest.fixture
def made(tmp_path: Path) -> tuple[Config, Bundle]:
    settings = Config(4200, bundles=str(tmp_path / "root"))
    bundle.folder(settings)
    found = Bundle(settings, "a-1")
    found.make(LABELS, {})
    return settings, found


@pytest.mark.slow
def test_what_is_very_deep_is_counted_and_removed(made: tuple[Config, Bundle]) -> None:
    settings, found = made
    dig(Path(found.inside("upper")), DEEPER_THAN_PYTHON_RECURSES)
    assert bundle.disk_use(found.path).size_bytes > 2**20
    found.remove()
    assert kept(settings) == []


def test_no_name_hides_what_is_written(made: tuple[Config, Bundle]) -> None:
    _, found = made
    hidden = Path(found.inside("upper"), "rootfs")
    hidden.mkdir()
    (hidden / "file").write_bytes(bytes(2**20))
    assert bundle.disk_use(found.path).size_bytes >= 2**20


def test_a_bundle_whose_facts_a_crash_has_emptied_harms_no_other(made: tuple[Config, Bundle]) -> None:
    settings, found = made
    broken = Bundle(settings, "a-0")
    broken.make(LABELS, {})
    Path(broken.inside("container.json")).write_text("")
    assert [one.name for one in bundle.all_bundles(settings)] == ["a-1"]
    with pytest.raises(bundle.NoSuch):
        broken.facts()
    bundle.sweep(settings)
    assert kept(settings) == [found.name]


@only_root
def test_how_it_ended_is_kept_on_a_full_disk(tmp_path: Path) -> None:
    settings = Config(4200, bundles=str(tmp_path))
    script = f"""
import subprocess, sys
subprocess.check_call(["mount", "-t", "tmpfs", "-o", "size=256k", "x", {str(tmp_path)!r}])
from gleaner.agent.privileged.common import bundle; from gleaner.agent.privileged.common import config
settings = config.Config(4200, bundles={settings.bundles!r})
bundle.folder(settings)
made = bundle.Bundle(settings, "a-1")
made.make({LABELS!r}, {{}})
try:
    open(made.inside("upper") + "/file", "wb", 0).write(bytes(2**20))
    open(made.inside("upper") + "/rest", "wb", 0).write(bytes(2**20))
except OSError as error:
    print(error.errno)
made.record_exit({{"exit_code": 0, "at_its_limit": False}})
print(made.exit())
"""
    said = subprocess.run(in_own_mounts(script), capture_output=True, text=True, check=False)
    assert said.stdout == "28\n{'exit_code': 0, 'at_its_limit': False}\n", said.stderr


@only_root
@pytest.mark.parametrize("at", ["job", "job/inner"])
def test_a_mount_that_cannot_be_taken_away_keeps_what_is_in_it(tmp_path: Path, at: str) -> None:
    """Even one of the same file system: `unmount_below` is made to do nothing."""
    script = f"""
import os, subprocess, sys
from gleaner.agent.privileged.common import mounts
os.chdir({str(tmp_path)!r})
os.makedirs("kept/below"); open("kept/file", "w").close(); os.makedirs("gone/{at}"); os.makedirs("gone/other")
subprocess.check_call(["mount", "--bind", "kept", "gone/{at}"])
mounts.unmount_below = lambda path: None
print(mounts.remove_tree({str(tmp_path / "gone")!r}), sorted(os.listdir("kept")))
"""
    said = subprocess.run(in_own_mounts(script), capture_output=True, text=True, check=False)
    assert said.stdout == "False ['below', 'file']\n", said.stderr
