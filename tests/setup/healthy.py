"""The facts of machines that are in order, as the programs of Debian 13 and Slurm 24.11 tell them."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from gleaner.agent.privileged.common.config import Config
from gleaner.agent.settings import AgentSettings
from gleaner.control.settings import (
    ApiSettings,
    ClientSettings,
    ClusterSettings,
    QueueSettings,
    Settings,
    StorageSettings,
)
from gleaner.control.setup import readers, shipped
from gleaner.control.setup.facts import (
    TRIAL,
    Account,
    Certificate,
    ControlFacts,
    EpochFacts,
    Facts,
    Folder,
    HeartbeatFacts,
    MachineRole,
    Output,
    Programs,
    QueueFacts,
    SecretKeyFacts,
    StorageFacts,
    StoredFacts,
    TextFile,
    Unread,
    UserJobsKey,
)

NOW_S = 1.8e9
DAY_S = 86400.0
GIB = 2**30
UID = 4200
STORAGE = StorageFacts(
    uid=UID,
    mode=0o700,
    is_set_up=True,
    id="5eed",
    free_bytes=900 * GIB,
    free_files=10**6,
    trouble="",
    wrote_s=0.01,
    inode=7,
    changed_s=1.7e9,
    key_notes={f"node{number}": ("f1a9", NOW_S - DAY_S / 2) for number in (1, 2, 3)},
)
NODES_KEY = UserJobsKey("f1a9", NOW_S - 2 * DAY_S, "node1")
QUEUE = QueueFacts("", 0, 0, is_read_only=False, holder="", holder_pid=0, is_holder_ours=False)
SECRET_KEY = SecretKeyFacts(uid=UID, mode=0o600, is_missing=False, is_on_storage=False, trouble="")
ACCOUNT = Account("gleaner", UID, ("gleaner", "docker"), (UID, 998))
EPOCHS = EpochFacts("/run/gleaner/alive.epoch", 1_799_000_000, 1_799_000_000)
HEARTBEAT = HeartbeatFacts("/run/gleaner/alive", 4.0, 60.0)
CERTIFICATE = Certificate(("head",), NOW_S + 400 * DAY_S)
HEALTH: dict[str, Any] = {
    "status": "ok", "leader": True, "has_leader": True, "version": "0.2.0",
    "queue": "ok", "failing": [], "last_poll_age_s": 4.0,
    "storage_id": "5eed", "storage_inode": 7, "storage_changed_s": 1.7e9,
    "round_length_s": 3600.0, "least_slice_s": 600.0,
    "started_s": NOW_S - DAY_S,
}  # fmt: skip
CONTROL = ControlFacts("https://head:8642", 200, HEALTH, 0.1, 0.6, CERTIFICATE, is_here=True)
CONFIG = """\
Configuration data as of 2026-11-26T12:00:00
AccountingStorageEnforce = associations,limits,qos
AccountingStorageHost   = head
ClusterName             = one
DefMemPerCPU            = 500
Epilog[0]               = /usr/local/libexec/gleaner/epilog.sh
KillWait                = 30 sec
MinJobAge               = 300 sec
PreemptExemptTime       = 00:00:00
PreemptMode             = REQUEUE
PreemptParameters       = send_user_signal
PreemptType             = preempt/partition_prio
PrivateData             = none
PrologEpilogTimeout     = 65534
SchedulerParameters     = (null)
SchedulerType           = sched/backfill
SelectType              = select/cons_tres
SelectTypeParameters    = CR_CORE_MEMORY
SlurmctldParameters     = (null)
SLURM_VERSION           = 24.11.5
SuspendExcNodes         = (null)
SuspendExcParts         = (null)
SuspendProgram          = (null)
SuspendTime             = INFINITE

