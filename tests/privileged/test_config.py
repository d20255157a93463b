"""The privileged side's settings count only if nobody but root can have written them, and if all of them make sense."""

import json
import os
from pathlib import Path

import pytest

from gleaner.agent.privileged.common.config import Config, Misconfigured, load

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the file has to be root's")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "privileged.json"


def written(path: Path, text: str, mode: int = 0o644, uid: int = 0) -> str:
    path.write_text(text)
    path.chmod(mode)
    os.chown(path, uid, 0)
    return str(path)


def test_what_is_not_said_has_its_default(path: Path) -> None:
    assert load(written(path, '{"agent_uid": 7, "runc": "/opt/runc"}')) == Config(7, runc="/opt/runc")


@pytest.mark.parametrize(("mode", "uid"), [(0o664, 0), (0o646, 0), (0o666, 0), (0o644, 4200), (0o400, 4200)])
def test_settings_that_others_could_have_written_are_refused(path: Path, mode: int, uid: int) -> None:
    with pytest.raises(Misconfigured, match="must be root's"):
        load(written(path, '{"agent_uid": 4200}', mode, uid))


WRONG = [
    "", "[]", "7", "{", "null", "{}", '{"agent_uid": 0}', '{"agent_uid": -1}', '{"agent_uid": true}',
    '{"agent_uid": "4200"}', '{"agent_uid": 4200.0}', '{"agent_uid": null}', '{"agent_uid": 4200, "runc": "runc"}',
    '{"agent_uid": 4200, "runc": 7}', '{"agent_uid": 4200, "own": ""}', '{"agent_uid": 4200, "handshakes": ["/x"]}',
    '{"agent_uid": 4200, "agent_gid": 4200}', '{"agent_uid": 4200, "criu": null}',
]  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_settings_that_make_no_sense_are_refused_in_one_line(path: Path, text: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        load(written(path, text))
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_no_key_is_let_through_by_chance(path: Path) -> None:
    for key in Config._fields:
        wrong = json.dumps({"agent_uid": 4200} | {key: {"a": 1}})
        with pytest.raises(Misconfigured):
            load(written(path, wrong))
