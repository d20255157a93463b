"""The `glean` command. It combines the verbs, and turns every failure into one line and an exit code."""

import os
import sys
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any

import typer
import typer.main

from gleaner.control.cli.failures import BadInput, CliError, exit_code_of
from gleaner.control.cli.lazy_verb import LazyVerb
from gleaner.control.cli.output import Answer

FIRST_STEPS = """\
\b
First steps:
  glean check IMAGE -- COMMAND           See whether a program can be saved here.
  glean submit --image IMAGE -- COMMAND  Submit one job.
  glean submit FILE                      Submit the jobs of a campaign file.
  glean status                           See the state of your jobs.
  glean why JOB                          See why a job waits.
  glean logs JOB                         Read what a job has printed.
  glean results JOB                      Fetch what a job has left in its folder.

`glean config` shows where control is, and which file has your token. An admin gives you both. docs/quickstart.md has
a first job from its image to its results.
"""
app = typer.Typer(
    name="glean",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Run containerised jobs on the idle node time of a Slurm cluster.",
    epilog=FIRST_STEPS,
)

REST = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": list[str]()}
"""The context settings of a verb that passes on all its arguments, even `--help`."""
VERBS = (
    LazyVerb("submit", "Submit a job, an array of jobs, or a campaign file.", "submit:submit"),
    LazyVerb("check", "See whether a program can be saved here: run, save, restore it.", "check:check"),
    LazyVerb("list", "List jobs, the oldest first.", "jobs:list_jobs"),
    LazyVerb("show", "Show a job: why it waits, where it ran, what happened to it.", "jobs:show"),
    LazyVerb("why", "Explain why a job waits, with the last decision about it.", "decisions:why"),
    LazyVerb("logs", "Print what a job wrote, over all its slices.", "watching:logs"),
    LazyVerb("hold", "Keep jobs from starting.", "jobs:hold"),
    LazyVerb("release", "Let held jobs continue.", "jobs:release"),
    LazyVerb("cancel", "End jobs permanently, and delete their checkpoints.", "jobs:cancel"),
    LazyVerb("rerun", "Run jobs again that have failed or were cancelled.", "jobs:rerun"),
    LazyVerb("rm", "Remove ended jobs from all lists, with their results and logs.", "jobs:remove"),
    # -5 is a number, not an option
    LazyVerb("priority", "Change a job's or a campaign's priority.", "jobs:priority", ignore_unknown_options=True),
    LazyVerb("migrate", "Save a running job now, and let it continue elsewhere.", "jobs:migrate"),
    LazyVerb("deliver", "Copy results to the targets of their jobs again.", "jobs:deliver"),
    LazyVerb("run", "Run a container in your own Slurm job, so that it can be saved.", "services:user_job", **REST),
    LazyVerb("campaigns", "List campaigns, the newest first, with their expected ends.", "campaigns:campaigns"),
    LazyVerb("campaign", "Show a campaign.", "campaigns:app"),
    LazyVerb("status", "Count by state all jobs that you can see.", "jobs:status"),
    LazyVerb("wait", "Wait until jobs have ended.", "watching:wait"),
    LazyVerb("results", "Fetch the output files of ended jobs.", "results:results"),
    LazyVerb("image", "Push, list and remove your group's container images.", "images:app"),
    LazyVerb("secret", "Keep your group's credentials for servers.", "secrets:app"),
    LazyVerb("web", "Print the address of the web page.", "cluster:web"),
    LazyVerb("agents", "List the agents, with their nodes, their ends and their jobs.", "cluster:agents"),
    LazyVerb("nodes", "List the nodes as the scheduler sees them.", "cluster:nodes"),
    LazyVerb("owners", "List the owners with entitlements, and their waiting jobs.", "cluster:owners"),
    LazyVerb("explain", "Show the input and the outcome of a decision.", "decisions:explain"),
    LazyVerb("report", "Show a month's node time, and which users got the harvest.", "report:report"),
    LazyVerb("drain", "Empty nodes for maintenance.", "drains:drain"),
    LazyVerb("resume", "Resume nodes that `glean drain` has emptied.", "drains:resume"),
    LazyVerb("config", "Print the settings and where each comes from.", "config:config"),
    LazyVerb("doctor", "Check what is installed on this machine, and name the remedies.", "doctor:doctor"),
    LazyVerb("setup", "Set up this machine, or undo the setup.", "setup:app"),
    LazyVerb("token", "Make, list, end and replace tokens.", "tokens:app"),
    LazyVerb("control", "Run the control program, and set up its database and storage.", "services:control_app"),
    LazyVerb("simulate", "Simulate agents or another scheduler on a cluster's accounting.", "simulate:app"),
)
"""All verbs, each with the first sentence of its own help."""

