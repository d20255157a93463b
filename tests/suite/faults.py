"""Break the product on purpose, in forty ways, and show which test finds each fault.

    python3 -m tests.suite.faults [NAME...]

Each fault in `faults.toml` is one small change to one file, with the tests that find it. Run this before and after you
delete tests. The product in this folder is broken while it runs, so use a worktree in which nothing else runs.
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
_PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider")


@dataclass(frozen=True, slots=True)
class Fault:
    """One change to the product. `hurts` is the harm that it would do, and to whom."""

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
    """Return the first of its tests that fails with the fault; "" if none does. The file is as before afterwards.

    The tests must pass without the fault. Raises `ValueError` or `RuntimeError` if the fault cannot be tried.
    """
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
    failed = re.search(r"^FAILED (.+?)(?: - |$)", done.stdout, re.MULTILINE)
    if done.returncode and not failed:  # a test that cannot run, for want of a server or an import, has found nothing
        raise RuntimeError(f"{fault.name}: pytest ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr}")
    return failed[1] if failed else ""


def main(names: Sequence[str]) -> int:
    """Try the faults of these names, or all; return 1 if no test finds one of them."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # else the file would stay broken
    faults, missed = {fault.name: fault for fault in all_faults()}, 0
    for name in names or faults:
        began_s, test = time.monotonic(), find(faults[name])
        missed += not test
        took = f"{time.monotonic() - began_s:6.1f} s"
        print(f"{'found' if test else 'NOT FOUND':10}{took}  {name}  {test}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
