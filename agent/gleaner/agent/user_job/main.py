"""The command `glean run IMAGE COMMAND...`, in a user's own Slurm job."""

import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from gleaner.agent.checkpoints.interface import StorageError
from gleaner.agent.common.clock import SystemClock
from gleaner.agent.common.quantities import memory_mib as parse_memory_mib
from gleaner.agent.job.job_checkpoints import JobCheckpoints
from gleaner.agent.job_spec import JobSpec
from gleaner.agent.messages import Assignment, NodeFacts
from gleaner.agent.node.facts import cannot_ask_passcred, internet_socket_warning, node_facts
from gleaner.agent.privileged.common import config
from gleaner.agent.privileged.common.slurm_job import JobHandle, SlurmJobRecord, Unknown, account_jobs, kill_wait_s
from gleaner.agent.runtime.helper_client import HelperClient, HelperRefusal
from gleaner.agent.runtime.helper_runtime import RuncRuntime
from gleaner.agent.runtime.interface import FOLDER_IN_CONTAINER, ContainerId, ContainerSpec, Runtime, RuntimeFault
from gleaner.agent.user_job.catalog import Catalog, deaf_file, program_of
from gleaner.agent.user_job.program import Signals, UserJob, listen_for_signals
from gleaner.agent.user_job.slurm_reporter import say
from gleaner.agent.user_job.when_to_save import SavePlan

WRONG = 2
"""The exit status if nothing was started, because of wrong options or because the Slurm job or the node is
unsuitable."""
_RESERVE_MIB = 150
"""The part of the job's memory that this program itself needs."""
_LEAST_MIB = 6
_LOOK_WITHIN_S = 5.0
"""The longest wait for Slurm's answer. It is short, because only Slurm's kill wait might be left."""

_MISSED = "GLEANER_MISSED_SIGNAL"
"""The environment variable of a step that is run again because the signal to vacate killed the previous step."""
_IN_STEP = f"""\
trap "" USR1 TERM
[ ! -s "$1" ] || export {_MISSED}=yes
rm -f -- "$1"
shift
exec "$@"
"""
"""The script of the step's shell. It ignores signals and removes the file `deaf`. The program also ignores signals
until it can handle them."""
_IN_SCRIPT = f"""\
deaf=$1
step=
shift
trap 'if [ -n "$step" ]; then kill -USR1 "$step" 2>/dev/null; else echo missed >"$deaf"; fi' USR1
trap : TERM
ended() {{
    wait "$step"
    now=$?
    [ $now -eq 127 ] || status=$now  # 127 also says that the status was told before
}}
while :; do
    "$@" &
    step=$!
    status=127
    ended
    while kill -0 "$step" 2>/dev/null; do ended; done  # a signal to this shell ends a wait, too
    ended
    case $status in
    {128 + signal.SIGUSR1} | {128 + signal.SIGTERM}) [ -e "$deaf" ] || break ;;
    *) break ;;
    esac
    echo missed >"$deaf"
done
rm -f -- "$deaf"
exit $status
"""
"""The script of the outer shell, which passes USR1 on to the step, and runs the step again if a signal has killed it
too early."""

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


class Unfit(Exception):
    """The job cannot run here or in this way. The text is one line that explains what to do."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of the command line."""

    image: str
    command: tuple[str, ...]
    storage: Path | None
    results: Path | None
    begin_with: Path | None
    save_every_s: float | None
    cpus: int | None
    memory_mib: int | None
    environment: Mapping[str, str]


@app.command(context_settings={"allow_interspersed_args": False})
def run(  # noqa: PLR0913, PLR0917 - by Typer, who gives them by their names
    image: Annotated[str, typer.Argument(help="The container image, one that the node has.")],
    command: Annotated[list[str] | None, typer.Argument(help="The command.  [default: the image's]")] = None,
    storage: Annotated[
        Path | None, typer.Option(help="The folder for checkpoints, the same on all nodes.  [default: ~/.gleaner]")
    ] = None,
    results: Annotated[Path | None, typer.Option(help="A new folder for the results.  [default: gleaner-JOB]")] = None,
    input: Annotated[Path | None, typer.Option(help="A folder that is copied into /job before the start.")] = None,
    save_every: Annotated[
        float | None, typer.Option(min=1, help="Also save it regularly, at this interval in seconds.  [default: never]")
    ] = None,
    cpus: Annotated[
        int | None, typer.Option(min=1, help="The cores that it can use.  [default: those of the Slurm job]")
    ] = None,
    memory_mib: Annotated[
        str | None,
        typer.Option(metavar="MIB", help="Memory in MiB, or as in 4G.  [default: that of the Slurm job, less 150 MiB]"),
    ] = None,
    env: Annotated[list[str] | None, typer.Option(help="An environment variable; repeatable.")] = None,
) -> None:
    """Run a container in your own Slurm job, which can be saved at any time and restored on another node.

    The program starts in the folder /job, without network. Its output and its exit code are those of the job.
    """
    words = tuple(command or ())
    try:
        options = RunOptions(
            image=image,
            command=words[1:] if words[:1] == ("--",) else words,
            storage=storage,
            results=results,
            begin_with=input,
            save_every_s=save_every,
            cpus=cpus,
            memory_mib=None if memory_mib is None else memory_of(memory_mib),
            environment=variables(env or ()),
        )
        job = job_of(os.environ)
        if "SLURM_STEP_ID" not in os.environ:
            become_step(os.environ, job, options, sys.argv[1:])
        signals = listen_for_signals()
        if _MISSED in os.environ:
            signals.put(signal.SIGUSR1)
        sys.exit(user_job(options, job, signals).run())
    except (Unfit, Unknown, RuntimeFault, StorageError, config.Misconfigured, OSError) as error:
        say(" ".join(str(error).split()))
        sys.exit(WRONG)


