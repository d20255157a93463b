"""A machine in order has no fault and no warning, and each thing that is spoilt there is named by its check."""

import os
import shutil
import sqlite3
from collections.abc import Callable

import pytest
from tests.doctor.machine import Machine
from tests.privileged.root import only_root

from gleaner.control.doctor.check import judged
from gleaner.control.doctor.doctor import CHECKS
from gleaner.control.doctor.finding import CheckState
from gleaner.control.settings import Settings

pytestmark = only_root
Plant = Callable[[Machine], object]


def odd(machine: Machine) -> dict[str, str]:
    return {name: f"{found.state}: {found.seen}" for name, found in machine.findings().items()
            if found.state is not CheckState.OK}  # fmt: skip


def test_a_machine_of_control_in_order_has_no_fault(control: Machine) -> None:
    assert odd(control) == {}


def test_a_node_in_order_has_no_fault(node: Machine) -> None:
    assert odd(node) == {}


def text(words: str, old: str, new: str) -> Plant:
    """Let a program print something else."""
    return lambda one: one.change(words, old, new)


def conf(old: str, new: str) -> Plant:
    return text("scontrol show config", old, new)


def backfill(given: str) -> Plant:
    return conf("Parameters     = (null)\nSchedulerT", f"Parameters={given}\nSchedulerT")


def ours(old: str, new: str) -> Plant:
    """Change the agents' partition, whose record is the only one with these words."""
    return text("scontrol show partition", old, new)


def answer(**values: object) -> Plant:
    return lambda one: one.health.update(values)


def table(name: str, **values: object) -> Plant:
    return lambda one: one.settings.setdefault(name, {}).update(values)


def agent(**values: object) -> Plant:
    return lambda one: one.agent.update(values)


def privileged(**values: object) -> Plant:
    return lambda one: one.privileged.update(values)


def mode(name: str, bits: int) -> Plant:
    return lambda one: one.path(name).chmod(bits)


def gone(name: str) -> Plant:
    def remove(one: Machine) -> None:
        path = one.path(name)
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return remove


def roots(name: str) -> Plant:
    return lambda one: os.chown(one.path(name), 0, 0)


def holds(name: str, content: str, bits: int = 0o644) -> Plant:
    return lambda one: one.file(name, content, bits)


def both(*plants: Plant) -> Plant:
    return lambda one: [plant(one) for plant in plants]


def fails(words: str, text: str = "") -> Plant:
    return lambda one: one.says.update({words: (1, text)})


def locked(one: Machine) -> None:
    one.holder = sqlite3.connect(one.path("queue/queue.db"), isolation_level=None)
    one.holder.execute("BEGIN IMMEDIATE")


