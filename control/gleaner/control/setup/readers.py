"""Read the facts of this machine for the checks: each program, file and folder once, all side by side.

Nothing is changed, except for one trial folder in the storage that is removed again (`storage_probe`). What CRIU and
SQLite write by themselves when they are asked, a cache and a lock, stays theirs.
"""

import os
import platform
import pwd
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gleaner.agent.privileged.common import config
from gleaner.control.settings import Settings
from gleaner.control.setup import account_facts, machine_facts, reading, slurm_admin_facts
from gleaner.control.setup.facts import (
    ACCOUNT_LIMITS,
    QOS_LIMITS,
    TRIAL,
    Facts,
    Folder,
    MachineRole,
    Output,
    TextFile,
    Unread,
    sqlite_file,
)
from gleaner.control.slurm.commands import submit
from gleaner.control.slurm.interface import AGENT_PREFIX, AgentRequest
from gleaner.control.slurm_admin import settings as admin_settings

if TYPE_CHECKING:  # it loads the agent's libraries, which only nodes have
    from gleaner.agent.settings import AgentSettings

WATCHDOG = "/usr/local/libexec/gleaner/watchdog"
DAEMON_JSON = "/etc/docker/daemon.json"
RECORD = "/etc/gleaner/setup.json"
LIBRARY = config.Config(1).library
EPILOG = "/usr/local/libexec/gleaner/epilog.sh"
RUNC_CONF = "/etc/criu/runc.conf"
SELINUX = "/sys/fs/selinux/enforce"
CGROUPS_V2 = "/sys/fs/cgroup/cgroup.controllers"
CGROUPS_V1 = "/proc/cgroups"
DEADMAN = "/usr/local/libexec/gleaner/deadman"
SLURM_ADMIN_CONF = str(admin_settings.FILE)
CONTROL_UNIT = "/etc/systemd/system/gleaner-control.service"
SLURM_CONF = os.environ.get("SLURM_CONF") or "/etc/slurm/slurm.conf"
TEMPORARY = machine_facts.TEMPORARY
SLURMCTLD, SLURMD = "slurmctld", "slurmd"
CONTROLS_AGENT = "control's agent program"
AGENT_START = "a start of control's agent program"
SYSTEM_PYTHON = "/usr/bin/python3"
UNITS = {
    MachineRole.CONTROL: ("gleaner-control",),
    MachineRole.NODE: ("gleaner-watchdog", "gleaner-helper"),
    MachineRole.CLIENT: (),
}
_DOCKER_INFO = '{"Runtimes":{{json .Runtimes}},"Driver":{{json .Driver}},"SecurityOptions":{{json .SecurityOptions}}}'
_USUAL_ACCOUNT = "gleaner"
_OWNER_S = 1.0
"""The longest that the look at the storage's owner may take; the storage itself is tried after that."""
_LAST_WORD_S = 0.5
"""The time between the end of a program that hangs and the end of the whole look."""
_LEAST_S = 2.0
"""The shortest time that a look gets, however long it took this program to start."""


def find_role(exists: Callable[[str], bool]) -> MachineRole:
    """Return what a machine seems to be, by the files on it.

    >>> find_role(lambda path: path == "/etc/gleaner/privileged.json")
    <MachineRole.NODE: 'node'>
    >>> find_role(lambda path: False)
    <MachineRole.CLIENT: 'client'>
    """
    if exists(config.CONFIG_FILE):
        return MachineRole.NODE
    if any(map(exists, (CONTROL_UNIT, "/var/lib/gleaner/queue.db", "/etc/gleaner/tls/key.pem"))):
        return MachineRole.CONTROL
    return MachineRole.CLIENT


