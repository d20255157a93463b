"""Real logs with another simulator's waits, and the project's own trace with a checked answer."""

import numpy as np
import pytest
from tests.simulation import shipped
from tests.simulation.oracle import jobs_of, starts, starts_one_by_one
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


@pytest.mark.parametrize("jobs", [2000, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("log", "processors"), [("KTH-SP2", 100), ("SDSC-SP2", 128)])
def test_with_a_decision_for_each_end_all_waits_are_those_of_the_other_simulator(
    log: str, processors: int, jobs: int | None
) -> None:
    reference = traces.read(trace(f"{log}.pyssEASY.swf.gz"), processors=processors)
    workload = reference.workload.only(np.arange(jobs or len(reference.workload)))
    wait_s = np.array(starts_one_by_one("easy", jobs_of(workload), processors)) - workload.submit_s
    knows_all = (workload.submit_s + wait_s < workload.submit_s[-1]) | (jobs is None)  # later jobs may overtake others
    assert wait_s[knows_all].tolist() == reference.wait_s[: len(workload)][knows_all].tolist()


@pytest.mark.parametrize("log", ["RICC-2010-2", "Theta-2022"])
def test_other_real_logs_too_have_the_answer_of_the_readable_scheduler(log: str) -> None:
    read = traces.read(trace(f"{log}.swf.gz"))
    assert read.processors is not None
    workload = read.workload.only(np.arange(600))
    answer_s = replay(workload, of_processors(read.processors), EASY).start_s.tolist()
    assert answer_s == starts("easy", jobs_of(workload), read.processors)


@pytest.mark.slow
def test_a_real_log_is_scheduled_as_the_readable_scheduler_does() -> None:
    workload = traces.read(trace("KTH-SP2.pyssEASY.swf.gz"), processors=100).workload
    assert replay(workload, of_processors(100), EASY).start_s.tolist() == starts("easy", jobs_of(workload), 100)


def test_the_trace_that_the_project_ships_has_the_answer_of_the_readable_scheduler() -> None:
    shipped_trace = traces.read(shipped.PATH)
    answer_s = shipped_trace.wait_s.tolist()
    assert sum(wait_s > 0 for wait_s in answer_s) > 500
    workload = shipped_trace.workload
    assert replay(workload, of_processors(shipped.PROCESSORS), EASY).wait_s.tolist() == answer_s
    slow = np.array(starts("easy", jobs_of(workload), shipped.PROCESSORS)) - workload.submit_s
    assert slow.tolist() == answer_s
