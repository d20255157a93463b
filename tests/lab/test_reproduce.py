"""The script that repeats published experiments."""

import subprocess
import sys

import pytest


def reproduce(*words: str) -> "subprocess.CompletedProcess[str]":
    script = (sys.executable, "-m", "lab.reproduce", *words)
    return subprocess.run(script, capture_output=True, text=True, timeout=250, check=False)


@pytest.mark.extended
def test_it_prints_published_figures_beside_ours() -> None:
    done = reproduce("fair_share", "--quick")
    assert (done.returncode, done.stderr) == (0, "")
    assert "published" in done.stdout
    assert "Not published, so chosen here before the first comparison:" in done.stdout


@pytest.mark.slow
def test_a_wrong_name_lists_the_experiments() -> None:
    done = reproduce("nothing")
    assert done.returncode == 2
    assert "there are: fair_share, idle_nodes, migration" in done.stderr
