"""Checks of Slurm: its programs, the lines of slurm.conf, the partitions and nodes, and what keeps agents waiting."""

import os
import pwd
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gleaner.control.doctor.check import CONTROL, NODE, check
from gleaner.control.doctor.control_checks import problem
from gleaner.control.doctor.finding import Finding, MachineRole, Unread, fault, first, not_checked, ok, warning
from gleaner.control.doctor.look import Look, complaint
from gleaner.control.doctor.machine_checks import units
from gleaner.control.doctor.slurm_reading import (
    cluster,
    config,
    dotted,
    mib_for_jobs,
    number_in,
    our_nodes,
    ours,
    partitions,
    rows,
    seconds_in,
    version_in,
)
from gleaner.control.slurm.commands import submit
from gleaner.control.slurm.interface import AGENT_PREFIX, AgentRequest
from gleaner.control.slurm.run import NO_ANSWER, is_no_answer
from gleaner.control.slurm_admin import settings as admin_settings

EPILOG = "/usr/local/libexec/gleaner/epilog.sh"
_MEND = "mend slurm.conf, then scontrol reconfigure"
_RESTART = "mend slurm.conf, then restart slurmctld"
_OLDEST, _NEWEST = (22, 5), (25, 11)
_SHORT_WAIT_S, _SHORT_GRACE_S, _SHORT_EXEMPTION_S = 10, 60, 60
_EPILOG_S = 45
"""Our Epilog waits up to forty seconds for an engine that is slow."""
_MANY_OF = 20
"""One node of so many that is down is worth a warning; on a large site some always are."""
_AWAY = re.compile(r"\*|\bDOWN\b|NOT_RESPONDING|DRAIN|FAIL")
_LEAST_MIB = 512
"""Less memory than this on a node is no use to jobs."""
_USUAL_REASONS = frozenset({"None", "Priority", "Resources", "BeginTime", ""})
_NO_NODE = "node configuration is not available"
"""Slurm's words if no node will ever do: down, drained, reserved for long, or not to be had in this partition."""
_FEW_JOBS = {"bf_max_job_part": 10, "bf_max_job_start": 10, "bf_max_job_test": 100}
"""Parameters of backfill, and the smallest numbers that leave something to agents."""
_POLLS_REMEMBERED = 3
_NEVER = frozenset({"INFINITE", "NONE", "-1", "(null)", ""})
_OF_ACCOUNT = "GrpJobs,GrpSubmitJobs,MaxJobs,MaxSubmitJobs,GrpTRES,MaxTRESPerJob,MaxWall"
_OF_QOS = "GrpJobs,GrpSubmitJobs,MaxJobsPerUser,MaxSubmitJobsPerUser,GrpTRES,MaxTRESPerJob,MaxTRESPerUser,MaxWall"
"""Slurm's limits that let nothing start if they are too small."""
DEADMAN = "/usr/local/libexec/gleaner/deadman"
_STARTS_WITHIN_S = 120.0
"""A control that was just started may not have led yet."""


@check("Slurm's programs", (CONTROL, NODE))
def programs(look: Look) -> Finding:
    """Slurm's programs: they are here, answer, and are of a version that was tried."""
    is_node = look.role is MachineRole.NODE
    if not is_node and look.settings.cluster.backend == "local":
        return warning("[cluster] backend is local: agents run on this machine alone", 'backend = "slurm"')
    text = ""
    for name in ("scontrol",) if is_node else ("scontrol", "sinfo", "squeue", "sbatch", "scancel"):
        try:
            text = look.printed(name, "--version").strip()
        except Unread as error:
            return fault(error.why, "install Slurm's programs here")
        if len(text.splitlines()) != 1:  # a wrapper's banner would be taken for a job's number, too
            return fault(f"{name} prints more than its version", "is a wrapper of the site before it?")
    asked = look.run("scontrol", "show", "config")
    if asked.status != 0 or "error" in asked.stderr:
        return fault(f"slurmctld does not answer here: {complaint(asked)}", "scontrol ping; look at munge and clock")
    found, answer = version_in(text)[:2], look.run("scontrol", "show", "job", "1", "--json") if is_node else None
    has_json = answer is None or answer.stdout.lstrip().startswith("{")
    return first(
        f"Slurm {dotted(found)}",
        (not has_json, fault, "scontrol writes no JSON", "install Slurm's JSON plugin: agents read their end from it"),
        (found < _OLDEST, fault, f"Slurm {dotted(found)} is too old", "tried are 22.05 to 25.11"),
        (found > _NEWEST, warning, f"Slurm {dotted(found)} was not tried", "tried are 22.05 to 25.11"),
    )


