"""Checks of a machine that runs control or agents: its clock, the service account, services, and the storage."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from gleaner.agent.common.quantities import size
from gleaner.control.doctor.check import ALL, CONTROL, NODE, check
from gleaner.control.doctor.finding import Finding, MachineRole, Unread, fault, first, not_checked, ok, warning
from gleaner.control.doctor.look import Look
from gleaner.control.policy.node_clocks import is_wrong, wrong_clock

WATCHDOG = "/usr/local/libexec/gleaner/watchdog"
UNITS = {
    MachineRole.CONTROL: ("gleaner-control",),
    MachineRole.NODE: ("gleaner-watchdog", "gleaner-helper"),
    MachineRole.CLIENT: (),
}
_SURPRISING_GROUPS = frozenset({"root", "wheel", "sudo", "adm", "disk", "shadow", "lxd", "libvirt"})
_NOBODY = 65534
_LITTLE_BYTES, _LEAST_BYTES, _LEAST_FILES = 50 * 2**30, 2**30, 10_000
_SLOW_S = 2.0
_SAME_CHANGE_S = 2.0
"""The times of one change may differ by so much: file systems count in steps, of two seconds at most."""


@check("clock", ALL)
def clock(look: Look) -> Finding:
    """The clock: against control's, by the time in control's answer, and whether a time service keeps it."""
    with suppress(Unread):
        answer, controls_s = look.health, look.health.values.get("now_s")
        if isinstance(controls_s, float):
            ahead_s = (answer.asked_s + answer.answered_s) / 2 - controls_s
            unsure_s = (answer.answered_s - answer.asked_s) / 2  # the time of the answer is no error of a clock
            ahead_s = max(0.0, ahead_s - unsure_s) if ahead_s > 0 else min(0.0, ahead_s + unsure_s)
            if is_wrong(ahead_s):
                return fault(wrong_clock(ahead_s).partition(":")[0], "let both follow one time server (chrony or NTP)")
    with suppress(Unread):
        is_lost = "Not synchronised" in look.printed("chronyc", "-c", "tracking")
        return first("chrony keeps it", (is_lost, warning, "chrony has no time server", "look at `chronyc sources`"))
    is_kept = look.printed("timedatectl", "show", "--property=NTPSynchronized", "--value").strip() == "yes"
    return first("it is synchronised", (not is_kept, warning, "the clock is not synchronised", "install chrony"))


@check("service account", (CONTROL, NODE))
def service_account(look: Look) -> Finding:
    """The service account: one number everywhere, no rights beyond its own, and Docker's group for agents."""
    if look.role is MachineRole.NODE:
        _ = look.privileged  # where it is wrong, this was not checked
    try:
        found = look.account
    except Unread as error:
        if not error.is_missing:
            raise
        return fault(error.why, "make the service account, with one number on all machines")
    name, is_control, owner, sends_groups = found.pw_name, look.role is MachineRole.CONTROL, found.pw_uid, False
    with suppress(Unread):
        owner = look.storage["uid"] if look.storage["is_set_up"] else owner
        sends_groups = is_control and "slurmctld" in dict(processes(look)) and (
            "disable_send_gids" not in look.printed("scontrol", "show", "config"))  # fmt: skip
    wrong = sorted(_SURPRISING_GROUPS & look.groups)
    return first(
        f"{name} ({found.pw_uid})",
        (found.pw_uid == 0, fault, "the storage folder is root's", "chown it to the service account"),
        (owner == _NOBODY, fault, "the storage is nobody's here: the file system does not map its owners",
         f"NFS: is {name} known to the server, and Domain in /etc/idmapd.conf the same everywhere?"),
        (owner not in {found.pw_uid, 0}, fault, f"{name} is {found.pw_uid} here, and the storage is {owner}'s",
         "give the account one number on all machines"),
        (sends_groups and "docker" not in look.groups, warning, f"{name} is not in the group docker, and slurmctld"
         " hands out this machine's groups", f"if agents use Docker: usermod -aG docker {name}"),
        (wrong, warning, f"{name} is in the group {', '.join(wrong)}", f"take it out: gpasswd -d {name} GROUP"),
    )  # fmt: skip


@check("services", (CONTROL, NODE))
def services(look: Look) -> Finding:
    """The services that systemd must keep running, the watchdog and slurmd."""
    found = units(look, *UNITS[look.role]) if look.has_systemd else {}
    wrong = [f"{name} is {unit['ActiveState']} and {unit['UnitFileState'] or unit['LoadState']}"
             for name, unit in found.items()
             if (unit["ActiveState"], unit["UnitFileState"]) not in {("active", "enabled"), ("active", "static")}
             and (name, unit["LoadState"]) != ("gleaner-helper", "not-found")]  # fmt: skip
    if wrong:
        return fault("; ".join(wrong), f"glean setup {look.role}; systemctl enable --now {wrong[0].split()[0]}")
    if look.role is MachineRole.CONTROL:
        return ok("run") if found else not_checked("there is no systemd here")
    running = dict(processes(look))
    return first(
        "run",
        (WATCHDOG not in running, fault, "the watchdog does not run", "systemctl restart gleaner-watchdog"),
        ("slurmd" not in running, fault, "slurmd does not run here: Slurm starts no agent", "systemctl start slurmd"),
    )


