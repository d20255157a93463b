"""`glean setup`, which writes or removes our files on control's machine, a node or a client, and prints the lines for
Slurm."""

import os
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer
from pydantic import BaseModel

from gleaner.control.cli.failures import BadInput, CliError
from gleaner.control.cli.output import Answer
from gleaner.control.input_errors import one_line, read_text

if TYPE_CHECKING:  # only `glean setup` needs them
    from gleaner.control.setup.own_files import Answers, TargetMachine, Wanted

app = typer.Typer(no_args_is_help=True, help="Set up this machine, or undo the setup. Slurm's files stay as they are.")

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Remove = Annotated[bool, typer.Option("--remove", help="Undo the setup, but keep checkpoints and queue.")]
Purge = Annotated[bool, typer.Option("--purge", help="With --remove: also remove the checkpoints and the queue.")]
Root = Annotated[str, typer.Option(metavar="DIR", help="Set up the system in this folder, for example an image.")]
From = Annotated[
    Path | None, typer.Option("--from", metavar="FILE", help="The file join.json of control's machine (/etc/gleaner).")
]
Url = Annotated[str | None, typer.Option(help="Control's address, as in https://HOST:8642.")]
CaFile = Annotated[Path | None, typer.Option(help="The authority of control's certificate, if it is the site's own.")]
Role = Literal["control", "node", "client"]


class _Way(NamedTuple):
    """The options that all roles share."""

    role: Role
    root: str
    dry_run: bool
    yes: bool
    remove: bool
    purge: bool


@app.command()
def client(
    context: typer.Context,
    *,
    join: From = None,
    url: Url = None,
    ca_file: CaFile = None,
    root: Root = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    remove: Remove = False,
    purge: Purge = False,
) -> Answer:
    """Set up a login node with control's address and authority."""
    return _set_up("client", context.params)


@app.command()
def control(
    context: typer.Context,
    *,
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name or IPv4 address of this machine for all others; repeatable."),
    ] = None,
    port: Annotated[int | None, typer.Option(help="The people's port.  [default: 8642]")] = None,
    storage: Annotated[
        str | None, typer.Option(help="The folder that all machines share.  [default: /srv/gleaner]")
    ] = None,
    account: Annotated[str | None, typer.Option(help="The service account's name.  [default: gleaner]")] = None,
    uid: Annotated[int | None, typer.Option(help="Its number, the same on all machines.  [default: 4200]")] = None,
    gid: Annotated[
        int | None, typer.Option(help="Its group's number, the same on all machines.  [default: 4200]")
    ] = None,
    certificate: Annotated[str | None, typer.Option(help="The site's own certificate.  [default: one is made]")] = None,
    key: Annotated[str | None, typer.Option(help="Its key, mode 0600, of the service account.")] = None,
    ca_file: CaFile = None,
    root: Root = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    remove: Remove = False,
    purge: Purge = False,
) -> Answer:
    """Set up control's machine, and print the lines for slurm.conf."""
    if (certificate is None) != (key is None):
        raise BadInput("--certificate and --key go together")
    return _set_up("control", context.params)


@app.command()
def node(
    context: typer.Context,
    *,
    join: From = None,
    runtime: Annotated[
        Literal["helper", "docker"] | None,
        typer.Option(help="The program that runs containers, node helper or Docker.  [default: helper]"),
    ] = None,
    image: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Images that jobs are allowed to run; repeatable.")
    ] = None,
    url: Url = None,
    ca_file: CaFile = None,
    root: Root = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    remove: Remove = False,
    purge: Purge = False,
) -> Answer:
    """Set up a compute node for agents."""
    return _set_up("node", context.params)


def _authority(ca_file: Path) -> str:
    text = read_text(ca_file, missing="no such file", unreadable="")
    if "PRIVATE KEY" in text:
        raise BadInput(f"--ca-file {ca_file} contains a key, which must not leave its place: name only the certificate")
    return text


def _set_up(role: Role, options: Mapping[str, Any]) -> Answer:
    from gleaner.control.setup.answers import SetupRefused

    way = _Way(role, **{name: options[name] for name in _Way._fields[1:]})
    names = {"host": "hosts", "image": "images"}
    given = {names.get(name, name): value for name, value in options.items() if value not in (None, (), [])}
    given = {name: value for name, value in given.items() if name not in {*_Way._fields, "join"}}
    if "ca_file" in given:
        given["ca"] = _authority(Path(given.pop("ca_file")))
    if way.root and not Path(way.root).is_dir():
        raise BadInput(f"--root {way.root}: there is no such folder")
    if os.geteuid() != 0 and not way.dry_run:
        raise CliError("setup changes this machine: run it as root, or use --dry-run to see what it would do")
    try:
        return _carried_out(way, options.get("join"), given)
    except SetupRefused as error:
        raise CliError(one_line(str(error))) from error


