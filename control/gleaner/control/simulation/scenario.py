"""A scenario, which is read from a TOML file and options of the command line, checked, and turned into settings.

Options take precedence over the file. An error is one line that names the option, or the file, the line and the key.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, cast

from pydantic import Field, ValidationError, model_validator

from gleaner.control.input_errors import InputError, read_toml, table_complaint
from gleaner.control.simulation.model import Allocation, Machine, NodeClass, of_processors
from gleaner.control.simulation.settings import AgentSettings, SchedulerSettings, SettingsTable
from gleaner.control.simulation.workloads.cleaning import USUAL, Conventions
from gleaner.control.simulation.workloads.synthetic import Source, SyntheticSettings

Tables: TypeAlias = dict[str, dict[str, Any]]
JobClassName: TypeAlias = Literal["non-preemptible", "preemptible", "checkpointable"]

MOST = 10**9
"""The largest number of nodes, cores or processors."""


class WorkloadSettings(SettingsTable):
    """`[workload]`: the submitted jobs, and the time for which they are submitted."""

    trace: Path | None = None
    """A file in Standard Workload Format or from sacct. A relative path starts at the folder of the scenario file."""
    synthetic: SyntheticSettings | None = None
    """`[workload.synthetic]`: synthetic jobs. With `source = "drawn"`, they are drawn from the jobs of the trace."""
    job_class: JobClassName = "non-preemptible"
    """The class of the trace's jobs, which only omfs uses."""
    conventions: Conventions = USUAL
    """`[workload.conventions]`: the conventions by which the jobs of the trace are read."""
    until_s: float | None = Field(default=None, gt=0)
    """The time after the first submission at which the replay stops. With `keep_waiting`, it counts from the
    beginning."""
    keep_waiting: int = Field(default=0, ge=0, le=MOST)
    """The number of jobs that are kept waiting at all times, or 0 to submit jobs at their times in the trace."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.trace is None and self.conventions != USUAL:
            raise ValueError("conventions are for traces, and none is named")
        if self.synthetic is not None:
            draws = self.synthetic.source is Source.DRAWN
            if draws and self.trace is None:
                raise ValueError("synthetic.source is 'drawn', so it needs a trace whose jobs are drawn")
            if not draws and self.trace is not None:
                raise ValueError(f"both a trace and synthetic jobs ({self.synthetic.source.value}); give one of them")
            if self.job_class != "non-preemptible":
                raise ValueError("job_class is for traces; synthetic has shares: preemptible and checkpointable")
        return self


class ClassSettings(SettingsTable):
    """`[[machine.classes]]`: nodes that are alike."""

    nodes: int = Field(ge=1, le=MOST)
    cores: int = Field(default=1, ge=1, le=MOST)
    name: str = "all"
    speed: float = Field(default=1, gt=0)
    priority: int = Field(default=0, ge=-MOST, le=MOST)


class MachineSettings(SettingsTable):
    """`[machine]`: a pool of processors, or nodes. Without it, the trace's header gives the number of processors."""

    processors: int | None = Field(default=None, ge=1, le=MOST)
    nodes: int | None = Field(default=None, ge=1, le=MOST)
    cores: int | None = Field(default=None, ge=1, le=MOST)
    """The cores of each node, by default 1."""
    allocation: Allocation | None = None
    """The unit that jobs are given, by default whole nodes or, with `processors`, processors of the pool."""
    prefers_one: bool = False
    """True if, on shared nodes, a job goes to the first node that has room for all of it, and to several nodes only if
    there is none. By default a job is given the first free cores, wherever they are."""
    classes: tuple[ClassSettings, ...] = ()

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.processors is not None and (self.nodes or self.cores or self.classes):
            raise ValueError("processors is a pool without nodes; give it alone, or nodes and cores")
        if self.processors is not None and self.allocation not in {None, Allocation.PROCESSORS}:
            raise ValueError(f"allocation {self.allocation} needs nodes, and processors is a pool without them")
        if self.classes and (self.nodes or self.cores):
            raise ValueError("classes say how many nodes and cores there are; leave nodes and cores out")
        if self.prefers_one and self.allocation is not Allocation.CORES:
            raise ValueError("prefers_one is about shared nodes: it needs allocation = 'cores'")
        if self.nodes is None and not self.classes and (self.cores or self.allocation in _OF_NODES):
            raise ValueError("cores and allocation say nothing without nodes")
        return self

    @property
    def machine(self) -> Machine | None:
        """The machine that the settings describe, or None if they give no size."""
        if self.processors is not None:
            return of_processors(self.processors)
        allocation = self.allocation or Allocation.NODES
        if self.nodes is not None:
            return Machine((NodeClass(self.nodes, self.cores or 1),), allocation, self.prefers_one)
        if self.classes:
            kinds = (NodeClass(one.nodes, one.cores, one.name, one.speed, one.priority) for one in self.classes)
            return Machine(tuple(kinds), allocation, self.prefers_one)
        return None


