"""The role of Ansible: short, and one that Ansible takes. tests/real_cluster/test_packages.py runs it on a node."""

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "deploy/ansible"


def test_the_role_has_at_most_forty_lines_and_no_mistake_in_its_syntax(tmp_path: Path) -> None:
    lines = [line for path in (FOLDER / "roles").rglob("*.yml") for line in path.read_text().splitlines()]
    assert len(lines) <= 40
    done = subprocess.run(
        [sys.executable, "-m", "ansible", "playbook", "--syntax-check", "-i", "node1,", str(FOLDER / "nodes.yml"),
         "-e", "gleaner_hosts=all"],
        capture_output=True, text=True, check=False, env={**os.environ, "ANSIBLE_HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
