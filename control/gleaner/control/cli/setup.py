"""`glean setup`: set up control, a node or a client step by step, or take it back."""

import os
import socket
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar, cast

import typer

from gleaner.agent.common.clock import Clock, SystemClock
from gleaner.control.cli.config import settings_or_why
from gleaner.control.cli.failures import BadInput, Failure
from gleaner.control.cli.output import Answer
from gleaner.control.input_errors import one_line, read_text
from gleaner.control.setup.steps.manifest import PATH

if TYPE_CHECKING:  # only `glean setup` needs them
    from gleaner.control.doctor.finding import Finding, Unread
    from gleaner.control.settings import Settings
    from gleaner.control.setup.steps.answers import JoinFile, ServiceAccount
    from gleaner.control.setup.steps.engine import Planned
    from gleaner.control.setup.steps.manifest import Answers, Manifest
    from gleaner.control.setup.steps.step_types import SetupStep

app = typer.Typer(no_args_is_help=True, help="Set up this machine, step by step, or take that back.")

Value = TypeVar("Value", str, int)
_PATIENCE_S = 60.0
"""The longest that one thing may take that is looked at: a slow machine is no broken one."""
STARTS_WITHIN_S = 180.0
"""The services answer within this time after their start, on a slow machine too."""
LOOK_EVERY_S = 3.0
_STARTING = {
    "client": (),
    "control": ("control", "steps of control", "nodes"),
    "node": ("node helper", "Docker", "services"),
}
"""The doctor's checks, by role, that fail for a while after setup has started a service, or Slurm's daemons."""
_STORAGE = "/srv/gleaner"
_BEFORE: dict[str, tuple[str, ...]] = {
    "client": ("control", "certificate", "clock"),
    "control": ("clock", "Slurm's programs"),
    "node": ("clock", "control", "certificate", "kernel", "Slurm's programs", "storage"),
}
"""The doctor's checks that must hold before anything is changed, by role."""
_OF_SLURM_CONF = frozenset(("slurm.conf", "Epilog", "partition", "tiers"))
"""The doctor's checks that a new slurm.conf mends once it is in force."""
_IN_FORCE_AGAIN = "before you take the nodes back: systemctl restart slurmctld; scontrol reconfigure"
"""Slurm drains a node whose Epilog is gone while slurm.conf still names it."""

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show everything that would be done; do nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask; take what is known, and the defaults.")]
Remove = Annotated[bool, typer.Option("--remove", help="Take back what setup has made, but for checkpoints and queue.")]
Purge = Annotated[bool, typer.Option("--purge", help="With --remove: the checkpoints and the queue, too.")]
Restart = Annotated[bool, typer.Option("--restart", help="Also restart Slurm's or Docker's daemon where needed.")]
Force = Annotated[bool, typer.Option("--force", help="Go on although a check says that it will not work.")]
Skip = Annotated[list[str] | None, typer.Option(metavar="STEP", help="Leave a step out, by its name or path.")]
Root = Annotated[str, typer.Option(metavar="DIR", help="Set up a system that does not run: an image in the making.")]
From = Annotated[
    Path | None, typer.Option("--from", metavar="FILE", help="The file join.json of control's machine (/etc/gleaner).")
]
Url = Annotated[str | None, typer.Option(help="Control's address, like https://HOST:8642.")]
CaFile = Annotated[Path | None, typer.Option(help="The authority of control's certificate, if it is the site's own.")]
Storage = Annotated[str | None, typer.Option(help="The folder that all machines share.")]
AccountName = Annotated[str | None, typer.Option("--account", help="The service account's name.")]
Uid = Annotated[int | None, typer.Option(help="Its number, the same on all machines.")]
Gid = Annotated[int | None, typer.Option(help="Its group's number, the same on all machines.")]


