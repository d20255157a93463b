"""The readers of files that people hand in: logs of jobs, settings, campaigns, images."""

import gzip
from pathlib import Path

import pytest
from tests.cli.test_unpack import fetch
from tests.made_images import tar
from tests.readers.reader import Reader, at
from tests.simulation.traces import SACCT_COLUMNS

from gleaner.client import ClientError
from gleaner.control.campaigns import campaign_file
from gleaner.control.effective_settings import load_settings
from gleaner.control.input_errors import InputError
from gleaner.control.simulation.errors import SimulationError
from gleaner.control.simulation.scenario import read_scenario
from gleaner.control.simulation.workloads import traces

SWF = b"; MaxProcs: 400 (4 each)\n1 10 5 60 4 -1 512 8 120 1024 1 7 3 -1 -1 -1 -1 -1\n"
SACCT = (
    SACCT_COLUMNS.replace(",", "|")
    + "\n101|2026-01-31T10:00:00|2026-01-31T10:00:00|2026-01-31T10:00:30|600|30|64|2|8000M|alice|physics|COMPLETED\n"
).encode()
CAMPAIGN = b"name: pi\nimage: gleaner/pi\ncommand: [a, '{index}']\nindices: 1-3\nmemory_mib: 1G\nenvironment: {A: b}\n"
SETTINGS = b"[api]\nport = 8642\n[groups.multiplier]\nphysics = 2\n"
SCENARIO = b"[machine]\nprocessors = 64\n[agents]\nlength_s = 900\n"
MANY_DIGITS = b"[api]\nport = " + b"9" * 5000
YAML_OF_PYTHONS_OWN_ERRORS = (
    b'image: "\\UFFFFFFFF"\n', b'image: "\\U00110000"\n', b"%YAML 1." + b"9" * 5000 + b"\n---\nimage: a\n",
)  # fmt: skip


def campaign(content: bytes, folder: Path) -> None:
    campaign_file.submission(campaign_file.read(at(folder, content)))


def settings_file(content: bytes, folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLEANER_SETTINGS", str(at(folder, content)))
        load_settings()


PEOPLES = (
    Reader(
        "a log of jobs",
        lambda content, folder: traces.read(at(folder, content)),
        (SimulationError,),
        (
            SWF,
            SACCT,
            gzip.compress(SWF),
            gzip.compress(SACCT),
        ),
        (SWF.replace(b" 60 ", b" 6e1 ").replace(b"\n", b"\r\r\n"),),
    ),
    Reader(
        "a scenario",
        lambda content, folder: read_scenario(at(folder, content), ()),
        (InputError,),
        (SCENARIO,),
        (MANY_DIGITS,),
    ),
    Reader("a campaign file", campaign, (InputError,), (CAMPAIGN,), YAML_OF_PYTHONS_OWN_ERRORS),
    Reader("the settings", settings_file, (InputError,), (SETTINGS,), (MANY_DIGITS, b"\r")),
    Reader(
        "a job's output",
        lambda content, folder: fetch([content], folder / str(len(list(folder.iterdir())))),
        (ClientError,),
        (tar({"a": b"1", "b": b"2"}),),
    ),
)
