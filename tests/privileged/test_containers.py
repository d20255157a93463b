"""What the node helper does with what runc says; runc is a script here."""

from pathlib import Path

import pytest

from gleaner.agent.privileged import containers
from gleaner.agent.privileged.bundle import Bundle
from gleaner.agent.privileged.config import Config

_RUNC = """#!/bin/sh
echo "$@" >> {calls}
case "$*" in
*pause*) [ "$(grep -c ' pause ' {calls})" -gt 2 ];;
*state*) echo '{{"status": "running"}}';;
esac
"""


def test_a_container_that_the_kernel_does_not_stop_in_time_is_paused_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save on a busy node must not fail for that."""
    calls, runc = tmp_path / "calls", tmp_path / "runc"
    runc.write_text(_RUNC.format(calls=calls))
    runc.chmod(0o755)
    settings = Config(4200, runc=str(runc), bundles=str(tmp_path / "bundles"), own=str(tmp_path / "own"))
    (tmp_path / "bundles" / "containers").mkdir(parents=True)
    made = Bundle(settings, "c")
    made.make({}, {})
    containers.pause(settings, made)
    assert calls.read_text().count(" pause ") == 3
    calls.unlink()
    monkeypatch.setattr(containers, "_PAUSE_WITHIN_S", 0.0)
    with pytest.raises(containers.Failed, match="cannot pause c: pause failed"):
        containers.pause(settings, made)