class _Asker:
    """Finds each answer: the option, what an earlier run was told, what people type, the default."""

    def __init__(self, manifest: "Manifest", role: str, *, asks: bool) -> None:
        self._known = manifest.answers.get(role, {})
        self._asks = asks
        self.answers: dict[str, str | int | list[str]] = {}

    def answer(self, key: str, given: Value | None, question: str, default: Value | None) -> Value:
        """Return the answer to one question. Raises `BadInput` if there is none, and nobody can be asked."""
        known = self._known.get(key, default)
        if given is None and (known is None or (self._asks and key not in self._known)):
            if not self._asks:
                raise BadInput(f"{question}? Say it with --{key.replace('_', '-')}")
            given = typer.prompt(question, default=default, type=str if default is None else type(default), err=True)
        return self.take(key, given, default)

    def take(self, key: str, given: Value | None, default: Value | None) -> Value:
        """Return the answer to a question that nobody is asked."""
        found = cast("Value", self._known.get(key, default) if given is None else given)
        self.answers[key] = found
        return found

    def take_all(self, key: str, given: Sequence[str] | None, default: Sequence[str]) -> tuple[str, ...]:
        """Return the answer to a question that has several, and that nobody is asked."""
        found = cast("Sequence[str]", self._known.get(key, default) if given is None else given)
        self.answers[key] = list(found)
        return tuple(found)


@app.command()
def client(
    *,
    join: From = None,
    url: Url = None,
    ca_file: CaFile = None,
    root: Root = "",
    skip: Skip = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    remove: Remove = False,
    purge: Purge = False,
    force: Force = False,
) -> Answer:
    """Set up a login node: where control is, and whom to trust."""
    with _Run("client", root, dry_run=dry_run, yes=yes, skip=skip, force=force) as run:
        if remove:
            return run.take_back(purge=purge)
        from gleaner.control.setup.steps.answers import ClientAnswers, check_url
        from gleaner.control.setup.steps.roles import client_steps

        known = _join(join)
        asker = run.asker()
        address = check_url(asker.answer("url", url or (known.url if known else None), "Control's address", None))
        ca = _authority(asker, ca_file, known)
        steps = client_steps(ClientAnswers(address, ca), sys.prefix)
        return run.set_up(steps, asker.answers, restart=False, ca=ca)


@app.command()
def control(
    *,
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="The name by which all reach this machine; repeat for its other names, or IPs."
        ),
    ] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="The port at which control listens.")] = None,
    storage: Storage = None,
    account: AccountName = None,
    uid: Uid = None,
    gid: Gid = None,
    certificate: Annotated[str | None, typer.Option(help="The site's own certificate; else one is made.")] = None,
    key: Annotated[str | None, typer.Option(help="Its key, 0600, the service account's.")] = None,
    ca_file: CaFile = None,
    slurm_conf: Annotated[str | None, typer.Option(help="The file to which Gleaner's lines are added.")] = None,
    memory_per_cpu: Annotated[
        int | None, typer.Option(metavar="MIB", min=1, help="DefMemPerCPU, if slurm.conf has no default memory.")
    ] = None,
    grace_time: Annotated[
        int | None,
        typer.Option(metavar="SECONDS", min=1, help="GraceTime, if slurm.conf has no partition of the agents."),
    ] = None,
    root: Root = "",
    skip: Skip = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    remove: Remove = False,
    purge: Purge = False,
    restart: Restart = False,
    force: Force = False,
) -> Answer:
    """Set up control's machine, where Slurm's programs work."""
    with _Run("control", root, dry_run=dry_run, yes=yes, skip=skip, force=force) as run:
        if remove:
            return run.take_back(purge=purge)
        from gleaner.control.setup.steps import answers as records
        from gleaner.control.setup.steps.roles import control_steps

        ask = run.asker()
        fqdn, question = socket.getfqdn(), "The name by which all machines reach this one"
        name = records.check_host(ask.answer("host", host[0] if host else None, question, fqdn))
        others = ask.take_all("more_hosts", host[1:] if host else None, ())
        folder = records.check_path(ask.answer("storage", storage, "The folder that all machines share", _STORAGE))
        if (certificate is None) != (key is None):
            raise BadInput("--certificate and --key go together")
        file = records.check_path(ask.take("slurm_conf", slurm_conf, "/etc/slurm/slurm.conf"))
        given = records.ControlAnswers(
            host=name,
            more_hosts=tuple(map(records.check_host, others)),
            port=ask.take("port", port, 8642),
            storage=folder,
            account=_account(ask, account, uid, gid),
            certificate=_optional_path(ask.take("certificate", certificate, "")),
            key=_optional_path(ask.take("key", key, "")),
            ca=_authority(ask, ca_file, None),
            slurm_conf=file,
            memory_per_cpu_mib=ask.take("memory_per_cpu", memory_per_cpu, 1024),
            grace_s=ask.take("grace_time", grace_time, 120),
        )
        steps = control_steps(given, sys.prefix, run.machine, str(Path("~root").expanduser()))
        return run.set_up(steps, ask.answers, restart=restart, ca="")