def _commands(
    role: MachineRole,
    settings: Settings | Unread,
    privileged: config.Config | Unread,
    accounts: "_Accounts",
    *,
    has_systemd: bool,
) -> dict[str, tuple[str, ...]]:
    """Return the programs to run, by the names that the checks know."""
    user = accounts.service or _USUAL_ACCOUNT
    asked: dict[str, tuple[str, ...]] = {
        "timedatectl": ("timedatectl", "show", "--property=NTPSynchronized", "--value"),
        "chronyc": ("chronyc", "-c", "tracking"),
    }
    if has_systemd and UNITS[role]:
        asked["systemctl"] = ("systemctl", "show", "--property=Id,LoadState,ActiveState,UnitFileState", *UNITS[role])
    if has_systemd and role is MachineRole.CONTROL:
        places = "ProtectSystem,ReadWritePaths,StateDirectory,LogsDirectory"
        asked["systemctl places"] = ("systemctl", "show", f"--property={places}", *UNITS[role])
        about = "Id,LoadState,ActiveState,Result,ExecMainStatus,ExecMainExitTimestampMonotonic"
        switch = ("gleaner-deadman.timer", "gleaner-deadman.service")
        asked["systemctl deadman"] = ("systemctl", "show", f"--property={about}", *switch)
    if role is MachineRole.NODE:
        found = config.Config(1) if isinstance(privileged, Unread) else privileged
        asked |= {
            "criu --version": (found.criu, "--version"),
            # A wrapper of CRIU's may take the rights of the job's owner for it (images/node/sbin/criu): here root's.
            "criu check": ("env", "GLEANER_UID=0", found.criu, "check"),
            "runc --version": (found.runc, "--version"),
            "system python": (SYSTEM_PYTHON, "-IS", "--version"),
            "docker version": ("docker", "version", "--format", "{{json .Server}}"),
            "docker info": ("docker", "info", "--format", _DOCKER_INFO),
            "glean-agent": ("sh", "-c", "command -v glean-agent"),
            "tar": ("tar", "--version"),
            "gzip": ("gzip", "--version"),
            "scontrol --version": ("scontrol", "--version"),
            "scontrol config": ("scontrol", "show", "config"),
            "scontrol json": ("scontrol", "show", "job", "1", "--json"),
            "scontrol partitions": ("scontrol", "--oneliner", "show", "partition"),
        }
    if role is MachineRole.CONTROL and not isinstance(settings, Unread) and settings.cluster.backend != "local":
        show = ("sacctmgr", "--parsable2", "--noheader", "--readonly", "show")
        asked |= {
            "scontrol --version": ("scontrol", "--version"),
            "scontrol config": ("scontrol", "show", "config"),
            "scontrol partitions": ("scontrol", "--oneliner", "show", "partition"),
            "scontrol nodes": ("scontrol", "--oneliner", "show", "nodes"),
            "scontrol reservations": ("env", "SLURM_TIME_FORMAT=%s", "scontrol", "--oneliner", "show", "reservation"),
            "sinfo": ("sinfo", "--version"),
            "squeue": ("squeue", "--version"),
            "sbatch": ("sbatch", "--version"),
            "scancel": ("scancel", "--version"),
            "sacctmgr assoc": (*show, "assoc", f"user={user}", "format=Account,User,QOS,DefaultQOS"),
            "sacctmgr qos": (*show, "qos", "format=Name,UsageFactor,Flags,PreemptExemptTime"),
            "sacctmgr qos limits": (*show, "qos", f"format=Name,{','.join(QOS_LIMITS)}"),
            "sacctmgr level": (*show, "user", user, "format=AdminLevel"),
        }
        wanted = ("--user", user, "--partition", settings.cluster.partition, "--states", "PENDING,RUNNING")
        asked["squeue agents"] = ("squeue", "--noheader", *wanted, "--format", "%T|%j|%r")
        account = settings.cluster.account
        if accounts.admin:
            asked["sacctmgr admin"] = (*show, "user", accounts.admin, "format=User,AdminLevel")
        if account is not None:
            fields = f"format=Cluster,Partition,User,{','.join(ACCOUNT_LIMITS)}"
            asked["sacctmgr limits"] = (*show, "assoc", f"account={account}", fields)
            fields = f"format=Cluster,Account,ParentName,{','.join(ACCOUNT_LIMITS)}"
            asked["sacctmgr accounts"] = (*show, "assoc", "user=", fields)
        if trial := submit_for_trial(settings, accounts.service, accounts.caller):
            asked[TRIAL] = trial
        if has_systemd:
            properties = "--property=Id,LoadState,UnitFileState,After"
            asked["systemctl slurm"] = ("systemctl", "show", properties, "slurmctld.service", "slurmdbd.service")
    return asked


