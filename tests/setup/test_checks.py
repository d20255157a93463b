"""Each check names its fault, and says what to do; machines in order have none; garbage is no reason to give up."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.setup import healthy as h
from tests.setup import slurm_cases

from gleaner.agent.privileged.common.config import Config
from gleaner.agent.privileged.install.main import DAEMON_JSON
from gleaner.control.settings import (
    ApiSettings,
    AuditSettings,
    ClientSettings,
    ClusterSettings,
    EntitlementSettings,
    QueueSettings,
    RoundSettings,
)
from gleaner.control.setup import readers
from gleaner.control.setup.doctor import CHECKS, findings
from gleaner.control.setup.facts import (
    Account,
    Certificate,
    Facts,
    Folder,
    MachineRole,
    Output,
    Programs,
    StoredFacts,
    TextFile,
    Unread,
)
from gleaner.control.setup.finding import CheckState

DENIED = Unread("/etc/key.pem cannot be read: Permission denied")
MISSING = Unread("there is no such thing", is_missing=True)
ROOTS = replace(h.STORAGE, uid=0)
WITHOUT_DOCKER = {"docker version": MISSING, "docker info": MISSING}
NO_DOCKER = Account("gleaner", h.UID, ("gleaner",))
NO_KEY = replace(h.SECRET_KEY, is_missing=True, uid=0, mode=0)
SETTINGS = "/etc/gleaner/gleaner.toml"
UNREADABLE = Facts(
    MachineRole.CONTROL,
    h.NOW_S,
    h.UID,
    "6.12.48",
    "0.2.0",
    Unread(f"{SETTINGS}: Permission denied"),
    settings_file=SETTINGS,
)
"""The facts of control's machine as an account sees them that may not read the settings."""
ENTITLED = h.control(
    slurm_admin=Unread("/run/gleaner/slurm-admin.sock did not answer within 5 s"),
    settings=h.settings(entitlements=EntitlementSettings(mode="on", partitions=("shared",))),
)
ON = h.control(settings=h.settings(entitlements=EntitlementSettings(mode="on", partitions=("shared",))))


def switched(facts: Facts = ON, /, **changes: Any) -> Facts:
    """Return control's facts where systemd says this of the dead man's switch."""
    return h.program(facts, "systemctl deadman", Output(0, h.switch(**changes)))


CHANGED = h.file(h.control(), SETTINGS, TextFile("", changed_s=h.NOW_S - 60))
"""Control was started a day ago."""
AUDITED = h.settings(audit=AuditSettings(file=Path("/var/log/gleaner/audit")))
LOGS = h.program(h.control(settings=AUDITED), "systemctl places", Output(0, f"{h.PLACES}LogsDirectory=gleaner\n"))
ELSEWHERE = h.file(h.client(overrides=frozenset({"gleaner_client__url"})), SETTINGS,
                   TextFile('[client]\nurl = "https://other:8642"\n'))  # fmt: skip
OTHER_NAME = Unread("the certificate of head is not for that name: Hostname mismatch")


def timed(**tables: Any) -> Facts:
    """Return control's facts with these settings."""
    return h.control(settings=h.settings(**tables))


_DEMO = tomllib.loads(Path(__file__).parents[2].joinpath("deploy/settings/demo.toml").read_text())
DEMO = timed(queue=QueueSettings(**_DEMO["queue"]), rounds=RoundSettings(**_DEMO["rounds"]))
NO_HELPER = Unread("the node's helper does not answer")


FULL = Folder(0, 0o710, 2**20, path="/full")


def storage(**changes: Any) -> Any:
    return replace(h.STORAGE, **changes)


def noted(**notes: tuple[str, float]) -> Any:
    """Return the storage with other notes of nodes on their keys of user jobs."""
    return storage(key_notes={**h.STORAGE.key_notes, **notes})


def unit(state: str, file_state: str = "enabled", load: str = "loaded") -> Output:
    return Output(0, f"Id=gleaner-control.service\nLoadState={load}\nActiveState={state}\nUnitFileState={file_state}\n")


PLAIN = h.settings(client=ClientSettings(url="http://head:8642"))


def limited(*rows: str, cluster: str = "one", partition: str = "", qos: str = "gleaner||||||||||") -> Facts:
    """Return control's facts with these limits of the account and its users."""
    said = "".join(f"{cluster}|{partition}|{row}\n" for row in rows)
    facts = h.program(h.control(), "sacctmgr limits", Output(0, said))
    return h.program(facts, "sacctmgr qos limits", Output(0, f"{qos}\n"))


SILENT = Unread("control does not say which program it starts")
AGENT = "gleaner-1800000000-5eed5eed"


def waiting(*reasons: str, more: str = "") -> Facts:
    """Return control's facts where agents wait for these reasons."""
    said = "".join(f"PENDING|{AGENT}|{reason}\n" for reason in reasons)
    return h.program(h.control(), "squeue agents", Output(0, said + more))


RESERVED = "ReservationName=old{} StartTime=1799000000 EndTime=1801000000 Nodes={} State={}\n"


def reserved(*nodes: str, state: str = "ACTIVE", more: str = "") -> Facts:
    """Return control's facts where Slurm has a reservation of each of these nodes."""
    said = "".join(RESERVED.format(number, some, state) for number, some in enumerate(nodes))
    return h.program(h.control(), "scontrol reservations", Output(0, said + more))


SAYS = "Slurm does not answer: sinfo says 'Protocol authentication error'"
FAST = h.control(settings=h.settings(rounds=RoundSettings(poll_s=3)))
"""Control looks at Slurm often; a busy Slurm may take the 30 s of its time-out for each question."""