SHOW = "sacctmgr --parsable2 --noheader --readonly show"
ACTIVE = "\nLoadState=loaded\nActiveState=active"
SHIM = "usr/local/lib/gleaner/gleaner/agent/privileged/shim/main.py"
OF_CONTROL: tuple[tuple[str, str, Plant], ...] = (
    ("settings", "fault", table("rounds", lenght_s=5)),
    ("control", "fault", table("client", url="http://127.0.0.1:1")),
    ("control", "fault", answer(leader=False, has_leader=False)),
    ("control", "warning", answer(version="0.0.9")),
    ("steps of control", "fault", answer(failing=["rounds"])),
    ("steps of control", "fault", answer(step_ages_s={"rounds": 900.0})),
    ("certificate", "fault", mode("key.pem", 0o644)),
    ("certificate", "fault", roots("key.pem")),
    ("database", "fault", gone("queue/queue.db")),
    ("database", "fault", locked),
    ("key for secrets", "warning", gone("queue/secrets.key")),
    ("key for secrets", "fault", mode("queue/secrets.key", 0o644)),
    ("key for secrets", "fault", lambda one: table("queue", secret_key_file=f"{one.folder('storage/k')}")(one)),
    ("token", "fault", mode("token", 0o644)),
    ("token", "fault", lambda one: setattr(one, "refuses", 401)),
    ("munge", "fault", fails("unmunge ", "unmunge: Error: Invalid credential")),
    ("clock", "fault", answer(now_s=1.0)),
    ("service account", "fault", roots("storage")),
    ("services", "fault", text("systemctl gleaner-control", "=active", "=failed")),
    ("storage", "fault", gone("storage/.drafts")),
    ("service account", "fault", mode("storage", 0o777)),
    ("service account", "warning", mode("storage", 0o755)),
    ("Slurm's programs", "fault", lambda one: one.says.pop("sbatch --version")),
    ("Slurm's programs", "fault", text("scancel --version", "24.11.5", "21.08.1")),
    ("slurm.conf", "fault", conf("select/cons_tres", "select/linear")),
    ("slurm.conf", "fault", conf("CR_CORE_MEMORY", "CR_CORE")),
    ("slurm.conf", "fault", conf("sched/backfill", "sched/builtin")),
    ("slurm.conf", "fault", conf("preempt/partition_prio", "preempt/none")),
    ("slurm.conf", "fault", conf("= REQUEUE", "= SUSPEND,GANG")),
    ("slurm.conf", "fault", conf("send_user_signal", "(null)")),
    ("slurm.conf", "fault", conf("= 00:00:00", "= 00:10:00")),
    ("slurm.conf", "warning", conf(",limits", "")),
    ("slurm.conf", "warning", conf("= 500", "= UNLIMITED")),
    ("Epilog", "fault", conf("/usr/local/libexec/gleaner/epilog.sh", "(null)")),
    ("Epilog", "warning", conf("/usr/local/libexec/gleaner/epilog.sh", "/etc/site.sh")),
    ("Epilog", "fault", conf("65534", "10")),
    ("entitlements", "fault", conf("= lua", "= (null)")),
    ("entitlements", "fault", holds("etc/slurm/job_submit.lua", "return slurm.SUCCESS")),
    ("partition", "fault", table("cluster", partition="none")),
    ("partition", "fault", ours("1 PreemptMode=REQUEUE State=UP GraceTime=120", "1 PreemptMode=OFF GraceTime=120")),
    ("partition", "fault", ours("State=UP GraceTime=120", "State=DOWN GraceTime=120")),
    ("partition", "fault", ours("GraceTime=120", "GraceTime=0")),
    ("partition", "warning", ours("GraceTime=120", "GraceTime=10")),
    ("tiers", "fault", text("scontrol show partition", "PriorityTier=10", "PriorityTier=1")),
    ("tiers", "warning", both(text("scontrol show partition", "PreemptMode=OFF", "PreemptMode=REQUEUE"),
                              text("scontrol show partition", "gpu[1-2] PriorityTier=1", "node3 PriorityTier=20"))),
    ("tiers", "ok", text("scontrol show partition", "PreemptMode=OFF", "PreemptMode=REQUEUE")),  # one tier
    ("nodes", "fault", text("scontrol show nodes", "Partitions=gleaner", "Reason=Epilog error")),
    ("nodes", "fault", text("scontrol show nodes", "IDLE", "DOWN*")),
    ("nodes", "fault", text("scontrol show nodes", "RealMemory=4000", "RealMemory=1")),
    ("agents", "fault", answer(problem="agents end at once (agent_command)")),
    ("agents", "fault", text("squeue --noheader", "RUNNING|gleaner-1800000000-5eed5eed|None",
                             "PENDING|gleaner-1800000000-5eed5eed|AssocGrpCpuLimit")),
    ("agents", "warning", text("squeue --noheader", "|None",
                               "|None\nPENDING|gleaner-1800000900-5eed5eee|QOSMaxJobsPerUserLimit")),
    ("agents", "warning", text("squeue --noheader", "RUNNING|gleaner-1800000000-5eed5eed|None",
                               "PENDING|gleaner-1800000000-5eed5eed|ReqNodeNotAvail")),
    ("trial submission", "fault", fails("sbatch --test-only", "allocation failure: Invalid qos specification")),
    ("trial submission", "not checked", fails("sbatch --test-only", "Requested node configuration is not available")),
    ("SchedulerParameters", "warning", backfill("bf_interval=900")),
    ("SchedulerParameters", "warning", conf("300 sec", "10 sec")),
    ("account", "fault", text(f"{SHOW} assoc user=", "gleaner|gleaner,normal", "physics|normal")),
    ("account", "fault", text(f"{SHOW} assoc user=", "gleaner,normal", "normal")),
    ("account", "fault", both(conf("= none", "= jobs,nodes"), text(f"{SHOW} user", "Administrator", "None"))),
    ("QOS", "fault", table("cluster", qos="none")),
    ("QOS", "warning", text(f"{SHOW} qos format=Name,UsageFactor", "gleaner|0.000000", "gleaner|1.000000")),
    ("entitlements", "fault", gone("etc/gleaner/slurm-admin.conf")),
    ("entitlements", "fault", text("systemctl gleaner-slurm-admin", "=active", "=failed")),
    ("entitlements", "fault", holds("etc/gleaner/slurm-admin.conf", "control root\npartition a preemptible")),
    ("entitlements", "fault", text("systemctl gleaner-slurm-admin", f"timer{ACTIVE}", f"timer{ACTIVE[:-6]}inactive")),
)  # fmt: skip
OF_NODE: tuple[tuple[str, str, Plant], ...] = (
    ("agents' settings", "fault", agent(margin_s=4000)),
    ("agents' settings", "warning", agent(images_allowed=["gleaner/*"])),
    ("control", "fault", agent(control_url="http://127.0.0.1:1")),
    ("service account", "fault", privileged(agent_uid=4_000_000)),
    ("services", "fault", gone("proc/7")),
    ("services", "fault", lambda one: one.process(8, "python3", "/usr/local/libexec/gleaner/watchdog\0", "T")),
    ("storage", "fault", answer(storage_id="other")),
    ("storage", "fault", answer(storage_inode=1, storage_changed_s=1.0)),
    ("CRIU", "fault", text("criu --version", "4.2.1", "3.17")),
    ("CRIU", "fault", fails("criu check", "Error (criu/cr-check.c:1): no")),
    ("CRIU", "fault", gone("etc/criu/runc.conf")),
    ("CRIU", "fault", mode("etc/criu/runc.conf", 0o666)),
    ("Docker", "warning", fails("docker info")),
    ("Docker", "warning", text("docker info", "26.1.5", "29.0.1")),
    ("Docker", "warning", text("docker info", "gleaner-runc", "other")),
    ("Docker", "fault", both(agent(runtime="docker"), fails("docker info"))),
    ("node helper", "fault", gone("helper.sock")),
    ("privileged programs", "fault", gone(SHIM)),
    ("privileged programs", "fault", mode(SHIM, 0o666)),
    ("privileged programs", "fault", holds(SHIM, "# planted")),
    ("privileged programs", "fault", holds("usr/local/libexec/gleaner/watchdog", "# an older one", 0o755)),
    ("privileged programs", "fault", mode("user-jobs.key", 0o644)),
    ("agent program", "fault", holds("usr/local/bin/glean-agent", "#!/none\n", 0o755)),
    ("work folder", "fault", roots("work")),
    ("work folder", "fault", mode("handshakes", 0o755)),
    ("disks", "fault", agent(disk_reserve_mib=10**9)),
    ("disks", "fault", text("docker info", "/var", "/proc")),
    ("disks", "fault", both(agent(runtime="criu"), text("stat --file-system", "ext2/ext3", "overlayfs"))),
    ("Slurm's programs", "fault", text("scontrol show job", '{"jobs"', "error")),
    ("Slurm's programs", "fault", fails("scontrol show config", "error: Invalid credential")),
    ("Epilog", "fault", mode("usr/local/libexec/gleaner/epilog.sh", 0o644)),
)  # fmt: skip


