"""Checks of what Slurm does with submitted agents: whether it takes them, where they go, what lets them wait. Pure."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from gleaner.control.hostlist import expanded
from gleaner.control.setup.facts import TRIAL, Facts, NotRead, Unread, needed, unit_blocks, version_in
from gleaner.control.setup.finding import CheckState, Judgement, fault, not_checked, ok, warning
from gleaner.control.setup.slurm_checks import (
    MEND_CONFIG,
    accounts_above,
    cluster,
    config,
    most_agents,
    nodes,
    ours,
    partition,
    records,
)
from gleaner.control.slurm.interface import AGENT_PREFIX
from gleaner.control.slurm.run import is_no_answer

_NO_NODE = "node configuration is not available"
"""Slurm's words if no node will ever do: down, drained, reserved for long, or not to be had in this partition."""
_FEW_JOBS = {
    "bf_max_job_part": 10,
    "bf_max_job_start": 10,
    "bf_max_job_test": 100,
}
"""Parameters of backfill, and the smallest numbers that leave something to agents."""
_FEW_REQUESTS = 10
_POLLS_REMEMBERED = 3
_ENDS_WITHOUT_ACCOUNTS = (24, 11)
"""The version of Slurm whose slurmctld was seen to end so."""
_NEVER = frozenset({"INFINITE", "NONE", "-1", "(null)", ""})


def admittance(facts: Facts) -> Judgement:
    """Judge whether the partition takes the account, the QOS and the group of agents, and jobs of one node."""
    own, asked = ours(facts), cluster(facts)
    values = own.values
    for key, names in (("AllowAccounts", _with_those_above(facts, asked.account)), ("AllowQos", [asked.qos or ""])):
        allowed = values.get(key, "ALL")
        if names[0] and allowed != "ALL" and not set(names).intersection(allowed.lower().split(",")):
            return fault(f"partition {own.name}: {key}={allowed} leaves out {names[0]}", f"add it; {MEND_CONFIG}")
    for key, name in (("DenyAccounts", asked.account), ("DenyQos", asked.qos)):
        if name and values.get(key.replace("Deny", "Allow"), "ALL") != "ALL":
            continue  # Slurm does not look at what is denied then
        if name and name.lower() in values.get(key, "").lower().split(","):
            return fault(f"partition {own.name}: {key} names {name}", f"take it out; {MEND_CONFIG}")
    groups = values.get("AllowGroups", "ALL")
    account = None if isinstance(facts.account, Unread) else facts.account
    if groups != "ALL" and account is not None and not set(account.groups).intersection(groups.split(",")):
        return fault(f"partition {own.name}: AllowGroups={groups} leaves out {account.name}",
                     f"add a group of the account; {MEND_CONFIG}")  # fmt: skip
    odd = [key for key in ("RootOnly", "ReqResv") if values.get(key, "NO") == "YES"]
    odd += ["MinNodes"] if values.get("MinNodes", "0") not in {"0", "1"} else []
    odd += ["MaxNodes"] if values.get("MaxNodes") == "0" else []
    odd += ["AllocNodes"] if _leaves_out(values.get("AllocNodes", "ALL"), facts.host) else []
    if odd:
        judge = warning if odd == ["AllocNodes"] else fault
        return judge(f"partition {own.name} has {odd[0]}={values[odd[0]]}: agents may be refused",
                     f"an agent asks for one node, from this machine, as an ordinary user; {MEND_CONFIG}")  # fmt: skip
    return ok(f"{own.name} takes account {asked.account or 'any'}")


def _with_those_above(facts: Facts, account: str | None) -> list[str]:
    """Return an account and those above it: Slurm 24.05 and newer take the accounts below one that is named."""
    if account is None:
        return [""]
    try:
        return [account.lower(), *(name for name, _ in accounts_above(facts, account))]
    except NotRead:
        return [account.lower()]


def _leaves_out(machines: str, host: str) -> bool:
    """Return True if a list of machines in slurm.conf lacks this one.

    >>> [_leaves_out(machines, "head") for machines in ("ALL", "head,login[1-2]", "login1")]
    [False, False, True]
    """
    try:
        return machines != "ALL" and host not in expanded(machines)
    except ValueError:
        return False


def trial(facts: Facts) -> Judgement:
    """Judge what Slurm says to an agent that is submitted for trial only (`sbatch --test-only`)."""
    asked = cluster(facts)
    said = needed(facts.programs.get(TRIAL, Unread("only root and the service account can try this")))
    lines = f"{said.stdout}\n{said.stderr}"
    if said.status == 0:
        found = re.search(r" in partition (\S+)", lines)
        if found is not None and found[1] != asked.partition:
            return fault(f"Slurm puts agents into partition {found[1]}, not {asked.partition}",
                         "does job_submit.lua, or another plug-in of JobSubmitPlugins, change them?")  # fmt: skip
        return ok(f"Slurm takes agents in {asked.partition}")
    if is_no_answer(lines):
        return not_checked(f"Slurm did not answer: {said.complaint}", "look again; scontrol ping")
    if "job submit limit" in lines.lower() and AGENT_PREFIX in facts.output("squeue agents").stdout:
        return ok("a limit allows no more agents than run now")
    if _NO_NODE in lines and _says_why(facts):
        return not_checked(f"no node can be had: {said.complaint}", "other lines say why")
    return fault(f"Slurm refuses agents: {said.complaint}",
                 "look at the partition, account, QOS and plug-ins; slurmctld's log says more")  # fmt: skip


