"""Scenario files and options become settings, or one line that says what is wrong."""

from pathlib import Path

import numpy as np
import pytest

from gleaner.control.cli.simulate_options import seconds
from gleaner.control.input_errors import InputError
from gleaner.control.simulation.errors import BadScenario
from gleaner.control.simulation.model import Allocation, Machine, NodeClass, of_processors
from gleaner.control.simulation.run import machine_name, prepare, run
from gleaner.control.simulation.scenario import Option, Scenario, read_scenario
from gleaner.control.simulation.settings import SchedulerKind

WHOLE = """
[workload]
trace = "jobs.swf"

[machine]
nodes = 64
cores = 16
allocation = "cores"

[scheduler]
kind = "sfs"

[scheduler.sfs]
targets = { alice = 40 }

[agents]
length_s = 1800
save = { constant_s = 20, shared_mib_s = 5000 }

[measure]
begin_s = 86400
"""


def read(folder: Path, text: str, *options: Option) -> Scenario:
    path = folder / "scenario.toml"
    path.write_text(text)
    return read_scenario(path, options)


def refusal(folder: Path, text: str, *options: Option) -> str:
    """The line, with the file's folder left out."""
    with pytest.raises((InputError, BadScenario)) as refused:
        read(folder, text, *options)
    said = str(refused.value)
    assert "\n" not in said
    return said.replace(f"{folder}/", "")


def option(key: str, value: object) -> Option:
    return Option(tuple(key.split(".")), f"--{key.rsplit('.', maxsplit=1)[-1]}", value)


def test_a_whole_scenario_is_read_and_its_trace_stands_beside_it(tmp_path: Path) -> None:
    found = read(tmp_path, WHOLE)
    assert found.workload.trace == tmp_path / "jobs.swf"
    assert found.machine.machine == Machine((NodeClass(64, 16),), Allocation.CORES)
    assert (found.scheduler.kind, found.scheduler.sfs.targets) == (SchedulerKind.SFS, {"alice": 40})
    assert found.agents is not None
    assert found.agents.save.seconds(10_000, at_once=5) == 30
    assert found.measure.begin_s == 86400


def test_nothing_at_all_is_easy_without_agents() -> None:
    found = read_scenario(None, ())
    assert (found.scheduler.kind, found.agents, found.machine.machine) == (SchedulerKind.EASY, None, None)


def test_options_win_over_the_file(tmp_path: Path) -> None:
    options = (
        option("scheduler.kind", "fcfs"),
        option("agents.length_s", 900.0),
        option("agents.save.constant_s", 5.0),
    )
    found = read(tmp_path, WHOLE, *options)
    assert found.scheduler.kind is SchedulerKind.FCFS
    assert found.agents is not None
    assert (found.agents.length_s, found.agents.save.constant_s, found.agents.save.shared_mib_s) == (900, 5, 5000)


def test_a_machine_given_by_options_replaces_the_files(tmp_path: Path) -> None:
    assert read(tmp_path, WHOLE, option("machine.processors", 128)).machine.machine == of_processors(128)


def test_a_trace_named_on_the_command_line_stands_where_the_user_is(tmp_path: Path) -> None:
    assert read(tmp_path, WHOLE, option("workload.trace", Path("mine.swf"))).workload.trace == Path("mine.swf")


def test_the_shortest_slice_is_no_longer_than_the_agents(tmp_path: Path) -> None:
    found = read(tmp_path, "", option("agents.length_s", 300.0))
    assert found.agents is not None
    assert found.agents.shortest_slice_s == 300


