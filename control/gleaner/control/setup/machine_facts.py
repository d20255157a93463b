"""Each fact of a machine that is neither a program's output nor a file as it is: one function for each."""

import grp
import hashlib
import json
import os
import pwd
import shutil
import sqlite3
import stat
import time
from contextlib import suppress
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit

from pydantic import ValidationError

from gleaner.agent import privileged as privileged_package
from gleaner.agent.privileged.common import config, user_jobs
from gleaner.agent.system import untrusted
from gleaner.control.input_errors import InputError, complaint, one_line, read_toml, unknown_key
from gleaner.control.settings import Settings
from gleaner.control.setup import reading
from gleaner.control.setup.facts import (
    NOT_INSTALLED,
    Account,
    Certificate,
    ControlFacts,
    Folder,
    Output,
    Programs,
    StoredFacts,
    Unread,
    UserJobsKey,
    sqlite_file,
    trouble_in_token,
)
from gleaner.control.setup.sqlite_reading import opened
from gleaner.control.slurm.commands import NODE_PATH

if TYPE_CHECKING:  # it loads the agent's libraries, which only nodes have
    from gleaner.agent.settings import AgentSettings

Told = TypeVar("Told")
AGENT_PROGRAM = "glean-agent"
_KIB_A_MIB = 1024
_SEVERAL_PACKETS = 4000
_ASK_AGAIN_S = 0.5
TEMPORARY = "/tmp"  # noqa: S108 - only looked at


def installed_version() -> str:
    """Return the installed version of Gleaner."""
    try:
        return version_of("gleaner-hpc")
    except PackageNotFoundError:
        return "unknown"


def agent_file() -> str:
    """Return the path of the agent's settings."""
    return os.environ.get("GLEANER_AGENT_SETTINGS") or "/etc/gleaner/agent.toml"


def read_agent_settings() -> "AgentSettings | Unread":
    """Return the agent's settings, or one line with the file, the line and what is wrong."""
    try:
        from gleaner.agent.settings import AgentSettings
    except ModuleNotFoundError as error:
        return Unread(f"{error.name}, which agents need, {NOT_INSTALLED}")
    path = Path(agent_file())
    try:
        file = read_toml(path, missing="no such file")
    except InputError as error:
        return Unread(str(error), is_missing=not path.exists())
    try:
        return AgentSettings()
    except ValidationError as error:
        first = error.errors()[0]
        key = [str(part) for part in first["loc"]]
        said = complaint(".".join(key), first)
        if first["type"] == "extra_forbidden":
            said = unknown_key(key[-1], AgentSettings.model_fields)
        return Unread(one_line(f"{file.place(key)}: {said}"))
    except (OSError, ValueError) as error:
        return Unread(one_line(f"{path}: {error}"))


def privileged_settings() -> config.Config | Unread:
    """Return the settings of root's programs, or one line with what is wrong."""
    try:
        return config.load()
    except config.Misconfigured as error:
        return Unread(one_line(str(error)), is_missing=not Path(config.CONFIG_FILE).exists())


