"""The node helper pauses a container; runc is a script here, and says what the kernel or runc may say."""

import os
from pathlib import Path

import pytest

from gleaner.agent.privileged.common import freezing
from gleaner.agent.privileged.common.bundle import Bundle
from gleaner.agent.privileged.common.config import Config
from gleaner.agent.privileged.helper import containers

_RUNC = """#!/bin/sh
echo "$@" >> {calls}
case "$*" in
*pause*) [ "$(grep -c ' pause ' {calls})" -gt 2 ];;
*state*) {state};;
esac
"""


class Container:
    """One that runs. Its runc cannot pause it the first two times."""

    def __init__(self, folder: Path, *, state: str = 'echo \'{"status": "running"}\'') -> None:
        self.calls, runc = folder / "calls", folder / "runc"
        runc.write_text(_RUNC.format(calls=self.calls, state=state))
        runc.chmod(0o755)
        self.settings = Config(4200, runc=str(runc), bundles=str(folder / "bundles"), own=str(folder / "own"))
        (folder / "bundles" / "containers").mkdir(parents=True)
        self.bundle = Bundle(self.settings, "c")
        self.bundle.make({}, {})

    def pause(self) -> None:
        containers.pause(self.settings, self.bundle)

    def asked(self, word: str) -> int:
        return self.calls.read_text().count(f" {word} ")


def test_a_container_that_the_kernel_does_not_stop_in_time_is_paused_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save on a busy node must not fail for that."""
    made = Container(tmp_path)
    made.pause()
    assert made.asked("pause") == 3
    made.calls.unlink()
    monkeypatch.setattr(freezing, "_WITHIN_S", 0.0)
    with pytest.raises(containers.Failed, match="cannot pause c: pause failed"):
        made.pause()
    assert made.asked("pause") == 2, "one try may take longer than all are to take"


def test_a_container_of_which_runc_cannot_say_what_it_does_has_not_ended_while_its_monitor_lives(
    tmp_path: Path,
) -> None:
    """With cgroups of version 2 a freeze that has failed leaves runc so."""
    made = Container(tmp_path, state="exit 1")
    monitor = os.open(made.bundle.inside("alive"), os.O_RDWR)
    try:
        made.pause()
    finally:
        os.close(monitor)
    assert made.asked("pause") == 3


def test_a_container_that_is_frozen_between_two_looks_has_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers, "_END_WITHIN_S", 0.2)
    looks = f"$(grep -c ' state ' {tmp_path / 'calls'})"
    state = f"""[ {looks} -gt 1 ] && echo '{{"status": "paused"}}' || echo '{{"status": "running"}}'"""
    made = Container(tmp_path, state=state)
    made.pause()
    assert (made.asked("pause"), made.asked("state")) == (2, 2)
