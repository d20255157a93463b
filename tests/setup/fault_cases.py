"""The facts of machines that have a fault, or something that somebody should look at, by the check that names it."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.setup import healthy as h
from tests.setup.slurm_cases import limited, reserved, waiting

from gleaner.control.settings import (
    AuditSettings,
    ClientSettings,
    ClusterSettings,
    EntitlementSettings,
    QueueSettings,
    RoundSettings,
)
from gleaner.control.setup import readers
from gleaner.control.setup.doctor import findings
from gleaner.control.setup.facts import (
    Account,
    Certificate,
    Facts,
    Folder,
    FolderOnTheWay,
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


def in_folder(folder: FolderOnTheWay) -> Facts:
    """Return control's facts where its certificate is in this folder."""
    return h.file(h.control(), "/etc/cert.pem", TextFile("", folders=(folder,)))


CLOSED = in_folder(FolderOnTheWay("/etc/tls", 0, 0, 0o700))
CHANGED = h.file(h.control(), SETTINGS, TextFile("", changed_s=h.NOW_S - 60))
"""Control was started a day ago."""
AUDITED = h.settings(audit=AuditSettings(file=Path("/var/log/gleaner/audit")))
LOGS = h.program(h.control(settings=AUDITED), "systemctl places", Output(0, f"{h.PLACES}LogsDirectory=gleaner\n"))
NO_BEAT = replace(h.HEARTBEAT, age_s=None)
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


SILENT = Unread("control does not say which program it starts")
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
    ("certificate's key", CLOSED),
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
    ("token", h.client(token=Output(403, "a token of role metrics reads /metrics and nothing else"))),
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
    ("Docker", h.docker_info(h.node(agent=h.agent(runtime="docker")), Driver="overlayfs")),
    ("Docker", h.docker_info(h.node(agent=h.agent(runtime="docker")), SecurityOptions=["name=userns"])),
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
    ("QOS", h.slurm("PriorityTier=1 PreemptMode=REQUEUE State=UP GraceTime=120",
                    "PriorityTier=1 PreemptMode=OFF State=UP GraceTime=120", "scontrol partitions")),
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
    ("agents' output", h.node(output_folder=Unread("there is no /var/log/agents", is_missing=True))),
    ("agents' output", h.node(output_folder=Folder(0, 0o755, h.GIB, path="/var/log/agents"))),
    ("temporary folder", h.node(copies=Folder(0, 0o700, 2**22, path="/copies"))),
]
WARNINGS: list[tuple[str, Facts]] = [
    ("Docker", h.docker_info(h.node(), Driver="overlayfs")),
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
    ("Slurm admin's heartbeat", replace(ON, heartbeat=replace(h.HEARTBEAT, age_s=200.0))),
    ("Slurm admin's heartbeat", replace(ON, heartbeat=replace(h.HEARTBEAT, age_s=None))),
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
    ("Docker", h.file(h.node(), readers.DAEMON_JSON, TextFile('{"runtimes": {}}'))),
    ("Docker", h.file(h.node(), readers.DAEMON_JSON, MISSING)),
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