def memory_mib() -> int:
    """Return this machine's memory; 0 if it cannot be read."""
    found = reading.text_file(Path("/proc/meminfo"))
    lines = [] if isinstance(found, Unread) else found.text.splitlines()
    return next((int(line.split()[1]) // _KIB_A_MIB for line in lines if line.startswith("MemTotal:")), 0)


def account(uid: int, *, usual_name: str = "") -> Account | Unread:
    """Return the account with this number; if there is none, the one of the usual name, which has another number."""
    entry: pwd.struct_passwd | None = None
    with suppress(KeyError):
        entry = pwd.getpwnam(usual_name)
    with suppress(KeyError):
        entry = pwd.getpwuid(uid)
    if entry is None:
        return Unread(f"there is no account with the number {uid} on this machine", is_missing=True)
    groups: list[str] = []
    gids = os.getgrouplist(entry.pw_name, entry.pw_gid)
    for number in gids:
        try:
            groups.append(grp.getgrgid(number).gr_name)
        except KeyError:
            groups.append(str(number))
    return Account(entry.pw_name, entry.pw_uid, tuple(groups), tuple(gids))


def owner_of(folder: Path) -> Account | Unread:
    """Return the account that owns a folder."""
    try:
        return account(folder.stat().st_uid)
    except OSError as error:
        return Unread(f"{folder} cannot be looked at: {error.strerror}")


def service_uid(folder: Path, name: str) -> int:
    """Return the owner of the storage folder, or the account of this name if that is root or unknown; else 0."""
    owner = owner_of(folder)
    if not isinstance(owner, Unread) and owner.uid != 0:
        return owner.uid
    return number_of(name)


def name_of(uid: int) -> str:
    """Return the name of the account with this number; the number if there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def number_of(name: str) -> int:
    """Return the number of the account of this name; 0 if there is none."""
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return 0


def output_folder(control: object, *, within_s: float) -> Folder | Unread:
    """Return this machine's folder for what agents print, which control names to Slurm."""
    path = str(control.health.get("agent_logs") or "") if isinstance(control, ControlFacts) else ""
    if not path:
        return Unread("control does not say where the agents' output goes")
    return reading.side_by_side({"folder": lambda: reading.folder(Path(path))}, within_s=within_s)["folder"]


def find_controls_agent(control: object, *, within_s: float) -> Output | Unread:
    """Look for the program that control starts on nodes, as one of Slurm's jobs would. Return its path."""
    name = str(control.health.get("agent_program") or "") if isinstance(control, ControlFacts) else ""
    if not name:
        return Unread("control does not say which program it starts")
    where = {"path": lambda: Output(0, shutil.which(name, path=NODE_PATH) or "")}
    found = reading.side_by_side(where, within_s=within_s)["path"]
    if isinstance(found, Unread) or found.stdout:
        return found
    return Unread(f"control starts {name}, which is not here", is_missing=True)


def control(url: str, ca_file: Path | None, patience_s: float) -> ControlFacts | Unread:
    """Return control's answer to `/health`, which needs no token.

    If its database is slow, control is asked again for half of the time: a busy machine is no fault.
    """
    ends_s = time.monotonic() + patience_s
    while True:
        found = _health(url, ca_file, max(0.0, ends_s - time.monotonic()))
        is_slow = isinstance(found, ControlFacts) and found.health.get("queue", "ok") != "ok"
        if not is_slow or time.monotonic() > ends_s - patience_s / 2:
            return found
        time.sleep(_ASK_AGAIN_S)


def _health(url: str, ca_file: Path | None, patience_s: float) -> ControlFacts | Unread:
    answer = reading.ask(url, "/health", ca_file, within_s=patience_s)
    if isinstance(answer, Unread):
        return answer
    try:
        said = untrusted.json_of(answer.body, for_display=True)
    except ValueError:
        said = None
    health = cast("dict[str, Any]", said) if type(said) is dict and "leader" in said else {}
    controls_s = health.get("now_s")
    ahead_s = None
    if isinstance(controls_s, float):
        ahead_s = (answer.asked_s + answer.answered_s) / 2 - controls_s
    return ControlFacts(
        url=url,
        status=answer.status,
        health=health,
        ahead_s=ahead_s,
        unsure_s=(answer.answered_s - answer.asked_s) / 2,
        certificate=answer.certificate,
        is_here=answer.is_here,
    )


def large_request(url: str, ca_file: Path | None, patience_s: float) -> str | Unread:
    """Ask control for its health in so many bytes that they do not fit into one packet. Return an empty text."""
    answer = reading.ask(url, "/health", ca_file, within_s=patience_s, padding=_SEVERAL_PACKETS)
    return answer if isinstance(answer, Unread) else ""


def docker_folder(patience_s: float) -> Folder | Unread:
    """Return the folder in which the running Docker Engine keeps images, and what containers write."""
    said = reading.run(("docker", "info", "--format", "{{.DockerRootDir}}"), within_s=patience_s)
    if isinstance(said, Unread):
        return said
    path = said.stdout.strip()
    return reading.folder(Path(path)) if said.status == 0 and path.startswith("/") else Unread(said.complaint)


def copies() -> Folder | Unread:
    """Return the folder in which containerd leaves the memory of restored containers (the watchdog)."""
    for name in ("XDG_RUNTIME_DIR", "TMPDIR"):
        found = reading.variable_of("containerd", name)
        if isinstance(found, Unread):
            return found
        if found.startswith("/"):
            return reading.folder(Path(found))
    return reading.folder(Path(TEMPORARY))


def token(settings: Settings, patience_s: float) -> Output | Unread:
    """Return control's answer to a question with the caller's token. Its text is the reason of a refusal."""
    answer = _asked(settings, "/v1/status", patience_s)
    if isinstance(answer, Unread):
        return answer
    return Output(answer.status, one_line(_field(answer.body, "detail")))


def problem(settings: Settings, patience_s: float) -> str | Unread:
    """Return what keeps control from its agents or from Slurm, in its own words."""
    answer = _asked(settings, "/v1/nodes", patience_s)
    if isinstance(answer, Unread):
        return answer
    if answer.status != HTTPStatus.OK:
        return Unread(f"control answers with status {answer.status}")
    return one_line(_field(answer.body, "problem"))


def _field(body: bytes, name: str) -> str:
    """Return a text of an answer; empty if there is none."""
    try:
        return str(untrusted.json_of(body, for_display=True).get(name) or "")
    except (ValueError, AttributeError):
        return ""


def _asked(settings: Settings, question: str, patience_s: float) -> reading.HttpAnswer | Unread:
    """Return control's answer to a question with the caller's token."""
    path = settings.client.token_file.expanduser()
    file = reading.text_file(path)
    if isinstance(file, Unread):
        return file
    if trouble := trouble_in_token(file.text):
        return Unread(f"{path} {trouble}")
    secret = file.text.strip()
    return reading.ask(settings.client.url, question, settings.client.ca_file, within_s=patience_s, token=secret)


def certificate(settings: Settings) -> Certificate | Unread:
    """Return the certificate in control's settings, as a client is shown it."""
    api, client = settings.api, settings.client
    if api.certificate is None or api.key is None:
        return Unread("control has no certificate: only this machine can reach it", is_missing=True)
    parts = urlsplit(client.url)
    host = (parts.hostname or "") if parts.scheme == "https" else ""
    return reading.certificate_file(api.certificate, api.key, ca_file=client.ca_file, host=host)


def schema(url: str, patience_s: float) -> str | Unread:
    """Return what is wrong with the database's tables; empty if they are this version's.

    SQLite is opened for reading only: as control opens it, the database and its log would be made anew.
    """
    try:
        from gleaner.control.queue.database import check_revision, check_schema, connect
        from gleaner.control.queue.errors import QueueError, SchemaMismatch
    except ModuleNotFoundError as error:
        return Unread(f"{error.name} {NOT_INSTALLED}: pip install 'gleaner-hpc[control]'")
    try:
        if url.startswith("sqlite"):
            check_revision(_sqlite_revision(sqlite_file(url), patience_s))
        elif os.geteuid() == 0:
            return Unread("run this as the service account: the database may not know root")
        else:
            check_schema(connect(url))
    except SchemaMismatch as error:
        return one_line(str(error))
    except (QueueError, sqlite3.Error) as error:
        return Unread(one_line(str(error)))
    return ""


def _sqlite_revision(path: Path, patience_s: float) -> str | None:
    """Return the revision of an SQLite database."""
    with opened(path, patience_s) as database:
        try:
            row = database.execute("SELECT version_num FROM alembic_version").fetchone()
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            return None
    return None if row is None else str(row[0])


def stored(path: Path, patience_s: float) -> StoredFacts | Unread:
    """Return the few rows of an SQLite queue that the checks need."""
    try:
        with opened(path, patience_s) as database:
            (secrets,) = database.execute("SELECT count(*) FROM secret").fetchone()
            runtimes = database.execute("SELECT DISTINCT family FROM kind ORDER BY family").fetchall()
    except sqlite3.Error as error:
        return Unread(one_line(f"{path}: {error}"))
    return StoredFacts(int(secrets), tuple(str(family) for (family,) in runtimes))


def stored_epoch(path: Path, patience_s: float) -> int:
    """Return the epoch of the last leader by an SQLite queue; 0 if none has led. Raises `sqlite3.Error`."""
    with opened(path, patience_s) as database:
        row = database.execute("SELECT epoch FROM leader").fetchone()
    return 0 if row is None else int(row[0])


def user_jobs_key(settings: config.Config) -> UserJobsKey | Unread:
    """Return the fingerprint of this node's key of user jobs, which root alone can read."""
    fingerprint = config.key_fingerprint(settings)
    if not fingerprint:
        return Unread("there is no key of user jobs that can be read")
    changed_s = Path(settings.user_jobs_key).stat().st_ctime
    return UserJobsKey(fingerprint, changed_s, user_jobs.node_name(settings))


def installed_programs(record: Path, library: Path) -> Programs | Unread:
    """Compare root's programs on this node with the installer's record and with this version's files."""
    found = reading.text_file(record)
    if isinstance(found, Unread):
        return found
    try:
        files = {
            str(path): str(digest)
            for path, digest in json.loads(found.text)["files"].items()
            if path.startswith((f"{library}/", "/usr/local/sbin/gleaner-")) and digest != "folder"
        }
    except (ValueError, TypeError, LookupError, AttributeError):
        return Unread(f"{record} is broken: remove it, and run `glean setup node`")
    source = Path(next(iter(privileged_package.__path__))).parent
    ours = {
        f"{library}/gleaner/agent/{path.relative_to(source)}": path
        for package in ("privileged", "system")
        for path in (source / package).rglob("*")
        if path.suffix in {".py", ".sh"}
    }
    modules = {path for path in files if path.startswith(f"{library}/gleaner/")}
    return Programs(
        many=len(files),
        changed=tuple(sorted(path for path, digest in files.items() if _digest(Path(path)) != digest)),
        other_version=tuple(
            sorted(
                (modules ^ ours.keys()) | {path for path in modules & ours.keys() if _digest(ours[path]) != files[path]}
            )
        ),
        foreign=tuple(sorted(path for path in files if _is_foreign(Path(path)))),
    )


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _is_foreign(path: Path) -> bool:
    try:
        facts = path.stat()
    except OSError:
        return False
    return facts.st_uid != 0 or bool(facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