FAULTS: list[tuple[str, Facts]] = [
    ("settings", h.control(settings=Unread("/etc/gleaner/gleaner.toml, line 3: unknown key 'lenght_s'"))),
    ("settings", h.client(settings=Unread("/etc/gleaner/gleaner.toml: not valid TOML"))),
    ("agents' settings", h.node(agent=Unread("/etc/gleaner/agent.toml: no such file", is_missing=True))),
    ("agents' settings", h.file(h.node(), "/etc/gleaner/agent.toml", TextFile("", mode=0o666))),
    ("settings", h.file(h.control(), "/etc/gleaner/gleaner.toml", TextFile("", mode=0o600))),
    ("settings", h.file(h.control(), "/etc/gleaner/gleaner.toml", TextFile("", h.UID, 0o044))),
    ("settings", h.file(h.control(), "/etc/gleaner/gleaner.toml", TextFile("", mode=0o640, gid=7))),
    ("agents' settings", h.file(h.node(), "/etc/gleaner/agent.toml", TextFile("", mode=0o600))),
    ("agent's start", h.program(h.node(), readers.AGENT_START, Output(126, "", "setpriv: failed to execute: denied"))),
    ("agents' resources", h.node(agent=h.agent(memory_mib=65_000))),
    ("containers' folder", h.node(agent=h.agent(runtime="docker"), docker_folder=FULL)),
    ("containers' folder", h.node(agent=h.agent(runtime="criu"), folders={"/var/lib/gleaner-root": FULL})),
    ("containers' folder", h.node(helper=NO_HELPER, docker_folder=replace(FULL, free_bytes=9 * h.GIB, free_files=0))),
    ("agents' times", h.health(h.node(), round_length_s=90.0, least_slice_s=45.0)),
    ("agents' times", h.node(agent=h.agent(margin_s=4000.0))),
    ("storage's owner", h.control(storage=storage(foreign="agents"))),
    ("storage's owner", h.node(storage=storage(foreign="jobs", foreign_uid=7))),
    ("service account", h.node(account=MISSING)),
    ("service account", h.node(account=Account("gleaner", 999, ("gleaner",)))),
    ("service account", h.node(storage=storage(uid=7))),
    ("clock against control", h.node(control=replace(h.CONTROL, ahead_s=3.0))),
    ("clock against control", h.node(control=replace(h.CONTROL, ahead_s=-90.0))),
    ("control", h.node(control=Unread("head port 8642: Connection refused"))),
    ("control", h.client(control=Unread("the certificate of head is not trusted: certificate has expired"))),
    ("control", h.health(h.control(), queue="the database failed; control's log says how")),
    ("control", h.client(control=replace(h.CONTROL, health={}, status=404))),
    ("certificate", h.control(certificate=Certificate(("head",), h.NOW_S - h.DAY_S))),
    ("certificate", h.control(certificate=Unread("/etc/cert.pem is not for that name: Hostname mismatch"))),
    ("certificate's key", h.file(h.control(), "/etc/key.pem", TextFile("", h.UID, 0o644))),
    ("certificate's key", h.file(h.control(), "/etc/key.pem", MISSING)),
    ("certificate's key", h.file(h.control(), "/etc/key.pem", TextFile("", 0, 0o600))),
    ("certificate's key", h.file(h.control(), "/etc/cert.pem", TextFile("", 0, 0o600))),
    ("key for secrets", h.control(secret_key=replace(h.SECRET_KEY, is_on_storage=True))),
    ("key for secrets", h.control(secret_key=replace(h.SECRET_KEY, mode=0o640))),
    ("key for secrets", h.control(secret_key=replace(h.SECRET_KEY, uid=0))),
    ("key for secrets", h.control(secret_key=replace(h.SECRET_KEY, tried=3, unopened=1))),
    ("key for secrets", h.control(secret_key=replace(h.SECRET_KEY, trouble="/k has no key for secrets"))),
    ("steps of control", h.health(h.control(), failing=["provisioning"])),
    ("steps of control", h.health(h.control(), step_ages_s={"drafts": 700.0}, step_every_s={"drafts": 60.0})),
    ("key for secrets", h.control(secret_key=NO_KEY, stored=StoredFacts(3, ()))),
    ("agents' groups", h.control(account=NO_DOCKER)),
    ("looks at Slurm", h.health(h.control(), last_poll_age_s=900.0)),
    ("looks at Slurm", h.health(h.control(), last_poll_age_s=None)),
    ("looks at Slurm", h.health(FAST, last_poll_age_s=121.0)),
    ("database", h.control(schema="the queue's database is of an older version (0024): run `glean control migrate`")),
    ("database", h.control(schema=Unread("the queue's database does not work now: connection refused"))),
    ("database", h.control(schema=Unread("no answer within 6 s"), control=Unread("head port 8642: refused"))),
    ("control", h.health(h.control(), leader=False, has_leader=False)),
    ("queue's writes", h.control(queue=replace(h.QUEUE, refused="/var/lib/gleaner/queue.db", mode=0o644))),
    ("queue's writes", h.control(queue=replace(h.QUEUE, refused="/var/lib/gleaner", uid=4200, is_read_only=True))),
    ("queue's writes", h.control(queue=replace(h.QUEUE, holder="sqlite3", holder_pid=71))),
    ("partition", h.slurm("State=UP GraceTime=120", "State=DOWN GraceTime=120", "scontrol partitions")),
    ("database's disk", h.control(folders={"/var/lib/gleaner": Folder(h.UID, 0o750, 2**20)})),
    ("token", h.control(token=Output(401, "the token has expired"))),
    ("token", h.file(h.client(), "/token", TextFile("secret", mode=0o644))),
    ("token", h.file(h.client(munge=Unread("munge does not answer")), "/token", MISSING)),
    ("munge", h.control(munge=Unread("munge failed: Failed to access the socket"))),
    ("munge", h.node(munge=Unread("the program munge is not installed here", is_missing=True))),
    ("services", h.program(h.control(), "systemctl", unit("failed"))),
    ("services", h.program(h.control(), "systemctl", unit("active", "disabled"))),
    ("services", h.program(h.control(), "systemctl", unit("inactive", "", "not-found"))),
    ("storage", h.node(storage=Unread("/srv/gleaner: No such file or directory", is_missing=True))),
    ("storage", h.node(storage=Unread("the storage folder /srv/gleaner did not answer within 5 s"))),
    ("storage", h.control(storage=storage(is_set_up=False))),
    ("storage's owner", h.control(storage=ROOTS)),
    ("storage's owner", h.node(storage=storage(mode=0o777))),
    ("storage's writes", h.node(storage=storage(trouble="cannot make a hard link: Operation not permitted"))),
    ("storage's space", h.node(storage=storage(free_bytes=2**20))),
    ("storage's space", h.node(storage=storage(free_files=3))),
    ("storage is shared", h.node(storage=storage(id="other"))),
    ("storage is shared", h.node(storage=storage(id=""))),
    ("storage is shared", h.node(storage=storage(inode=8, changed_s=1.7e9 + 5))),
    ("work folder", h.node(folders={})),
    ("work folder", h.node(folders={"/var/lib/gleaner/work": Folder(0, 0o755, 900 * h.GIB)})),
    ("work folder", h.node(folders={"/var/lib/gleaner/work": Folder(h.UID, 0o755, 2**20)})),
    ("work folder", h.node(folders={"/var/lib/gleaner/work": Folder(h.UID, 0o750, 900 * h.GIB, 0)})),
    ("work folder", h.node(folders={"/var/lib/gleaner/work": Folder(
        h.UID, 0o750, 900 * h.GIB, 90_000, all_files=5_000_000)})),
    ("Docker's group", h.node(docker_socket="root:root, mode 660")),
    ("runtime", h.node(docker_socket="root:root, mode 660", helper=NO_HELPER)),
    ("Slurm's JSON", h.program(h.node(), "scontrol json", Output(
        1, '{"jobs": [], "errors": []}', "slurm_load_jobs error: Protocol authentication error"))),
    ("Slurm's JSON", h.program(h.node(), "scontrol json", Output(
        1, '{"errors": [{"description": "", "error": "Protocol authentication error"}]}'))),
    ("Slurm's JSON", h.program(h.node(), "scontrol json", Output(
        1, '{"jobs": []}', "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"))),
    ("Slurm's JSON", h.program(h.program(h.node(), "scontrol json", Output(0, '{"jobs": [], "errors": []}')),
        "scontrol partitions", Output(1, "", "slurm_load_partitions error: Protocol authentication error"))),
    ("slurmd", h.node(commands=(readers.WATCHDOG,))),
    ("kernel", h.node(kernel="5.4.0-150-generic")),
    ("CRIU", h.program(h.node(), "criu --version", Output(0, "Version: 3.17.1\n"))),
    ("CRIU", h.program(h.node(), "criu --version", MISSING)),
    ("CRIU", h.program(h.node(), "criu --version", Output(127, "", "criu: error while loading shared libraries"))),
    ("CRIU's check", h.program(h.node(), "criu check", Output(1, "", "Error (cr-check.c:1): no mm PR_SET_MM"))),
    ("CRIU's options", h.file(h.node(), readers.RUNC_CONF, MISSING)),
    ("CRIU's options", h.file(h.node(), readers.RUNC_CONF, TextFile("# file-locks\nghost-limit 1G\n"))),
    ("tar and gzip", h.program(h.node(), "gzip", MISSING)),
    ("runc", h.program(h.node(), "runc --version", Output(0, "runc version 1.0.0~rc93\n"))),
    ("runc", h.program(h.node(), "runc --version", Output(0, "crun version 1.21\n"))),
    ("control groups", h.file(h.node(), readers.CGROUPS_V2, TextFile("cpuset cpu io pids"))),
    ("control groups", h.file(h.node(), readers.CGROUPS_V2, MISSING)),
    ("system Python", h.program(h.node(), "system python", Output(0, "Python 3.6.8\n"))),
    ("Docker", h.program(h.node(), "docker version", Output(0, '{"Version": "28.5.2", "Experimental": true}'))),
    ("Docker", h.program(h.node(), "docker version", Output(0, '{"Version": "26.1.5", "Experimental": false}'))),
    ("Docker", h.docker_info(h.node(), Runtimes={"runc": {"path": "runc"}})),
    ("Docker", h.docker_info(h.node(), Driver="overlayfs")),
    ("Docker", h.docker_info(h.node(), SecurityOptions=["name=seccomp,profile=builtin", "name=userns"])),
    ("Docker", h.program(h.node(agent=h.agent(runtime="docker")), "docker version", Output(1, "", "Cannot connect"))),
    ("Docker's group", h.node(account=Account("gleaner", h.UID, ("gleaner",)))),
    ("node helper", h.node(helper=NO_HELPER)),
    ("runtime", h.node(helper=NO_HELPER, programs={**h.node().programs, **WITHOUT_DOCKER})),
    ("runtime", h.node(helper=NO_HELPER, agent=h.agent(runtime="criu"))),
    ("runtime", h.program(h.node(helper=NO_HELPER), "docker version", Output(1, "", "Cannot connect"))),
    ("privileged settings", h.node(privileged=Unread("/etc/gleaner/privileged.json: unknown key 'run'"))),
    ("privileged programs", h.node(installed=MISSING)),
    ("privileged programs", h.node(installed=Programs(60, ("/usr/local/sbin/gleaner-runc",), (), ()))),
    ("privileged programs", h.node(installed=Programs(60, (), ("/usr/local/lib/gleaner/x.py",), ()))),
    ("privileged programs", h.node(installed=Programs(60, (), (), ("/usr/local/lib/gleaner/x.py",)))),
    ("handshake folder", h.node(folders={**h.node().folders, "/run/gleaner-agent": MISSING})),
    ("handshake folder", h.node(folders={**h.node().folders, "/run/gleaner-agent": Folder(0, 0o700, h.GIB)})),
    ("handshake folder", h.node(folders={**h.node().folders, "/run/gleaner-agent": Folder(h.UID, 0o750, h.GIB)})),
    ("handshake folder", h.node(folders={**h.node().folders, "/run/gleaner-agent": Folder(h.UID, 0o500, h.GIB)})),
    ("user jobs' key", h.file(h.node(), "/etc/gleaner/user-jobs.key", TextFile("k" * 64, mode=0o640))),
    ("user jobs' key", h.node(user_jobs_key=replace(h.NODES_KEY, fingerprint="0dd"))),
    ("watchdog", h.node(commands=())),
    ("Epilog's file", h.file(h.node(), readers.EPILOG, MISSING)),
    ("Epilog's file", h.file(h.node(), readers.EPILOG, TextFile("", mode=0o644))),
    ("Slurm's programs", h.program(h.control(), "squeue", Unread("squeue did not answer within 5 s"))),
    ("Slurm's programs", h.program(h.control(), "scontrol nodes", Output(1, "", "Unable to contact slurm controller"))),
    ("Slurm's programs", h.program(h.control(), "scontrol --version", Output(0, "slurm 20.11.9"))),
    ("Slurm's JSON", h.program(h.node(), "scontrol json", Output(1, "", "Unable to find plugin: serializer/json"))),
    ("Slurm admin service", h.control(
        slurm_admin=MISSING,
        settings=h.settings(entitlements=EntitlementSettings(mode="on", partitions=("shared",))))),
    ("Slurm admin's rights", h.program(h.control(), "sacctmgr admin", Output(0, "gleaner-slurm-admin|None\n"))),
    ("Slurm admin's rights", h.program(h.control(), "sacctmgr admin", Output(0, "gleaner-slurm-admin|Operator\n"))),
    ("Slurm admin's rights", h.program(h.control(), "sacctmgr admin", Output(0, ""))),
    ("Slurm admin's epoch", h.control(epochs=replace(h.EPOCHS, heard=2**31))),
    ("Slurm admin's settings", h.file(h.control(), readers.SLURM_ADMIN_CONF, TextFile("", mode=0o664))),
    ("Slurm admin's settings", h.file(h.control(), readers.SLURM_ADMIN_CONF, TextFile("control  us # we\n"))),
    ("dead man's switch", h.file(ON, readers.DEADMAN, TextFile("", mode=0o644))),
    ("dead man's switch", h.file(ON, readers.DEADMAN, TextFile("", mode=0o700))),
    ("dead man's switch", switched(timer="inactive")),
    ("dead man's switch", switched(ended_s=1000)),
    ("dead man's switch", switched(ended_s=0)),
    ("dead man's switch", switched(result="timeout")),
    ("audit file", h.control(settings=AUDITED)),  # systemd
    ("audit file", replace(LOGS, audit="/var/log/gleaner is root:root, mode 755")),
    ("agent program", h.program(h.program(h.node(), "glean-agent", Output(127, "")), readers.CONTROLS_AGENT, SILENT)),
    ("agent program", h.program(h.node(), readers.CONTROLS_AGENT, Unread("it is not here", is_missing=True))),
    ("work folder", h.node(folders={"/var/lib/gleaner/work": Folder(h.UID, 0o777, 900 * h.GIB)})),
    ("account", h.program(h.control(), "sacctmgr assoc", Output(1, "", "Problem talking to the database"))),
    ("account", h.program(h.control(), "sacctmgr assoc", Unread("sacctmgr did not answer within 5 s"))),
    ("SelectType", h.slurm("select/cons_tres", "select/linear")),
    ("SelectType", h.slurm("CR_CORE_MEMORY", "CR_CORE")),
    ("SchedulerType", h.slurm("sched/backfill", "sched/builtin")),
    ("PreemptType", h.slurm("preempt/partition_prio", "preempt/none")),
    ("PreemptMode", h.slurm("= REQUEUE", "= OFF")),
    ("PreemptParameters", h.slurm("send_user_signal", "(null)")),
    ("Epilog", h.slurm("/usr/local/libexec/gleaner/epilog.sh", "(null)")),
    ("accounting", h.slurm("associations,limits,qos", "none")),
    ("partition", h.slurm("PartitionName=gleaner", "PartitionName=idle", "scontrol partitions")),
    ("partition", h.slurm("GraceTime=120", "GraceTime=0", "scontrol partitions")),
    ("partition", h.slurm("REQUEUE State=UP GraceTime=120", "OFF GraceTime=120", "scontrol partitions")),
    ("partition's limit", h.slurm("MaxTime=1-00:00:00", "MaxTime=00:30:00", "scontrol partitions")),
    ("partition's users", h.slurm("AllowAccounts=gleaner", "AllowAccounts=physics", "scontrol partitions")),
    ("tiers", h.slurm("PriorityTier=10", "PriorityTier=1", "scontrol partitions")),
    ("tiers", h.slurm("PriorityTier=10 PreemptMode=OFF", "PriorityTier=10 PreemptMode=REQUEUE", "scontrol partitions")),
    ("nodes' memory", h.slurm("CPUTot=8 RealMemory=4000", "CPUTot=8 RealMemory=1", "scontrol nodes")),
    ("nodes", h.slurm("Partitions=gleaner", "Partitions=gleaner Reason=Epilog error [root@2026]", "scontrol nodes")),
    ("nodes", h.slurm("State=IDLE", "State=DOWN*", "scontrol nodes")),
    ("account", h.program(h.control(), "sacctmgr assoc", Output(0, ""))),
    ("account", h.program(h.control(), "sacctmgr assoc", Output(0, "physics|gleaner|normal|normal\n"))),
    ("QOS", h.program(h.control(), "sacctmgr qos", Output(0, "normal|1.000000||\n"))),
    ("Slurm's limits", limited("|0||||||")),
    ("agents", h.control(problem="agents end before they register")),
    ("Slurm's limits", limited("|||||||", "gleaner||||0|||")),
    ("Slurm's limits", limited("|||||gres/gpu=0,cpu=0||")),
    ("Slurm's limits", h.program(h.control(), "sacctmgr qos limits", Output(0, "gleaner||||0||||||\n"))),
    ("Slurm's limits", h.program(h.control(), "sacctmgr qos limits", Output(0, "gleaner|||||||cpu=7|||\n"))),
    ("Slurm's limits", limited("||||||mem=3G|")),
    ("Slurm's limits", limited("|||||||00:01:00")),
]  # fmt: skip
FAULTS += [
    ("control", h.node(large_request=Unread("head port 8642 accepts connections: it did not answer within 5 s"))),
    ("temporary folder", h.node(copies=Folder(0, 0o700, 2**22, path="/copies"))),
]
WARNINGS: list[tuple[str, Facts]] = [
    ("agents' settings", h.node(agent=h.agent(margin_s=5, shortest_slice_s=10))),
    ("agents' times", h.node(agent=h.agent(margin_s=300.0))),
    ("agents' resources", h.node(agent=h.agent(cpus=9))),
    ("containers' folder", h.node(docker_folder=FULL)),
    ("work folder", h.node(folders={"/var/lib/gleaner/work": Folder(
        h.UID, 0o750, 900 * h.GIB, all_bytes=20 * h.GIB)})),
    ("allowed images", h.node(agent=h.agent(images_allowed=("gleaner/*",)))),
    ("rounds", h.control(settings=h.settings(rounds=RoundSettings(length_s=90)))),
    ("agents' program", h.control(settings=h.settings(
        cluster=ClusterSettings(backend="slurm", agent_command=("/usr/local/bin/glean-agnet",))))),
    ("service account", h.node(account=Account("gleaner", h.UID, ("gleaner", "docker", "sudo")))),
    ("clock", h.program(h.node(), "timedatectl", Output(0, "no\n"))),
    ("clock", h.program(h.control(), "chronyc", Output(0, "00000000,,0,0.0,0.0,Not synchronised"))),
    ("control", h.health(h.control(), leader=False)),
    ("version", h.health(h.node(), version="0.1.0")),
    ("looks at Slurm", h.health(FAST, last_poll_age_s=70.0)),
    ("settings in force", CHANGED),
    ("times in settings", timed(rounds=RoundSettings(length_s=60, shortest_slice_s=10, agent_needs_s=55))),
    ("times in settings", timed(rounds=RoundSettings(length_s=3600, shortest_slice_s=3000))),
    ("times in settings", timed(rounds=RoundSettings(length_s=600, poll_s=200))),
    ("times in settings", timed(rounds=RoundSettings(poll_s=60, pending_limit_s=100))),
    ("times in settings", timed(queue=QueueSettings(lease_s=50))),
    ("times in settings", timed(cluster=ClusterSettings(backend="slurm", timeout_s=4))),
    ("dead man's switch", switched(h.control(), timer="inactive")),
    ("dead man's switch", switched(result="exit-code")),
    ("dead man's switch", h.file(h.program(ON, "systemctl deadman", Output(0, "")), readers.DEADMAN, MISSING)),
    ("dead man's switch", h.program(ON, "systemctl deadman", Output(0, ""))),
    ("looks at Slurm", h.health(replace(FAST, problem=SAYS), last_poll_age_s=38.0)),
    ("key for secrets", h.control(secret_key=NO_KEY)),
    ("key for secrets", h.control(secret_key=NO_KEY, stored=DENIED)),
    ("agents' groups", h.control(account=NO_DOCKER, stored=StoredFacts(0, ()))),
    ("certificate", h.control(certificate=replace(h.CERTIFICATE, ends_s=h.NOW_S + 800 * h.DAY_S))),
    ("certificate", h.control(certificate=Certificate(("head",), h.NOW_S + 5 * h.DAY_S))),
    ("certificate", h.client(control=replace(h.CONTROL, certificate=Certificate(("head",), h.NOW_S + 5 * h.DAY_S)))),
    ("storage's owner", h.control(storage=storage(mode=0o750))),
    ("storage's writes", h.node(storage=storage(wrote_s=4.0))),
    ("storage's space", h.control(storage=storage(free_bytes=5 * h.GIB))),
    ("work folder", h.node(memory_mib=10**6)),
    ("slurmd's limits", h.node(slurmd_limits=h.LIMITS.replace("1024  ", "256  "))),
    ("slurmd's limits", h.node(slurmd_limits=h.LIMITS.replace("unlimited", "1048576", 1))),
    ("user jobs' key", h.node(storage=noted(node3=("0dd", h.NOW_S - 5)))),
    ("Docker", h.file(h.node(), DAEMON_JSON, TextFile('{"runtimes": {}}'))),
    ("Docker", h.file(h.node(), DAEMON_JSON, MISSING)),
    ("Epilog's file", h.file(h.node(), readers.EPILOG, TextFile(f"{h.EPILOG}# mine", mode=0o755))),
    ("Epilog's file", h.file(h.node(), readers.SLURM_CONF, TextFile("#Epilog=/a\nEpilogSlurmctld=/b\n"))),
    ("temporary folder", h.node(folders={readers.TEMPORARY: Folder(0, 0o1777, 2**20)})),
    ("temporary folder", h.node(folders={readers.TEMPORARY: Folder(0, 0o1777, h.GIB, 0)})),
    ("CRIU", h.node(kernel="6.18.44")),
    ("SELinux", h.file(h.node(), readers.SELINUX, TextFile("1"))),
    ("Docker", h.program(h.node(), "docker version", Output(1, "", "Cannot connect to the Docker daemon"))),
    ("Docker", h.program(h.node(), "docker version", Output(0, '{"Version": "24.0.7", "Experimental": true}'))),
    ("Docker", h.program(h.node(), "docker version", Output(0, '{"Version": "27.5.1", "Experimental": true}'))),
    ("Slurm's programs", h.program(h.control(), "scontrol --version", Output(0, "slurm 26.05.1"))),
    ("Slurm's programs", h.control(settings=h.settings(cluster=ClusterSettings()))),
    ("Epilog", h.slurm("/usr/local/libexec/gleaner/epilog.sh", "/etc/slurm/epilog")),
    ("accounting", h.slurm("associations,limits,qos", "associations")),
    ("KillWait", h.slurm("30 sec", "4 sec")),
    ("default memory", h.slurm("DefMemPerCPU            = 500", "DefMemPerNode           = UNLIMITED")),
    ("queue's writes", h.control(queue=replace(h.QUEUE, holder="glean", holder_pid=71, is_holder_ours=True))),
    ("partition", h.slurm("GraceTime=120", "GraceTime=20", "scontrol partitions")),
    ("nodes", h.slurm("node2 Arch=x86_64 OS=Linux 6.12 CPUTot=8 RealMemory=4000 State=IDLE",
                      "node2 Arch=x86_64 OS=Linux 6.12 CPUTot=8 RealMemory=4000 State=IDLE+DRAIN", "scontrol nodes")),
    ("account", h.control(settings=h.settings(cluster=ClusterSettings(backend="slurm")))),
    ("QOS", h.program(h.control(), "sacctmgr qos", Output(0, "gleaner|1.000000|NoReserve|\n"))),
    ("agents", waiting("QOSGrpCpuLimit", "Resources")),
    ("Slurm's limits", limited("|||||||00:30:00")),
    ("reservations", reserved("node[1-2]", "node3,gpu1")),
    ("QOS", h.program(h.control(), "sacctmgr qos", Output(0, "gleaner|0.000000||\n"))),
]  # fmt: skip


