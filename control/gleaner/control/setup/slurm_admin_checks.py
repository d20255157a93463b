"""Checks of the Slurm admin service and of the dead man's switch, which entitlements and drains need. Pure."""

from collections.abc import Callable, Mapping

from gleaner.agent.common.quantities import in_words
from gleaner.control.setup.facts import Facts, NotRead, Unread, needed, rows_in, unit_blocks
from gleaner.control.setup.finding import Judgement, fault, not_checked, ok, warning
from gleaner.control.setup.readers import DEADMAN, SLURM_ADMIN_CONF
from gleaner.control.setup.slurm_checks import config

_SWITCH_LATE_S = 900.0
"""Systemd starts the switch every minute, five minutes after the machine's start for the first time, and one run may
take ten minutes."""
_STARTS_WITHIN_S = 120.0
"""A control that was just started may not have led yet."""
_NO_EXEC = frozenset({"126", "127", "203"})
"""Exit codes of a program that could not be started."""


def service(facts: Facts) -> Judgement:
    """Judge the Slurm admin service, which entitlements and drains need."""
    settings = needed(facts.settings).entitlements
    if not isinstance(facts.slurm_admin, Unread):
        return ok(f"answers at {settings.slurm_admin_socket}")
    if "did not answer within" in facts.slurm_admin.why:
        judge = warning if settings.mode == "off" else fault
        return judge("the Slurm admin service hangs", "systemctl restart gleaner-slurm-admin")
    if settings.mode == "off":
        return not_checked(f"{facts.slurm_admin.why}; only entitlements and drains need it")
    return fault(facts.slurm_admin.why, "systemctl status gleaner-slurm-admin")


def rights(facts: Facts) -> Judgement:
    """Judge the rights of the Slurm admin service's account in Slurm."""
    _needs_service(facts)
    name = facts.slurm_admin_account
    if not name:
        return not_checked("the account of the Slurm admin service is not known")
    try:
        slurms = config(facts).get("SlurmUser", "").partition("(")[0]
    except NotRead:
        slurms = ""
    if name in {"root", slurms}:
        return ok(f"{name} may do all in Slurm")
    rows = rows_in(facts.output("sacctmgr admin").stdout)
    if any(len(row) != 2 for row in rows):
        return not_checked("sacctmgr said what cannot be read")
    found = next((level for user, level in rows if user.lower() == name.lower()), None)
    if found is None and not facts.is_root:  # Slurm may hide users from each other
        return not_checked(f"sacctmgr does not show {name}", "run this as root")
    if found is None:
        return fault(
            f"Slurm's accounting does not know {name}, as whom the Slurm admin service runs",
            f"sacctmgr add user {name} Account=gleaner AdminLevel=Administrator",
        )
    if not found.lower().startswith("admin"):
        return fault(
            f"{name} has AdminLevel={found}: Slurm refuses what the Slurm admin service does",
            f"sacctmgr modify user {name} set AdminLevel=Administrator",
        )
    return ok(f"{name} has AdminLevel={found}")


def epoch(facts: Facts) -> Judgement:
    """Judge whether the service takes control's requests: it refuses those of an epoch that is past."""
    if isinstance(facts.slurm_admin, Unread):
        return not_checked("the Slurm admin service does not answer")
    if not needed(facts.control).health.get("leader"):  # it gets a newer epoch when it leads
        return not_checked("this control program does not lead")
    found = needed(facts.epochs)
    if found.heard > found.controls:
        return fault(
            f"the Slurm admin service knows epoch {found.heard}, and refuses control's older one, {found.controls}",
            f"if no other control leads: rm {found.file}; systemctl restart gleaner-slurm-admin",
        )
    return ok("control's epoch is the newest")


def heartbeat(facts: Facts) -> Judgement:
    """Judge whether control tells the service that it is alive: else slurmctld holds no job for it."""
    if _needs_service(facts) != "on":
        return not_checked("entitlements are not on")
    health = needed(facts.control).health
    started_s = health.get("started_s")
    if not health.get("leader") or not isinstance(started_s, int | float):
        return not_checked("it is not known how long this control program has led")
    if facts.now_s - started_s < _STARTS_WITHIN_S:
        return not_checked("control was only just started")
    found = needed(facts.heartbeat)
    if found.age_s is None or found.age_s > max(_STARTS_WITHIN_S, found.fresh_for_s):
        since = "at all" if found.age_s is None else f"for {in_words(found.age_s)}"
        return warning(
            f"control has not told the Slurm admin service {since} that it is alive: no job is held for it",
            "`glean owners` says why; [entitlements] partitions and slurm-admin.conf must name the same ones",
        )
    return ok(f"{found.file} is {in_words(max(0.0, found.age_s))} old")