Slurmctld(primary) at head is UP
"""
PARTITIONS = """\
PartitionName=regular AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL MaxTime=UNLIMITED Nodes=node[1-3] PriorityTier=10 PreemptMode=OFF State=UP GraceTime=0
PartitionName=gleaner AllowGroups=ALL AllowAccounts=gleaner AllowQos=gleaner AllocNodes=ALL QoS=N/A MaxNodes=UNLIMITED MinNodes=0 RootOnly=NO ReqResv=NO MaxMemPerNode=UNLIMITED MaxTime=1-00:00:00 Nodes=node[1-3] PriorityTier=1 PreemptMode=REQUEUE State=UP GraceTime=120
PartitionName=gpu AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL MaxTime=UNLIMITED Nodes=gpu[1-2] PriorityTier=1 PreemptMode=REQUEUE State=UP GraceTime=0
"""  # noqa: E501
NODES = "".join(
    f"NodeName=node{number} Arch=x86_64 OS=Linux 6.12 CPUTot=8 RealMemory=4000 State=IDLE Comment=RealMemory=1 "
    "Partitions=gleaner\n"
    for number in (1, 2, 3)
)
PLACES = "ProtectSystem=strict\nReadWritePaths=/srv/gleaner\nStateDirectory=gleaner\nLogsDirectory=\n"
RUNTIMES = {"gleaner": {"path": "/usr/local/sbin/gleaner-runc"}, "runc": {"path": "runc"}}
DOCKER_INFO = {
    "Runtimes": RUNTIMES, "Driver": "overlay2",
    "SecurityOptions": ["name=apparmor", "name=seccomp,profile=builtin", "name=cgroupns"],
}  # fmt: skip
LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max file size             unlimited            unlimited            bytes
Max open files            1024                 524288               files
"""
NO_SUCH_JOB = json.dumps({"jobs": [], "errors": [{"error_number": 2017, "error": "Invalid job id specified"}]})
EPILOG = shipped.content(shipped.EPILOG).decode()
TOKEN = "t0ken-of-an-admin"


@cache
def _control_defaults() -> Settings:
    return Settings()


@cache
def _agent_defaults() -> AgentSettings:
    """Return an agent's settings as they are without a file. To read the environment takes milliseconds."""
    return AgentSettings()


TAKEN = "sbatch: Job 7 to start at 2027-01-15T08:00:00 using 8 processors on nodes node1 in partition gleaner\n"
SLURM_UNITS = """\
Id=slurmctld.service
LoadState=loaded
UnitFileState=enabled
After=network-online.target slurmdbd.service munge.service

Id=slurmdbd.service
LoadState=loaded
UnitFileState=enabled
After=mariadb.service
"""


def settings(**tables: Any) -> Settings:
    """Return control's settings."""
    usual = {
        "queue": QueueSettings(url="sqlite:////var/lib/gleaner/queue.db"),
        "cluster": ClusterSettings(backend="slurm", account="gleaner", qos="gleaner"),
        "api": ApiSettings(host="0.0.0.0", certificate=Path("/etc/cert.pem"), key=Path("/etc/key.pem")),
        "storage": StorageSettings(folder=Path("/srv/gleaner")),
        "client": ClientSettings(url="https://head:8642", token_file=Path("/token")),
    }
    return Settings.model_construct(**(dict(_control_defaults()) | usual | tables))


