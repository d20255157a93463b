"""Patterns that say which files of a job's folder are kept."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.agent.system.keep_patterns import LONGEST, Keep, fault

names = st.text("ab.", min_size=1, max_size=3).filter(lambda name: name not in {".", ".."})
paths = st.lists(names, min_size=1, max_size=4)
steps = st.text("ab.*?", min_size=1, max_size=3).filter(lambda step: "**" not in step and step not in {".", ".."})
patterns = st.lists(steps | st.just("**"), min_size=1, max_size=4).map("/".join)


def oracle(pattern: str, path: str) -> bool:
    """The rules as one expression over the whole path: backtracking, and so slow for what is hostile."""
    said = re.sub(r"(^|/)\*\*$", r"\1*", pattern)
    letters = {"*": "[^/]*", "?": "[^/]"}
    found: list[str] = re.findall(r"[^/]+/?", said)
    whole = "".join(
        r"(?:[^/]+/)*" if step == "**/" else "".join(letters.get(each) or re.escape(each) for each in step)
        for step in found
    )
    return re.fullmatch(f"{whole}(?:/.*)?", path) is not None


@given(pattern=patterns, path=paths)
def test_a_pattern_keeps_what_its_rules_say(pattern: str, path: list[str]) -> None:
    assert fault(pattern) == ""
    assert Keep([pattern])(path) == oracle(pattern, "/".join(path))


@pytest.mark.parametrize(
    ("pattern", "kept", "not_kept"),
    [
        ("*.root", ["a.root", ".root"], ["a.root.tmp", "deep/a.root", "A.ROOT"]),
        ("**/*.root", ["a.root", "deep/er/a.root"], ["deep/a.txt"]),
        ("hist/**", ["hist/a", "hist/b/c"], ["hist", "other/hist/a"]),
        ("hist", ["hist", "hist/a", "hist/b/c"], ["hist2", "a/hist"]),
        ("hist/", ["hist/a"], ["hist2"]),
        ("run-[0-9].log", ["run-7.log"], ["run-x.log", "run-77.log"]),
        ("*", [".hidden", "a/b/c"], []),
        ("a/**/z", ["a/z", "a/b/c/z", "a/b/z/y"], ["a/b", "z"]),
    ],
)
def test_patterns_that_people_write(pattern: str, kept: list[str], not_kept: list[str]) -> None:
    assert [path for path in kept if not Keep([pattern])(path.split("/"))] == []
    assert [path for path in not_kept if Keep([pattern])(path.split("/"))] == []


def test_a_pattern_that_fits_no_file_is_remembered_although_another_has_kept_all() -> None:
    keep = Keep(["*.root", "*.log", "**", "hist/*"])
    assert [keep(["a.root"]), keep(["b.txt"])] == [True, True]
    assert keep.unmatched == ("*.log", "hist/*")


@pytest.mark.parametrize(
    "pattern",
    ["", "/job/a", "../a", "a/../b", "./a", "a//b", "a**", "**.root", "a\0b", "a\nb", "a" * (LONGEST + 1)],
)
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    assert fault(pattern)


@given(written=st.text() | st.text("*?[]!/a.-"), path=st.lists(st.text("a*[]\udcff\n", min_size=1), min_size=1))
def test_whatever_passes_can_be_asked_about_every_name(written: str, path: list[str]) -> None:
    if not fault(written):
        Keep([written])(path)


@pytest.mark.parametrize("pattern", ["/".join(["**"] * 80), "**/" * 60 + "a", "*a" * 100 + "b"])
def test_a_hostile_pattern_takes_no_longer_than_its_length_says(pattern: str) -> None:
    """A matcher that tries one way after the other would not come back."""
    deep: list[Any] = ["a" * 255] * 60
    assert fault(pattern) == ""
    Keep([pattern])(deep)
