"""A machine in order, in a folder: its files, its programs as scripts, and a control that answers.

Each test changes one thing on it. The storage, the database, the certificate and the processes that try them as the
service account (`ACCOUNT`) are real. What Slurm, Docker and CRIU print was captured from Slurm 24.11 and Debian 13.
"""

import json
import os
import pwd
import shutil
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gleaner.agent import privileged
from gleaner.agent.checkpoints.storage_root import DRAFTS, STORAGE_ID, storage_number
from gleaner.agent.system.ipc import Handshake
from gleaner.control.doctor.doctor import examine
from gleaner.control.doctor.finding import Finding, MachineRole
from gleaner.control.doctor.look import Look
from gleaner.control.effective_settings import load_settings
from gleaner.control.queue import secret_key
from gleaner.control.queue.database import connect, migrate
from gleaner.control.setup import shipped

ACCOUNT = pwd.getpwnam("daemon")
PATIENCE_S = 60.0
CONFIG = """\
AccountingStorageEnforce = associations,limits,qos
ClusterName             = one
DefMemPerCPU            = 500
Epilog[0]               = /usr/local/libexec/gleaner/epilog.sh
JobSubmitPlugins        = lua
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
SlurmUser               = slurm(64030)
SLURM_CONF              = ROOT/etc/slurm/slurm.conf
SlurmctldParameters     = (null)
SuspendExcParts         = (null)
SuspendProgram          = (null)
SuspendTime             = INFINITE
"""
PARTITIONS = """\
PartitionName=regular AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL MaxTime=UNLIMITED Nodes=node[1-3] PriorityTier=10 PreemptMode=OFF State=UP GraceTime=0
PartitionName=gleaner AllowGroups=ALL AllowAccounts=gleaner AllowQos=gleaner QoS=N/A RootOnly=NO MaxMemPerNode=UNLIMITED MaxTime=1-00:00:00 Nodes=node[1-3] PriorityTier=1 PreemptMode=REQUEUE State=UP GraceTime=120
PartitionName=gpu AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL MaxTime=UNLIMITED Nodes=gpu[1-2] PriorityTier=1 PreemptMode=REQUEUE State=UP GraceTime=0
"""  # noqa: E501
NODES = "".join(
    f"NodeName=node{number} CPUTot=8 RealMemory=4000 State=IDLE Comment=RealMemory=1 Partitions=gleaner\n"
    for number in (1, 2, 3)
)
DOCKER = {
    "ServerVersion": "26.1.5+dfsg1", "Driver": "overlay2", "ExperimentalBuild": True, "DockerRootDir": "/var",
    "Runtimes": {"gleaner": {"path": "/usr/local/sbin/gleaner-runc"}}, "SecurityOptions": ["name=cgroupns"],
}  # fmt: skip
UNIT = "Id={}\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\nResult=success\n"
TAKEN = "sbatch: Job 7 to start at 2027-01-15T08:00:00 using 8 processors on nodes node1 in partition gleaner"


