"""The report as a file: nothing from outside, nothing that a trace could smuggle in, ticks that can be read."""

import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.simulation.made import busy
from tests.simulation.pages import NASTY, everything

from gleaner.control.simulation.machine import Machine, of_nodes, of_processors
from gleaner.control.simulation.metrics.measures import default_window
from gleaner.control.simulation.metrics.tables import Table
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.report import html, write
from gleaner.control.simulation.report.axes import Scale, scale, tick_step, ticks
from gleaner.control.simulation.report.gantt import draw_gantt
from gleaner.control.simulation.report.page import Axis, Gantt, Page, Section, Text, Unit
from gleaner.control.simulation.report.run_page import comparison_page, run_page
from gleaner.control.simulation.report.who_had_what import gantt_parts
from gleaner.control.simulation.run import Ground, cases, run_all
from gleaner.control.simulation.scenario import Option, read_scenario
from gleaner.control.simulation.settings import Discipline, SchedulerSettings
from gleaner.control.simulation.workload import Cleaning

WIDTH = 880
AGENTS = (Option(("agents", "length_s"), "--agents", 3600.0), Option(("agents", "save"), "--save", {"constant_s": 60}))


def pages(machine: Machine) -> tuple[Page, Page]:
    """Of one run with agents, and of two schedulers with two lengths."""
    scenario = read_scenario(None, AGENTS)
    workload = busy(jobs=120, days=6, processors=machine.units)
    ground = Ground(workload, machine, Cleaning(120), ())
    outcomes = run_all(cases(scenario, (Discipline.FCFS, Discipline.EASY), (1800.0, 3600.0)), ground)
    return run_page(outcomes[-1], ground), comparison_page(outcomes, ground)


def pictures(text: str) -> list[ET.Element]:
    return [ET.fromstring(found) for found in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]


def test_the_same_page_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, everything())
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_nothing_comes_from_outside() -> None:
    for page in (everything("plain"), *pages(of_processors(16))):
        text = html(page)
        assert re.findall(r"(?i)https?:|//\w|@import|url\(", text) == []
        assert set(re.findall(r'(?:src|href)="([^"]*)"', text)) == {"data:,"}


def test_what_a_trace_says_is_text_and_nothing_else() -> None:
    text = html(everything())
    assert NASTY not in text
    assert text.count("<script>") == 1
    assert "<img" not in text


@pytest.mark.parametrize("machine", [of_processors(16), of_nodes(8, 2)], ids=["pool", "nodes"])
def test_every_picture_is_well_formed_and_inside_its_frame(machine: Machine) -> None:
    for page in pages(machine):
        found = pictures(html(page))
        assert len(found) >= 4
        for picture in found:
            _, _, width, height = (float(number) for number in picture.attrib["viewBox"].split())
            assert width == WIDTH
            for box in picture.iter("rect"):
                x, y = float(box.attrib["x"]), float(box.attrib["y"])
                assert 0 <= x <= x + float(box.attrib["width"]) <= width + 0.5
                assert 0 <= y <= y + float(box.attrib["height"]) <= height + 0.5


def test_no_two_blocks_of_a_gantt_chart_overlap() -> None:
    page, _ = pages(of_processors(16))
    chart = next(part for section in page.sections for part in section.parts if isinstance(part, Gantt))
    assert len(chart.blocks) > 10
    used: dict[int, list[tuple[float, float]]] = {}
    for block in chart.blocks:
        for row in range(block.first, block.last + 1):
            used.setdefault(row, []).append((block.start, block.end))
    for spans in used.values():
        spans.sort()
        assert all(before[1] <= after[0] + 1e-6 for before, after in pairwise(spans))


limits = st.floats(-1e9, 1e9, allow_nan=False).map(lambda value: round(value, 6))


@given(low=limits, size=st.floats(1e-6, 1e10), unit=st.sampled_from(list(Unit)))
def test_ticks_are_few_round_and_told_apart(low: float, size: float, unit: Unit) -> None:
    assume(size > 1e-3 * abs(low))  # figures of a report differ in their first digits
    axis = Axis("", unit, from_zero=False)
    along = scale(axis, [low, low + size], 0, 800)
    assert along.low <= low + 1e-8 * size
    assert along.high >= low + size * (1 - 1e-8)
    marks = ticks(axis, along, [])
    assert 2 <= len(marks) <= 13
    assert len({text for _, text in marks}) == len(marks)
    assert all(-1e-6 <= along(value) <= 800 + 1e-6 for value, _ in marks)


@given(size=st.floats(1e-6, 1e10), unit=st.sampled_from(list(Unit)))
def test_a_step_gives_a_handful_of_ticks(size: float, unit: Unit) -> None:
    assert 1 <= size / tick_step(0, size, unit) <= 5.001


@given(values=st.lists(st.floats(1, 1e8), min_size=1, max_size=20))
def test_a_logarithmic_scale_keeps_the_order(values: list[float]) -> None:
    along = scale(Axis("", Unit.SECONDS, logarithmic=True), values, 0, 800)
    assert isinstance(along, Scale)
    places = [along(value) for value in sorted(values)]
    assert bool(np.all(np.diff(places) >= 0))
    assert all(-1e-6 <= place <= 800 + 1e-6 for place in places)
    assert len(ticks(Axis("", Unit.SECONDS, logarithmic=True), along, values)) <= 10


@pytest.mark.parametrize(("columns", "found"), [(9, []), (10, ['<table class="dense">'])])
def test_a_table_of_many_columns_is_in_small_print(columns: int, found: list[str]) -> None:
    names = tuple(map(str, range(columns)))
    text = html(Page("", "", [Section("", [Table(names, (names,))])]))
    assert re.findall(r'<table class="\w+">', text) == found


def test_the_gantt_chart_says_which_part_of_the_schedule_it_is() -> None:
    workload, machine = busy(jobs=4000, days=60, processors=300), of_processors(300)
    schedule = replay(workload, machine, SchedulerSettings())
    text, chart = gantt_parts(schedule, default_window(schedule))
    assert isinstance(text, Text)
    assert isinstance(chart, Gantt)
    assert "on the first 256 of 300 processors: no more, so that single pieces of work can be told apart" in text.text
    assert len(chart.rows) == 256
    assert "processor</text>" in draw_gantt(chart)
    short = replay(workload.only(np.arange(3)), machine, SchedulerSettings())
    (whole, _) = gantt_parts(short, default_window(short))
    assert isinstance(whole, Text)
    assert "no more" not in whole.text