def submit_for_trial(settings: Settings, user: str, caller: str) -> tuple[str, ...]:
    """Return the command that asks Slurm whether it would take an agent, and submits none; empty if we may not ask.

    Root asks in the name of the service account. An empty `user` is not known.
    """
    is_root = os.geteuid() == 0
    if not user or (not is_root and caller != user):
        return ()
    now_s, length_s = time.time(), settings.rounds.length_s
    request = AgentRequest(f"{AGENT_PREFIX}trial", now_s + length_s, now_s + length_s / 2, Path("/dev/null"))
    words = submit(settings.cluster, request, now_s)
    kept = [word for word in words if not word.startswith(("--parsable", "--deadline"))]
    return (*kept, "--test-only", *([f"--uid={user}"] if is_root else []), "--wrap=true")


def read(
    role: MachineRole, settings: Settings | Unread, *, patience_s: float, agent: "AgentSettings | Unread | None" = None
) -> Facts:
    """Return the facts of this machine, after `patience_s` at the latest: all of it is read side by side.

    `agent` has the agents' settings of a node that is not set up yet.
    """
    ends_s = time.monotonic() + patience_s
    if agent is None:
        agent = machine_facts.read_agent_settings() if role is MachineRole.NODE else Unread("only nodes have agents")
    privileged = (
        machine_facts.privileged_settings()
        if role is MachineRole.NODE
        else Unread("only nodes have privileged programs")
    )
    has_systemd = Path("/run/systemd/system").is_dir()
    accounts = _accounts(role, settings)
    asked = _commands(role, settings, privileged, accounts, has_systemd=has_systemd)
    files, folders = _places(role, settings, agent, privileged)
    left_s = round(max(_LEAST_S, ends_s - time.monotonic()), 1)
    # A program that hangs is ended, and its line says so, before the look ends.
    patience_s = left_s - _LAST_WORD_S
    readers: dict[str, Callable[[], object]] = {}
    for name, words in asked.items():
        readers[f"program {name}"] = partial(reading.run, words, within_s=patience_s)
    for path in files:
        readers[f"file {path}"] = partial(reading.text_file, Path(path))
    for path in folders:
        readers[f"folder {path}"] = partial(reading.folder, Path(path))
    readers |= _special(role, settings, agent, privileged, accounts, patience_s=patience_s)
    answers = reading.side_by_side(readers, within_s=left_s)

    def named(kind: str) -> dict[str, Any]:
        return {name.removeprefix(kind): found for name, found in answers.items() if name.startswith(kind)}

    special = {name: found for name, found in answers.items() if " " not in name}
    programs = named("program ")
    if role is MachineRole.NODE:
        left_s = max(_LAST_WORD_S, ends_s - time.monotonic())
        programs[CONTROLS_AGENT] = machine_facts.find_controls_agent(special.get("control"), within_s=left_s)
        special["output_folder"] = machine_facts.output_folder(special.get("control"), within_s=_LAST_WORD_S)
    return Facts(
        role=role,
        now_s=time.time(),
        uid=os.geteuid(),
        kernel=platform.release(),
        version=machine_facts.installed_version(),
        settings=settings,
        settings_file=str(Settings.file() or ""),
        agent=agent,
        privileged=privileged,
        programs=cast("Mapping[str, Output | Unread]", programs),
        files=cast("Mapping[str, TextFile | Unread]", named("file ")),
        folders=cast("Mapping[str, Folder | Unread]", named("folder ")),
        memory_mib=machine_facts.memory_mib(),
        cpus=os.cpu_count() or 0,
        slurm_admin_account=accounts.admin,
        up_s=time.monotonic(),
        user=accounts.caller,
        host=platform.node().partition(".")[0],
        has_systemd=has_systemd,
        overrides=frozenset(name for name in os.environ if name.upper().startswith("GLEANER_")),
        **cast("dict[str, Any]", special),
    )