@check("slurm.conf", (CONTROL,))
def slurm_conf(look: Look) -> Finding:
    """The lines that `glean setup` prints for slurm.conf, by what slurmctld has in force."""
    found = config(look)
    enforced = set(re.split(r"[,\s]+", found.get("AccountingStorageEnforce", "").lower()))
    wanted = {
        "SelectType=select/cons_tres": found["SelectType"].startswith("select/cons_"),
        "SelectTypeParameters=CR_Core_Memory": "MEMORY" in found.get("SelectTypeParameters", "").upper(),
        "SchedulerType=sched/backfill": found.get("SchedulerType") == "sched/backfill",
        "PreemptType=preempt/partition_prio": found.get("PreemptType") == "preempt/partition_prio",
        "PreemptMode=REQUEUE": re.search("REQUEUE|CANCEL", found.get("PreemptMode", "").upper()),
        "PreemptParameters=send_user_signal": "send_user_signal" in found.get("PreemptParameters", "").lower(),
        "AccountingStorageEnforce=associations,limits,qos": enforced & {"associations", "limits", "qos", "safe", "all"},
    }
    lacks = " ".join(line for line, is_in_force in wanted.items() if not is_in_force)
    exempt = found.get("PreemptExemptTime", "")
    with suppress(Unread):  # that of the QOS stands above the cluster's
        of_qos = dict(rows(look, "qos", "format=Name,PreemptExemptTime", columns=2))
        exempt = of_qos.get(cluster(look).qos or "") or exempt
    exempt_s, kill_wait_s = seconds_in(exempt) or 0, number_in(found.get("KillWait", "30"))
    memory = [number_in(found.get(key, "")) for key in ("DefMemPerNode", "DefMemPerCPU", "DefMemPerGPU")]
    enforces_both = "all" in enforced or ("qos" in enforced and enforced & {"limits", "safe"})
    return first(
        "the lines of `glean setup` are in force",
        (lacks, fault, f"slurmctld does not have in force {lacks}", "`glean setup control` prints these lines"),
        (exempt_s, fault if exempt_s > _SHORT_EXEMPTION_S else warning,
         f"regular jobs wait {exempt_s} s for a new agent", "take PreemptExemptTime out of slurm.conf and the QOS"),
        (not enforces_both, warning, "AccountingStorageEnforce lacks limits or qos", f"add them; {_RESTART}"),
        (kill_wait_s < _SHORT_WAIT_S, warning, f"KillWait={kill_wait_s} leaves agents no time to save", f"30; {_MEND}"),
        (not any(memory), warning, "a job that names no memory gets all of its node", f"set DefMemPerCPU; {_MEND}"),
    )  # fmt: skip


@check("Epilog", (CONTROL, NODE))
def epilog(look: Look) -> Finding:
    """The Epilog: in force with time enough, and its file on a node, which Slurm drains without it."""
    if look.role is MachineRole.NODE:
        try:
            place = look.place(look.at(EPILOG))
        except Unread as error:
            return fault(error.why, "run `glean setup node`")
        if not place.mode & 0o111 or not place.is_roots_alone:
            return fault(f"{EPILOG} is {place}", f"chown root {EPILOG}; chmod 755 {EPILOG}")
        return ok(EPILOG)
    found = config(look)
    paths = [value for key, value in found.items() if re.fullmatch(r"Epilog(\[\d+\])?", key) and value != "(null)"]
    seconds = number_in(found.get("EpilogTimeout") or found.get("PrologEpilogTimeout", ""))
    is_ours = any("gleaner" in path for path in paths)  # the site's own may call ours
    return first(
        ", ".join(paths),
        (not is_ours, warning if paths else fault, "no Epilog of slurm.conf is ours: containers may outlive an agent",
         f"Epilog={EPILOG}; {_MEND}"),
        (0 < seconds < _EPILOG_S, fault, f"Slurm drains a node whose Epilog needs {seconds} s",
         f"EpilogTimeout={_EPILOG_S} or more; {_MEND}"),
    )  # fmt: skip


