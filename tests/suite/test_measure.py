"""No room of the code grows beyond its limit, and a room that has shrunk keeps no reserve."""

from collections import Counter

from tests.suite.measure import code_lines, faults, limits, measured

TEXT = '''"""A docstring
of two lines."""

class Room:  # a comment beside code
    """Another."""
    size: int = 0
    """Below a field."""

    # a comment
    name = """a string
that is code"""
'''


def test_every_room_keeps_to_its_limit() -> None:
    assert faults(measured().code_lines, limits()) == []


def test_comments_docstrings_and_empty_lines_are_no_code() -> None:
    assert code_lines(TEXT) == 4


def test_one_line_too_many_is_a_fault_and_so_is_a_reserve() -> None:
    budget = {"small": 100, "large": 10_000}
    assert faults(Counter(small=100, large=10_000), budget) == []
    assert faults(Counter(small=60, large=9_700), budget) == []
    assert [line.split(":")[0] for line in faults(Counter(small=101, large=10_001), budget)] == ["small", "large"]
    assert [line.split(":")[0] for line in faults(Counter(small=59, large=9_699), budget)] == ["small", "large"]
