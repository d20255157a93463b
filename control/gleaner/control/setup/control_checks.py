"""Checks of control itself: the settings that it runs with, and the files that it must write. Pure."""

from pathlib import Path

from gleaner.control.setup.facts import Facts, NotRead, Unread, needed
from gleaner.control.setup.finding import Judgement, fault, not_checked, ok, warning

_RESTART = "systemctl restart gleaner-control"
_ROUNDING_S = 1.0
_LARGEST_PART = 0.75
"""The largest part of a round that a slice may need."""
_POLLS_A_ROUND = 4
_POLLS_OF_A_START = 3
_USUAL_PENDING_S = 300
_HEARTBEATS_A_LEASE = 3
_LEAST_TIMEOUT_S = 5.0
_WRITABLE = ("/tmp", "/var/tmp", "/dev")  # noqa: S108 - only compared
"""A service that systemd protects has folders of its own at these places."""


def settings_in_force(facts: Facts) -> Judgement:
    """Judge whether control was started after the last change of its settings."""
    needed(facts.settings)
    found = needed(facts.control)
    started_s = found.health.get("started_s")
    if not isinstance(started_s, int | float):
        return not_checked("this version of control does not say when it was started")
    if not found.is_here or not facts.settings_file or "GLEANER_SETTINGS" in facts.overrides:
        return not_checked("the settings of this machine may not be those of the control that answers")
    file = facts.file(facts.settings_file)
    if isinstance(file, Unread):
        return not_checked(file.why)
    if file.changed_s > started_s + _ROUNDING_S:
        return warning(
            f"{facts.settings_file} was changed after control's start: control still runs with older settings", _RESTART
        )
    return ok(f"control was started after the last change of {facts.settings_file}")


def times_fit(facts: Facts) -> Judgement:
    """Judge times in the settings that are allowed each, and do not fit together."""
    found = needed(facts.settings)
    queue, rounds, timeout_s = found.queue, found.rounds, found.cluster.timeout_s
    if rounds.longest_s <= 0:
        return warning(
            f"[rounds] agent_needs_s is {rounds.agent_needs_s:g} s, and a round {rounds.length_s:g} s: a job that"
            " starts late in it has no time",
            "longer rounds: agent_needs_s is the time that an agent needs beside its jobs",
        )
    if rounds.least_slice_s > _LARGEST_PART * rounds.length_s:
        left_s = rounds.length_s - rounds.least_slice_s
        return warning(
            f"agents start only in the first {left_s:g} s of a round of {rounds.length_s:g} s",
            "longer rounds, or less in [rounds] shortest_slice_s and agent_needs_s",
        )
    if _POLLS_A_ROUND * rounds.poll_s > rounds.length_s:
        return warning(
            f"[rounds] poll_s is {rounds.poll_s:g} s, and a round {rounds.length_s:g} s: nodes stay idle between looks",
            "a shorter poll_s, or longer rounds",
        )
    if rounds.pending_limit_s < _POLLS_OF_A_START * rounds.poll_s:
        return warning(
            f"[rounds] pending_limit_s is {rounds.pending_limit_s:g} s, and control looks every {rounds.poll_s:g} s:"
            " agents may be withdrawn before Slurm starts them",
            f"pending_limit_s = {_USUAL_PENDING_S}",
        )
    if queue.lease_s < _HEARTBEATS_A_LEASE * queue.heartbeat_s:
        return warning(
            f"[queue] lease_s is {queue.lease_s:g} s, and heartbeat_s {queue.heartbeat_s:g} s: two lost heartbeats"
            " lose the jobs",
            f"lease_s = {2 * _HEARTBEATS_A_LEASE * queue.heartbeat_s:g}",
        )
    if found.cluster.backend != "local" and timeout_s < _LEAST_TIMEOUT_S:
        return warning(
            f"[cluster] timeout_s is {timeout_s:g} s: a busy Slurm takes longer to answer", "leave it out, for 30 s"
        )
    return ok("the times of [queue], [rounds] and [cluster] fit together")


def audit_file(facts: Facts) -> Judgement:
    """Judge whether control can write the lines of its audit log."""
    path = needed(facts.settings).audit.file
    if path is None:
        return ok("no file is set: the lines go to control's log")
    if refused := needed(facts.audit):
        whom = "gleaner" if isinstance(facts.account, Unread) else facts.account.name
        return fault(
            f"{whom} cannot write [audit] file {path}: {refused}",
            f"it needs a folder that is {whom}'s, with all in it: install -d -o {whom} -m 750 /var/log/gleaner",
        )
    folders = _folders_that_systemd_leaves(facts) if facts.has_systemd and path.is_absolute() else None
    if folders is not None and not any(path.is_relative_to(folder) for folder in (*folders, *map(Path, _WRITABLE))):
        return fault(
            f"systemd keeps control from writing [audit] file {path}",
            f"systemctl edit gleaner-control: ReadWritePaths={path.parent} below [Service]; then {_RESTART}",
        )
    return ok(f"{path} can be written")


def _folders_that_systemd_leaves(facts: Facts) -> tuple[Path, ...] | None:
    """Return the folders in which systemd lets control write; None for all, or if it does not say."""
    try:
        lines = facts.output("systemctl places").stdout.splitlines()
    except NotRead:
        return None
    values = {key: value for key, _, value in (line.partition("=") for line in lines)}
    if values.get("ProtectSystem") != "strict":
        return None
    places = [word.lstrip("-+") for word in values.get("ReadWritePaths", "").split()]
    for key, above in (("StateDirectory", "/var/lib"), ("LogsDirectory", "/var/log")):
        places += [f"{above}/{word.partition(':')[0]}" for word in values.get(key, "").split()]
    return tuple(map(Path, places))