@check("job_submit", (CONTROL,))
def job_submit(look: Look) -> Finding:
    """The script of slurmctld that holds the jobs of partitions with entitlements."""
    mode = look.settings.entitlements.mode
    if mode == "off":
        return not_checked("only entitlements need it, and they are off")
    judge, found = fault if mode == "on" else warning, config(look)
    if "lua" not in found.get("JobSubmitPlugins", "").lower().split(","):
        return judge("slurm.conf has no JobSubmitPlugins=lua: no job is held for entitlements", _RESTART)
    path = Path(found.get("SLURM_CONF") or look.at("/etc/slurm/slurm.conf")).with_name("job_submit.lua")
    try:
        text = look.text(path)
    except Unread as error:  # slurmctld is perhaps on another machine
        return not_checked(error.why, "on slurmctld's machine, deploy/slurm/job_submit.lua must be there")
    return ok(f"{path}") if "gleaner" in text else judge(f"{path} does not load ours", "dofile(...), and call it last")


@check("partition", (CONTROL,))
def partition(look: Look) -> Finding:
    """The agents' partition: its preemption, its limits, and that it takes the account, QOS and group of agents."""
    asked, length_s = cluster(look), look.settings.rounds.length_s
    name = asked.partition
    if name not in partitions(look):
        return fault(f"there is no partition {name}", "add its line to slurm.conf: `glean setup control` prints it")
    values, nodes = ours(look).values, ours(look).nodes
    mode, grace_s = values.get("PreemptMode", "").upper(), number_in(values.get("GraceTime", ""))
    limit_s, state = seconds_in(values.get("MaxTime", "")) or length_s, values.get("State", "UP")
    groups = sorted(look.groups)
    left_out = [kind for kind, names in (("Accounts", [asked.account]), ("Qos", [asked.qos]), ("Groups", groups))
                if _leaves_out(values, kind, names)]  # fmt: skip
    return first(
        f"{name}: PreemptMode={mode}, GraceTime={grace_s}",
        (not nodes, fault, f"partition {name} has no nodes", _MEND),
        (not re.search("REQUEUE|CANCEL", mode), fault, f"partition {name} has PreemptMode={mode}", f"REQUEUE; {_MEND}"),
        (not grace_s, fault, f"partition {name} has GraceTime=0", f"GraceTime=120, in which agents save; {_MEND}"),
        (state != "UP", fault, f"partition {name} is {state}", f"scontrol update PartitionName={name} State=UP"),
        (limit_s < length_s, fault, f"partition {name} has a MaxTime below a round", f"raise MaxTime; {_MEND}"),
        (values.get("RootOnly") == "YES", fault, f"partition {name} is root's only", f"RootOnly=NO; {_MEND}"),
        (left_out, fault, f"Allow{' and '.join(left_out)} of partition {name} leave agents out", f"add ours; {_MEND}"),
        (grace_s < _SHORT_GRACE_S, warning, f"partition {name} has GraceTime={grace_s}", f"GraceTime=120; {_MEND}"),
    )


def _leaves_out(values: Mapping[str, str], kind: str, names: Sequence[str | None]) -> bool:
    """Return True if a partition does not admit these names. Slurm ignores what is denied where it allows some."""
    allowed, denied = (values.get(f"{verb}{kind}", "").lower().split(",") for verb in ("Allow", "Deny"))
    asked = {name.lower() for name in names if name}
    return bool(asked) and (bool(asked & set(denied)) if allowed in (["all"], [""]) else not asked & set(allowed))