def control(**changes: Any) -> Facts:
    """Return the facts of control's machine, with these changes."""
    facts = Facts(
        role=MachineRole.CONTROL, now_s=NOW_S, uid=0, kernel="6.12.48", version="0.2.0", settings=settings(),
        settings_file="/etc/gleaner/gleaner.toml",
        programs={
            "timedatectl": Unread("there is no program timedatectl here", is_missing=True),
            "chronyc": Output(0, "C0A80001,192.168.0.1,3,1800000000.1,0.0001,Normal"),
            "systemctl": Output(0, _unit("gleaner-control")),
            "scontrol --version": Output(0, "slurm 24.11.5"), "sinfo": Output(0, "slurm 24.11.5"),
            "squeue": Output(0, "slurm 24.11.5"), "sbatch": Output(0, "slurm 24.11.5"),
            "scancel": Output(0, "slurm 24.11.5"), "scontrol config": Output(0, CONFIG),
            "scontrol partitions": Output(0, PARTITIONS), "scontrol nodes": Output(0, NODES),
            "squeue agents": Output(0, "RUNNING|gleaner-1800000000-5eed5eed|None\n"),
            TRIAL: Output(0, "", TAKEN),
            "scontrol reservations": Output(0, "No reservations in the system\n"),
            "sacctmgr assoc": Output(0, "gleaner|gleaner|gleaner|gleaner\n"),
            "sacctmgr limits": Output(0, "one|||||||||\none||gleaner||||40|cpu=64||1-00:00:00\n"),
            "sacctmgr qos limits": Output(0, "gleaner||||||||||\n"),
            "sacctmgr qos": Output(0, "normal|1.000000||\ngleaner|0.000000|NoReserve|\n"),
            "sacctmgr accounts": Output(0, "one|root||||||||\none|gleaner|root|||||||\n"),
            "sacctmgr level": Output(0, "None\n"),
            "systemctl slurm": Output(0, SLURM_UNITS),
            "sacctmgr admin": Output(0, "gleaner-slurm-admin|Administrator\n"),
            "systemctl places": Output(0, PLACES),
            "systemctl deadman": Output(0, switch()),
        },
        files={
            "/etc/gleaner/gleaner.toml": TextFile(""), "/token": TextFile(TOKEN, mode=0o600),
            readers.DEADMAN: TextFile("", mode=0o755), readers.SLURM_ADMIN_CONF: TextFile("control gleaner\n"),
            "/etc/key.pem": TextFile("", UID, 0o600), "/etc/cert.pem": TextFile("", 0, 0o644),
        },
        folders={"/var/lib/gleaner": Folder(UID, 0o750, 900 * GIB)},
        slurm_admin="", slurm_admin_account="gleaner-slurm-admin", epochs=EPOCHS, heartbeat=HEARTBEAT, up_s=900_000.0,
        storage=STORAGE, control=CONTROL, token=Output(200, ""), certificate=CERTIFICATE, account=ACCOUNT, schema="",
        munge="0", audit="", has_systemd=True, commands=(readers.SLURMCTLD,), problem="", host="head",
        stored=StoredFacts(0, ("docker",)), queue=QUEUE, secret_key=SECRET_KEY,
    )  # fmt: skip
    return replace(facts, **changes)


def node(**changes: Any) -> Facts:
    """Return the facts of a compute node with Docker and the node helper, with these changes."""
    facts = Facts(
        role=MachineRole.NODE, now_s=NOW_S, uid=0, kernel="6.12.48", version="0.2.0", settings=_control_defaults(),
        agent=agent(), privileged=Config(UID, user_jobs_key="/etc/gleaner/user-jobs.key"),
        programs={
            "timedatectl": Output(0, "yes\n"), "chronyc": Unread("there is no program chronyc here", is_missing=True),
            "systemctl": Output(0, _unit("gleaner-watchdog") + "\n" + _unit("gleaner-helper")),
            "criu --version": Output(0, "Version: 4.1.1\n"), "criu check": Output(0, "Looks good.\n"),
            "runc --version": Output(0, "runc version 1.1.15+ds1\n"), "system python": Output(0, "Python 3.13.5\n"),
            "docker version": Output(0, json.dumps({"Version": "26.1.5+dfsg1", "Experimental": True})),
            "docker info": Output(0, json.dumps(DOCKER_INFO)), "tar": Output(0, "tar"),
            "glean-agent": Output(0, "/usr/local/bin/glean-agent"), "gzip": Output(0, "gzip"),
            "scontrol --version": Output(0, "slurm 24.11.5"), "scontrol config": Output(0, CONFIG),
            "scontrol json": Output(1, NO_SUCH_JOB), "scontrol partitions": Output(0, PARTITIONS),
            readers.CONTROLS_AGENT: Output(0, "/usr/local/bin/glean-agent"), readers.AGENT_START: Output(0, "Usage"),
        },
        files={
            readers.DAEMON_JSON: TextFile(json.dumps({"runtimes": RUNTIMES})),
            readers.SLURM_CONF: TextFile("ClusterName=a\nEpilog = /usr/local/libexec/gleaner/epilog.sh\n"),
            readers.RUNC_CONF: TextFile("file-locks\nghost-limit 1G\n"),
            readers.CGROUPS_V2: TextFile("cpuset cpu io memory pids"),
            readers.CGROUPS_V1: Unread("there is none", is_missing=True),
            readers.SELINUX: Unread("there is none", is_missing=True),
            readers.EPILOG: TextFile(EPILOG, mode=0o755), "/etc/gleaner/agent.toml": TextFile(""),
            "/etc/gleaner/user-jobs.key": TextFile("k" * 64, mode=0o600),
        },
        folders={
            "/var/lib/gleaner/work": Folder(UID, 0o750, 900 * GIB), "/run/gleaner-agent": Folder(UID, 0o700, GIB),
            readers.TEMPORARY: Folder(0, 0o1777, 9 * GIB),
            "/var/lib/gleaner-root": Folder(0, 0o700, 900 * GIB, path="/var/lib/gleaner-root"),
        },
        storage=STORAGE, control=CONTROL, account=ACCOUNT, installed=Programs(60, (), (), ()),
        docker_socket="", helper="", munge="0", large_request="", copies=Folder(0, 0o700, 9 * GIB, path="/copies"),
        output_folder=Folder(UID, 0o750, GIB, path="/var/lib/gleaner/work"),
        user_jobs_key=NODES_KEY, slurmd_limits=LIMITS, cpus=8,
        docker_folder=Folder(0, 0o710, 900 * GIB, path="/var/lib/docker"),
        commands=(readers.WATCHDOG, readers.SLURMD), memory_mib=64_000, has_systemd=True,
    )  # fmt: skip
    return replace(facts, **changes)


