"""Start or restore a job, after checking that it can run on this node and making its folder and its container."""

from collections.abc import Callable
from pathlib import Path

from gleaner.agent.checkpoints import workdir_tar
from gleaner.agent.checkpoints.interface import ArchiveBroken, StorageError
from gleaner.agent.job import lifecycle
from gleaner.agent.job.context import AgentContext
from gleaner.agent.job.inputs import NotStaged
from gleaner.agent.job.job_checkpoints import JobCheckpoints
from gleaner.agent.messages import Assignment, ReturnReason, Way
from gleaner.agent.privileged.common import mount_folders
from gleaner.agent.runtime.images import ensure_image
from gleaner.agent.runtime.interface import (
    FOLDER_IN_CONTAINER,
    LABEL_AGENT,
    LABEL_ATTEMPT,
    LABEL_END,
    LABEL_JOB,
    LABEL_SLURM_JOB,
    CannotRestore,
    ContainerSpec,
    ImageMissing,
    ImageRefused,
    MountMissing,
    NoRoom,
    Runtime,
    RuntimeFault,
)
from gleaner.agent.system import image_names
from gleaner.agent.system.listed_folders import FolderRefused

_WHY_LACKING = {
    ImageMissing: ReturnReason.IMAGE_MISSING,
    ImageRefused: ReturnReason.IMAGE_REFUSED,
    MountMissing: ReturnReason.MOUNT_MISSING,
}


def settle_inputs(
    context: AgentContext, assignment: Assignment, checkpoints: JobCheckpoints
) -> Assignment | lifecycle.NotStarted:
    """Return the assignment with all its inputs in the storage, after fetching those from URLs. Blocks.

    Nothing is fetched for a job that cannot run here anyway.
    """
    if len(assignment.stored_inputs) == len(assignment.inputs):
        return assignment
    if refused := refuse(context, assignment):
        return refused
    try:
        if missing := checkpoints.missing_here(checkpoints.open()):
            return lifecycle.NotStarted(ReturnReason.INCOMPATIBLE, missing)
        return context.url_inputs.settle(assignment, checkpoints.stop_waiting)
    except NotStaged as error:
        return lifecycle.NotStarted(error.why, str(error))
    except ArchiveBroken as error:
        return lifecycle.NotStarted(ReturnReason.CHECKPOINT_BROKEN, str(error))
    except StorageError as error:
        return lifecycle.NotStarted(ReturnReason.STORAGE_FAULT, str(error))
    except OSError as error:
        return lifecycle.NotStarted(ReturnReason.NODE_FAULT, str(error))


def refuse(context: AgentContext, assignment: Assignment) -> lifecycle.NotStarted | None:
    """Return why the job cannot run on this node, as far as a quick check shows; None if no reason is found."""
    if reason := refusal(context, assignment):
        return lifecycle.NotStarted(ReturnReason.IMAGE_REFUSED, reason)
    if lacking := missing_mount(context, assignment):
        return lifecycle.NotStarted(ReturnReason.MOUNT_MISSING, lacking)
    if not context.can_save and assignment.spec.saves_itself is None:
        return lifecycle.NotStarted(ReturnReason.INCOMPATIBLE, "this node cannot save the memory of a job")
    return None


def launch_job(
    context: AgentContext,
    assignment: Assignment,
    checkpoints: JobCheckpoints,
    restoring: Callable[[], None] = lambda: None,
) -> lifecycle.Started | lifecycle.NotStarted:
    """Start a job that control has assigned, or restore it from its checkpoint. Blocks. See `start_or_restore`."""
    if refused := refuse(context, assignment):
        return refused
    anew = way_to_restore(context, assignment) is Way.SELF
    if (failure := _ensure_image(context, assignment)) is not None:
        return failure
    inputs, stop = context.inputs, checkpoints.stop_waiting

    return start_or_restore(
        context.runtime,
        spec_of(context, assignment, checkpoints),
        checkpoints,
        anew=anew,
        restoring=restoring,
        stage=lambda: inputs.stage(assignment, stop),
        fill=lambda folder: inputs.copy(assignment, folder, stop),
    )


def refusal(context: AgentContext, assignment: Assignment) -> str:
    """Return one line with the reason why the job's image is not allowed to run here, or "" if it is."""
    if assignment.image_digest is None:
        return image_names.refusal(assignment.image, context.images_allowed)
    if context.images_pushed:
        return ""
    name = assignment.spec.image
    return f"the image {name} may not run here: images_pushed in the settings of the agents says that none does"


def missing_mount(context: AgentContext, assignment: Assignment) -> str:
    """Return one line that begins with a folder that the job mounts and this node lacks; "" if no folder is missing."""
    for path in assignment.spec.mounts:
        if path not in context.facts.mounts:
            return f"{path}: it is not among the mounts of {context.facts.node}"
        try:
            mount_folders.check(path)
        except FolderRefused as error:
            return f"{error} ({context.facts.node})"
    return ""