EXTRAS = {"run": "agent", "simulate": "simulate"}
"""The extra of the package that a verb needs. All other verbs need `control` or no extra."""
_CLOSE = 0.75
"""The similarity (`difflib`) at which an existing option is suggested for a wrong one: --disk for --disc, but not
--keep for --seed."""
_LONGEST_NAME = 80
"""The maximum length of a file's name in a message that concerns only this file."""


def _version(asked: bool) -> None:
    if asked:
        from gleaner.agent.common.installed_version import installed_version

        typer.echo(f"glean {installed_version()}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Run containerised jobs on the idle node time of a Slurm cluster."""


def _usage(error: Exception, said: str, arguments: list[str]) -> str:
    """Return a message with the mistake in the options, its correction, and the verb whose help explains more."""
    path: str = getattr(getattr(error, "ctx", None), "command_path", "glean")
    verb = command() if path == "glean" else None  # the library does not provide it for an option without its value
    for word in arguments:
        verb = getattr(getattr(verb, "whole", verb), "commands", {}).get(word)
        if verb is None:
            break
        path += f" {word}"
    if path.endswith((" submit", " check")) and said.startswith("No such option"):
        from gleaner.control.campaigns.wrong_keys import INSTEAD, OPTIONS

        option = str(getattr(error, "option_name", ""))
        instead = INSTEAD.get(option.lstrip("-").replace("-", "_"), "")
        key = instead.removeprefix("use ").split(",")[0]
        if instead:
            said = f"No such option {option}: {f'use {OPTIONS[key]}' if key in OPTIONS else instead}"
        elif not get_close_matches(option, getattr(error, "possibilities", None) or (), cutoff=_CLOSE):
            said = f"No such option: {option}"
        said += "; options of the job's command go after --"
    return f"{said} (see {path} --help)"


def _give_up_stdout() -> None:
    """Discard the buffered output, because Python would otherwise complain about it at the end."""
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison] - closed by the caller
        return
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failure(error: Exception, verb: str) -> tuple[str, int] | None:
    """Return the message and exit code for a failure of control or a mistake of the user, or None for our own bug."""
    from pydantic import ValidationError

    from gleaner.client import ClientError
    from gleaner.control.input_errors import InputError, complaint, one_line
    from gleaner.control.queue.errors import QueueError

    if isinstance(error, ClientError):
        is_option = error.option and error.option.partition(".")[0] != "nodes"
        return (f"--{error}" if is_option else str(error)), exit_code_of(error)
    if isinstance(error, ModuleNotFoundError):
        extra = EXTRAS.get(verb, "control")
        line = f"{error.name} is not installed here: pip install 'gleaner-hpc[{extra}]'"
        return None if (error.name or "").startswith("gleaner") else (line, BadInput.exit_code)
    if isinstance(error, QueueError):
        return one_line(str(error)), CliError.exit_code
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object[:60]!r} is not UTF-8 text", BadInput.exit_code
    if isinstance(error, InputError):
        return str(error), BadInput.exit_code
    if not isinstance(error, ValidationError):
        return None
    first = error.errors()[0]  # the error of an argument that has no parser
    return complaint(".".join(str(part) for part in first["loc"]), first), BadInput.exit_code


def _remark(text: str) -> None:
    from gleaner.control.cli import render

    render.remark(text)


@cache
def command() -> Any:
    """Return one command with all verbs."""
    whole: Any = typer.main.get_command(app)
    whole.commands = {verb.name: verb for verb in VERBS}
    return whole


def run(arguments: list[str] | None = None) -> int:
    """Run one command, and return the exit code: 0 yes, 1 no, 2 wrong usage, 3 control not reached, 130 Ctrl-C."""
    try:
        answer = command()(args=arguments, prog_name="glean", standalone_mode=False)
        if isinstance(answer, Answer):
            from gleaner.control.cli import render

            render.show(answer)
            return answer.exit_code
        return answer if isinstance(answer, int) else 0
    except CliError as failure:
        _remark(str(failure))
        return failure.exit_code
    except typer.TyperException as error:
        said = error.format_message().replace(": Value error, ", ": ").replace(": Input should be ", ": must be ")
        if said.startswith("Usage:"):
            sys.stderr.write(said + "\n")
        else:
            _remark(_usage(error, said, sys.argv[1:] if arguments is None else arguments))
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        _give_up_stdout()  # the reader has closed the pipe, as in `glean list | head`
        return 1
    except OSError as error:
        if error.filename is not None:  # the error of a file that cannot exist, for example with a name of 300 letters
            _remark(f"{str(error.filename)[:_LONGEST_NAME]}: {error.strerror}")
            return BadInput.exit_code
        _give_up_stdout()
        _remark(f"cannot write the answer: {error.strerror}")
        return 1
    except Exception as error:
        words = sys.argv[1:] if arguments is None else arguments
        found = _failure(error, words[0] if words else "")
        if found is None:
            raise
        _remark(found[0])
        return found[1]