def _special(
    role: MachineRole,
    settings: Settings | Unread,
    agent: "AgentSettings | Unread",
    privileged: config.Config | Unread,
    accounts: "_Accounts",
    *,
    patience_s: float,
) -> dict[str, Callable[[], object]]:
    """Return the readers of the facts that are neither a program's output nor a file, by the names of the facts."""
    socket = None if isinstance(settings, Unread) else settings.munge.socket or settings.client.munge_socket
    if role is MachineRole.NODE:
        return _special_of_node(agent, privileged, socket, patience_s)
    if isinstance(settings, Unread):
        return {}
    client = settings.client
    readers: dict[str, Callable[[], object]] = {
        "control": lambda: machine_facts.control(client.url, client.ca_file, patience_s),
        "large_request": lambda: machine_facts.large_request(client.url, client.ca_file, patience_s),
        "token": lambda: machine_facts.token(settings, patience_s),
        "munge": lambda: account_facts.munge(socket, accounts.service_uid, patience_s),
    }
    if role is MachineRole.CONTROL:
        readers |= _special_of_control(settings, accounts.service_uid, patience_s)
    return readers


def _special_of_control(settings: Settings, account_uid: int, patience_s: float) -> dict[str, Callable[[], object]]:
    folder, url = settings.storage.folder, settings.queue.url
    database = sqlite_file(url) if url.startswith("sqlite") else None
    readers: dict[str, Callable[[], object]] = {
        "storage": lambda: account_facts.storage(folder, 0, patience_s),
        "account": lambda: machine_facts.owner_of(folder),
        "problem": lambda: machine_facts.problem(settings, patience_s),
        "secret_key": lambda: account_facts.secret_key(settings.queue.secret_key_file, folder, database, patience_s),
        "slurm_admin": partial(reading.answers, settings.entitlements.slurm_admin_socket, within_s=patience_s),
        "heartbeat": partial(slurm_admin_facts.heartbeat, admin_settings.FILE),
        "audit": lambda: account_facts.audit_file(settings.audit.file, account_uid or os.geteuid(), patience_s),
        "certificate": lambda: machine_facts.certificate(settings),
        "commands": lambda: reading.running_names((SLURMCTLD,)),
        "schema": lambda: machine_facts.schema(url, patience_s),
    }
    if database is not None:
        service_uid = partial(machine_facts.service_uid, folder, _USUAL_ACCOUNT)
        readers["queue"] = lambda: account_facts.queue(url, service_uid(), patience_s)
        readers["epochs"] = partial(slurm_admin_facts.epochs, admin_settings.FILE, database, patience_s)
        readers["stored"] = partial(machine_facts.stored, database, patience_s)
    return readers