def memory_of(text: str) -> int:
    """Return the memory that `--memory-mib` asks for, in MiB. Raises `Unfit`.

    >>> memory_of("1.5G")
    1536
    """
    try:
        mib = parse_memory_mib(text)
    except ValueError as error:
        raise Unfit(f"--memory-mib {error}") from None
    if mib < _LEAST_MIB:
        raise Unfit(f"--memory-mib must be at least {_LEAST_MIB}, found {mib}")
    return mib


def variables(words: Sequence[str]) -> dict[str, str]:
    """Return the variables that `--env` names. Raises `Unfit`.

    >>> variables(["A=b=c"])
    {'A': 'b=c'}
    """
    for one in words:
        if not one.partition("=")[0] or "=" not in one:
            raise Unfit(f"--env {one!r} is not NAME=VALUE")
    return {one.partition("=")[0]: one.partition("=")[2] for one in words}


def job_of(environment: Mapping[str, str]) -> str:
    """Return the number of our Slurm job. Raises `Unfit`."""
    number = environment.get("SLURM_JOB_ID", "")
    if not number.isdigit():
        raise Unfit("this is not a Slurm job: write the command into a script and submit that with sbatch")
    if environment.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        raise Unfit("this step has more than one task: call it in the script itself, or with srun --ntasks=1")
    return number


def step_words(environment: Mapping[str, str], srun: str, deaf: Path, words: Sequence[str]) -> list[str]:
    """Return the shell command that runs this program as a job step, since only steps receive the signal to vacate.

    The signal must not kill the program before the program can handle it, so a shell in the step ignores it until then.
    In the milliseconds before the shell runs, the signal does kill the step. The file `deaf` is then still there, and
    the step is run again with the information that the signal was sent.
    """
    program = [sys.executable, "-P", "-m", "gleaner.agent.user_job.main", *words]
    cpus = environment.get("SLURM_CPUS_ON_NODE", "1")
    options = ["--ntasks=1", "--nodes=1", f"--cpus-per-task={cpus}", "--overlap", "--cpu-bind=none", "--input=none"]
    step = [srun, *options, "--unbuffered", "--quiet", "--job-name=glean", "sh", "-c", _IN_STEP, "sh", str(deaf)]
    return ["/bin/sh", "-c", _IN_SCRIPT, "sh", str(deaf), *step, *program]


def become_step(environment: Mapping[str, str], number: str, options: RunOptions, words: Sequence[str]) -> NoReturn:
    """Replace this process with a job step that runs the same command. Raises `Unfit`."""
    srun = shutil.which("srun")
    if srun is None:
        raise Unfit("there is no srun on the PATH of the job")
    deaf = deaf_file(root_of(options.storage), number)  # all nodes share this folder, so the step sees the file
    with suppress(OSError):  # without the file the step is not run again, and the step reports the fault of the folder
        if environment.get("SLURM_RESTART_COUNT", "0") == "0":  # later, a missing folder is not a shared one
            deaf.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        deaf.touch()
    again = step_words(environment, srun, deaf, words)
    os.execv(again[0], again)  # noqa: S606 - a shell of ours, with fixed text


def user_job(options: RunOptions, number: str, signals: Signals) -> UserJob:
    """Check everything and return the job. Raises `Unfit`, `Unknown`, `RuntimeFault` or `StorageError`."""
    clock = SystemClock()
    began_s = clock.now_s()
    handle = JobHandle(number, timeout_s=_LOOK_WITHIN_S)
    in_slurm = handle.must_look()
    if not in_slurm.may_requeue:
        raise Unfit("Slurm must not start this job again: submit a script, with sbatch --requeue")
    results = options.results or Path(f"gleaner-{number}")
    check_places(results.absolute(), options.begin_with)
    runtime, grant, readmit = meet_helper(number)
    catalog = Catalog(root_of(options.storage), int(number), program_of(options.image, options.command))
    catalog.set_up(is_first=in_slurm.restarts == 0, now_s=began_s)
    if in_slurm.restarts == 0 and (jobs := account_jobs()) is not None:
        catalog.remove_forgotten(jobs)
    spec = spec_of(options, grant)
    latest = catalog.latest()
    assignment = Assignment(
        job=int(number),
        attempt=catalog.next_attempt(),
        group="own",
        spec=JobSpec.model_construct(
            name=spec.name,
            image=options.image,
            command=options.command,
            environment=dict(options.environment),
            cpus=spec.cpus,
        ),
        memory_mib=spec.memory_mib,
        checkpoint=latest[0] if latest else None,
    )
    if not latest and in_slurm.restarts:
        say("no checkpoint yet: the job starts from the beginning")
    facts = facts_of(runtime, spec)
    return UserJob(
        slurm_job=handle,
        runtime=runtime,
        checkpoints=JobCheckpoints(catalog.storage, assignment, facts, spec.folder),
        catalog=catalog,
        spec=spec,
        plan=plan_of(in_slurm, options, began_s),
        results=results.absolute(),
        begin_with=options.begin_with,
        signals=signals,
        readmit=readmit,
        clock=clock,
    )


