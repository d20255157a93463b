"""The report as a file: nothing from outside, nothing that a trace could smuggle in, ticks that can be read."""

import base64
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from tests.simulation.made import busy
from tests.simulation.pages import NASTY, everything

from gleaner.control.simulation.model import Cleaning, Machine, of_processors
from gleaner.control.simulation.report import html, write
from gleaner.control.simulation.report.page import Axis, Curve, Lines, Page, Unit
from gleaner.control.simulation.report.pictures import picture
from gleaner.control.simulation.report.run_page import comparison_page, run_page
from gleaner.control.simulation.run import Ground, cases, run_all
from gleaner.control.simulation.scenario import Option, read_scenario
from gleaner.control.simulation.settings import SchedulerKind

AGENTS = (Option(("agents", "length_s"), "--agents", 3600.0), Option(("agents", "save"), "--save", {"constant_s": 60}))


def pages(machine: Machine) -> tuple[Page, Page]:
    """Of one run with agents, and of two schedulers with two lengths."""
    scenario = read_scenario(None, AGENTS)
    workload = busy(jobs=120, days=6, processors=machine.units)
    ground = Ground(workload, machine, Cleaning(120), ())
    outcomes = run_all(cases(scenario, (SchedulerKind.FCFS, SchedulerKind.EASY), (1800.0, 3600.0)), ground)
    return run_page(outcomes[-1], ground), comparison_page(outcomes, ground)


def images(text: str) -> list[str]:
    found = re.findall(r'src="data:image/svg\+xml;base64,([^"]*)"', text)
    return [base64.b64decode(one).decode() for one in found]


def test_the_same_page_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, everything())
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.slow
def test_nothing_comes_from_outside() -> None:
    for page in (everything("plain"), *pages(of_processors(16))):
        text = html(page)
        assert re.findall(r"(?i)https?:|//\w|@import|url\(", re.sub('base64,[^"]*', "", text)) == []
        assert {one.partition(",")[0] for one in re.findall(r'(?:src|href)="([^"]*)"', text)} == {
            "data:",
            "data:image/svg+xml;base64",
        }
        for image in images(text):
            assert re.findall(r'(?:src|href)="([^#][^"]*)"', image) == []


def test_what_a_trace_says_is_text_and_nothing_else() -> None:
    text = html(everything())
    assert NASTY not in text
    assert "<script" not in text
    assert 'onerror="' not in text
    assert text.count("<img") == len(images(text)) == 2


def texts(image: str) -> set[str]:
    found = ET.fromstring(image).iter("{http://www.w3.org/2000/svg}text")
    return {"".join(one.itertext()).strip() for one in found}


NAME = "a $group$ of _one_ & <two>"
CURVES = [Curve(NAME, (900.0, 3600.0), (0.5, 0.7)), Curve("_hidden", (900.0,), (0.6,))]
LENGTH = Axis("length", Unit.SECONDS, logarithmic=True)


def test_a_picture_shows_names_as_they_are_and_its_axes_in_their_units() -> None:
    """A $ is no formula, and a name that begins with an underscore is in the legend as others are."""
    plot = Lines("", LENGTH, Axis("load", Unit.SHARE), CURVES, limits=[(0.65, NAME)])
    assert {NAME, "_hidden", "length", "load", "15 min", "1 h", "60 %"} - texts(picture(plot)) == set()


@pytest.mark.parametrize(
    ("length_s", "shown"),
    [(7200, {"1 h", "2 h"}), (5400, {"20 min", "80 min"}), (40, {"6 s", "36 s"}), (3640 * 86400, {"600 d", "3,600 d"})],
)
def test_times_are_marked_in_a_unit_in_which_they_are_round(length_s: float, shown: set[str]) -> None:
    plot = Lines("", Axis("time", Unit.SECONDS), Axis("jobs"), [Curve("", (0, length_s), (0, 1))], points=False)
    assert shown - texts(picture(plot)) == set()