def state_of(name: str, facts: Facts) -> CheckState:
    (found,) = (finding for finding in findings(facts) if finding.name == name)
    assert "\n" not in found.seen + found.to_do
    assert found.seen
    assert (found.to_do != "") or found.state not in {CheckState.FAULT, CheckState.WARNING}
    return found.state


@pytest.mark.parametrize("facts", [h.control(), h.node(), h.client()], ids=lambda facts: facts.role)
def test_a_machine_in_order_has_neither_fault_nor_warning(facts: Facts) -> None:
    not_ok = [finding for finding in findings(facts) if finding.state in {CheckState.FAULT, CheckState.WARNING}]
    assert not_ok == []


@pytest.mark.parametrize(("name", "facts"), FAULTS, ids=[f"{n}-{name}" for n, (name, _) in enumerate(FAULTS)])
def test_a_fault_is_named_by_its_check(name: str, facts: Facts) -> None:
    assert state_of(name, facts) is CheckState.FAULT


@pytest.mark.parametrize(("name", "facts"), WARNINGS, ids=[f"{n}-{name}" for n, (name, _) in enumerate(WARNINGS)])
def test_what_somebody_should_look_at_is_a_warning(name: str, facts: Facts) -> None:
    assert state_of(name, facts) is CheckState.WARNING


