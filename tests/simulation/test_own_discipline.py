"""docs/simulate/schedulers.md has a discipline that a reader can copy, and it does what the page says."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.simulation.oracle import workload_of

from gleaner.control.simulation.model import of_processors
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import PrioritySettings, SchedulerKind, SchedulerSettings

PAGE = Path(__file__).parents[2] / "docs" / "simulate" / "schedulers.md"


def example(folder: Path) -> Any:
    found = re.search(r"<!-- shortest job first -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    code = found.group(1)
    assert len(code.splitlines()) <= 60
    (folder / "shortest.py").write_text(code)
    spec = importlib.util.spec_from_file_location("shortest", folder / "shortest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_page_s_own_discipline_is_the_shortest_job_first(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    limit_s = random.integers(1, 60, 300)
    rows = zip(np.sort(random.integers(0, 2000, 300)), limit_s // 2, limit_s, random.integers(1, 9, 300), strict=True)
    workload, machine = workload_of(rows), of_processors(8)
    by_limit = SchedulerSettings(kind=SchedulerKind.PRIORITY, priority=PrioritySettings(per_second=0, per_limit_s=-1))
    schedule = example(tmp_path).replay(workload, machine)
    assert schedule.start_s.tolist() == replay(workload, machine, by_limit).start_s.tolist()
    assert schedule.wait_s.max() > 0