def _optional_path(path: str) -> str:
    from gleaner.control.setup.steps.answers import check_path

    return check_path(path) if path else ""


def _account(
    ask: _Asker, name: str | None, uid: int | None, gid: int | None, join: "JoinFile | None" = None
) -> "ServiceAccount":
    """Return the service account: of the options, of control's machine, or the usual one."""
    from gleaner.control.setup.steps.answers import ServiceAccount, check_account

    usual = ServiceAccount() if join is None else join.account
    found = ServiceAccount(
        ask.take("account", name, usual.name), ask.take("uid", uid, usual.uid), ask.take("gid", gid, usual.gid)
    )
    return check_account(found)


@app.command()
def node(
    *,
    join: From = None,
    runtime: Annotated[
        Literal["helper", "docker"] | None, typer.Option(help="Containers by the node helper, or by Docker.")
    ] = None,
    image: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Images that jobs may run; may be repeated.")
    ] = None,
    url: Url = None,
    ca_file: CaFile = None,
    storage: Storage = None,
    account: AccountName = None,
    uid: Uid = None,
    gid: Gid = None,
    root: Root = "",
    skip: Skip = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    remove: Remove = False,
    purge: Purge = False,
    restart: Restart = False,
    force: Force = False,
) -> Answer:
    """Set up a compute node for agents."""
    with _Run("node", root, dry_run=dry_run, yes=yes, skip=skip, force=force) as run:
        if remove:
            return run.take_back(purge=purge)
        from gleaner.control.setup.steps import answers as records
        from gleaner.control.setup.steps.roles import node_steps

        known, ask = _join(join), run.asker()
        address = url or (known.url if known else None)
        folder = storage or (known.storage if known else None)
        given = records.NodeAnswers(
            url=records.check_url(ask.answer("url", address, "Control's address", None)),
            ca=_authority(ask, ca_file, known),
            storage=records.check_path(ask.answer("storage", folder, "The folder that all machines share", _STORAGE)),
            account=_account(ask, account, uid, gid, known),
            runtime=ask.take("runtime", runtime, "helper"),
            images_allowed=ask.take_all("images_allowed", image or None, ("gleaner/*",)),
        )
        steps = node_steps(given, sys.prefix, run.machine, run.packages())
        return run.set_up(steps, ask.answers, restart=restart, ca=given.ca)


def _join(path: Path | None) -> "JoinFile | None":
    from gleaner.control.setup.steps.answers import read_join

    if path is None:
        return None
    text = read_text(path, missing="no such file; it is /etc/gleaner/join.json on control's machine", unreadable="")
    return read_join(str(path), text.encode())


def _authority(asker: _Asker, ca_file: Path | None, join: "JoinFile | None") -> str:
    """Return the authority of control's certificate in PEM; empty if the system knows it."""
    from gleaner.control.setup.steps.answers import check_authority

    given = None if join is None else join.ca
    if ca_file is not None:
        given = check_authority(str(ca_file), read_text(ca_file, missing="no such file", unreadable=""))
    return asker.take("ca", given, "")


def once_started(
    found: "tuple[Finding, ...]", look: Callable[[], "tuple[Finding, ...]"], names: Sequence[str], clock: Clock
) -> "tuple[Finding, ...]":
    """Return the findings once none of these checks fails: what they look at has just been started.

    If that does not come in time, return the last findings.
    """
    from gleaner.control.doctor.finding import CheckState

    give_up_s = clock.monotonic_s() + STARTS_WITHIN_S
    while any(one.name in names and one.state is CheckState.FAULT for one in found):
        if clock.monotonic_s() >= give_up_s:
            break
        clock.wait(threading.Event(), LOOK_EVERY_S)
        found = look()
    return found


def until_in_force(faults: "tuple[Finding, ...]") -> "tuple[tuple[Finding, ...], str]":
    """Return the faults but for those that end when the new slurm.conf is in force, and a line that names those."""
    waiting = tuple(one.name for one in faults if one.name in _OF_SLURM_CONF)
    line = f"until then the doctor misses what slurm.conf says now: {', '.join(waiting)}" if waiting else ""
    return tuple(one for one in faults if one.name not in _OF_SLURM_CONF), line


