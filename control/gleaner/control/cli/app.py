"""The `glean` command: its verbs put together, and every failure made one line and an exit code."""

import os
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
import typer.main
from pydantic import ValidationError

from gleaner.agent.common.validation_messages import complaint, one_line
from gleaner.control.cli import (
    cluster,
    config,
    decisions,
    drains,
    images,
    jobs,
    owners,
    render,
    results,
    services,
    simulate,
    tokens,
    watching,
    web,
)
from gleaner.control.cli.failures import BadInput, Failure
from gleaner.control.cli.output import Answer

app = typer.Typer(
    name="glean",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Run containerised jobs on the idle node time of a Slurm cluster.",
)
app.command(cls=jobs.SubmitCommand)(jobs.submit)
app.command()(jobs.status)
app.command("list")(jobs.list_jobs)
app.command()(jobs.show)
app.command()(decisions.why)
app.command()(decisions.explain)
app.command()(watching.logs)
app.command()(watching.wait)
app.command()(jobs.hold)
app.command()(jobs.release)
app.command()(jobs.cancel)
app.command()(jobs.migrate)
app.command(context_settings={"ignore_unknown_options": True})(jobs.priority)  # -5 is a number, not an option
app.command()(results.results)
app.command()(cluster.agents)
app.command()(cluster.nodes)
app.command()(drains.drain)
app.command()(drains.resume)
app.command()(owners.owners)
app.command()(web.web)
app.command()(config.config)
app.add_typer(images.app, name="image")
app.add_typer(tokens.app, name="token")
app.add_typer(services.control_app, name="control")
app.add_typer(simulate.app, name="simulate")
app.command(context_settings=services.REST)(services.agent)
app.command("run", context_settings=services.REST)(services.user_job)


def _version(asked: bool) -> None:
    if asked:
        try:
            typer.echo(f"glean {version('gleaner-hpc')}")
        except PackageNotFoundError:
            typer.echo("glean, not installed")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Run containerised jobs on the idle node time of a Slurm cluster."""


def _show(answer: Answer) -> None:
    try:
        render.show(answer)
    except BrokenPipeError:
        raise
    except OSError as error:
        _give_up_stdout()
        raise Failure(f"cannot write the answer: {error.strerror}") from error


def _plain(said: str) -> str:
    """Return the message without the words that only the library that checks options uses."""
    return said.replace(": Value error, ", ": ").replace(": Input should be ", ": must be ")


def _give_up_stdout() -> None:
    """Discard what is still buffered, or Python would complain once more at its end."""
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison] - closed by the caller
        return
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@cache
def _command() -> Any:
    """Return all verbs as one command of Click's; to build it takes longer than most verbs."""
    return typer.main.get_command(app)


def run(arguments: list[str] | None = None) -> int:
    """Run one command, and return the exit code: 0 yes, 1 no, 2 wrong usage, 3 control not reached, 130 Ctrl-C."""
    try:
        answer = _command()(args=arguments, prog_name="glean", standalone_mode=False)
        if isinstance(answer, Answer):
            _show(answer)
            return answer.exit_code
        return answer if isinstance(answer, int) else 0
    except Failure as failure:
        render.remark(str(failure))
        return failure.exit_code
    except typer.TyperException as error:
        said = _plain(error.format_message())
        if not said.startswith("Usage:"):
            command = one_line(getattr(getattr(error, "ctx", None), "command_path", "glean"))
            if command.endswith(" submit") and said.startswith("No such option"):
                said += "; the options of what the job runs go after --"
            render.remark(f"{said} (see {command} --help)")
        else:
            sys.stderr.write(said + "\n")
        return error.exit_code
    except ValidationError as error:  # an argument that is taken as it is
        first = error.errors()[0]
        render.remark(complaint(".".join(str(part) for part in first["loc"]), first))
        return BadInput.exit_code
    except UnicodeEncodeError as error:
        render.remark(f"{error.object[:60]!r} is no UTF-8 text")
        return BadInput.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        _give_up_stdout()  # the reader has gone, as in `glean list | head`
        return 1
    except OSError as error:
        if error.filename is not None:  # the error is of a file, and not of a stream of ours
            raise
        _give_up_stdout()
        render.remark(f"cannot write the answer: {error.strerror}")
        return 1
