"""In CRIU's mount namespace nothing of the node can be written, and what cannot be made so is refused."""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from tests.privileged.root import only_root
from tests.privileged.scripts import in_own_mounts

from gleaner.agent.privileged.shim import mount_confinement

SCRIPT = """
import os, sys
from gleaner.agent.privileged.shim import mount_confinement as confined
from gleaner.agent.privileged.common import linux
place = sys.argv[1]
linux.mount_itself(place + "/root")
confined.enter(place + "/root", place + "/work")
below = [place, *(f"{place}/{name}" for name in ("other", "root/link", "root", "work"))]
for path in ("/etc", "/", "/var", "/run", "/dev/shm", *below, "/tmp"):
    try:
        os.mkdir(path + "/gleaner-made")
        print("made in", path)
    except OSError as error:
        print(error.strerror)
"""


@only_root
def test_the_node_is_read_only_there_but_for_the_containers_root_and_the_working_folder() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        for name in ("root", "work", "other"):
            Path(place, name).mkdir()
        Path(place, "root", "link").symlink_to(f"{place}/other")
        done = subprocess.run(in_own_mounts(SCRIPT, place), capture_output=True, text=True, check=False)
        made = [f"made in {path}" for path in (f"{place}/root", f"{place}/work", "/tmp")]
        assert done.stdout.splitlines() == ["Read-only file system"] * 8 + made, done.stderr
        assert not Path("/tmp/gleaner-made").exists(), "it is another one"
        assert sorted(path.name for path in Path(place, "other").iterdir()) == []
        assert Path(place, "root", "gleaner-made").exists()


@only_root
def test_without_mounts_of_criu_where_they_are_known_to_be_nothing_is_restored() -> None:
    with pytest.raises(mount_confinement.NotConfined, match="where it is known to"):
        mount_confinement.follow_no_links(os.getpid())