class _Run:
    """One call of `glean setup`: what all roles have in common. Refusals become one line."""

    def __init__(
        self, role: Literal["control", "node", "client"], root: str, *, dry_run: bool, yes: bool,
        skip: Sequence[str] | None, force: bool,
    ) -> None:  # fmt: skip
        self._role = role
        self._root = root
        self._is_dry = dry_run
        self._is_agreed = yes
        self._skip = frozenset(skip or ())
        self._force = force

    def __enter__(self) -> "_Run":
        from gleaner.control.setup.steps import manifest
        from gleaner.control.setup.steps.changes import SetupRefused
        from gleaner.control.setup.steps.machine import MachineReader

        if self._root and not Path(self._root).is_dir():
            raise BadInput(f"--root {self._root}: there is no such folder")
        self.machine: MachineReader = MachineReader(str(Path(self._root).resolve()) if self._root else "")
        try:
            self.manifest = manifest.load(self.machine)
        except SetupRefused as error:
            raise Failure(str(error)) from error
        if self.machine.is_live and not self.machine.is_root and not self._is_dry:
            raise Failure("setup changes this machine: run it as root, or see with --dry-run what it would do")
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        from gleaner.control.setup.steps.changes import SetupRefused

        if isinstance(error, SetupRefused):
            raise Failure(one_line(str(error))) from error

    def asker(self) -> _Asker:
        """Return what finds the answers."""
        return _Asker(self.manifest, self._role, asks=sys.stdin.isatty() and not self._is_agreed)

    @staticmethod
    def packages() -> str:
        """Return the folder that holds the installed `gleaner.agent`, from which root's programs come."""
        from gleaner.agent import privileged

        return str(Path(next(iter(privileged.__path__))).parents[2])

    def set_up(self, steps: "Sequence[SetupStep]", answers: "Answers", *, restart: bool, ca: str) -> Answer:
        """Check, show, ask, do, and check again."""
        from gleaner.control.setup.steps.engine import Installer, plan_all

        steps = self._chosen(steps)
        planned = plan_all(steps, self.machine, self.manifest, self._role)
        faults = self._faults_before(answers, ca) if planned.plans else ()
        if self._is_dry:
            said = (f"would be refused: {fault}" for fault in faults)
            return Answer("\n".join((*_shown(planned), "nothing was changed")), remarks=(*said, *planned.remarks))
        if faults and not self._force:
            raise Failure(f"nothing was changed: {faults[0]}{_more(faults)} (--force goes on all the same)")
        hints: tuple[tuple[str, ...], ...] = ()
        if planned.plans:
            self._agree(_shown(planned), "Do this?")
            with _named_interruption():
                installer = Installer(self.machine, self._role, _progress)
                hints = installer.apply(steps, answers)
                for hint in hints if restart else ():
                    installer.run(hint)
        elif self._role not in self.manifest.answers:
            Installer(self.machine, self._role, _progress).apply(steps, answers)
        return self._checked(steps, planned, () if restart else hints)

    def _chosen(self, steps: "Sequence[SetupStep]") -> "tuple[SetupStep, ...]":
        names = [step.name for step in steps]
        for name in self._skip:
            if name not in names:
                raise BadInput(f"--skip {name}: there is no such step; there are {', '.join(names)}")
        return tuple(step for step in steps if step.name not in self._skip)

    def _agree(self, shown: Sequence[str], question: str) -> None:
        if self._is_agreed:
            return
        if not sys.stdin.isatty():
            raise Failure("nobody is here to agree: look at what --dry-run shows, and say --yes")
        sys.stderr.write("\n".join((*shown, "")))
        if not typer.confirm(question, err=True):
            raise Failure("as you wish: nothing was changed")

    def _checked(self, steps: "Sequence[SetupStep]", planned: "Planned", hints: tuple[tuple[str, ...], ...]) -> Answer:
        """Return what was reached: steps that are not in place, and what the doctor finds now."""
        from gleaner.control.setup.steps import manifest
        from gleaner.control.setup.steps.engine import plan_all

        left = plan_all(steps, self.machine, manifest.load(self.machine), self._role).plans
        remarks = [*planned.remarks, *(f"not in place: {plan.title}" for plan in left)]
        remarks += [f"when it suits you: {' '.join(hint)}" for hint in hints]
        many = len(planned.plans)
        said = f"{self._role}: {many} change{'s' * (many != 1)} made" if many else "all is as it should be"
        if not self.machine.is_live:
            return Answer(said, remarks=tuple(remarks), exit_code=int(bool(left)))
        from gleaner.control.doctor.finding import CheckState, summary

        found = self._findings(settings_or_why())
        if many and self.machine.has_systemd:  # else nobody has started it yet

            def look() -> "tuple[Finding, ...]":
                return self._findings(settings_or_why())

            found = once_started(found, look, _STARTING[self._role], SystemClock())
        faults = tuple(one for one in found if one.state is CheckState.FAULT)
        if hints and self._role == "control":
            faults, waiting = until_in_force(faults)
            remarks += [waiting] if waiting else []
        remarks += map(_line, faults)
        return Answer(
            (said, f"glean doctor {self._role}: {summary(found)}"), remarks=tuple(remarks),
            exit_code=int(bool(left or faults)),
        )  # fmt: skip

    def _faults_before(self, answers: "Answers", ca: str) -> tuple[str, ...]:
        """Return what would keep the finished machine from working, a line each."""
        from gleaner.control.doctor.finding import CheckState
        from gleaner.control.settings import ClientSettings, ClusterSettings, Settings

        if not self.machine.is_live:
            return ()
        with _as_file(ca) as ca_file:
            wanted = Settings(
                client=ClientSettings(url=str(answers["url"]), ca_file=ca_file)
                if "url" in answers
                else ClientSettings(),
                cluster=ClusterSettings(backend="slurm"),
            )
            found = self._findings(wanted, answers, ca_file)
        names = _BEFORE[self._role]
        return tuple(_line(one) for one in found if one.name in names and one.state is CheckState.FAULT)

    def _findings(
        self, settings: "Settings | Unread", answers: "Answers | None" = None, ca_file: Path | None = None
    ) -> "tuple[Finding, ...]":
        """Return the doctor's findings. With answers, they count in the place of the agents' settings."""
        from gleaner.control.doctor.doctor import examine
        from gleaner.control.doctor.finding import MachineRole
        from gleaner.control.doctor.look import Look

        look = Look(MachineRole(self._role), settings, within_s=_PATIENCE_S)
        if self._role == "node" and answers is not None:
            from gleaner.agent.settings import AgentSettings

            wanted = AgentSettings(
                control_url=str(answers["url"]), ca_file=ca_file, storage=Path(str(answers["storage"]))
            )
            look.once("agent", lambda: wanted)
        return examine(look)

    def take_back(self, *, purge: bool) -> Answer:
        """Show what would be taken back, ask, and do it."""
        from gleaner.control.setup.steps.changes import EntryKind
        from gleaner.control.setup.steps.engine import Installer, plan_removal

        shown = plan_removal(self.machine, self.manifest, self._role, purge=purge)
        if not shown:
            return Answer(f"nothing of ours is here for the role {self._role}")
        if self._is_dry:
            return Answer("\n".join((*shown, "nothing was changed")))
        self._agree(shown, "Take all of this back?")
        with _named_interruption():
            left = Installer(self.machine, self._role, _progress).take_back(purge=purge)
        if any(one.kind is EntryKind.EDIT and one.roles == ("control",) for one in self.manifest.entries):
            left += (_IN_FORCE_AGAIN,)
        return Answer(f"{self._role}: taken back", remarks=left)