def test_what_only_the_account_may_write_is_no_fault_of_an_ordinary_users_look() -> None:
    refused = replace(h.QUEUE, refused="/var/lib/gleaner", uid=h.UID, mode=0o755)
    denied = storage(trouble="cannot make a folder: Permission denied")
    for uid, state in ((1000, CheckState.NOT_CHECKED), (h.UID, CheckState.FAULT), (0, CheckState.FAULT)):
        assert state_of("queue's writes", h.control(uid=uid, queue=refused)) is state
        assert state_of("storage's writes", h.control(uid=uid, storage=denied)) is state


def test_there_is_a_case_for_each_check_and_a_name_stands_once() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    of_slurm = {name for name, *_ in [*slurm_cases.FAULTS, *slurm_cases.WARNINGS]}
    assert set(names) - of_slurm - {name for name, _ in [*FAULTS, *WARNINGS]} == set()
    for role in (MachineRole.CONTROL, MachineRole.NODE):
        assert sum(role in check.roles for check in CHECKS) >= 25


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("Docker", h.node(programs={**h.node().programs, **WITHOUT_DOCKER})),
        ("node helper", h.node(helper=NO_HELPER, privileged=Config(h.UID))),
        ("CRIU's check", h.node(uid=4200)),
        ("CRIU's check", h.program(h.node(), "criu --version", Output(-11, ""))),
        ("Docker's group", h.node(uid=1000, docker_socket=Unread("this can be tried by root"))),
        ("services", h.control(has_systemd=False)),
        ("SelectType", h.control(settings=h.settings(cluster=ClusterSettings(backend="local")))),
        ("storage is shared", h.health(h.node(), storage_id="")),
        ("agents' times", h.health(h.node(), round_length_s=None)),
        ("agent's start", h.program(h.node(), readers.AGENT_START, SILENT)),
        ("slurmd's limits", h.node(slurmd_limits="Max cpu time")),
        ("containers' folder", h.node(helper=NO_HELPER, docker_folder=MISSING)),
        ("agents' times", h.health(h.node(), least_slice_s="x")),
        ("looks at Slurm", h.health(h.control(), leader=False)),
        ("munge", h.client(munge=Unread("the program munge is not installed here", is_missing=True))),
        ("token", h.file(h.client(), "/token", MISSING)),
        ("Slurm admin service", h.control(slurm_admin=MISSING)),
        ("certificate", h.control(certificate=OTHER_NAME, control=OTHER_NAME)),
        ("settings in force", h.health(CHANGED, started_s=None)),
        ("settings in force", replace(CHANGED, control=replace(h.CONTROL, is_here=False))),
        ("settings in force", replace(CHANGED, overrides=frozenset({"GLEANER_SETTINGS"}))),
        ("audit file", replace(LOGS, audit=Unread("this can be tried by root, or by the service account"))),
        ("Slurm admin's rights", h.control(slurm_admin=MISSING)),
        ("Slurm admin's rights", h.program(h.control(uid=1000), "sacctmgr admin", Output(0, ""))),
        ("Slurm admin's epoch", h.control(slurm_admin=MISSING)),
        ("Slurm admin's epoch", h.health(h.control(epochs=replace(h.EPOCHS, heard=2**31)), leader=False)),
        ("dead man's switch", h.control(slurm_admin=MISSING)),
        ("agents' groups", h.control(account=NO_DOCKER, commands=())),
        ("agents' groups", h.control(account=NO_DOCKER, stored=DENIED)),
        ("queue's writes", h.control(queue=DENIED)),
        ("Slurm's limits", h.program(h.control(), "sacctmgr limits", Output(1, "", "Unknown field"))),
        ("queue's writes", h.control(settings=h.settings(queue=QueueSettings(url="postgresql+psycopg://g@/g")))),
        ("database's disk", h.control(settings=h.settings(queue=QueueSettings(url="postgresql+psycopg://g@/g")))),
        ("certificate's key", h.file(h.control(uid=1000), "/etc/key.pem", DENIED)),
        ("key for secrets", h.control(uid=1000, secret_key=replace(h.SECRET_KEY, trouble="Permission denied"))),
        ("database", h.control(schema=Unread("no answer within 6 s"))),
        ("control", h.node(agent=Unread("x"), control=Facts.__dataclass_fields__["control"].default)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_cannot_be_known_here_is_no_fault(name: str, facts: Facts) -> None:
    assert state_of(name, facts) is CheckState.NOT_CHECKED


@pytest.mark.parametrize(
    ("name", "facts", "words"),
    [
        ("service account", h.node(account=Account("gleaner", 4201, ())), "must be 4200, as privileged.json says"),
        ("service account", h.node(account=Account("gleaner", 4201, ())), "usermod -u 4200 gleaner"),
        ("CRIU", h.program(h.node(), "criu --version", Output(-11, "")), "criu crashes (SIGSEGV)"),
        ("CRIU", h.program(h.node(), "criu --version", Output(139, "")), "criu crashes (SIGSEGV)"),
        ("CRIU", h.program(h.node(), "criu --version", Output(0, "")), "the file is damaged"),
        ("node helper", h.node(helper=Unread("setpriv did not answer within 5 s")), "systemctl restart gleaner-helper"),
        ("storage", h.node(storage=storage(is_set_up=False, uid=0)), "no storage is mounted at /srv/gleaner"),
        ("storage's writes", h.node(storage=storage(trouble="cannot make a folder: Read-only file system")),
         "mount -o remount,rw /srv/gleaner"),
        ("Slurm's JSON", h.program(h.node(), "scontrol json", Unread("scontrol did not answer within 5 s")),
         "5 s does slurmctld answer?"),
        ("settings", h.file(h.control(), SETTINGS, TextFile("", mode=0o600)),
         f"gleaner cannot read {SETTINGS} (root's, mode 600) chmod 644 {SETTINGS}"),
        ("settings", replace(UNREADABLE, uid=h.UID), f"chmod 644 {SETTINGS}"),
        ("agents' settings", h.node(agent=Unread("/etc/gleaner/agent.toml: Permission denied")),
         "chmod 644 /etc/gleaner/agent.toml"),
        ("agents' times", h.health(h.node(), round_length_s=90.0, least_slice_s=45.0),
         "need 340 s (KillWait 30, margin_s 10, shortest_slice_s 300), and control's rounds last 90 s lower these in"),
        ("storage's owner", h.node(storage=storage(foreign="agents")),
         "/srv/gleaner/agents is root's, not uid 4200's chown -R --reference=/srv/gleaner /srv/gleaner/agents"),
        ("control", h.control(control=Unread("the certificate of head is not trusted: self-signed certificate")),
         "still serves an older certificate than its file's systemctl restart gleaner-control"),
        ("control", h.node(control=Unread("the certificate of head is not trusted: self-signed certificate")),
         "ca_file is not the authority of control's certificate: copy it from control's machine again"),
        ("control", h.node(control=Unread("the certificate of head is not trusted: certificate has expired")),
         "on its machine: run `glean setup control` again, then systemctl restart gleaner-control"),
        ("control", h.node(control=Unread("the certificate of site is not for that name: Hostname mismatch, for x")),
         "use a name that the certificate has, or make it anew: glean setup control --host NAME"),
        ("control", h.node(control=Unread("head port 8642 accepts connections: it did not answer within 5 s")),
         "control hangs: on its machine systemctl restart gleaner-control"),
        ("control", h.client(settings=PLAIN, control=Unread("head port 8642: Remote end closed connection")),
         "control speaks https, and this was http: begin client.url with https://"),
        ("control", h.client(settings=PLAIN, control=Unread("head port 8642: Connection reset by peer"),
                             overrides=frozenset({"GLEANER_CLIENT__URL"})),
         "begin GLEANER_CLIENT__URL in the environment with https://"),
        ("control", h.control(settings=h.settings(api=ApiSettings()), control=Unread("Connection refused")),
         "control listens at 127.0.0.1 alone: mend [api] host, then systemctl restart gleaner-control"),
        ("control", h.node(control=Unread("head port 8642: [SSL] record layer failure (_ssl.c:1000)")),
         "no https is spoken there: is control_url in agent.toml right"),
        ("service account", h.node(storage=storage(uid=65534)),
         "the storage is nobody's here (65534): the file system does not map its owners on NFS: is gleaner known"),
        ("Docker", h.program(h.node(agent=h.agent(runtime="docker")), "docker version",
                             Unread("docker did not answer within 6 s")),
         "systemctl restart containerd docker"),
        ("certificate", h.control(certificate=Certificate(("head",), h.NOW_S - h.DAY_S)),
         "expired on 2027-01-14 run `glean setup control` again"),
        ("token", h.control(token=Output(401, "send a known token, as `Authorization: Bearer TOKEN`; an admin")),
         "does not know the token in /token: was it revoked, or is it of another control? ask an admin"),
        ("key for secrets", h.control(secret_key=replace(h.SECRET_KEY, tried=3, unopened=3)),
         "is not the one that the 3 secrets of groups were stored with"),
        ("key for secrets", h.control(secret_key=replace(h.SECRET_KEY, tried=3, unopened=2)), "2 of the 3 secrets"),
        ("token", h.file(h.client(user="alice"), "/token", Unread(
            "/token cannot be read: Permission denied (root's, mode 600)")),
         "no token: /token cannot be read: Permission denied (root's, mode 600) as root: chown alice /token"),
        ("token", h.file(h.client(), "/token", TextFile("Bearer t0", mode=0o600)), "/token begins with 'Bearer ' put"),
        ("control", replace(ELSEWHERE, control=Unread("head port 8642: Connection refused")),
         f"(GLEANER_CLIENT__URL in the environment counts; {SETTINGS} names https://other:8642)"),
        ("certificate", h.control(certificate=Unread("/etc/cert.pem is not for that name: Hostname mismatch")),
         "use a name that the certificate has"),
        ("munge", h.control(munge=Unread('munge refuses gleaner: Failed to access "/run/munge/m": Permission denied')),
         "munge refuses gleaner: Failed to access \"/run/munge/m\": Permission denied all accounts must reach"),
        ("agents", h.control(problem=SAYS), "`runuser -u gleaner -- munge -n | unmunge`; is munge's key slurmctld's"),
        ("agents", h.control(problem="Slurm does not answer: sinfo says 'Unable to contact slurm controller'"),
         "does slurmctld run, and is its port not blocked by a firewall? scontrol ping"),
        ("agents", h.control(problem="Slurm does not answer: squeue took more than 30 s"), "scontrol ping, sdiag"),
        ("agents", h.control(problem="Slurm refuses: sbatch says 'Invalid account'"), "journalctl -u gleaner-control"),
        ("Slurm admin service", ENTITLED, "hangs systemctl restart gleaner-slurm-admin"),
        ("Docker's group", h.node(docker_socket="root:root, mode 660"), "(root:root, mode 660)"),
        (
            "services",
            h.program(h.control(), "systemctl", unit("inactive", "", "not-found")),
            "run glean setup control, then systemctl enable --now gleaner-control",
        ),
    ],
)  # fmt: skip
def test_a_line_names_the_cause_and_its_cure(name: str, facts: Facts, words: str) -> None:
    (found,) = (finding for finding in findings(facts) if finding.name == name)
    assert found.state is CheckState.FAULT
    assert words in f"{found.seen} {found.to_do}"


def test_an_agent_program_that_knows_no_version_can_be_started() -> None:
    said = Output(2, "", "Usage: glean-agent run\nNo such option: --version\n")
    assert state_of("agent's start", h.program(h.node(), readers.AGENT_START, said)) is CheckState.OK


@pytest.mark.parametrize(
    ("said", "judged"),
    [
        (Output(0, "KillWait                = 300 sec\n"), CheckState.WARNING),
        (Output(1, "", "Unable to contact slurm controller"), CheckState.OK),  # the agents take Slurm's default, too
        (Unread("scontrol did not answer within 5 s"), CheckState.OK),
        (MISSING, CheckState.OK),
    ],
)
def test_an_agents_time_for_a_job_ends_before_slurms_last_signals(said: Output | Unread, judged: CheckState) -> None:
    facts = h.program(h.node(), "scontrol config", said)
    assert state_of("agents' times", facts) is judged
    set_s = replace(facts, agent=h.agent(kill_wait_s=0.0))
    assert state_of("agents' times", set_s) is CheckState.OK
    demo = h.health(replace(facts, agent=h.agent(kill_wait_s=4.0, margin_s=5.0, shortest_slice_s=10.0)),
                    round_length_s=90.0, least_slice_s=25.0)  # fmt: skip
    assert state_of("agents' times", demo) is CheckState.OK


def test_settings_that_cannot_be_read_are_one_fault() -> None:
    assert [finding.name for finding in findings(UNREADABLE) if finding.state is CheckState.FAULT] == ["settings"]


@pytest.mark.parametrize(
    "facts",
    [
        h.control(account=NO_DOCKER, stored=StoredFacts(0, ("criu",))),
        replace(h.slurm("Epilog[0]", "LaunchParameters = disable_send_gids\nEpilog[0]"), account=NO_DOCKER),
    ],
)
def test_agents_need_no_group_docker_of_slurmctlds_machine(facts: Facts) -> None:
    assert state_of("agents' groups", facts) is CheckState.OK


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("times in settings", DEMO),
        *(("times in settings", timed(rounds=RoundSettings(length_s=length_s))) for length_s in (120, 600, 86_400)),
        ("times in settings", timed(cluster=ClusterSettings(timeout_s=1))),  # there is no Slurm
        ("settings in force", h.file(CHANGED, SETTINGS, TextFile("", changed_s=h.NOW_S - h.DAY_S + 0.9))),
        ("audit file", LOGS),
        ("audit file", replace(h.control(settings=AUDITED), has_systemd=False)),
        ("audit file", h.program(LOGS, "systemctl places", Output(0, "ProtectSystem=no\n"))),
        ("audit file", h.program(LOGS, "systemctl places", Output(0, "ProtectSystem=strict\nReadWritePaths=-/var"))),
        ("Slurm admin's rights", h.control(slurm_admin_account="root")),
        ("Slurm admin's rights", replace(h.slurm("SLURM_VERSION", "SlurmUser = slurm(64030)\nSLURM_VERSION"),
                                         slurm_admin_account="slurm")),
        ("dead man's switch", switched(replace(ON, up_s=200.0), ended_s=0)),  # the machine was just started
        ("dead man's switch", switched(state="activating", ended_s=0)),
        ("dead man's switch", replace(ON, has_systemd=False)),
        ("dead man's switch", h.file(ON, readers.DEADMAN, TextFile("", mode=0o750))),  # of its account's group
    ],
)  # fmt: skip
def test_what_is_in_order_is_no_false_alarm(name: str, facts: Facts) -> None:
    assert state_of(name, facts) is CheckState.OK


