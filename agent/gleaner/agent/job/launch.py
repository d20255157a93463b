"""Start a job, or restore it: first look whether it can run on this node, then make its folder and its container."""

from collections.abc import Callable
from pathlib import Path

from gleaner.agent.checkpoints import workdir_tar
from gleaner.agent.checkpoints.interface import ArchiveBroken, StorageError
from gleaner.agent.job import lifecycle
from gleaner.agent.job.context import AgentContext
from gleaner.agent.job.job_checkpoints import JobCheckpoints
from gleaner.agent.messages import Assignment, ReturnReason, Way
from gleaner.agent.runtime import images
from gleaner.agent.runtime.interface import (
    FOLDER_IN_CONTAINER,
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


def begin(context: AgentContext, given: Assignment, stored: JobCheckpoints) -> lifecycle.Started | lifecycle.NotStarted:
    """Start a job that control has assigned, or restore it from its checkpoint. Blocks."""
    if may_not := refusal(context, given):
        return lifecycle.NotStarted(ReturnReason.IMAGE_REFUSED, may_not)
    if not context.can_save and given.saves_itself is None:
        return lifecycle.NotStarted(ReturnReason.INCOMPATIBLE, "this node cannot save the memory of a job")
    anew = way_of(context, given) is Way.SELF
    if (not_taken := _take_in(context, given)) is not None:
        return not_taken
    return begun(context.runtime, spec_of(context, given, stored), stored, anew=anew)


def refusal(context: AgentContext, given: Assignment) -> str:
    """Return one line that says why the job's image may not run here; "" if it may."""
    if given.pushed is None:
        return images.refusal(given.image, context.images_allowed)
    if context.images_pushed:
        return ""
    name = given.pushed.name
    return f"the image {name} may not run here: images_pushed in the settings of the agents says that none does"


def _take_in(context: AgentContext, given: Assignment) -> lifecycle.NotStarted | None:
    """Have the node take the job's image in, if the job's group has pushed it. Return what goes wrong."""
    if given.pushed is None:
        return None
    lock = context.work / "pushed-images.lock"
    try:
        images.ensure(context.runtime, context.storage, given.image, given.pushed.digest, lock=lock)
    except ImageMissing as error:
        return lifecycle.NotStarted(ReturnReason.IMAGE_MISSING, f"{given.pushed.name}: {error}")
    except ImageRefused as error:
        return lifecycle.NotStarted(ReturnReason.IMAGE_REFUSED, f"{given.pushed.name}: {error}")
    except StorageError as error:
        return lifecycle.NotStarted(ReturnReason.STORAGE_FAULT, str(error))
    except (RuntimeFault, OSError) as error:
        return lifecycle.NotStarted(ReturnReason.NODE_FAULT, str(error))
    return None


def begun(
    runtime: Runtime,
    spec: ContainerSpec,
    stored: JobCheckpoints,
    *,
    anew: bool = False,
    fill: Callable[[Path], None] | None = None,
) -> lifecycle.Started | lifecycle.NotStarted:
    """Start or restore the container; return the event. `anew`: start the command again, in a checkpoint's folder too.

    Nothing on the node is touched before it is known that the job can go on here. `fill` puts files into the folder of
    a new job.
    """
    try:
        archive = stored.open()
        if lacking := stored.lacking(archive):
            return lifecycle.NotStarted(ReturnReason.INCOMPATIBLE, lacking)
        stored.folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        workdir_tar.clear(stored.folder)
        if archive is None:
            if fill is not None:
                fill(stored.folder)
            return lifecycle.Started(runtime.start(spec))
        stored.unpack(archive)
        return lifecycle.Started(runtime.start(spec) if anew else runtime.restore(spec, archive))
    except ImageMissing as error:
        return lifecycle.NotStarted(ReturnReason.IMAGE_MISSING, str(error))
    except ImageRefused as error:
        return lifecycle.NotStarted(ReturnReason.IMAGE_REFUSED, str(error))
    except CannotStart as error:
        return lifecycle.NotStarted(None, str(error), error.exit_code)
    except ArchiveBroken as error:
        return lifecycle.NotStarted(ReturnReason.CHECKPOINT_BROKEN, str(error))
    except CannotRestore as error:
        return lifecycle.NotStarted(ReturnReason.CANNOT_RESTORE, str(error))
    except StorageError as error:
        return lifecycle.NotStarted(ReturnReason.STORAGE_FAULT, str(error))
    except (RuntimeFault, OSError) as error:
        return lifecycle.NotStarted(ReturnReason.NODE_FAULT, str(error))


def way_of(context: AgentContext, given: Assignment) -> Way | None:
    """Return the way in which the job goes on from its checkpoint; None if it has none."""
    if given.checkpoint is None:
        return None
    return context.way if given.checkpoint.has_memory else Way.SELF


def spec_of(context: AgentContext, given: Assignment, stored: JobCheckpoints) -> ContainerSpec:
    """Return the container that the job needs."""
    return ContainerSpec(
        name=f"gleaner-{given.job}-{given.attempt}",
        image=given.image,
        command=given.command,
        environment={"HOME": FOLDER_IN_CONTAINER, **given.environment},
        cpus=given.cpus,
        memory_mib=given.memory_mib,
        folder=stored.folder,
        labels={
            LABEL_JOB: str(given.job),
            LABEL_ATTEMPT: str(given.attempt),
            LABEL_AGENT: context.agent,
            LABEL_SLURM_JOB: context.slurm_job or "",
            LABEL_END: str(int(context.end_s())),
        },
        disk_mib=context.limits.mib_per_job,
    )