@check("tiers", (CONTROL,))
def tiers(look: Look) -> Finding:
    """All partitions that share nodes with the agents' one preempt it, and are not preempted themselves."""
    own = ours(look)
    others = [one for one in partitions(look).values() if one.name != own.name and one.nodes & own.nodes]
    low = ", ".join(one.name for one in others if one.tier <= own.tier)
    preempted = ", ".join(one.name for one in others if one.values.get("PreemptMode", "").upper() != "OFF")
    return first(
        f"{own.name} has {own.tier}, and {', '.join(f'{one.name} {one.tier}' for one in others) or 'alone'}",
        (low, fault, f"partition {low} does not have a higher tier than {own.name} ({own.tier})",
         f"a higher PriorityTier for it, or a lower one for {own.name}; {_MEND}"),
        (preempted, fault, f"partition {preempted} may be preempted itself", f"PreemptMode=OFF for it; {_MEND}"),
    )  # fmt: skip


@check("nodes", (CONTROL,))
def nodes(look: Look) -> Finding:
    """The partition's nodes: which Slurm can use, which the Epilog has drained, and their memory."""
    found = our_nodes(look)
    drained = ", ".join(node["NodeName"] for node in found if "epilog" in node["Reason"].lower())
    small = ", ".join(node["NodeName"] for node in found if mib_for_jobs(node) < _LEAST_MIB)
    away = [node["NodeName"] for node in found if _AWAY.search(node.get("State", ""))]
    most_mib = number_in(ours(look).values.get("MaxMemPerNode", "")) or _LEAST_MIB
    return first(
        f"{len(found) - len(away)} of {len(found)} nodes are up",
        (drained, fault, f"Slurm has drained {drained}, since the Epilog failed there",
         "put epilog.sh on it, then scontrol update NodeName=... State=RESUME"),
        (len(away) == len(found), fault, "Slurm can use none of the partition's nodes", "sinfo -R shows why"),
        (small, fault, f"{small} has less than {_LEAST_MIB} MiB", f"RealMemory, as `slurmd -C` prints it; {_MEND}"),
        (most_mib < _LEAST_MIB, fault, f"MaxMemPerNode={most_mib} leaves agents no memory", f"take it out; {_MEND}"),
        (len(away) * _MANY_OF >= len(found), warning, f"{len(away)} of {len(found)} nodes are down", "sinfo -R"),
    )  # fmt: skip


@check("agents", (CONTROL,))
def agents(look: Look) -> Finding:
    """The start of agents: control's own word, and Slurm's reason why they wait while none runs."""
    if trouble := problem(look):
        to_do = "control's log has more: journalctl -u gleaner-control"
        if trouble.startswith(NO_ANSWER):
            to_do = "scontrol ping; is munge's key also slurmctld's, and its port not blocked by a firewall?"
        if "(agent_command)" in trouble:
            to_do = "glean doctor node, on one of the nodes, names what the program lacks"
        return fault(f"control reports a problem: {trouble}", to_do)
    found = _queued_agents(look)
    if running := sum(state == "RUNNING" for state, _ in found):
        return ok(f"{running} run")
    if odd := Counter(reason for _, reason in found if reason not in _USUAL_REASONS):
        reason, count = odd.most_common(1)[0]
        return warning(f"none runs, and Slurm's reason for {count} of {len(found)} is {reason}", "see man squeue")
    return ok(f"{len(found)} wait for free nodes" if found else "none is needed now")


def _queued_agents(look: Look) -> list[tuple[str, str]]:
    """Return the state and Slurm's reason of each agent that is queued or runs."""
    wanted = ("--user", look.account_name, "--partition", cluster(look).partition, "--states", "PENDING,RUNNING")
    lines = look.printed("squeue", "--noheader", *wanted, "--format", "%T|%j|%r").splitlines()
    words = [line.split("|", 2) for line in lines]
    return [(word[0], word[2]) for word in words if len(word) == 3 and word[1].startswith(AGENT_PREFIX)]