def _shown(planned: "Planned") -> tuple[str, ...]:
    lines = [line for plan in planned.plans for line in (f"* {plan.title}", plan.difference) if line]
    return (*lines, *(f"later, by you or with --restart: {' '.join(hint)}" for hint in planned.hints))


def _more(faults: Sequence[str]) -> str:
    return f" (and {len(faults) - 1} more: see --dry-run)" if len(faults) > 1 else ""


def _line(finding: "Finding") -> str:
    return f"{finding.name}: {finding.seen}" + (f"; {finding.to_do}" if finding.to_do else "")


def _progress(text: str) -> None:
    if text.endswith(PATH):  # before each change
        return
    sys.stderr.write(f"{text}\n")


@contextmanager
def _named_interruption() -> Generator[None]:
    """Say after Ctrl-C that nothing is lost. All that was begun is in the manifest."""
    try:
        yield
    except KeyboardInterrupt:
        _progress("glean: interrupted; run it again to go on, or with --remove to take it back")
        raise


@contextmanager
def _as_file(text: str) -> Generator[Path | None]:
    """Yield a file in memory that holds a text; None for an empty one. The machine is not changed."""
    if not text:
        yield None
        return
    descriptor = os.memfd_create("gleaner-ca")
    try:
        os.write(descriptor, text.encode())
        yield Path(f"/proc/{os.getpid()}/fd/{descriptor}")
    finally:
        os.close(descriptor)