def client(**changes: Any) -> Facts:
    """Return the facts of a login node, with these changes."""
    facts = control()
    facts = replace(
        facts, role=MachineRole.CLIENT, uid=1000,
        programs={name: facts.programs[name] for name in ("timedatectl", "chronyc")},
        folders={}, certificate=Unread("this was not read"), schema=Unread("this was not read"),
    )  # fmt: skip
    return replace(facts, **changes)


def agent(**changes: Any) -> AgentSettings:
    """Return an agent's settings."""
    usual = {"control_url": "https://head:8642", "storage": Path("/srv/gleaner"), "images_allowed": ("physics/*",)}
    return AgentSettings.model_construct(**(dict(_agent_defaults()) | usual | changes))


def program(facts: Facts, name: str, output: Output | Unread) -> Facts:
    """Return the facts with another output of a program."""
    return replace(facts, programs={**facts.programs, name: output})


def docker_info(facts: Facts, **changes: Any) -> Facts:
    """Return the facts with another answer of Docker's about itself."""
    return program(facts, "docker info", Output(0, json.dumps(DOCKER_INFO | changes)))


def file(facts: Facts, path: str, found: TextFile | Unread) -> Facts:
    """Return the facts with another file."""
    return replace(facts, files={**facts.files, path: found})


def health(facts: Facts, **changes: Any) -> Facts:
    """Return the facts with another answer of control."""
    return replace(facts, control=replace(CONTROL, health=HEALTH | changes))


def slurm(old: str, new: str, name: str = "scontrol config") -> Facts:
    """Return control's facts, with a change in what Slurm says."""
    said = control().programs[name]
    assert isinstance(said, Output)
    assert old in said.stdout
    return program(control(), name, Output(0, said.stdout.replace(old, new)))


def switch(timer: str = "active", state: str = "inactive", *, ended_s: int = 899_970, result: str = "success") -> str:
    """Return what systemd says of the dead man's switch, which is a unit of a timer."""
    status = {"success": 0, "exit-code": 1}.get(result, 203)
    ended = f"ExecMainExitTimestampMonotonic={ended_s * 10**6}\nExecMainStatus={status}"
    return (
        f"Id=gleaner-deadman.timer\nLoadState=loaded\nActiveState={timer}\nResult=success\n\n"
        f"{ended}\nResult={result}\nId=gleaner-deadman.service\nLoadState=loaded\nActiveState={state}\n"
    )


def script(folder: Path, name: str, text: str) -> Path:
    """Return a shell's script that may be run."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def _unit(name: str, state: str = "active", file_state: str = "enabled") -> str:
    return f"Id={name}.service\nLoadState=loaded\nActiveState={state}\nUnitFileState={file_state}\n"
