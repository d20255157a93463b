"""Real logs with another simulator's waits, and the project's own trace with a checked answer."""

import numpy as np
import pytest
from tests.simulation import shipped
from tests.simulation.oracle import jobs_of, starts
from tests.simulation.traces import trace

from gleaner.control.simulation.model import of_processors
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import SchedulerKind, SchedulerSettings
from gleaner.control.simulation.workloads import traces

EASY = SchedulerSettings(kind=SchedulerKind.EASY)


@pytest.mark.parametrize(("log", "processors", "identical"), [("KTH-SP2", 100, 0.98), ("SDSC-SP2", 128, 0.95)])
def test_easy_gives_the_waits_that_another_simulator_gave(log: str, processors: int, identical: float) -> None:
    reference = traces.read(trace(f"{log}.pyssEASY.swf.gz"), processors=processors)
    wait_s = replay(reference.workload, of_processors(processors), EASY).wait_s
    assert len(wait_s) == reference.cleaning.read
    assert np.mean(wait_s) == pytest.approx(np.mean(reference.wait_s), rel=0.01)
    assert np.mean(wait_s == reference.wait_s) >= identical


def test_the_trace_that_the_project_ships_has_the_answer_of_the_readable_scheduler() -> None:
    shipped_trace = traces.read(shipped.PATH)
    answer_s = shipped_trace.wait_s.tolist()
    assert sum(wait_s > 0 for wait_s in answer_s) > 500
    workload = shipped_trace.workload
    assert replay(workload, of_processors(shipped.PROCESSORS), EASY).wait_s.tolist() == answer_s
    slow = np.array(starts("easy", jobs_of(workload), shipped.PROCESSORS)) - workload.submit_s
    assert slow.tolist() == answer_s