def _says_why(facts: Facts) -> bool:
    """Return True if another check names, or might name, the reason why no node can be had."""
    try:
        return any(judge(facts).state is not CheckState.OK for judge in (partition, admittance, nodes, reservations))
    except NotRead:
        return True


def reservations(facts: Facts) -> Judgement:
    """Judge whether reservations, a forgotten one perhaps, keep all of the partition's nodes from agents.

    One that is about to begin does: Slurm starts no agent that would reach into it.
    """
    own, begins_at_most_s = ours(facts), facts.now_s + needed(facts.settings).rounds.least_slice_s
    ends: dict[str, int] = {}
    names: list[str] = []
    for one in records(facts.output("scontrol reservations").stdout):
        reserved = _nodes_in(one.get("Nodes", "")) & own.nodes
        if not reserved or _instant(one, "StartTime") > begins_at_most_s or _is_open_to_agents(one, facts):
            continue
        names.append(one.get("ReservationName", "?"))
        for node in reserved:
            ends[node] = max(ends.get(node, 0), _instant(one, "EndTime"))
    if not ends or len(ends) < len(own.nodes):
        return ok(f"{len(ends)} of {len(own.nodes)} nodes are reserved" + (f": {', '.join(names)}" if names else ""))
    end = datetime.fromtimestamp(min(ends.values()), UTC)
    return warning(
        f"no agent starts before {end:%Y-%m-%d %H:%M} UTC: all nodes of {own.name} are reserved ({', '.join(names)})",
        "scontrol show reservation says for whom; scontrol delete ReservationName=... what nobody needs any more",
    )


def _instant(reservation: Mapping[str, str], key: str) -> int:
    """Return an instant, in seconds since the epoch. Raises `NotRead`."""
    try:
        return int(reservation[key])
    except (LookupError, ValueError) as error:
        raise NotRead("scontrol show reservation said what cannot be read") from error


def _nodes_in(words: str) -> frozenset[str]:
    try:
        return frozenset(expanded("" if words == "(null)" else words))
    except ValueError as error:
        raise NotRead(f"scontrol show reservation said what cannot be read: {error}"[:160]) from error


def _is_open_to_agents(reservation: Mapping[str, str], facts: Facts) -> bool:
    """Return True for a reservation that takes our agents by itself."""
    if "MAGNETIC" not in reservation.get("Flags", ""):
        return False
    ours_here = {cluster(facts).account, None if isinstance(facts.account, Unread) else facts.account.name}
    admitted = ",".join(reservation.get(key, "") for key in ("Users", "Accounts"))
    return not ours_here.isdisjoint(admitted.split(","))


def private_data(facts: Facts) -> Judgement:
    """Judge whether Slurm shows control's account the nodes, and the jobs of others."""
    found = config(facts).get("PrivateData", "none")
    hidden = {"jobs", "nodes", "partitions"}.intersection(found.lower().replace(" ", "").split(","))
    if not hidden:
        return ok(f"PrivateData={found}")
    level = facts.output("sacctmgr level").stdout.strip()
    if not level and not facts.is_root:
        return not_checked(f"PrivateData={found}, and sacctmgr does not show the service account", "run this as root")
    if level in {"Operator", "Administrator"}:
        return ok(f"PrivateData={found}, and the service account is {level}")
    name = "the service account" if isinstance(facts.account, Unread) else facts.account.name
    is_needed = hidden != {"jobs"} or needed(facts.settings).entitlements.mode != "off"
    judge = fault if is_needed else warning
    return judge(f"PrivateData={found} hides {' and '.join(sorted(hidden))} from {name}",
                 f"leave {' and '.join(sorted(hidden))} out of PrivateData; or sacctmgr modify user {name} set "
                 "AdminLevel=Operator: it may then change everybody's jobs, too")  # fmt: skip


