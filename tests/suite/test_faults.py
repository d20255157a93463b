"""The list of faults fits the code, and a fault is tried without leaving a trace."""

import ast

import pytest
from tests.suite.cleaner import ROOT
from tests.suite.faults import Fault, all_faults


@pytest.mark.parametrize("fault", all_faults(), ids=lambda fault: fault.name)
def test_every_fault_has_its_place_in_the_code_and_its_tests_are_there(fault: Fault) -> None:
    ast.parse(fault.broken((ROOT / fault.file).read_text(encoding="utf-8")))
    assert fault.before != fault.after
    assert 1 <= len(fault.tests) <= 3
    for test in fault.tests:
        file, _, name = test.partition("::")
        assert not name or f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")
