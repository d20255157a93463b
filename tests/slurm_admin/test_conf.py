"""The file with the admin's settings; the shipped one, and wrong ones."""

import re
from pathlib import Path

import pytest

from gleaner.control.slurm.snapshot import CLASSES, DEFAULT_CLASS
from gleaner.control.slurm_admin import settings
from gleaner.control.slurm_admin.settings import WrongSettings

DEPLOY = Path(__file__).parents[2] / "deploy"
SHIPPED = DEPLOY / "settings" / "slurm-admin.conf"
LEAST = "control gleaner\nsocket /run/s\nheartbeat /run/h\n"


def test_the_shipped_file_is_right() -> None:
    found = settings.parse(SHIPPED.read_text(), "slurm-admin.conf")
    assert found.partitions == {"shared": frozenset(CLASSES)}
    assert (found.control, found.fresh_for_s, found.dead_after_s) == ("gleaner", 60, 300)
    assert found.drained == {"regular", "gleaner"}
    assert (found.drain_at_most, found.drains_per_hour) == (20, 100)


@pytest.mark.parametrize(
    "line",
    ["partition shared mortal", "fresh-for-s 0", "drain-at-most all", "dead-after-s", "x y"],
)
def test_a_line_that_says_nothing_is_named_with_its_number(line: str) -> None:
    with pytest.raises(WrongSettings, match=f"^slurm-admin.conf, line 4: '{re.escape(line)}' says nothing"):
        settings.parse(f"{LEAST}{line}\n", "slurm-admin.conf")


def test_a_file_that_others_could_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "slurm-admin.conf"
    path.write_text(LEAST)
    path.chmod(0o666)
    with pytest.raises(WrongSettings, match="nobody else's to write"):
        settings.load(path)
    with pytest.raises(WrongSettings, match="cannot read"):
        settings.load(tmp_path / "none")


def test_slurmctlds_script_knows_the_same_file_and_classes() -> None:
    script = (DEPLOY / "slurm" / "job_submit.lua").read_text()
    assert f'"{settings.FILE}"' in script
    assert f'local DEFAULT_CLASS = "{DEFAULT_CLASS}"' in script
    classes = re.search(r"local CLASSES = \{(.*)\}", script)
    assert classes is not None
    assert set(re.findall(r"[a-z-]+(?=\"?\]? = true)", classes[1])) == set(CLASSES)
