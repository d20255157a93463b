"""How a job begins on its node: what is looked at before anything is touched, then its folder and its container."""

from collections.abc import Callable
from pathlib import Path

from gleaner.agent import folder, task
from gleaner.agent.bench import Bench
from gleaner.agent.protocol import Assignment, Way, Why
from gleaner.agent.runtime import allowed
from gleaner.agent.runtime.protocol import (
    LABEL_AGENT,
    LABEL_ATTEMPT,
    LABEL_END,
    LABEL_JOB,
    LABEL_SLURM_JOB,
    CannotRestore,
    CannotStart,
    ContainerSpec,
    ImageMissing,
    ImageRefused,
    Runtime,
    RuntimeFault,
)
from gleaner.agent.storage.protocol import ParcelBroken, StorageError
from gleaner.agent.stored import Stored


def begin(bench: Bench, given: Assignment, stored: Stored) -> task.Started | task.NotStarted:
    """Start the job, or let it go on from its generation. Blocks."""
    if may_not := allowed.refusal(given.image, bench.images_allowed):
        return task.NotStarted(Why.IMAGE_REFUSED, may_not)
    if not bench.can_save and given.saves_itself is None:
        return task.NotStarted(Why.INCOMPATIBLE, "this node cannot save the memory of a job")
    anew = way_of(bench, given) is Way.SELF
    return begun(bench.runtime, spec_of(bench, given, stored), stored, anew=anew)


def begun(
    runtime: Runtime,
    spec: ContainerSpec,
    stored: Stored,
    *,
    anew: bool = False,
    fill: Callable[[Path], None] | None = None,
) -> task.Started | task.NotStarted:
    """The container, started or restored. `anew`: its command is started again, also in the folder of a generation.

    Nothing of the node is touched before it is known that the job can go on here. `fill` puts into a new job's folder
    what it is to find there.
    """
    try:
        parcel = stored.open()
        if lacking := stored.lacking(parcel):
            return task.NotStarted(Why.INCOMPATIBLE, lacking)
        stored.folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        folder.clear(stored.folder)
        if parcel is None:
            if fill is not None:
                fill(stored.folder)
            return task.Started(runtime.start(spec))
        stored.unpack(parcel)
        return task.Started(runtime.start(spec) if anew else runtime.restore(spec, parcel))
    except ImageMissing as error:
        return task.NotStarted(Why.IMAGE_MISSING, str(error))
    except ImageRefused as error:
        return task.NotStarted(Why.IMAGE_REFUSED, str(error))
    except CannotStart as error:
        return task.NotStarted(None, str(error), error.exit_code)
    except ParcelBroken as error:
        return task.NotStarted(Why.GENERATION_BROKEN, str(error))
    except CannotRestore as error:
        return task.NotStarted(Why.CANNOT_RESTORE, str(error))
    except StorageError as error:
        return task.NotStarted(Why.STORAGE_FAULT, str(error))
    except (RuntimeFault, OSError) as error:
        return task.NotStarted(Why.NODE_FAULT, str(error))


def way_of(bench: Bench, given: Assignment) -> Way | None:
    """In which way the job goes on from its generation; None if it has none."""
    if given.generation is None:
        return None
    return bench.way if given.generation.has_memory else Way.SELF


def spec_of(bench: Bench, given: Assignment, stored: Stored) -> ContainerSpec:
    """The job's container."""
    return ContainerSpec(
        name=f"gleaner-{given.job}-{given.attempt}",
        image=given.image,
        command=given.command,
        environment=given.environment,
        cpus=given.cpus,
        memory_mib=given.memory_mib,
        folder=stored.folder,
        labels={
            LABEL_JOB: str(given.job),
            LABEL_ATTEMPT: str(given.attempt),
            LABEL_AGENT: bench.agent,
            LABEL_SLURM_JOB: bench.slurm_job or "",
            LABEL_END: str(int(bench.end_s())),
        },
        disk_mib=bench.limits.mib_per_job,
    )
