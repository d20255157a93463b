"""The list of faults fits the code, and a fault is tried without leaving a trace."""

import ast
import os
from pathlib import Path

import pytest
from tests.suite.cleaner import ROOT
from tests.suite.faults import Fault, all_faults, find

HALF = Fault(
    "half", "half.py", before="number / 2", after="number / 3", hurts="Nobody.", tests=["test_half.py::test_of_four"]
)
TESTS = """
from pathlib import Path

def half(number):
    names = {}
    exec(Path("half.py").read_text(), names)
    return names["half"](number)

def test_of_four():
    assert half(4) == 2

def test_of_zero():
    assert half(0) == 0
"""


@pytest.fixture
def product(tmp_path: Path) -> Path:
    """A folder with a program of one function, and its tests."""
    (tmp_path / "half.py").write_text("def half(number):\n    return number / 2\n")
    (tmp_path / "test_half.py").write_text(TESTS)
    os.utime(tmp_path / "half.py", (1, 1))
    return tmp_path


@pytest.mark.parametrize("fault", all_faults(), ids=lambda fault: fault.name)
def test_every_fault_has_its_place_in_the_code_and_its_tests_are_there(fault: Fault) -> None:
    ast.parse(fault.broken((ROOT / fault.file).read_text(encoding="utf-8")))
    assert fault.before != fault.after
    assert 1 <= len(fault.tests) <= 3
    for test in fault.tests:
        file, _, name = test.partition("::")
        assert not name or f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(("test", "found"), [("test_of_four", True), ("test_of_zero", False)])
def test_a_fault_find_or_not_and_gone_afterwards(product: Path, test: str, found: bool) -> None:
    before = (product / "half.py").read_bytes(), (product / "half.py").stat().st_mtime_ns
    fault = Fault(HALF.name, HALF.file, HALF.before, HALF.after, HALF.hurts, [f"test_half.py::{test}"])
    assert find(fault, product) == (f"test_half.py::{test}" if found else "")
    assert before == ((product / "half.py").read_bytes(), (product / "half.py").stat().st_mtime_ns)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["import nothing_of_that_name", "def test_of_four(no_such_fixture): pass"])
def test_a_test_that_cannot_run_finds_nothing(product: Path, text: str) -> None:
    (product / "test_half.py").write_text(text)
    with pytest.raises(RuntimeError, match="half: pytest ended with"):
        find(HALF, product)
    assert "number / 2" in (product / "half.py").read_text()


def test_a_fault_whose_place_is_gone_is_named() -> None:
    with pytest.raises(ValueError, match="half: its text is 0 times in half"):
        HALF.broken("def half(number): return 0.5 * number")