class Machine:
    """The machine. `says` holds what its programs print, by a part of the line with which they are called."""

    def __init__(self, root: Path, role: MachineRole, url: str) -> None:
        self.root, self.role, self.health, self.refuses = root, role, dict[str, Any](), 200
        self.holder: sqlite3.Connection | None = None
        self.says: dict[str, tuple[int, str]] = {}
        self.settings: dict[str, dict[str, Any]] = {
            "client": {"url": url, "token_file": str(root / "token")},
            "storage": {"folder": str(root / "storage")},
            "cluster": {"backend": "slurm", "account": "gleaner", "qos": "gleaner"},
            "queue": {"url": f"sqlite:///{root}/queue/queue.db", "secret_key_file": str(root / "queue/secrets.key")},
            "entitlements": {
                "mode": "on", "partitions": ["shared"], "slurm_admin_socket": str(root / "admin.sock"),
            },
        }  # fmt: skip
        self.agent: dict[str, object] = {
            "control_url": url, "storage": str(root / "storage"), "work": str(root / "work"), "disk_reserve_mib": 1,
            "images_allowed": ["physics/*"],
        }  # fmt: skip
        self.privileged: dict[str, object] = {
            "agent_uid": ACCOUNT.pw_uid, "runc": str(root / "bin/runc"), "criu": str(root / "bin/criu"),
            "handshakes": str(root / "handshakes"), "bundles": str(root / "bundles"), "node_name": "node1",
            "helper_socket": str(root / "helper.sock"), "user_jobs_key": str(root / "user-jobs.key"),
        }  # fmt: skip

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def file(self, name: str, text: str = "", mode: int = 0o644, *, is_accounts: bool = False) -> Path:
        """Write a file of root's, or of the service account's."""
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        if is_accounts:
            os.chown(path, ACCOUNT.pw_uid, ACCOUNT.pw_gid)
        return path

    def folder(self, name: str, mode: int = 0o700) -> Path:
        """Make a folder of the service account's."""
        path = self.path(name)
        path.mkdir(mode=mode, exist_ok=True)
        os.chown(path, ACCOUNT.pw_uid, ACCOUNT.pw_gid)
        return path

    def change(self, words: str, old: str, new: str) -> None:
        """Let a program print something else."""
        status, text = self.says[words]
        assert old in text, (old, text)
        self.says[words] = status, text.replace(old, new)

    def process(self, number: int, name: str, words: str = "", state: str = "S") -> None:
        """Let a process run."""
        for file, text in {"comm": name, "cmdline": words, "stat": f"{number} ({name}) {state} 1"}.items():
            self.file(f"proc/{number}/{file}", text)

    def look(self, within_s: float = PATIENCE_S) -> Look:
        """Write what was changed, and return a new look."""
        programs = {words.split()[0] for words in self.says}
        for program in programs:
            cases = "".join(
                f"*'{words.partition(' ')[2]}'*) cat <<'END'\n{text.rstrip()}\nEND\nexit {status};;\n"
                for words, (status, text) in self.says.items() if words.split()[0] == program
            )  # fmt: skip
            self.file(f"bin/{program}", f'#!/bin/sh\ncase "$*" in\n{cases}*) exit 1;;\nesac\n', 0o755)
        for name, tables in (("gleaner", self.settings), ("agent", self.agent)):
            self.file(f"etc/gleaner/{name}.toml", _toml(tables))
        self.file("etc/gleaner/privileged.json", json.dumps(self.privileged))
        return Look(self.role, load_settings, within_s=within_s, root=str(self.root))

    def findings(self, within_s: float = PATIENCE_S) -> dict[str, Finding]:
        """Look, and return the findings by name."""
        return {found.name: found for found in examine(self.look(within_s))}


def _toml(tables: dict[str, Any]) -> str:
    plain = {key: value for key, value in tables.items() if not isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in plain.items()]
    for name, table in tables.items():
        if isinstance(table, dict):
            lines += [f"[{name}]", _toml(table)]
    return "\n".join(lines) + "\n"


@contextmanager
def in_order(root: Path, role: MachineRole, patch: pytest.MonkeyPatch, made: Path) -> Iterator[Machine]:
    """Yield a machine in order. `made` is a folder with what `make` has made."""
    root.chmod(0o755)
    answers: list[Machine] = []
    with _control(answers) as url, _listening(root / "helper.sock", _help):
        one = Machine(root, role, url)
        answers.append(one)
        patch.setenv("PATH", f"{root}/bin:{os.environ['PATH']}")
        patch.setenv("GLEANER_SETTINGS", f"{root}/etc/gleaner/gleaner.toml")
        patch.setenv("GLEANER_AGENT_SETTINGS", f"{root}/etc/gleaner/agent.toml")
        one.folder("storage")
        for name in (DRAFTS, "agents"):
            one.folder(f"storage/{name}")
        one.file(f"storage/{STORAGE_ID}", "5eed", is_accounts=True)
        number = storage_number(root / "storage")
        one.health = {
            "leader": True, "has_leader": True, "queue": "ok", "failing": [], "last_poll_age_s": 4.0,
            "step_ages_s": {"rounds": 5.0}, "step_every_s": {"rounds": 20.0}, "now_s": None,
            "storage_id": number.id, "storage_inode": number.inode, "storage_changed_s": number.changed_s,
            "round_length_s": 3600.0, "started_s": time.time() + 60, "agent_program": "glean-agent",
            "agent_logs": str(root / "work"),
        }  # fmt: skip
        one.says = {
            "chronyc tracking": (0, "C0A80001,192.168.0.1,3,1800000000.1,0.0001,Normal"),
            "munge --no-input": (0, "MUNGE:AwQ:"), "unmunge ": (0, "STATUS: Success (0)"),
            "scontrol --version": (0, "slurm 24.11.5"), "scontrol show config": (0, CONFIG.replace("ROOT", str(root))),
        }  # fmt: skip
        one.file("token", "t0ken\n", 0o600)
        if role is MachineRole.CONTROL:
            _control_machine(one, made)
        if role is MachineRole.NODE:
            _node(one)
        yield one


def make(folder: Path) -> None:
    """Make a database with all tables, a key for secrets and a certificate, once for all tests."""
    migrate(connect(f"sqlite:///{folder}/queue.db"))
    assert secret_key.make(folder / "secrets.key")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "90", "-subj", "/CN=head")
    names = ("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem"))
    subprocess.run(["openssl", "req", "-x509", *key, *names], check=True, capture_output=True, timeout=60)


