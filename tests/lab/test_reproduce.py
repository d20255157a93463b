"""The script that repeats published experiments."""

import subprocess
import sys

import pytest


@pytest.mark.extended
def test_it_prints_published_figures_beside_ours() -> None:
    words = (sys.executable, "-m", "lab.reproduce", "fair_share", "--quick")
    done = subprocess.run(words, capture_output=True, text=True, timeout=250, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "published" in done.stdout
    assert "Not published, so chosen here before the first comparison:" in done.stdout