def settings_file(facts: Facts) -> Judgement:
    """Judge the owner and the mode of the service's settings: it takes no file that others than root can write."""
    _needs_service(facts)
    file = facts.file(SLURM_ADMIN_CONF)
    if isinstance(file, Unread):
        return not_checked(file.why)
    if file.uid != 0 or file.is_writable_by_others:
        return fault(
            f"others than root may write to {SLURM_ADMIN_CONF}",
            f"chown root {SLURM_ADMIN_CONF}; chmod 644 {SLURM_ADMIN_CONF}",
        )
    names = [words[1] for words in map(str.split, file.text.splitlines()) if words[:1] == ["control"] and words[1:]]
    ours = facts.account
    if names and not isinstance(ours, Unread) and ours.uid != 0 and ours.name != names[-1]:
        return fault(
            f"the Slurm admin service listens to {names[-1]}, and control runs as {ours.name}",
            f"mend the line `control` in {SLURM_ADMIN_CONF}, then systemctl restart gleaner-slurm-admin",
        )
    return ok(f"{SLURM_ADMIN_CONF} is root's")


def dead_mans_switch(facts: Facts) -> Judgement:
    """Judge whether the dead man's switch can run, and runs."""
    mode = _needs_service(facts)
    judge = fault if mode == "on" else warning
    file = facts.file(DEADMAN)
    is_roots_alone = not isinstance(file, Unread) and file.uid == 0 and not file.mode & 0o055
    if not isinstance(file, Unread) and (not file.mode & 0o111 or is_roots_alone):
        return judge(f"{DEADMAN} cannot be run (mode {file.mode:o})", f"chmod 755 {DEADMAN}")
    if facts.has_systemd:
        units = {values.get("Id", ""): values for values in unit_blocks(facts.output("systemctl deadman").stdout)}
        timer, switch = (units.get(f"gleaner-deadman.{end}", {}) for end in ("timer", "service"))
        if timer.get("LoadState") == "loaded":
            return _timed(timer, switch, facts.up_s, judge)
    if isinstance(file, Unread):
        return warning(f"no dead man's switch: {file.why}", "docs/admin/entitlements.md says how it is installed")
    if facts.has_systemd:
        return warning(
            "there is no gleaner-deadman.timer here: does anything else run the dead man's switch?",
            "docs/admin/entitlements.md says how it is installed",
        )
    return ok(f"{DEADMAN} can be run")


def _timed(
    timer: Mapping[str, str], switch: Mapping[str, str], up_s: float, judge: Callable[[str, str], Judgement]
) -> Judgement:
    """Judge what systemd says of the switch's timer and of its last run."""
    if timer.get("ActiveState") != "active":
        return judge(
            f"gleaner-deadman.timer is {timer.get('ActiveState', 'unknown')}: the dead man's switch does not run",
            "systemctl enable --now gleaner-deadman.timer",
        )
    if switch.get("ActiveState") == "activating":
        return ok("it runs now")
    if switch.get("ExecMainStatus") in _NO_EXEC:
        return judge("the dead man's switch cannot be started", "journalctl -u gleaner-deadman says why")
    try:
        ended_s = int(switch["ExecMainExitTimestampMonotonic"]) / 1e6
    except (LookupError, ValueError):
        return not_checked("systemd does not say when the dead man's switch has run")
    if up_s - ended_s > _SWITCH_LATE_S:
        since = f"for {in_words(up_s - ended_s)}" if ended_s else "since the machine was started"
        return judge(f"the dead man's switch has not run {since}", "systemctl status gleaner-deadman.timer")
    if switch.get("Result", "success") != "success":
        return warning("the last run of the dead man's switch failed", "journalctl -u gleaner-deadman says why")
    return ok(f"it ran {in_words(max(0.0, up_s - ended_s))} ago")


def _needs_service(facts: Facts) -> str:
    """Return the mode of entitlements. Raises `NotRead` if neither they nor drains use the service."""
    mode = needed(facts.settings).entitlements.mode
    if mode == "off" and isinstance(facts.slurm_admin, Unread):
        raise NotRead(f"{facts.slurm_admin.why}; only entitlements and drains need it")
    return mode