def _carried_out(way: _Way, join: str | None, given: Mapping[str, object]) -> Answer:
    """Show the differences, ask, write or remove the files, and print the lines that the admin has to add."""
    from gleaner.control.setup import own_files

    machine = own_files.TargetMachine(str(Path(way.root).resolve()) if way.root else "")
    answers = dict(machine.listed.answers)
    if way.remove:
        if answers.pop(way.role, None) is None:
            return Answer(f"nothing is set up here for the role {way.role}")
        lines: tuple[str, ...] = ()
    else:
        lines = _slurm_lines(machine, way.role, given)
        known = {"hosts": (socket.getfqdn(),), **answers.get(way.role, {}), **_joined(join)}
        answers[way.role] = {**known, **given}
    answers, wanted = _wanted(machine, answers)
    plan = own_files.make_plan(machine, wanted, purge=way.purge)
    shown = [title for title, _ in plan.changes]
    if way.dry_run:
        return Answer("\n".join((*shown, "nothing was changed", *lines)), remarks=tuple(plan.remarks))
    if shown or answers != machine.listed.answers or not machine.listed.is_complete:
        _agree(way, shown)
        own_files.carry_out(machine, plan, answers, lambda title: sys.stderr.write(f"{title.splitlines()[0]}\n"))
        if not way.remove:  # the join file names the authority, which might be new
            answers, wanted = _wanted(machine, answers)
            own_files.carry_out(machine, own_files.make_plan(machine, wanted), answers, lambda _: None)
    done = "taken back" if way.remove else "set up" if shown else "all is as it should be"
    return Answer("\n".join((f"{way.role}: {done}", *lines)), remarks=tuple(plan.remarks))


def _joined(join: str | None) -> Mapping[str, object]:
    from gleaner.control.setup.answers import read_join

    missing = "no such file; it is /etc/gleaner/join.json on control's machine"
    return {} if join is None else read_join(join, read_text(Path(join), missing=missing, unreadable="")).model_dump()


def _wanted(machine: "TargetMachine", answers: "Answers") -> "tuple[dict[str, dict[str, Any]], Wanted]":
    """Return the checked answers of all roles, and the files that they require."""
    from gleaner.control.setup import answers as records
    from gleaner.control.setup import roles
    from gleaner.control.setup.own_files import joined

    kinds: Mapping[str, tuple[type[BaseModel], Callable[[Any], Wanted]]] = {
        "client": (records.ClientAnswers, roles.client),
        "node": (records.NodeAnswers, lambda node: roles.node(machine, node)),
        "control": (records.ControlAnswers, lambda control: roles.control(machine, control, sys.prefix)),
    }  # control comes last, because its settings also contain those of a client
    checked: dict[str, Any] = {
        role: records.read_answers(kind, answers[role]) for role, (kind, _) in kinds.items() if role in answers
    }
    parts = [kinds[role][1](found) for role, found in checked.items()]
    return {role: found.model_dump(mode="json") for role, found in checked.items()}, joined(*parts)


def _slurm_lines(machine: "TargetMachine", role: Role, given: Mapping[str, object]) -> tuple[str, ...]:
    """Return the lines for Slurm, or the changes that they would make. Raises `CliError` on a machine without Slurm."""
    from gleaner.control.setup import slurm_lines
    from gleaner.control.setup.own_files import read

    if role == "client" or not machine.is_live:
        return ()
    if shutil.which("scontrol") is None:
        raise CliError("there is no scontrol here: install Slurm's programs, or run this on a machine of the cluster")
    if role == "node":
        return ()
    config, partitions = (read("scontrol", "--oneliner", "--all", "show", what) for what in ("config", "partition"))
    if config is None or partitions is None:
        raise CliError("slurmctld does not answer `scontrol show config` here: start it, and run this again")
    account = str(given.get("account") or machine.listed.answers.get("control", {}).get("account", "gleaner"))
    found = slurm_lines.slurm_lines(slurm_lines.read_config(config), slurm_lines.read_partitions(partitions), account)
    if found.changes:
        return (
            "This site has preemption or tiers already, so no line for slurm.conf is printed. Our lines would change:",
            *(f"- {change}" for change in found.changes),
            "docs/admin/install.md#slurm explains what agents need: decide with the people whom it affects.",
        )
    return (found.text or "slurm.conf has all that agents need",)


def _agree(way: _Way, shown: list[str]) -> None:
    if way.yes:
        return
    if not sys.stdin.isatty():
        raise CliError("there is no terminal on which to agree: check what --dry-run shows, and add --yes")
    sys.stderr.write("\n".join((*shown, "")))
    if not typer.confirm("Undo all of this?" if way.remove else "Do this?", err=True):
        raise CliError("nothing was changed")