def units(look: Look, *names: str) -> dict[str, dict[str, str]]:
    """Return what systemd has of these units, by their names without `.service`."""
    words = ("systemctl", "show", "--property=Id,LoadState,ActiveState,UnitFileState,Result", *names)
    blocks = [dict(line.split("=", 1) for line in block.splitlines()) for block in look.printed(*words).split("\n\n")]
    usual = dict.fromkeys(("ActiveState", "UnitFileState", "LoadState"), "")
    return {unit["Id"].removesuffix(".service"): usual | unit for unit in blocks if "Id" in unit}


def processes(look: Look) -> Iterator[tuple[str, Path]]:
    """Yield the name of each process that is not stopped, and its folder in `/proc`."""
    for process in look.at("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            words = process.joinpath("cmdline").read_bytes().split(b"\0")[:3]
            # Debian's slurmd is called slurmd-wlm once it has started itself again, as it does at a reconfigure.
            name = process.joinpath("comm").read_text("utf-8", "replace").strip().removesuffix("-wlm")
            if process.joinpath("stat").read_bytes().rpartition(b")")[2].split()[:1] != [b"T"]:
                yield (WATCHDOG if WATCHDOG.encode() in words else name), process


@check("storage", (CONTROL, NODE))
def storage(look: Look) -> Finding:
    """The storage folder: mounted, set up, and on a node control's own folder."""
    path, is_node = look.storage_folder, look.role is MachineRole.NODE
    _ = look.account if is_node else None  # a node without one was not checked
    try:
        found = look.storage
    except Unread as error:
        if error.to_do:
            raise
        return fault(f"{path} cannot be used: {error.why}", "is the file system mounted, and does its server answer?")
    if not found["is_set_up"]:
        return fault(f"{path} is no storage folder", "is it mounted? A new one is made by `glean control prepare`")
    values = look.health.values if is_node else {"storage_id": found["id"], "storage_inode": found["inode"]}
    if not (theirs := values.get("storage_id")) and is_node:
        return not_checked("control does not tell which folder it has", "`glean control prepare`, once, on its machine")
    # Some file systems make up inodes on each machine: in a copy both the inode and the last change differ.
    is_changed = abs(values.get("storage_changed_s", 0.0) - found["changed_s"]) > _SAME_CHANGE_S
    is_other = found["id"] != theirs or (is_changed and values.get("storage_inode") != found["inode"])
    seen = f"{path} is another folder here than on control's machine, or a copy of it"
    return first(f"{path} is set up, and control's", (is_other, fault, seen, "mount control's own folder there"))


def _set_up(look: Look) -> tuple[Path, dict[str, Any]]:
    if not look.storage["is_set_up"]:
        raise Unread(f"no storage is mounted at {look.storage_folder}")
    return look.storage_folder, look.storage


@check("storage's owner", (CONTROL, NODE))
def storage_owner(look: Look) -> Finding:
    """The owner and the mode of the storage: whoever can write there can become root on a node."""
    path, found = _set_up(look)
    return first(
        f"uid {found['uid']}, mode {found['mode']:o}",
        (found["uid"] == 0, fault, f"{path} is root's", f"chown it to the service account; chmod 700 {path}"),
        (found["foreign"], fault, f"{found['foreign']} in {path} have another owner", f"chown -R --reference={path}"),
        (found["mode"] & 0o022, fault, f"others may write into {path} (mode {found['mode']:o})", f"chmod 700 {path}"),
        (found["mode"] & 0o077, warning, f"others may look into {path} (mode {found['mode']:o})", f"chmod 700 {path}"),
    )


@check("storage's writes", (CONTROL, NODE))
def storage_writes(look: Look) -> Finding:
    """A trial of what a save does (sync, hard link, rename), and the room for saves."""
    path, found = _set_up(look)
    free_bytes, trouble, wrote_s = found["free_bytes"], found["trouble"], found["wrote_s"]
    free = f"{size(free_bytes)} and {found['free_files']} inodes (files) are free in {path}"
    is_full = free_bytes < _LEAST_BYTES or found["free_files"] < _LEAST_FILES
    return first(
        f"sync, link and rename work ({wrote_s * 1000:.0f} ms); {size(free_bytes)} are free",
        (is_full, fault, free, "free some, or raise the quota: saves fail"),
        ("Read-only" in trouble, fault, f"{path} is mounted read-only", f"mount -o remount,rw {path}"),
        (trouble, fault, f"the service account {trouble} in {path}",
         "the storage needs POSIX rename, hard links and fsync, and room for the account"),
        (wrote_s > _SLOW_S, warning, f"sync, link and rename took {wrote_s:.1f} s", "saves will be slow"),
        (free_bytes < _LITTLE_BYTES, warning, free, "two copies of each begun job's memory must fit"),
    )  # fmt: skip