@pytest.mark.parametrize(("name", "state", "plant"), OF_CONTROL)
def test_what_is_spoilt_on_controls_machine_is_named(control: Machine, name: str, state: str, plant: Plant) -> None:
    plant(control)
    assert_named(control, name, state)


@pytest.mark.parametrize(("name", "state", "plant"), OF_NODE)
def test_what_is_spoilt_on_a_node_is_named(node: Machine, name: str, state: str, plant: Plant) -> None:
    plant(node)
    assert_named(node, name, state)


def assert_named(machine: Machine, name: str, state: str) -> None:
    found = judged(next(one for one in CHECKS if one.name == name), machine.look())
    assert (found.state, bool(found.seen)) == (state, True), found
    assert found.to_do or state in {"not checked", "ok"}, found
    assert "itself failed" not in found.seen


def test_a_database_that_fails_is_told_from_one_that_is_slow(control: Machine) -> None:
    control.health["queue"] = "not answered for 2 s"
    found = judged(next(one for one in CHECKS if one.name == "control"), control.look(within_s=2))
    assert "its database does not: not answered for 2 s" in found.seen


def test_settings_that_were_changed_after_controls_start_are_not_in_force(
    control: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    control.health["started_s"] = 1.0
    look = control.look()
    monkeypatch.setattr(Settings, "default_file", control.path("etc/gleaner/gleaner.toml"))
    monkeypatch.delenv("GLEANER_SETTINGS")
    assert (
        "was changed after control's start" in judged(next(one for one in CHECKS if one.name == "settings"), look).seen
    )


def test_each_check_is_seen_to_fail_and_there_are_at_most_forty() -> None:
    assert {one.name for one in CHECKS} - {name for name, *_ in OF_CONTROL + OF_NODE} == set()
    assert len(CHECKS) == len({one.name for one in CHECKS}) <= 40