def facts_of(runtime: Runtime, spec: ContainerSpec) -> NodeFacts:
    """Return the facts of this node. If its CRIU cannot save internet sockets, warn now and not after a failed save."""
    facts = node_facts(runtime.facts(), cpus=spec.cpus, memory_mib=spec.memory_mib)
    if fields := internet_socket_warning(facts.criu, facts.kernel, cannot_ask_passcred=cannot_ask_passcred()):
        say(fields)
    return facts


def plan_of(job: SlurmJobRecord, options: RunOptions, began_s: float) -> SavePlan:
    """Return the plan that determines when the job is saved."""
    return SavePlan(end_s=job.end_s, kill_wait_s=kill_wait_s(), every_s=options.save_every_s, began_s=began_s)


def check_places(results: Path, begin_with: Path | None) -> None:
    """Check the folders before the job starts and not after a week of computing. Raises `Unfit`."""
    if results.exists():
        raise Unfit(f"{results} exists already: move it, or choose another folder with --results")
    if not os.access(results.parent, os.W_OK | os.X_OK):
        raise Unfit(
            f"{results.parent} does not exist, or you may not write to it: choose another folder with --results"
        )
    if begin_with is not None and not begin_with.is_dir():
        raise Unfit(f"--input {begin_with} is not a folder")


def root_of(storage: Path | None) -> Path:
    """Return the folder of this user's jobs on this cluster. Jobs of another cluster can have the same numbers."""
    cluster = os.environ.get("SLURM_CLUSTER_NAME", "cluster")
    return (storage or Path.home() / ".gleaner").absolute() / cluster


def meet_helper(number: str) -> tuple[RuncRuntime, Mapping[str, Any], Callable[[], object]]:
    """Return the runtime, the helper's grant for the job, and a function that renews the grant. Raises `Unfit`."""
    settings = config.load()
    if not settings.user_jobs_key:
        raise Unfit("this node does not serve user jobs: an admin sets user_jobs_key (docs/admin/install.md)")
    helper = HelperClient(settings.helper_socket)

    def admit() -> Mapping[str, Any]:
        return helper.ask("admit", slurm_job=number).fields

    try:
        grant = admit()
    except HelperRefusal as error:
        raise Unfit(str(error)) from error
    runtime = RuncRuntime(helper, handshakes=Path(str(grant["handshakes"])))
    stay_alone(Path(str(grant["handshakes"])), number)
    name = ContainerId(str(grant["name"]))
    if name in helper.ask("list").fields["containers"]:
        if not helper.ask("about", name=name).fields["ended"]:
            raise Unfit(f"job {number} already has a container on this node: only one `glean run` can run at a time")
        runtime.remove(name)
        grant = admit()
        stay_alone(Path(str(grant["handshakes"])), number)
    return runtime, grant, admit


def stay_alone(handshakes: Path, number: str) -> None:
    """Hold the lock of this job's `glean run` on this node until this process ends, since two would use the same
    folder."""
    folder = os.open(handshakes, os.O_RDONLY | os.O_DIRECTORY)  # never closed
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(folder)
        raise Unfit(f"job {number} already has a `glean run` on this node: only one can run at a time") from None


def spec_of(options: RunOptions, grant: Mapping[str, Any]) -> ContainerSpec:
    """Return the container to start. Raises `Unfit`."""
    has_mib = grant["memory_mib"]
    if options.memory_mib is None and has_mib is None:
        raise Unfit("Slurm does not limit memory here: give the memory of the job with --memory-mib")
    return ContainerSpec(
        name=str(grant["name"]),
        image=options.image,
        command=options.command,
        environment={"HOME": FOLDER_IN_CONTAINER, **options.environment},
        cpus=options.cpus or int(grant["cpus"]),
        memory_mib=options.memory_mib or max(int(has_mib) - _RESERVE_MIB, _LEAST_MIB),
        folder=Path(str(grant["folder"])),
        labels={},
    )


def main() -> None:
    """Run `glean run`."""
    app(prog_name="glean run")


if __name__ == "__main__":
    main()
