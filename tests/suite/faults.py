"""Break the product on purpose, in forty ways, and see that the tests still find each of them.

    python3 -m tests.suite.faults [NAME...]

`faults.toml` lists the faults. Each is one small change to one file, and names the tests that find it. Whoever deletes
tests runs this before and after. While it runs, the product in this folder is broken, so let nothing else use it.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.suite.cleaner import ROOT

FAULTS = Path(__file__).with_name("faults.toml")
_PYTEST = (
    sys.executable,
    "-m",
    "pytest",
    "-x",
    "-q",
    "-n0",
    "-p",
    "no:cacheprovider",
    "-m",
    "not nodes and not cluster",
)
_SOME_TEST_FAILED = 1
"""The exit status of pytest that counts. With any other one, the tests have not run: a fault is no broken import."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One change to the product. `hurts` says what it would do to whom."""

    name: str
    file: str
    before: str
    after: str
    hurts: str
    tests: Sequence[str]

    def broken(self, text: str) -> str:
        """Return the file's text with the fault in it. Raises `ValueError` if the place is not there exactly once."""
        if text.count(self.before) != 1:
            raise ValueError(f"{self.name}: its text is {text.count(self.before)} times in {self.file}, and not once")
        return text.replace(self.before, self.after)


def all_faults() -> list[Fault]:
    """Return the faults in the order of the file."""
    return [Fault(name, **entry) for name, entry in tomllib.loads(FAULTS.read_text(encoding="utf-8")).items()]


def find(fault: Fault, root: Path = ROOT) -> str:
    """Return the first of its tests that fails with the fault; "" if none does. The file is as before afterwards."""
    file = root / fault.file
    broken = fault.broken(file.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as place:
        copy = shutil.copy2(file, place)
        # No bytecode or machine code of the broken file may outlive it.
        own = {"PYTHONDONTWRITEBYTECODE": "1", "NUMBA_CACHE_DIR": place}
        try:
            file.write_text(broken, encoding="utf-8")
            words = [*_PYTEST, *fault.tests]
            done = subprocess.run(words, cwd=root, env=os.environ | own, capture_output=True, text=True, check=False)
        finally:
            shutil.copy2(copy, file)
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", done.stdout, re.MULTILINE)
    if done.returncode not in (0, _SOME_TEST_FAILED) or (done.returncode and not failed):
        raise RuntimeError(f"{fault.name}: pytest ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr}")
    return failed[1] if failed else ""


def main(names: Sequence[str]) -> int:
    """Try the faults of these names, or all; return 1 if no test finds one of them."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # else the file would stay broken
    missed = 0
    for fault in all_faults():
        if not names or fault.name in names:
            began_s, test = time.monotonic(), find(fault)
            missed += not test
            took = f"{time.monotonic() - began_s:6.1f} s"
            print(f"{'found' if test else 'NOT FOUND':10}{took}  {fault.name}  {test}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
