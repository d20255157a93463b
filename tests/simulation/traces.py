"""The real logs, which the project does not ship: where they are on this machine, if they are."""

import os
from pathlib import Path

import pytest

SACCT_COLUMNS = "JobIDRaw,Submit,Eligible,Start,ElapsedRaw,TimelimitRaw,AllocCPUS,NNodes,ReqMem,User,Account,State"
_BESIDE = Path(__file__).resolve().parents[2].parent / "shared" / "traces"


def trace(name: str) -> Path:
    """The file of this name in the folder `GLEANER_TRACES`, or beside the checkout; without it the test is skipped."""
    folder = Path(os.environ.get("GLEANER_TRACES") or _BESIDE)
    path = folder / name
    if not path.is_file():
        pytest.skip(f"trace {name} is absent: set GLEANER_TRACES to a folder that holds it (looked in {folder})")
    return path