def test_an_address_of_the_environment_is_named_if_the_file_has_another() -> None:
    def seen(facts: Facts) -> str:
        return next(finding.seen for finding in findings(facts) if finding.name == "control")

    assert seen(ELSEWHERE).endswith("names https://other:8642)")
    for text in ('[client]\nurl = "https://head:8642"\n', "", "[client", "client = 5"):
        assert seen(h.file(ELSEWHERE, SETTINGS, TextFile(text))) == "https://head:8642 answers and leads"
    assert seen(replace(ELSEWHERE, overrides=frozenset())) == "https://head:8642 answers and leads"


def test_a_busy_slurm_is_no_false_alarm() -> None:
    for facts in (h.health(FAST, last_poll_age_s=68.0), h.health(replace(FAST, problem=SAYS), last_poll_age_s=8.0)):
        assert state_of("looks at Slurm", facts) is CheckState.OK


def test_settings_of_the_accounts_group_can_be_read() -> None:
    facts = h.file(h.control(), SETTINGS, TextFile("", mode=0o640, gid=h.UID))
    assert state_of("settings", facts) is CheckState.OK


@pytest.mark.parametrize(
    "facts",
    [
        h.node(storage=storage(inode=8, changed_s=1.7e9 + 1)),  # a file system that makes up inodes, and rounds times
        h.node(storage=storage(changed_s=1.7e9 + 60)),  # an attribute that this machine still remembers
        h.health(h.node(storage=storage(inode=8, changed_s=1.0)), storage_inode=0, storage_changed_s=0.0),
        h.health(h.node(storage=storage(inode=8, changed_s=1.0)), storage_inode=None, storage_changed_s=None),
    ],
)
def test_only_another_file_with_another_time_is_a_copy(facts: Facts) -> None:
    assert state_of("storage is shared", facts) is CheckState.OK


