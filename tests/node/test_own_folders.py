"""A folder of Gleaner's own that root's settings name among the mounts by mistake."""

from pathlib import Path

import pytest

from gleaner.agent import main
from gleaner.agent.privileged.common import config
from gleaner.agent.settings import AgentSettings


@pytest.mark.parametrize("own", ["storage", "work"])
@pytest.mark.parametrize("mount", ["site/gleaner", "site", "site/gleaner/inputs", "link"])
def test_an_agent_whose_storage_or_work_would_be_mounted_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, mount: str
) -> None:
    (tmp_path / "site" / "gleaner").mkdir(parents=True)
    (tmp_path / "link").symlink_to("site/gleaner")
    folder = tmp_path / ("link" if mount.startswith("site/gleaner") else "site/gleaner")  # the link is followed
    folder = tmp_path / "link" if mount == "link" else folder
    settings = AgentSettings.model_validate({own: folder})
    monkeypatch.setattr(config, "load", lambda: config.Config(1, mounts=(str(tmp_path / mount),)))
    with pytest.raises(ValueError, match=f"{tmp_path / mount} is in the way of .*: leave it out") as caught:
        main._mounts(settings)
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(config, "load", lambda: config.Config(1, mounts=("/cvmfs/atlas.cern.ch",)))
    assert main._mounts(settings) == ("/cvmfs/atlas.cern.ch",)