def _ensure_image(context: AgentContext, assignment: Assignment) -> lifecycle.NotStarted | None:
    """Load the job's image onto the node if the job's group has pushed it. Return the failure, if any."""
    if assignment.image_digest is None:
        return None
    lock = context.work / "pushed-images.lock"
    try:
        ensure_image(
            context.runtime,
            context.storage,
            assignment.image,
            assignment.image_digest,
            lock=lock,
            limit_bytes=context.images_limit_bytes,
        )
    except ImageMissing as error:
        return lifecycle.NotStarted(ReturnReason.IMAGE_MISSING, f"{assignment.spec.image}: {error}")
    except ImageRefused as error:
        return lifecycle.NotStarted(ReturnReason.IMAGE_REFUSED, f"{assignment.spec.image}: {error}")
    except NoRoom as error:
        return lifecycle.NotStarted(ReturnReason.NODE_LACKS, f"{assignment.spec.image}: {error}")
    except StorageError as error:
        return lifecycle.NotStarted(ReturnReason.STORAGE_FAULT, str(error))
    except (RuntimeFault, OSError) as error:
        return lifecycle.NotStarted(ReturnReason.NODE_FAULT, str(error))
    return None


def start_or_restore(
    runtime: Runtime,
    spec: ContainerSpec,
    checkpoints: JobCheckpoints,
    *,
    anew: bool = False,
    restoring: Callable[[], None] = lambda: None,
    stage: Callable[[], None] | None = None,
    fill: Callable[[Path], None] | None = None,
) -> lifecycle.Started | lifecycle.NotStarted:
    """Start or restore the container, and return the event.

    With `anew` the command is started again in the folder from the checkpoint, and no memory is restored.

    Nothing on the node is changed before it is clear that the job can run here. `stage` brings the job's inputs, and
    `fill` puts files into the folder of a new job. `restoring` is called when everything else is ready and the restore
    begins.
    """
    try:
        archive = checkpoints.open()
        if missing := checkpoints.missing_here(archive):
            return lifecycle.NotStarted(ReturnReason.INCOMPATIBLE, missing)
        if stage is not None:
            stage()
        checkpoints.folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        workdir_tar.clear(checkpoints.folder)
        if archive is None:
            if fill is not None:
                fill(checkpoints.folder)
            return lifecycle.Started(runtime.start(spec))
        image_id = archive.facts.get("image_id")
        if not anew and isinstance(image_id, str) and not runtime.has_image(image_id):
            runtime.pull_image(spec)
        restoring()
        checkpoints.unpack(archive)
        return lifecycle.Started(runtime.start(spec) if anew else runtime.restore(spec, archive))
    except (ImageMissing, ImageRefused, MountMissing) as error:
        return lifecycle.NotStarted(_WHY_LACKING[type(error)], str(error))
    except (NotStaged, CannotRestore) as error:
        return lifecycle.NotStarted(error.why, str(error))
    except ArchiveBroken as error:
        return lifecycle.NotStarted(ReturnReason.CHECKPOINT_BROKEN, str(error))
    except StorageError as error:
        return lifecycle.NotStarted(ReturnReason.STORAGE_FAULT, str(error))
    except (RuntimeFault, OSError) as error:
        return lifecycle.NotStarted(ReturnReason.NODE_FAULT, str(error))


def way_to_restore(context: AgentContext, assignment: Assignment) -> Way | None:
    """Return how the job is restored from its checkpoint; None if it has none."""
    if assignment.checkpoint is None:
        return None
    return context.way if assignment.checkpoint.has_memory else Way.SELF


def spec_of(context: AgentContext, assignment: Assignment, checkpoints: JobCheckpoints) -> ContainerSpec:
    """Return the container that the job needs."""
    return ContainerSpec(
        name=f"gleaner-{assignment.job}-{assignment.attempt}",
        image=assignment.image,
        command=assignment.spec.command,
        environment={"HOME": FOLDER_IN_CONTAINER, **assignment.spec.environment},
        cpus=assignment.spec.cpus,
        memory_mib=assignment.memory_mib,
        folder=checkpoints.folder,
        labels={
            LABEL_JOB: str(assignment.job),
            LABEL_ATTEMPT: str(assignment.attempt),
            LABEL_AGENT: context.agent,
            LABEL_SLURM_JOB: context.slurm_job or "",
            LABEL_END: str(int(context.end_s())),
        },
        disk_mib=context.limits.mib_of(assignment.spec.disk_mib),
        inputs=context.inputs.folder(assignment),
        mounts=assignment.spec.mounts,
    )