@pytest.mark.parametrize(
    "facts",
    [
        h.node(storage=storage(key_notes={})),
        h.node(user_jobs_key=Unread("only root can read it")),
        h.node(storage=Unread("it hangs")),
        h.node(storage=noted(node3=("0dd", h.NOW_S - 3 * h.DAY_S))),  # older than this node's key
        h.node(storage=noted(node3=("0dd", h.NOW_S - 8 * h.DAY_S)), user_jobs_key=replace(h.NODES_KEY, changed_s=0.0)),
        h.node(storage=noted(node1=("0dd", h.NOW_S - 5))),  # this node's own: an agent notes the new key at its start
        h.node(storage=noted(node3=("", h.NOW_S - 5))),  # a power cut has emptied it
    ],
)
def test_only_a_note_that_is_newer_than_the_key_shows_another_key(facts: Facts) -> None:
    assert state_of("user jobs' key", facts) is CheckState.OK


def test_a_storage_that_is_not_mounted_is_one_fault() -> None:
    facts = h.node(storage=storage(is_set_up=False, uid=0, mode=0o755, id=""))
    assert [finding.name for finding in findings(facts) if finding.state is CheckState.FAULT] == ["storage"]


def test_a_limit_of_nothing_is_named_with_the_command_that_takes_it_away() -> None:
    facts = limited("|||||cpu=0,node=5||")
    (found,) = (finding for finding in findings(facts) if finding.name == "Slurm's limits")
    assert found.seen == "account gleaner has GrpTRES=cpu=0: no agent starts"
    assert found.to_do == "sacctmgr modify account gleaner set GrpTRES=cpu=-1"


