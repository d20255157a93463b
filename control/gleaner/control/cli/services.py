"""The verbs of the services: `glean control run|stop|start|...` and `glean run`."""

import getpass
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gleaner.agent.common.quantities import size
from gleaner.control.cli.failures import CliError
from gleaner.control.cli.output import Answer
from gleaner.control.cli.render import moment
from gleaner.control.effective_settings import load_settings
from gleaner.control.input_errors import one_line
from gleaner.control.settings import Settings

if TYPE_CHECKING:
    from gleaner.control.queue.recovery import Recovered

control_app = typer.Typer(no_args_is_help=True, help="Run the control program, and set up its database and storage.")


@control_app.command()
def run(
    *,
    web: Annotated[bool, typer.Option(help="Run `glean control web` beside it.")] = True,
) -> Answer:
    """Run the control program until SIGTERM, on both ports."""
    settings = load_settings()
    from gleaner.control.daemon.main import run as serve

    serve(settings, with_web=web)
    return Answer(None)


@control_app.command()
def web(
    *, with_parent: Annotated[bool, typer.Option(help="End with the process that has started it.")] = False
) -> Answer:
    """Serve the API and the web page until SIGTERM."""
    settings = load_settings()
    from gleaner.control.daemon.web_process import run as serve

    serve(settings, with_parent=with_parent)
    return Answer(None)


@control_app.command()
def stop() -> Answer:
    """Stop all agents until `glean control start`. Running agents save their jobs and end. No agent is submitted."""
    with _queue() as (settings, engine):
        from gleaner.control.queue import agents, leader
        from gleaner.control.queue.database import transaction

        with transaction(engine) as db:
            agents.set_stop(db, by=getpass.getuser(), now_s=time.time())
            is_served = leader.leader(db, now=leader.NOW) is not None
    if is_served:
        return Answer(f"stopped: within {settings.rounds.poll_s:g} s all agents are told to save their jobs and end")
    cure = f"scancel -p {settings.cluster.partition}"
    return Answer(f"stopped, but no control program leads, so running agents are not told. To end them: {cure}")


@control_app.command()
def start() -> Answer:
    """Let agents start again after `glean control stop`."""
    with _queue() as (_settings, engine):
        from gleaner.control.queue import agents
        from gleaner.control.queue.database import transaction

        with transaction(engine) as db:
            was_stopped = agents.end_stop(db)
    return Answer("agents may start again" if was_stopped else "nothing was stopped")


@control_app.command()
def migrate() -> Answer:
    """Bring the queue's database to this version's schema."""
    settings = load_settings()
    from gleaner.control.queue.database import connect, migrate

    migrate(connect(settings.queue.url))
    return Answer("the queue's schema is up to date")


@control_app.command()
def prepare() -> Answer:
    """Set up the storage folder, and make the key of the secrets. Doing so again changes nothing."""
    from gleaner.agent.checkpoints.folder_storage import FolderStorage
    from gleaner.agent.checkpoints.interface import StorageError

    settings = load_settings()
    folder, key_file = settings.storage.folder, settings.queue.secret_key_file
    try:
        FolderStorage(folder).prepare()
    except StorageError as error:
        raise CliError(one_line(str(error))) from error
    from gleaner.control.queue import secret_key

    try:
        is_new = secret_key.make(key_file)
    except OSError as error:
        raise CliError(f"the key of the secrets, {key_file}, cannot be made: {error.strerror}") from error
    made = f"the key {key_file} is new: copy it to other machines that run control" if is_new else "the key is there"
    return Answer(f"the storage folder {folder} is set up; {made}")


@control_app.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file for the backup.")],
) -> Answer:
    """Copy the queue's database into one file, while control runs."""
    with _queue() as (_settings, engine):
        from gleaner.control.queue.backup import back_up

        try:
            size_bytes = back_up(engine, file)
        except OSError as error:
            raise CliError(f"{error.filename or file}: {error.strerror}") from error
    return Answer(f"{file}: {size(size_bytes)}")


@control_app.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of `glean control backup`.")],
    replace: Annotated[bool, typer.Option("--replace", help="Replace a database that has jobs.")] = False,
) -> Answer:
    """Restore a backup of the queue's database. Stop control first."""
    settings = load_settings()
    from gleaner.agent.checkpoints.interface import StorageError
    from gleaner.control.daemon.putting_back import put_back

    try:
        done = put_back(settings.queue.url, file, settings.storage.folder, replace=replace, now_s=time.time())
    except OSError as error:
        raise CliError(f"{error.filename or file}: {error.strerror}") from error
    except StorageError as error:
        raise CliError(one_line(str(error))) from error
    return Answer(_restored(done))


@contextmanager
def _queue() -> Generator[tuple[Settings, Any]]:
    """Yield the settings and the engine of the queue's database. Its tables must have the schema of this version."""
    settings = load_settings()
    from gleaner.control.queue.database import check_schema, connect

    engine = connect(settings.queue.url)
    check_schema(engine)
    yield settings, engine


def _restored(done: "Recovered") -> str:
    """Return the report of a restore as text."""
    lines = [
        f"the queue is as it was at {moment(done.taken_s)}, with what the storage shows of the time since:",
        f"{done.ended} jobs have ended since, {done.went_on} continue from a newer checkpoint, {done.unfinished} in all"
        " have not ended",
        "later revocations, cancellations, holds and removals are undone: check tokens, jobs and secrets before you"
        " start control",
    ]
    if done.unknown:
        lines.insert(
            2, f"{done.unknown} jobs were submitted since, and only their archives are left: submit them again"
        )
    return "\n".join(lines)


def user_job(arguments: Annotated[list[str] | None, typer.Argument(metavar="IMAGE COMMAND...")] = None) -> Answer:
    """Run a container in your own Slurm job, so that it can be saved."""
    from gleaner.agent.user_job import main as program

    sys.argv = ["glean run", *(arguments or ())]
    program.main()
    return Answer(None)