@check("trial submission", (CONTROL,))
def trial(look: Look) -> Finding:
    """Slurm's answer to an agent that is submitted for trial only (`sbatch --test-only`)."""
    asked, account = cluster(look), look.account
    if os.geteuid() not in {0, account.pw_uid}:
        return not_checked("only root and the service account can try this", "run this as root")
    now_s, length_s = time.time(), look.settings.rounds.length_s
    request = AgentRequest(f"{AGENT_PREFIX}trial", now_s + length_s, now_s + length_s / 2, Path("/dev/null"))
    words = [word for word in submit(asked, request, now_s) if not word.startswith(("--parsable", "--deadline"))]
    ended = look.run(*words, "--test-only", *([f"--uid={account.pw_name}"] if look.is_root else []), "--wrap=true")
    lines = f"{ended.stdout}\n{ended.stderr}"
    if ended.status == 0:
        found = re.search(r" in partition (\S+)", lines)
        if found is not None and found[1] != asked.partition:
            return fault(f"Slurm puts agents into partition {found[1]}", "look at JobSubmitPlugins")
        return ok(f"Slurm takes agents in {asked.partition}")
    if is_no_answer(lines) or _NO_NODE in lines:
        return not_checked(f"Slurm has no node or no answer: {complaint(ended)}", "other lines show why; scontrol ping")
    if "job submit limit" in lines.lower() and _queued_agents(look):
        return ok("a limit allows no more agents than run now")
    return fault(f"Slurm refuses agents: {complaint(ended)}", "look at plug-ins; slurmctld's log has more")


@check("SchedulerParameters", (CONTROL,))
def scheduling(look: Look) -> Finding:
    """Backfill, limits of requests, MinJobAge and power saving, which let agents wait or forget them."""
    found, rounds, own = config(look), look.settings.rounds, ours(look)
    given = {key: int(value) for key, value in re.findall(r"(\w+)=(\d{1,9})", found.get("SchedulerParameters", ""))}
    few = [f"{key}={given[key]}" for key, least in _FEW_JOBS.items() if 0 < given.get(key, 0) < least]
    limit, age = found.get("SlurmctldParameters", "").lower(), number_in(found.get("MinJobAge", ""))
    rate = {key: int(value) for key, value in re.findall(r"rl_refill_(\w+)=(\d{1,9})", limit)}
    is_slow = "rl_enable" in limit and rate.get("rate", 2) < rate.get("period", 1)
    is_saving = not {found.get("SuspendProgram", ""), found.get("SuspendTime", "").partition(" ")[0]} & _NEVER
    is_spared = own.name in found.get("SuspendExcParts", "").split(",")
    return first(
        "backfill has room for agents",
        (given.get("bf_interval", 0) > rounds.pending_limit_s, warning, "agents wait shorter than bf_interval", _MEND),
        (few, warning, f"backfill looks at agents last ({', '.join(few)})", f"larger numbers; {_MEND}"),
        (is_slow, warning, "Slurm puts requests off (rl_refill_rate)", f"a request a second, or more; {_MEND}"),
        (0 < age < _POLLS_REMEMBERED * rounds.poll_s, warning, f"Slurm forgets jobs {age} s after their end",
         f"MinJobAge=300; {_MEND}"),
        (is_saving and not is_spared, warning, "idle nodes are switched off, so agents find none",
         f"SuspendExcParts={own.name}, if agents are to have them; {_MEND}"),
    )  # fmt: skip


