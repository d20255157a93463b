"""`deploy/cluster.sh up` comes back only when everything answers: the script itself, on a pretended cluster."""

import os
import subprocess
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[1] / "deploy"

# All of the script but the choice of the verb; then stand-ins for what reaches out of it.
PRETENDED = """
. <(sed '/^as_root$/,$d' cluster.sh)
cluster_dir=$PWD_OF_TEST
docker_client=docker
prepare_folders() { :; }; prepare_settings() { :; }; give_authority() { :; }; bridge_rule() { :; }; compose() { :; }
status() { :; }; logs_of_dead() { :; }
load_images() { echo images >>"$PWD_OF_TEST/asked"; }
in_container() {
    echo "$*" | tr '\\n' ' ' >>"$PWD_OF_TEST/asked"; echo >>"$PWD_OF_TEST/asked"
    case "$*" in *"sinfo -h -N"*) printf 'node1 idle\\nnode2 mixed\\nnode3 idle\\n' ;; esac
    case "$*" in
        *"$LATE"*)
            echo >>"$PWD_OF_TEST/tries"
            [ "$(wc -l <"$PWD_OF_TEST/tries")" -gt "$AFTER" ] ;;
    esac
}
up
"""


def up(tmp_path: Path, *, late: str, after: int, within_s: int = 60) -> "subprocess.CompletedProcess[str]":
    """Bring it up, where whatever is asked with `late` in it fails so many times."""
    (tmp_path / "docker").write_text("#!/bin/sh\n")
    (tmp_path / "docker").chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PWD_OF_TEST": str(tmp_path), "LATE": late, "AFTER": str(after), "GLEANER_UP_WITHIN_S": str(within_s),
    }  # fmt: skip
    words = ["bash", "-euo", "pipefail", "-c", PRETENDED]
    return subprocess.run(words, cwd=DEPLOY, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    "late", ["/health", "slurm-admin.sock", "node2 docker version", "node3 /opt/gleaner/bin/python"]
)
def test_up_waits_for_each_part_and_not_for_slurm_alone(tmp_path: Path, late: str) -> None:
    done = up(tmp_path, late=late, after=3)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("cluster: up (")
    assert len((tmp_path / "tries").read_text().splitlines()) > 3
    asked = (tmp_path / "asked").read_text().splitlines()
    for part in ("/health", "slurm-admin.sock", *(f"node{n} docker version" for n in (1, 2, 3))):
        assert any(part in line for line in asked[: asked.index("images")]), part
    assert sum("helper.sock" in line for line in asked) >= 3


def test_a_part_that_never_answers_is_named_in_one_line(tmp_path: Path) -> None:
    done = up(tmp_path, late="/health", after=10**6, within_s=1)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "control on the head does not answer, or does not lead; see /var/log/gleaner/control.log" in done.stderr
    assert "images" not in (tmp_path / "asked").read_text().splitlines()