def test_classes_of_nodes_are_a_machine(tmp_path: Path) -> None:
    text = """
    [[machine.classes]]
    nodes = 6
    cores = 16
    [[machine.classes]]
    nodes = 2
    cores = 32
    speed = 2.0
    name = "new"
    priority = 1
    """
    machine = read(tmp_path, text).machine.machine
    assert machine is not None
    assert machine == Machine((NodeClass(6, 16), NodeClass(2, 32, "new", 2.0, 1)))
    assert machine_name(machine) == "8 nodes, 160 cores, whole nodes"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[machine]\ncores = 4", "line 1: [machine]: cores and allocation say nothing without nodes"),
        ("[agents]\nlength_s = 60\nsave.constant_s = 60", "agents would compute nothing: "),
        (
            "[scheduler.omfs.percent]\natlas = 60\nbelle = 60",
            "line 1: [scheduler] omfs: entitlements are 120 % in sum; they go from 0 to 100",
        ),
        ("[workload.synthetic]\nsource = 'drawn'", "so it needs a trace whose jobs are drawn"),
        ("[workload]\ntrace = 'x'\n[workload.synthetic]\njobs = 5", "both a trace and synthetic jobs (distributions)"),
        ("[workload.synthetic]\njobs = 1000000000", "line 2: [workload] synthetic.jobs must be at most 100000000"),
        ("[agents]\nlength_s = inf", "line 2: [agents] length_s must be a finite number, found inf"),
        ("[agents]\nagents_at_most = 10000000000", "[agents] agents_at_most must be at most 1000000000, found 1000"),
        ("[agents.queue]\nwork_s = nan", "line 2: [agents] queue.work_s must be a finite number, found nan"),
        ("[scheduler.priority]\nper_unit = nan", "line 2: [scheduler] priority.per_unit must be a finite number"),
        (
            "[workload.synthetic]\nsizes = { kind = 'unifrom' }",
            "line 2: [workload] synthetic.sizes: kind must be one of 'constant', 'exponential', 'lognormal', "
            "'uniform', found 'unifrom'",
        ),
        (
            "[workload]\nconventions.size = 'given'",
            "line 2: [workload] conventions.size must be 'requested' or 'allocated', found 'given'",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_named_with_its_line(tmp_path: Path, text: str, expected: str) -> None:
    said = refusal(tmp_path, text)
    assert said.startswith("scenario.toml")
    assert expected in said


def test_a_wrong_option_is_called_what_the_user_called_it(tmp_path: Path) -> None:
    assert refusal(tmp_path, WHOLE, option("machine.nodes", 0)) == "--nodes must be at least 1, found 0"


def test_costs_without_agents_are_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, "", option("agents.margin_s", 5.0)).startswith("--margin_s is about agents: give --agents")


def test_a_scenario_file_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match=r"nowhere\.toml: no such scenario file"):
        read_scenario(Path("nowhere.toml"), ())


def test_synthetic_jobs_need_a_machine_and_no_trace(tmp_path: Path) -> None:
    text = "[workload.synthetic]\njobs = 50\nload = 0.8\nseed = 3\n"
    with pytest.raises(BadScenario, match="synthetic jobs need a machine"):
        prepare(read(tmp_path, text))
    ground = prepare(read(tmp_path, text + "[machine]\nprocessors = 32"))
    assert (len(ground.workload), ground.machine.units) == (50, 32)


@pytest.mark.parametrize("text", ["", "x", "5 m", "-5", "5y", "m", "1e3"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a time such as"):
        seconds(text)


@pytest.mark.parametrize(("keep_waiting", "started_s"), [(0, [86_400.0, 86_410.0]), (1, [0.0, 10.0])])
def test_the_replay_stops_at_a_time_after_its_begin(tmp_path: Path, keep_waiting: int, started_s: list[float]) -> None:
    lines = [f"{job} {86_400 + 10 * job} -1 10 1 -1 -1 1 10 -1 1 1 1 -1 -1 -1 -1 -1\n" for job in range(4)]
    (tmp_path / "jobs.swf").write_text("; MaxProcs: 1\n" + "".join(lines))
    scenario = read(tmp_path, f"[workload]\ntrace = 'jobs.swf'\nuntil_s = 20\nkeep_waiting = {keep_waiting}\n")
    start_s = run(scenario, prepare(scenario), label="").schedule.start_s
    assert start_s[~np.isnan(start_s)].tolist() == started_s
