"""`inputs` of a campaign file and `--input`, against a real control program."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.cli.cli_harness import CliHarness

from gleaner.agent.common.clock import SystemClock
from gleaner.agent.job.inputs import Inputs
from gleaner.agent.messages import Assignment, UrlInput
from gleaner.client import local_inputs, uploads

pytestmark = pytest.mark.slow
CAMPAIGN = """
image: pi
indices: 1-2
inputs: [steering.cmnd, {from: data, to: calib}, {from: steering.cmnd, to: mine, copy: true}]
"""


def files(harness: CliHarness) -> None:
    folder = harness.folder / "runs"
    (folder / "data" / "deep").mkdir(parents=True)
    (folder / "steering.cmnd").write_text("Beams:eCM = 8000.")
    (folder / "data" / "deep" / "run").write_bytes(b"x" * 5_000_000)
    (folder / "data" / "deep" / "run").chmod(0o700)
    (folder / "data" / "latest").symlink_to("deep/run")
    (folder / "runs.yaml").write_text(CAMPAIGN)


def test_what_a_campaign_reads_is_sent_once_and_arrives_as_it_was(
    harness: CliHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files(harness)
    sent: list[int] = []
    real = uploads._put

    def counted(connection: Any, file: Any, part: bytes, **more: Any) -> Any:
        if part:
            sent.append(len(part))
        return real(connection, file, part, **more)

    monkeypatch.setattr(uploads, "_put", counted)
    first = json.loads(harness.good("submit", "runs/runs.yaml", "--json"))
    assert len(first["jobs"]) == 2
    assert len(sent) == 3  # two of the folder, and one of the file, which is read under two names
    for name in ("steering.cmnd", "data", "data/deep/run"):
        os.utime(harness.folder / "runs" / name, (1, 1))
    harness.good("submit", "runs/runs.yaml")
    harness.good("submit", "--image", "pi", "--input", "runs/steering.cmnd")
    assert len(sent) == 3
    given = harness.node.claim()[0]
    place = tmp_path / "brought"
    bring(harness, given, place)
    (folder,) = place.glob("inputs-*")
    assert (folder / "steering.cmnd").read_text() == "Beams:eCM = 8000."
    assert (folder / "calib" / "latest").read_bytes() == b"x" * 5_000_000
    assert (folder / "calib" / "deep" / "run").stat().st_mode & 0o777 == 0o755
    assert (place / "mine").read_text() == "Beams:eCM = 8000."
    assert "steering.cmnd, calib, mine (copied)" in harness.good("show", str(first["jobs"][0]))


def bring(harness: CliHarness, given: Assignment, place: Path) -> None:
    place.mkdir()
    inputs = Inputs(place, harness.state.storage, reserve_bytes=0, clock=SystemClock())
    inputs.stage(given, threading.Event())
    inputs.copy(given, place, threading.Event())


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("[pipe]", "is neither a file nor a folder"),
        ("[out]", "'secret' is a link that leads out"),
        ("[{to: x}]", "line 2: inputs: from is missing"),
        ("[{from: a, to: b/c}]", "'b/c' is no name for a file in /inputs"),
        ("['http://host/x']", "must begin with https://"),
        ("[{from: 'https://host/x', to: x}]", "is a URL: write url instead of from"),
        ("[{url: 'https://host/x', from: a}]", "give one of them"),
        ("[{from: a, sha256: '00'}]", "sha256 is for a url"),
        ("[{url: 'https://host/x', sha256: '00'}]", "sha256 must have 64 hexadecimal digits"),
        ("[a, {from: b, to: a}]", "two inputs are called a"),
    ],
)
def test_a_wrong_input_is_one_line_that_names_its_place(harness: CliHarness, written: str, said: str) -> None:
    for name in ("a", "b"):
        (harness.folder / name).write_text(name)
    os.mkfifo(harness.folder / "pipe")
    (harness.folder / "out").mkdir()
    (harness.folder / "out" / "secret").symlink_to("../a")
    (harness.folder / "runs.yaml").write_text(f"image: pi\ninputs: {written}\n")
    line = harness.refused("submit", "runs.yaml", code=2)
    assert said.format(harness.folder) in line or said.format(".") in line or said.replace("{}/", "") in line
    assert json.loads(harness.good("list", "--json"))["jobs"] == []


def test_a_site_that_allows_no_urls_says_so(harness: CliHarness) -> None:
    line = harness.refused("submit", "--image", "pi", "--input", "https://host/x", code=1)
    assert "may not be fetched, as this site allows no URLs: an admin may add it to urls in [inputs]" in line


def test_urls_are_submitted_as_they_are_and_shown_with_the_job(harness: CliHarness) -> None:
    settings = harness.state.settings
    inputs = settings.inputs.model_copy(update={"urls": ("https://data.example.org/",)})
    harness.state.settings = settings.model_copy(update={"inputs": inputs})
    (harness.folder / "a").write_text("a")
    digest = "0" * 64
    url = f"{{url: 'https://data.example.org/b?key=1', to: c, sha256: {digest}, copy: true}}"
    (harness.folder / "runs.yaml").write_text(f"image: pi\ninputs: [https://data.example.org/b, a, {url}]\n")
    (job,) = json.loads(harness.good("submit", "runs.yaml", "--json"))["jobs"]
    first, _, last = harness.node.claim()[0].inputs
    assert isinstance(first, UrlInput) and isinstance(last, UrlInput)
    assert first == UrlInput(name="b", url="https://data.example.org/b")
    with_digest = {"sha256": f"sha256:{digest}", "into_job": True}
    assert last == UrlInput(name="c", url="https://data.example.org/b?key=1", **with_digest)
    shown = " ".join(harness.good("show", str(job)).split())
    assert "b (from https://data.example.org/b, not fetched yet), a, c (copied, from https://data" in shown
    assert "key=1" not in shown
    harness.good("submit", "--image", "pi", "--input", "https://data.example.org/b")


def test_a_file_that_changes_while_it_is_sent_is_not_submitted(
    harness: CliHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    (harness.folder / "a").write_text("before")
    real = local_inputs.store

    def changing(*given: Any) -> Any:
        (harness.folder / "a").write_text("after!")
        return real(*given)

    monkeypatch.setattr(local_inputs, "store", changing)
    assert "was changed or damaged on its way" in harness.refused("submit", "--image", "pi", "--input", "a", code=2)
    assert json.loads(harness.good("list", "--json"))["jobs"] == []
