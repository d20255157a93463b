"""From a trace to settings that the real programs read."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.simulation.made import busy

from gleaner.agent.settings import AgentSettings as LiveAgentSettings
from gleaner.control.cli.render import json_text
from gleaner.control.settings import Settings
from gleaner.control.simulation.errors import BadScenario
from gleaner.control.simulation.model import of_processors
from gleaner.control.simulation.report import html
from gleaner.control.simulation.settings import AgentQueueSettings, AgentSettings, CostSettings, SchedulerSettings
from gleaner.control.simulation.tuning.evidence import Setting, WaitLimit
from gleaner.control.simulation.tuning.output import (
    agent_settings,
    as_json,
    control_settings,
    lines,
    page,
    slurm_words,
    table,
)
from gleaner.control.simulation.tuning.recommendation import Recommendation
from gleaner.control.simulation.tuning.tune import Effort, Grid, Question, Tuning, tune

AGENTS = AgentSettings(save=CostSettings(constant_s=60), restore=CostSettings(constant_s=30))
GRID = Grid(lengths_s=(900.0, 1800.0, 3600.0), margins_s=(10.0, 60.0))
GONE = Setting(preemption=False, length_s=0, synchronised=False, margin_s=0)


def asked(grid: Grid = GRID, *, agents: AgentSettings = AGENTS, seeds: int | None = 3, level: float = 0.95) -> Question:
    return Question(WaitLimit(0.5), agents, grid, seeds=seeds, level=level)


RACE = asked(seeds=None)


def tuned(folder: Path, question: Question, *, workers: int = 1) -> Tuning:
    return tune(busy(), of_processors(16), SchedulerSettings(), question, Effort(folder, workers))


def recommended(folder: Path, setting: Setting) -> Tuning:
    found = tuned(folder, asked())
    return replace(found, recommendation=Recommendation(setting, ("Because of " + "many words " * 30 + ".",)))


def test_the_control_program_and_the_agents_read_what_is_recommended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting(preemption=True, length_s=1800.0, synchronised=False, margin_s=60.0)
    found = recommended(tmp_path, setting)
    for name in [name for name in os.environ if name.startswith("GLEANER_")]:
        monkeypatch.delenv(name)
    for name, text in (("gleaner.toml", control_settings(found)), ("agent.toml", agent_settings(found))):
        assert text is not None
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert max(len(line) for line in text.splitlines()) <= 120
    monkeypatch.setenv("GLEANER_SETTINGS", str(tmp_path / "gleaner.toml"))
    monkeypatch.setenv("GLEANER_AGENT_SETTINGS", str(tmp_path / "agent.toml"))
    rounds = Settings().rounds
    assert (rounds.length_s, rounds.synchronised, rounds.shortest_slice_s) == (1800, False, 180)
    assert LiveAgentSettings().margin_s == 60
    assert "GraceTime=180" in (slurm_words(found) or "")  # 60 s, times 1.33, and 60 s: less than three minutes


@pytest.mark.slow  # test_sweep has the same of the outcomes that this is made of
def test_one_worker_and_two_give_the_same_answer(tmp_path: Path) -> None:
    alone = tuned(tmp_path / "one", asked(), workers=1)
    together = tuned(tmp_path / "two", asked(), workers=2)
    assert json_text(as_json(alone)) == json_text(as_json(together))
    assert html(page(alone, "of a test", ())) == html(page(together, "of a test", ()))
    assert table(alone) == table(together)
    assert lines(alone) == lines(together)


def test_every_setting_is_tried_once_and_the_answer_has_its_evidence(tmp_path: Path) -> None:
    found = tuned(tmp_path, asked(Grid((3600.0, 900.0, 900.0), (True, False), (60.0, 10.0), preemption=True)))
    assert [one.evidence.setting for one in found.tried] == list(found.question.grid.settings)
    assert len(found.tried) == 8
    named = found.recommendation.setting or found.recommendation.nearest
    assert named in {one.evidence.setting for one in found.tried}


def test_the_race_ends_when_the_time_is_over_but_not_before_all_had_their_first_seeds(tmp_path: Path) -> None:
    found = tune(busy(), of_processors(16), SchedulerSettings(), RACE, Effort(tmp_path, 1, is_over=lambda: True))
    assert {len(one.evidence.waits_s) for one in found.tried} == {found.seeds} == {4}


def test_only_contenders_have_more_seeds_and_the_answer_is_one_of_them(tmp_path: Path) -> None:
    looked_at = 0

    def is_over_after_some_replays() -> bool:
        nonlocal looked_at
        looked_at += 1
        return looked_at > 40

    effort = Effort(tmp_path, 1, is_over=is_over_after_some_replays)
    found = tune(busy(), of_processors(16), SchedulerSettings(), RACE, effort)
    counts = {one.evidence.setting: len(one.evidence.waits_s) for one in found.tried}
    assert min(counts.values()) < max(counts.values()) == found.seeds
    assert counts[found.recommendation.setting or found.recommendation.nearest or GONE] == found.seeds
    value = as_json(found)
    assert [one["seeds"] for one in value["settings"]] == list(counts.values())  # type: ignore[attr-defined]
    assert "of the regular jobs start later than without agents, by" in "".join(lines(found))


def test_what_is_tried_beside_a_setting_does_not_change_its_evidence(tmp_path: Path) -> None:
    several = tuned(tmp_path, asked(Grid((3600.0,), (True,), (10.0, 60.0, 600.0))))
    alone = tuned(tmp_path, asked(Grid((3600.0,), (True,), (60.0,))))
    (evidence,) = (one.evidence for one in several.tried if one.evidence.setting.margin_s == 60)
    assert evidence == alone.tried[0].evidence
    assert len({one.evidence.effective_loads for one in several.tried}) == 3


def test_agents_that_would_compute_nothing_are_left_out_and_named(tmp_path: Path) -> None:
    found = tuned(tmp_path, asked(Grid((120.0, 3600.0), (True,), (10.0,))))
    assert [setting.length_s for setting in found.left_out] == [120.0]
    assert [one.evidence.setting.length_s for one in found.tried] == [3600.0]


@pytest.mark.slow
def test_a_limit_in_per_cent_of_no_wait_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadScenario, match="no regular job waits at all"):
        tune(busy(), of_processors(10**6), SchedulerSettings(), asked(), Effort(tmp_path, 1))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: asked(Grid(lengths_s=())), "at least one length"),
        (lambda: asked(Grid(lengths_s=(20.0,))), "control takes none below 30 s"),
        (lambda: asked(seeds=1), "at least two"),
        (lambda: asked(level=1.0), "between 0 and 1"),
        (lambda: replace(asked(), shortest_slice_s=1.0), "control takes none below 5 s"),
        (lambda: replace(asked(), save_spread=-0.1), "cannot be negative"),
        (
            lambda: asked(agents=AgentSettings(queue=AgentQueueSettings(jobs=5, work_s=60))),
            "endless low-priority queue",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(wrong: object, said: str) -> None:
    with pytest.raises(BadScenario, match=said):
        wrong()  # type: ignore[operator]


def test_lengths_that_saves_eat_up_are_refused(tmp_path: Path) -> None:
    slow = AgentSettings(save=CostSettings(constant_s=3000), restore=CostSettings(constant_s=3000))
    with pytest.raises(BadScenario, match="no agent would compute: the longest has 60 min"):
        tuned(tmp_path, asked(agents=slow))