_OF_NODES = {Allocation.NODES, Allocation.CORES}


class MeasureSettings(SettingsTable):
    """`[measure]`: the window in which node time is measured and jobs are counted."""

    begin_s: float | None = Field(default=None, ge=0)
    """The time from the first submission to the beginning of the window, by default 0."""
    end_s: float | None = Field(default=None, gt=0)
    """The time from the first submission to the end of the window, by default the last submission."""

    @model_validator(mode="after")
    def _has_a_length(self) -> Self:
        if self.begin_s is not None and self.end_s is not None and self.end_s <= self.begin_s:
            raise ValueError("end_s must be after begin_s")
        return self


class Scenario(SettingsTable):
    """All tables of a scenario file."""

    workload: WorkloadSettings = WorkloadSettings()
    machine: MachineSettings = MachineSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    agents: AgentSettings | None = None
    measure: MeasureSettings = MeasureSettings()

    @model_validator(mode="after")
    def _agents_compute(self) -> Self:
        if self.agents is not None:
            agents = self.agents
            costs_s = agents.save.constant_s + agents.restore.constant_s + agents.margin_s
            if costs_s >= agents.length_s:
                raise ValueError(
                    f"agents would compute nothing: save, restore and margin take {costs_s:g} s "
                    f"of their {agents.length_s:g} s"
                )
        return self


@dataclass(frozen=True, slots=True)
class Option:
    """A value from the command line, with the key that it sets, and the name by which the user knows it."""

    key: tuple[str, ...]
    name: str
    value: object


def read_scenario(path: Path | None, options: Sequence[Option]) -> Scenario:
    """Return the settings of a file, or the defaults for None, with the options applied on top.

    Raise `InputError` if a value is wrong, or if an option needs another one.
    """
    file = read_toml(path, missing="no such scenario file")
    tables = file.tables
    if "agents" not in tables:
        _of_agents(options)
    origins: dict[tuple[str, ...], str] = {}
    _forget_the_other_machine(tables, options)
    for option in options:
        _put(tables, option.key, option.value)
        origins[option.key] = option.name
    _shorten_the_slice(tables)
    try:
        settings = Scenario.model_validate(tables)
    except ValidationError as error:
        first = error.errors()[0]
        key = tuple(str(part) for part in first["loc"])
        place = "" if path is None or key in origins else file.place(key)
        raise InputError(table_complaint(Scenario, first, place=place, option=origins.get(key, ""))) from None
    return settings if ("workload", "trace") in origins else _beside(settings, path)


def _put(tables: Tables, key: tuple[str, ...], value: object) -> None:
    inner: dict[str, Any] = tables
    for name in key[:-1]:
        below = inner.setdefault(name, {})
        if not isinstance(below, dict):  # validation will name the option that put a table there
            below = inner[name] = {}
        inner = cast("dict[str, Any]", below)
    inner[key[-1]] = value


def _of_agents(options: Sequence[Option]) -> None:
    """Raise `InputError` if options describe agents but none of them enables agents."""
    own = [option for option in options if option.key[0] == "agents"]
    if own and all(option.key != ("agents", "length_s") for option in own):
        raise InputError(f"{own[0].name} is about agents: give --agents LENGTH too, or [agents] in a scenario file")


def _forget_the_other_machine(tables: Tables, options: Sequence[Option]) -> None:
    """Remove the file's whole machine if options describe another one, so that the two are not mixed."""
    given = {option.key[-1] for option in options if option.key[0] == "machine"}
    if given & {"processors", "nodes"} and isinstance(tables.get("machine"), dict):
        tables["machine"] = {}


def _shorten_the_slice(tables: Tables) -> None:
    """Lower the default of the shortest slice to the length of the agents, if they are shorter."""
    agents = tables.get("agents")
    if not isinstance(agents, dict):
        return
    length_s = agents.get("length_s")
    if isinstance(length_s, int | float) and length_s > 0:
        default_s = cast("float", AgentSettings.model_fields["shortest_slice_s"].default)
        agents.setdefault("shortest_slice_s", min(default_s, length_s))


def _beside(settings: Scenario, path: Path | None) -> Scenario:
    trace = settings.workload.trace
    if path is None or trace is None or trace.is_absolute():
        return settings
    return settings.model_copy(update={"workload": settings.workload.model_copy(update={"trace": path.parent / trace})})