def _control_machine(one: Machine, made: Path) -> None:
    root, show = one.root, "sacctmgr --parsable2 --noheader --readonly show"
    one.folder("queue", 0o755)
    for path in made.iterdir():
        copy = root / (path.name if path.suffix == ".pem" else f"queue/{path.name}")
        shutil.copy(path, copy)
        os.chown(copy, ACCOUNT.pw_uid, ACCOUNT.pw_gid)
    one.settings["api"] = {"certificate": str(root / "cert.pem"), "key": str(root / "key.pem")}
    one.path("run/systemd/system").mkdir(parents=True)
    owners = ("control daemon", f"socket {root}/admin.sock", f"heartbeat {root}/alive", "partition shared preemptible")
    one.file("etc/gleaner/slurm-admin.conf", "\n".join(owners))
    one.file("admin.sock")
    one.file("alive", f"{time.time():.0f}")
    one.file("etc/slurm/job_submit.lua", 'gleaner = dofile("gleaner.lua")')
    one.says |= {f"{name} --version": (0, "slurm 24.11.5") for name in ("sinfo", "squeue", "sbatch", "scancel")}
    one.says |= {
        "systemctl gleaner-control": (0, UNIT.format("gleaner-control.service")),
        "systemctl gleaner-slurm-admin": (0, f"{UNIT.format('gleaner-slurm-admin.service')}\n"
                                             f"{UNIT.format('gleaner-deadman.timer')}"),
        "scontrol show partition": (0, PARTITIONS), "scontrol show nodes": (0, NODES),
        "squeue --noheader": (0, "RUNNING|gleaner-1800000000-5eed5eed|None"), "sbatch --test-only": (0, TAKEN),
        f"{show} assoc user=": (0, "gleaner|gleaner,normal"), f"{show} user": (0, "Administrator"),
        f"{show} qos format=Name,UsageFactor": (0, "normal|1.000000|\ngleaner|0.000000|NoReserve"),
        f"{show} qos format=Name,PreemptExemptTime": (0, "normal|\ngleaner|"),
    }  # fmt: skip


def _node(one: Machine) -> None:
    root = one.root
    source = Path(next(iter(privileged.__path__))).parent
    for name in ("privileged", "system"):
        shutil.copytree(source / name, root / "usr/local/lib/gleaner/gleaner/agent" / name)
    one.file("usr/local/sbin/gleaner-runc")
    for name, mode in {"work": 0o750, "handshakes": 0o700, "bundles": 0o700}.items():
        one.folder(name, mode)
    one.file("user-jobs.key", "k" * 64, 0o600)
    one.file("etc/criu/runc.conf", "file-locks\nghost-limit 1G\n")
    for script in (shipped.EPILOG, shipped.WATCHDOG):
        one.file(script.lstrip("/"), shipped.content(script).decode(), 0o755)
    one.file("usr/local/bin/glean-agent", "#!/bin/sh\necho 0.2.0\n", 0o755)
    one.file("docker.sock", mode=0o666)
    one.agent["docker_url"] = f"unix://{root}/docker.sock"
    one.process(7, "slurmd-wlm")
    one.process(8, "python3", "/usr/bin/python3\0/usr/local/libexec/gleaner/watchdog\0")
    one.says |= {
        "criu --version": (0, "Version: 4.2.1"), "criu check": (0, "Looks good."),
        "runc --version": (0, "runc version 1.1.15+ds1"), "docker info": (0, json.dumps(DOCKER)),
        "scontrol show job": (1, '{"jobs": [], "errors": []}'),
        "stat --file-system": (0, "ext2/ext3"),
    }  # fmt: skip


@contextmanager
def _control(answers: list[Machine]) -> Iterator[str]:
    """Yield the address of a control that answers as the machine wants it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            one = answers[0]
            health = one.health | ({"now_s": time.time()} if one.health.get("now_s", 0) is None else {})
            body = json.dumps(health if self.path == "/health" else {"problem": one.health.get("problem", "")}).encode()
            self.send_response(one.refuses if self.path != "/health" else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _help(connection: socket.socket) -> None:
    helper = Handshake(connection)
    helper.hear()
    helper.say({"ok": True})


@contextmanager
def _listening(path: Path, answer: Callable[[socket.socket], None]) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        path.chmod(0o666)
        listening.listen()

        def serve() -> None:
            with suppress(OSError):
                while True:
                    with listening.accept()[0] as connection:
                        answer(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield
        listening.shutdown(socket.SHUT_RDWR)
