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

from gleaner.control.campaigns.wrong_keys import INSTEAD
from gleaner.control.cli import (
    check,
    cluster,
    config,
    decisions,
    doctor,
    drains,
    images,
    jobs,
    owners,
    render,
    report,
    results,
    services,
    simulate,
    tokens,
    watching,
    web,
)
from gleaner.control.cli.failures import BadInput, Failure
from gleaner.control.cli.help_page import ADMIN, CAMPAIGNS, CLUSTER, FIRST_STEPS, JOBS, SIMULATION, GroupedCommands
from gleaner.control.cli.output import Answer
from gleaner.control.input_errors import InputError, complaint, one_line

app = typer.Typer(
    name="glean",
    cls=GroupedCommands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Run containerised jobs on the idle node time of a Slurm cluster.",
)
app.command(cls=jobs.SubmitCommand, rich_help_panel=JOBS)(jobs.submit)
app.command(rich_help_panel=JOBS)(check.check)
app.command("list", rich_help_panel=JOBS)(jobs.list_jobs)
app.command(rich_help_panel=JOBS)(jobs.show)
app.command(rich_help_panel=JOBS)(decisions.why)
app.command(rich_help_panel=JOBS)(watching.logs)
app.command(rich_help_panel=JOBS)(jobs.hold)
app.command(rich_help_panel=JOBS)(jobs.release)
app.command(rich_help_panel=JOBS)(jobs.cancel)
# -5 is a number, not an option
app.command(rich_help_panel=JOBS, context_settings={"ignore_unknown_options": True})(jobs.priority)
app.command(rich_help_panel=JOBS)(jobs.migrate)
app.command("run", rich_help_panel=JOBS, context_settings=services.REST)(services.user_job)
app.command(rich_help_panel=CAMPAIGNS)(jobs.status)
app.command(rich_help_panel=CAMPAIGNS)(watching.wait)
app.command(rich_help_panel=CAMPAIGNS)(results.results)
app.add_typer(images.app, name="image", rich_help_panel=CAMPAIGNS)
app.command(rich_help_panel=CLUSTER)(web.web)
app.command(rich_help_panel=CLUSTER)(cluster.agents)
app.command(rich_help_panel=CLUSTER)(cluster.nodes)
app.command(rich_help_panel=CLUSTER)(owners.owners)
app.command(rich_help_panel=CLUSTER)(decisions.explain)
app.command(rich_help_panel=CLUSTER)(report.report)
app.command(rich_help_panel=ADMIN)(drains.drain)
app.command(rich_help_panel=ADMIN)(drains.resume)
app.add_typer(tokens.app, name="token", rich_help_panel=ADMIN)
app.command(rich_help_panel=ADMIN)(config.config)
app.command(rich_help_panel=ADMIN)(doctor.doctor)
app.add_typer(services.control_app, name="control", rich_help_panel=ADMIN)
app.command(rich_help_panel=ADMIN, context_settings=services.REST)(services.agent)
app.add_typer(simulate.app, name="simulate", rich_help_panel=SIMULATION)


_LONGEST_NAME = 80
"""The most letters of a file's name in a message that is about nothing else."""


def _version(asked: bool) -> None:
    if asked:
        try:
            typer.echo(f"glean {version('gleaner-hpc')}")
        except PackageNotFoundError:
            typer.echo("glean, not installed")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Run containerised jobs on the idle node time of a Slurm cluster."""
    if context.invoked_subcommand is None:
        sys.stderr.write(FIRST_STEPS)
        raise typer.Exit(BadInput.exit_code)


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


def _mistake(error: InputError | ValidationError | UnicodeEncodeError) -> str:
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object[:60]!r} is no UTF-8 text"
    if isinstance(error, InputError):
        return str(error)
    first = error.errors()[0]  # of an argument that is taken as it is
    return complaint(".".join(str(part) for part in first["loc"]), first)


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
            if command.endswith((" submit", " check")) and said.startswith("No such option"):
                option = one_line(str(getattr(error, "option_name", "")))
                instead = INSTEAD.get(option.lstrip("-").replace("-", "_"))
                said = f"No such option {option}: {instead}" if instead else said
                said += "; the options of what the job runs go after --"
            render.remark(f"{said} (see {command} --help)")
        else:
            sys.stderr.write(said + "\n")
        return error.exit_code
    except (InputError, ValidationError, UnicodeEncodeError) as error:
        render.remark(_mistake(error))
        return BadInput.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        _give_up_stdout()  # the reader has gone, as in `glean list | head`
        return 1
    except OSError as error:
        if error.filename is not None:  # of a file that nobody could ask for: a name of 300 letters, say
            render.remark(one_line(f"{str(error.filename)[:_LONGEST_NAME]}: {error.strerror}"))
            return BadInput.exit_code
        _give_up_stdout()
        render.remark(f"cannot write the answer: {error.strerror}")
        return 1