def test_agents_may_wait_for_nodes_and_beside_others() -> None:
    for facts in (
        waiting(),
        waiting("Resources", "Priority"),
        waiting("QOSGrpCpuLimit", more=f"RUNNING|{AGENT}|None\n"),
        waiting(more="PENDING|another-job|QOSGrpCpuLimit\n"),
    ):
        assert state_of("agents", facts) is CheckState.OK


def test_reservations_matter_once_no_node_is_left() -> None:
    name = "reservations"
    assert state_of(name, reserved("node[1-2]", "gpu[1-2]")) is CheckState.OK
    later = RESERVED.format("9", "node[1-3]", "INACTIVE")
    assert state_of(name, reserved(more=later.replace("1799000000", "1800003700"))) is CheckState.OK
    assert state_of(name, reserved(more=later.replace("1799000000", "1800003500"))) is CheckState.WARNING
    (found,) = (finding for finding in findings(reserved("gpu1", "node[1-3]")) if finding.name == name)
    when = "no agent for a whole round starts before 2027-01-26 21:46 UTC"
    assert found.seen == f"{when}: all nodes of gleaner are reserved (old1)"
    longer = RESERVED.format("9", "node3", "ACTIVE").replace("1801000000", "1809000000")
    (found,) = (finding for finding in findings(reserved("node[1-2]", more=longer)) if finding.name == name)
    assert found.seen == f"{when}: all nodes of gleaner are reserved (old0, old9)"
    ours = RESERVED.format("9", "node[1-3]", "ACTIVE Flags=MAGNETIC Accounts=gleaner")
    assert state_of(name, reserved(more=ours)) is CheckState.OK
    others = reserved(more=RESERVED.format("9", "node[1-3]", "ACTIVE Flags=MAGNETIC Users=eve"))
    assert state_of(name, replace(others, account=Unread("nobody knows"))) is CheckState.WARNING


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (limited("|||||cpu=7||"),
         "account gleaner has GrpTRES=cpu=7, and the smallest node has 8 CPUs: no agent starts "
         "sacctmgr modify account gleaner set GrpTRES=cpu=8"),
        (limited("gleaner||||||mem=3G|", "||||||mem=9G|"),
         "user gleaner has MaxTRESPerJob=mem=3G, and the smallest node has 4000 MiB: no agent starts "
         "sacctmgr modify user gleaner where account=gleaner set MaxTRESPerJob=mem=4000M"),
        (limited("|||||||00:01:00"),
         "account gleaner has MaxWall=00:01:00, and a round is 3600 s: no agent starts raise it"),
        (limited("|||||||00:30:00"), "agents start only in the last 1800 s of a round"),
    ],
)  # fmt: skip
def test_a_limit_that_is_too_small_is_named_with_what_would_do(facts: Facts, words: str) -> None:
    (found,) = (finding for finding in findings(facts) if finding.name == "Slurm's limits")
    assert words in f"{found.seen} {found.to_do}"