def scheduling(facts: Facts) -> Judgement:
    """Judge parameters of Slurm's scheduler that let agents wait: backfill starts them, behind all other jobs."""
    found, rounds = config(facts).get("SchedulerParameters", ""), needed(facts.settings).rounds
    values = {key.strip().lower(): value for key, _, value in (part.partition("=") for part in found.split(","))}
    numbers = {key: int(value) for key, value in values.items() if value.isdigit()}
    if numbers.get("bf_interval", 0) > rounds.pending_limit_s:
        return warning(f"bf_interval={numbers['bf_interval']}: agents are withdrawn after {rounds.pending_limit_s:g} s",
                       f"30, Slurm's default; {MEND_CONFIG}")  # fmt: skip
    for key in ("bf_max_job_user", "bf_max_job_assoc"):
        least = min(_FEW_JOBS["bf_max_job_part"], most_agents(facts))
        if 0 < numbers.get(key, 0) < least:
            return warning(f"{key}={numbers[key]}: backfill looks at no more agents than that at once",
                           f"{least} or more; {MEND_CONFIG}")  # fmt: skip
    for key, least in _FEW_JOBS.items():
        if 0 < numbers.get(key, 0) < least:
            return warning(f"{key}={numbers[key]}: backfill looks at no more jobs, and agents are the last ones",
                           f"{least} or more; {MEND_CONFIG}")  # fmt: skip
    shown = ("bf_interval", "bf_max_job_test", "bf_max_job_user", "bf_max_job_part")
    limits = ", ".join(f"{key} {numbers.get(key, 'default')}" for key in shown)
    return ok(f"backfill looks at agents last, and its limits leave room for them: {limits}")


def request_rate(facts: Facts) -> Judgement:
    """Judge whether Slurm answers as often as control asks."""
    found = config(facts).get("SlurmctldParameters", "").lower().replace(" ", "")
    if "rl_enable" not in found:
        return ok("Slurm limits no user's requests")
    given = {"rl_bucket_size": 30, "rl_refill_rate": 2, "rl_refill_period": 1}  # Slurm's defaults
    given |= {key: int(value) for key, value in re.findall(r"(rl_\w+)=(\d{1,9})", found)}
    if given["rl_bucket_size"] < _FEW_REQUESTS or given["rl_refill_rate"] < given["rl_refill_period"]:
        said = ", ".join(f"{key}={value}" for key, value in given.items() if key != "rl_table_size")
        return warning(f"Slurm puts requests off: {said}", f"a request a second, or more; {MEND_CONFIG}")
    return ok("Slurm limits requests, and leaves control enough")


def ended_jobs(facts: Facts) -> Judgement:
    """Judge whether Slurm still knows an agent that ended since control's last look."""
    match = re.match(r"(\d{1,9}) sec", config(facts).get("MinJobAge", ""))
    poll_s = needed(facts.settings).rounds.poll_s
    if match is None or int(match[1]) == 0:  # 0: they are never forgotten
        return ok("Slurm remembers jobs that have ended")
    if int(match[1]) < _POLLS_REMEMBERED * poll_s:
        return warning(f"MinJobAge={match[1]}: Slurm forgets agents before control looks, every {poll_s:g} s",
                       f"300, Slurm's default; {MEND_CONFIG}")  # fmt: skip
    return ok(f"for {match[1]} s")


def power_saving(facts: Facts) -> Judgement:
    """Judge whether Slurm switches off the idle nodes that agents need."""
    found, own = config(facts), ours(facts)
    after = found.get("SuspendTime", "")
    if found.get("SuspendProgram", "") in _NEVER or after.split()[:1] == [] or after.split()[0] in _NEVER:
        return ok("Slurm switches off no idle node")
    excluded = found.get("SuspendExcNodes", "(null)")
    spared = frozenset[str]() if ":" in excluded else _nodes_in(excluded)  # with a number, Slurm chooses which
    if own.name in found.get("SuspendExcParts", "").split(",") or own.nodes <= spared:
        return ok(f"not the nodes of {own.name}")
    return warning(f"SuspendTime={after}: idle nodes are switched off, and agents find none or wait for their start",
                   f"SuspendExcParts={own.name}, if agents are to have them; {MEND_CONFIG}")  # fmt: skip


def start_order(facts: Facts) -> Judgement:
    """Judge whether slurmctld waits for slurmdbd of the same machine.

    Slurm 24.11 that takes up running jobs without slurmdbd ends when one of them does ("fatal: assoc_mgr_lock").
    """
    if not facts.has_systemd:
        return not_checked("there is no systemd here")
    blocks, found = facts.output("systemctl slurm").stdout, config(facts)
    if version_in(found.get("SLURM_VERSION", ""))[:2] != _ENDS_WITHOUT_ACCOUNTS:
        return ok("nothing is known of this version of Slurm")
    if found.get("AccountingStorageHost", "").partition(".")[0] not in {facts.host, "localhost"}:
        return ok("slurmdbd is on another machine")
    units = {unit.get("Id", ""): unit for unit in unit_blocks(blocks)}
    starts = {name for name, unit in units.items() if unit.get("UnitFileState") == "enabled"}
    if not {"slurmctld.service", "slurmdbd.service"} <= starts:
        return ok("slurmctld and slurmdbd do not both start with this machine")
    if "slurmdbd.service" in units["slurmctld.service"].get("After", "").split():
        return ok("slurmctld starts after slurmdbd")
    return warning("slurmctld does not wait for slurmdbd when this machine starts: it may end with the first job",
                   "systemctl edit slurmctld; docs/admin/operate.md has the lines")  # fmt: skip