@check("account", (CONTROL,))
def account(look: Look) -> Finding:
    """The agents' account in Slurm's accounting, and what Slurm shows to the service account."""
    asked, name = cluster(look), look.account_name
    try:
        found = rows(look, "assoc", f"user={name}", "format=Account,QOS", columns=2)
        level = "".join(row[0] for row in rows(look, "user", name, "format=AdminLevel", columns=1))
    except Unread as error:
        return fault(error.why, "do sacctmgr and slurmdbd work?")
    wanted, qos = (asked.account or "").lower(), (asked.qos or "").lower()
    private = config(look).get("PrivateData", "none").lower().replace(" ", "").split(",")
    hidden = set[str]() if level in {"Operator", "Administrator"} else {"jobs", "nodes", "partitions"} & set(private)
    judge = fault if hidden != {"jobs"} or look.settings.entitlements.mode != "off" else warning
    names = [row[0].lower() for row in found]
    qos_names = [one for row in found if row[0].lower() == wanted for one in row[1].lower().split(",")]
    user = f"sacctmgr modify user {name} set"
    return first(
        f"{name} uses account {wanted} and QOS {qos}",
        (not found or (wanted and wanted not in names), fault, f"Slurm's accounting has no account for {name}",
         f"sacctmgr add user {name} Account={wanted or 'gleaner'}"),
        (wanted and qos and qos not in qos_names, fault, f"{name} may not use QOS {qos}", f"{user} qos+={qos}"),
        (hidden, judge, f"PrivateData hides {' and '.join(sorted(hidden))} from {name}", f"{user} AdminLevel=Operator"),
        (not wanted, warning, "agents count in a fair share of others", '[cluster] account = "gleaner"'),
    )  # fmt: skip


@check("QOS", (CONTROL,))
def qos(look: Look) -> Finding:
    """The agents' QOS: what agents use counts in no share, and a waiting agent reserves no node."""
    name = cluster(look).qos
    if name is None:
        return warning("[cluster] qos is not set", 'make one of their own for agents, and set qos = "gleaner"')
    every = rows(look, "qos", "format=Name,UsageFactor,Flags", columns=3)
    found = next((row for row in every if row[0].lower() == name.lower()), None)
    if found is None:
        return fault(f"there is no QOS {name}", f"sacctmgr add qos {name} UsageFactor=0 Flags=NoReserve")
    has_flag, is_preempted = "noreserve" in found[2].lower(), ours(look).values.get("PreemptMode") != "OFF"
    modify = f"sacctmgr modify qos {name} set"
    return first(
        f"{name}: UsageFactor={found[1]}, Flags={found[2]}",
        (has_flag and not is_preempted, fault, f"QOS {name} has NoReserve, and agents, which are not preempted, stay on"
         " nodes that are planned for others", f"{modify} Flags-=NoReserve"),
        (version_in(found[1]) > (0, 0), warning, f"QOS {name} has UsageFactor={found[1]}", f"{modify} UsageFactor=0"),
        (is_preempted and not has_flag, warning, f"QOS {name} lacks NoReserve: agents that wait keep nodes free",
         f"{modify} Flags+=NoReserve"),
    )  # fmt: skip


@check("Slurm's limits", (CONTROL,))
def limits(look: Look) -> Finding:
    """Limits of the QOS, the account and the service account that let no agent start, or few."""
    enforced = config(look).get("AccountingStorageEnforce", "").lower()
    if not any(word in enforced for word in ("limits", "safe", "all")):
        return ok("slurm.conf enforces no limits")
    nodes, rounds, few = our_nodes(look), look.settings.rounds, ok("no limit keeps all agents from starting")
    most = min(len(nodes), rounds.agents_at_most)
    cpus = min((number_in(node.get("CPUEfctv") or node.get("CPUTot", "")) for node in nodes), default=0)
    for where, field, value in _limits_on_agents(look):
        part, _, amount = value.rpartition("=")
        seen, seconds = f"{where} has {field}={value}", seconds_in(amount)
        is_small = amount == "0" or (part == "cpu" and number_in(amount) < cpus)
        if is_small if seconds is None else seconds < rounds.shortest_slice_s:
            return fault(f"{seen}, and an agent takes a whole node", f"sacctmgr modify {where} set {field}=-1")
        if part in {"", "node"} and amount.isdigit() and int(amount) < most:
            few = warning(f"{seen}, and {most} agents could run", f"sacctmgr modify {where} set {field}=-1")
    return few