@pytest.mark.parametrize(
    "facts",
    [
        limited("|||||cpu=8,mem=4000M||01:00:00"),
        limited("gleaner|||||||1-00:00:00", "|||||||00:01:00"),  # the user's counts
        limited("|||0||||", qos="gleaner|||9|||||||"),  # the QOS's counts
        limited("|0||||||", cluster="another"),
        limited("|0||||||", partition="another"),
        h.program(limited("|0||||||"), "scontrol config", Output(0, h.CONFIG.replace(",limits,qos", ""))),
    ],
)  # fmt: skip
def test_limits_that_are_met_or_do_not_count_are_in_order(facts: Facts) -> None:
    assert state_of("Slurm's limits", facts) is CheckState.OK


def test_a_node_has_the_cpus_that_slurm_leaves_to_jobs() -> None:
    facts = limited("|||||cpu=6||")
    assert state_of("Slurm's limits", facts) is CheckState.FAULT
    nodes = Output(0, h.NODES.replace("CPUTot=8", "CPUTot=8 CPUEfctv=6"))
    assert state_of("Slurm's limits", h.program(facts, "scontrol nodes", nodes)) is CheckState.OK


def test_limits_of_others_who_use_the_account_do_not_matter() -> None:
    assert state_of("Slurm's limits", limited("eve|0||||||")) is CheckState.OK


def test_agents_use_the_helper_where_docker_cannot_save() -> None:
    facts = h.program(h.node(), "docker version", Output(0, '{"Version": "28.5.2", "Experimental": true}'))
    assert state_of("runtime", facts) is CheckState.OK


def test_the_older_control_groups_will_do() -> None:
    lines = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n" + "".join(
        f"{name}\t1\t1\t1\n" for name in ("cpu", "memory", "pids", "freezer")
    )
    facts = h.file(h.file(h.node(), readers.CGROUPS_V2, MISSING), readers.CGROUPS_V1, TextFile(lines))
    assert state_of("control groups", facts) is CheckState.OK


def test_plain_http_on_control_itself_needs_no_certificate() -> None:
    facts = h.control(
        settings=h.settings(api=ApiSettings(), client=ClientSettings(token_file=Path("/token"))),
        certificate=Unread("control has no certificate: only this machine can reach it", is_missing=True),
    )
    assert state_of("certificate", facts) is CheckState.OK
    assert state_of("certificate's key", facts) is CheckState.OK


def test_the_time_that_the_answer_took_is_no_wrong_clock() -> None:
    facts = h.node(control=replace(h.CONTROL, ahead_s=1.4, unsure_s=0.6))
    assert state_of("clock against control", facts) is CheckState.OK


def test_a_password_that_all_may_read_is_a_warning() -> None:
    facts = h.control(settings=h.settings(queue=QueueSettings(url="postgresql+psycopg://g:hunter2@db/g")))
    assert state_of("settings", facts) is CheckState.WARNING


lines = st.lists(
    st.sampled_from(
        [
            "=",
            " = ",
            "PriorityTier=x",
            "Nodes=[",
            "KillWait = ",
            "{",
            "}",
            "[]",
            "|",
            "||||",
            "Version:",
            "99999999999.1",
        ]
    )
    | st.text(max_size=12),
    max_size=8,
).map(" ".join)


@given(text=lines, status=st.sampled_from([0, 1, -9]), which=st.sampled_from(["control", "node", "client"]))
def test_programs_and_files_may_say_anything(text: str, status: int, which: str) -> None:
    """A text that is not understood is one line of one finding; a check of ours never breaks on it."""
    facts = {"control": h.control, "node": h.node, "client": h.client}[which]()
    facts = replace(
        facts,
        programs={name: Output(status, text, text) for name in facts.programs},
        files={path: TextFile(text) for path in facts.files},
        kernel=text,
    )
    for finding in findings(facts):
        assert "this check itself failed" not in finding.seen
        assert finding.seen.splitlines() == [finding.seen]
        assert finding.to_do.splitlines() in ([finding.to_do], [])


@given(which=st.sampled_from(["control", "node", "client"]), name=st.text(max_size=20))
def test_nothing_may_have_been_read(which: str, name: str) -> None:
    facts = {"control": h.control, "node": h.node, "client": h.client}[which]()
    away = Unread(f"no answer {name!r}")
    facts = replace(
        facts, settings=away, agent=away, privileged=away, storage=away, control=away, token=away, certificate=away,
        account=away, schema=away, installed=away, helper=away, munge=away, commands=away,
        programs=dict.fromkeys(facts.programs, away), files=dict.fromkeys(facts.files, away),
        folders=dict.fromkeys(facts.folders, away),
    )  # fmt: skip
    assert not [finding for finding in findings(facts) if "this check itself failed" in finding.seen]