def _special_of_node(
    agent: "AgentSettings | Unread", privileged: config.Config | Unread, munge_socket: Path | None, patience_s: float
) -> dict[str, Callable[[], object]]:
    uid = 0 if isinstance(privileged, Unread) else privileged.agent_uid
    readers: dict[str, Callable[[], object]] = {
        "munge": lambda: account_facts.munge(munge_socket, uid, patience_s),
        "copies": machine_facts.copies,
        "docker_folder": lambda: machine_facts.docker_folder(patience_s),
        "installed": lambda: machine_facts.installed_programs(Path(RECORD), Path(LIBRARY)),
        "slurmd_limits": lambda: reading.limits_of(SLURMD),
        "commands": lambda: (*reading.running((WATCHDOG,)), *reading.running_names((SLURMD,))),
    }
    if not isinstance(privileged, Unread):
        readers["account"] = lambda: machine_facts.account(uid, usual_name=_USUAL_ACCOUNT)
        readers["user_jobs_key"] = lambda: machine_facts.user_jobs_key(privileged)
        readers["helper"] = lambda: account_facts.helper(privileged.helper_socket, uid, patience_s)
    if not isinstance(agent, Unread):
        url, ca_file = agent.control_url, agent.ca_file
        readers["control"] = lambda: machine_facts.control(url, ca_file, patience_s)
        readers["large_request"] = lambda: machine_facts.large_request(url, ca_file, patience_s)
        readers["storage"] = lambda: account_facts.storage(agent.storage, uid, patience_s)
        if not isinstance(privileged, Unread):
            readers[f"program {AGENT_START}"] = partial(account_facts.start_of_agent, url, ca_file, uid, patience_s)
            readers["docker_socket"] = lambda: account_facts.docker_socket(agent.docker_url, uid, patience_s)
    return readers


def _places(
    role: MachineRole,
    settings: Settings | Unread,
    agent: "AgentSettings | Unread",
    privileged: config.Config | Unread,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files and the folders to look at."""
    files = [str(path) for path in (Settings.file(),) if path is not None]
    folders: list[str] = []
    if not isinstance(settings, Unread):
        files.append(str(settings.client.token_file.expanduser()))
    if role is MachineRole.NODE:
        folders.append(TEMPORARY)
        files += [DAEMON_JSON, SLURM_CONF]
        files += [RUNC_CONF, SELINUX, CGROUPS_V2, CGROUPS_V1, config.CONFIG_FILE, EPILOG, machine_facts.agent_file()]
        if not isinstance(privileged, Unread):
            folders += [privileged.handshakes, privileged.bundles]
            files += [privileged.user_jobs_key] if privileged.user_jobs_key else []
        if not isinstance(agent, Unread):
            folders.append(str(agent.work))
    if role is MachineRole.CONTROL and not isinstance(settings, Unread):
        files += [SLURM_ADMIN_CONF, DEADMAN]
        if settings.api.key is not None:
            files += [str(settings.api.key), str(settings.api.certificate)]
        if settings.queue.url.startswith("sqlite"):
            folders.append(str(sqlite_file(settings.queue.url).parent))
    return tuple(dict.fromkeys(files)), tuple(dict.fromkeys(folders))


@dataclass(frozen=True, slots=True)
class _Accounts:
    """The names that the accounts of this machine have for the numbers that matter here; empty: not known in time."""

    caller: str = ""
    service: str = ""
    """The owner of the storage folder, if that is not root; elsewhere than on control's machine the usual name."""
    service_uid: int = 0
    admin: str = ""
    """The account of the Slurm admin service, if there is one."""


def _accounts(role: MachineRole, settings: Settings | Unread) -> _Accounts:
    """Look names up, in a second at most: a directory of accounts may hang."""

    def service() -> tuple[str, int]:
        if role is not MachineRole.CONTROL or isinstance(settings, Unread):
            return _USUAL_ACCOUNT, 0
        owner = pwd.getpwuid(settings.storage.folder.stat().st_uid).pw_name
        name = _USUAL_ACCOUNT if owner == "root" else owner
        return name, machine_facts.number_of(name)

    def admin() -> str:
        if role is not MachineRole.CONTROL or isinstance(settings, Unread):
            return ""
        return slurm_admin_facts.account_name(settings.entitlements)

    ways: dict[str, Callable[[], object]] = {
        "caller": lambda: machine_facts.name_of(os.geteuid()), "service": service, "admin": admin
    }  # fmt: skip
    known = {
        key: found
        for key, found in reading.side_by_side(ways, within_s=_OWNER_S).items()
        if not isinstance(found, Unread)
    }
    name, uid = cast("tuple[str, int]", known.get("service", ("", 0)))
    return _Accounts(str(known.get("caller", "")), name, uid, str(known.get("admin", "")))