def _limits_on_agents(look: Look) -> Iterator[tuple[str, str, str]]:
    """Yield what has a limit on agents, the limit's name, and each part of its value."""
    asked, name = cluster(look), look.account_name
    names = {(asked.qos or "").lower(), ours(look).values.get("QoS", "").lower()}
    of_qos = rows(look, "qos", f"format=Name,{_OF_QOS}", columns=9)
    every = [(f"qos {row[0]}", _OF_QOS, row[1:]) for row in of_qos if row[0].lower() in names]
    if asked.account:
        of_account = rows(look, "assoc", f"account={asked.account}", f"format=User,{_OF_ACCOUNT}", columns=8)
        who = {name: f"user {name}", "": f"account {asked.account}"}
        every += [(who[row[0]], _OF_ACCOUNT, row[1:]) for row in of_account if row[0] in who]
    for where, fields, values in every:
        for field, value in zip(fields.split(","), values, strict=True):
            yield from ((where, field, part) for part in value.split(",") if part)


@check("Slurm admin service", (CONTROL,))
def service(look: Look) -> Finding:
    """The Slurm admin service: it runs, listens to control, may do all in Slurm, and hears that control is alive."""
    mode, socket = look.settings.entitlements.mode, look.settings.entitlements.slurm_admin_socket
    if mode == "off" and not socket.exists():
        return not_checked("only entitlements and drains need it")
    try:
        found = admin_settings.load(look.at(str(admin_settings.FILE)))
        account = pwd.getpwuid(socket.lstat().st_uid).pw_name
    except (OSError, KeyError, admin_settings.Misconfigured) as error:
        return fault(f"the Slurm admin service cannot run: {error}", "mend that; systemctl restart gleaner-slurm-admin")
    level, silent_s, values = "Administrator", 0.0, look.health.values
    if account not in {"root", config(look).get("SlurmUser", "").partition("(")[0]}:
        level = "".join(row[0] for row in rows(look, "user", account, "format=AdminLevel", columns=1)) or "none"
    if mode == "on" and values.get("leader") and time.time() - (values.get("started_s") or 0.0) > _STARTS_WITHIN_S:
        silent_s = float("inf")
        with suppress(Unread, ValueError):
            silent_s = time.time() - float(look.text(found.heartbeat))
    state = units(look, "gleaner-slurm-admin")["gleaner-slurm-admin"]["ActiveState"] if look.has_systemd else "active"
    return first(
        f"runs as {account}, and listens to {found.control}",
        (state != "active", fault, f"gleaner-slurm-admin is {state}", "systemctl status gleaner-slurm-admin"),
        (found.control != look.account_name, fault, f"it listens to {found.control}, not {look.account_name}",
         f"mend `control` in {admin_settings.FILE}, then systemctl restart gleaner-slurm-admin"),
        (not level.startswith("Admin"), fault, f"Slurm's accounting has AdminLevel={level} for {account}",
         f"sacctmgr add user {account} Account=gleaner AdminLevel=Administrator; or modify it so"),
        (silent_s > max(_STARTS_WITHIN_S, found.fresh_for_s), warning, "it does not hear that control is alive",
         "`glean owners` shows why; after a queue was put back, remove the service's *.epoch file"),
    )  # fmt: skip


@check("dead man's switch", (CONTROL,))
def dead_mans_switch(look: Look) -> Finding:
    """The switch that releases held jobs when control is away."""
    mode, path = look.settings.entitlements.mode, look.at(DEADMAN)
    if mode == "off":
        return not_checked("only entitlements need it")
    judge, unknown = (fault if mode == "on" else warning), dict[str, str]()
    found = units(look, "gleaner-deadman.timer", "gleaner-deadman") if look.has_systemd and path.exists() else {}
    timer, result = found.get("gleaner-deadman.timer", unknown), found.get("gleaner-deadman", unknown).get("Result")
    return first(
        "its timer runs",
        (not path.exists(), warning, f"there is no {DEADMAN}", "docs/admin/entitlements.md shows how it is installed"),
        (path.exists() and not os.access(path, os.X_OK), judge, f"{DEADMAN} cannot be run", f"chmod 755 {DEADMAN}"),
        (found and timer.get("ActiveState") != "active", judge, "the timer of the dead man's switch does not run",
         "systemctl enable --now gleaner-deadman.timer"),
        (result not in {None, "success"}, judge, f"the last run of the switch failed: {result}",
         "journalctl -u gleaner-deadman"),
    )  # fmt: skip
