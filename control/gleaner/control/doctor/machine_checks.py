"""Checks of a machine that runs control or agents: its clock, the service account, services, and the storage."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from gleaner.agent.common.quantities import size
from gleaner.control.doctor.check import CLIENT, CONTROL, NODE, check
from gleaner.control.doctor.finding import Finding, MachineRole, Unread, fault, first, not_checked, ok, warning
from gleaner.control.doctor.look import Look
from gleaner.control.policy.node_clocks import is_wrong, wrong_clock
from gleaner.control.setup.shipped import WATCHDOG

UNITS = {
    MachineRole.CONTROL: ("gleaner-control",),
    MachineRole.NODE: ("gleaner-watchdog", "gleaner-helper"),
    MachineRole.CLIENT: (),
}
_NOBODY = 65534
_LEAST_BYTES, _LEAST_FILES = 2**30, 10_000
_SAME_CHANGE_S = 2.0
"""The most by which the times of one change can differ, because file systems use steps of up to two seconds."""


@check("clock", (NODE, CLIENT))
def clock(look: Look) -> Finding:
    """Check this machine's clock against the time in control's answer."""
    answer = look.health
    ahead_s = (answer.asked_s + answer.answered_s) / 2 - float(answer.values["now_s"])
    unsure_s = (answer.answered_s - answer.asked_s) / 2  # the time until the answer is not an error of a clock
    ahead_s = max(0.0, ahead_s - unsure_s) if ahead_s > 0 else min(0.0, ahead_s + unsure_s)
    seen, to_do = wrong_clock(ahead_s).partition(":")[0], "let both follow one time server (chrony or NTP)"
    return first("agrees with control's", (is_wrong(ahead_s), fault, seen, to_do))


@check("service account", (CONTROL, NODE))
def service_account(look: Look) -> Finding:
    """Check the service account and its storage.

    Only this account can have write access to the storage, because a user who can write there can become root on a
    node.
    """
    if look.role is MachineRole.NODE:
        _ = look.privileged  # with a wrong account, this is not checked
    try:
        found = look.account
    except Unread as error:
        if not error.is_missing:
            raise
        return fault(error.why, "make the service account, with one number on all machines")
    storage: dict[str, Any] = {"uid": found.pw_uid, "mode": 0o700, "foreign": []}
    with suppress(Unread):
        storage = look.storage if look.storage["is_set_up"] else storage
    path, owner, mode = look.storage_folder, storage["uid"], storage["mode"]
    return first(
        f"{found.pw_name} ({found.pw_uid}), and {path} is its own",
        (0 in {found.pw_uid, owner}, fault, f"{path} is root's", f"chown it to the service account; chmod 700 {path}"),
        (owner == _NOBODY, fault, f"{path} belongs to nobody here: the file system does not map its owners",
         "NFS: does the server know the account, and is Domain in /etc/idmapd.conf the same everywhere?"),
        (owner != found.pw_uid, fault, f"{found.pw_name} is {found.pw_uid} here, and {path} is {owner}'s",
         "give the account one number on all machines"),
        (storage["foreign"], fault, f"{storage['foreign']} in {path} have another owner",
         f"chown -R --reference={path}"),
        (mode & 0o022, fault, f"other users can write into {path} (mode {mode:o})", f"chmod 700 {path}"),
        (mode & 0o077, warning, f"other users can look into {path} (mode {mode:o})", f"chmod 700 {path}"),
    )  # fmt: skip


@check("services", (CONTROL, NODE))
def services(look: Look) -> Finding:
    """Check the services that systemd must keep running, the watchdog and slurmd."""
    found = units(look, *UNITS[look.role]) if look.has_systemd else {}
    wrong = [f"{name} is {unit['ActiveState']} and {unit['UnitFileState'] or unit['LoadState']}"
             for name, unit in found.items()
             if (unit["ActiveState"], unit["UnitFileState"]) not in {("active", "enabled"), ("active", "static")}
             and (name, unit["LoadState"]) != ("gleaner-helper", "not-found")]  # fmt: skip
    if wrong:
        return fault("; ".join(wrong), f"glean setup {look.role}; systemctl enable --now {wrong[0].split()[0]}")
    if look.role is MachineRole.CONTROL:
        return ok("run") if found else not_checked("there is no systemd here")
    names = set(running(look))
    return first(
        "run",
        (WATCHDOG not in names, fault, "the watchdog does not run", "systemctl restart gleaner-watchdog"),
        ("slurmd" not in names, fault, "slurmd does not run here: Slurm starts no agent", "systemctl start slurmd"),
    )


def units(look: Look, *names: str) -> dict[str, dict[str, str]]:
    """Return systemd's facts about these units, by their names without `.service`."""
    words = ("systemctl", "show", "--property=Id,LoadState,ActiveState,UnitFileState", *names)
    blocks = [dict(line.split("=", 1) for line in block.splitlines()) for block in look.printed(*words).split("\n\n")]
    return {unit["Id"].removesuffix(".service"): unit for unit in blocks}


def running(look: Look) -> Iterator[str]:
    """Yield the name of each process that is not stopped."""
    for process in look.at("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            words = process.joinpath("cmdline").read_bytes().split(b"\0")[:3]
            # Debian's slurmd is called slurmd-wlm once it has restarted itself, as it does at a reconfigure.
            name = process.joinpath("comm").read_text("utf-8", "replace").strip().removesuffix("-wlm")
            if process.joinpath("stat").read_bytes().rpartition(b")")[2].split()[:1] != [b"T"]:
                yield WATCHDOG if WATCHDOG.encode() in words else name


@check("storage", (CONTROL, NODE))
def storage(look: Look) -> Finding:
    """Check the storage folder: it is mounted, it is control's own folder, it has room, and a trial save works
    there."""
    path, is_node = look.storage_folder, look.role is MachineRole.NODE
    _ = look.account if is_node else None  # on a node without a storage folder, this is not checked
    try:
        found = look.storage
    except Unread as error:
        if error.to_do:
            raise
        return fault(f"{path} cannot be used: {error.why}", "is the file system mounted, and does its server answer?")
    if not found["is_set_up"]:
        return fault(f"{path} is no storage folder", "is it mounted? `glean control prepare` is for new sites only")
    values = {"storage_id": found["id"], "storage_inode": found["inode"]}
    if is_node:
        with suppress(Unread):
            values = look.health.values
    # Some file systems make up inodes on each machine. In a copy both the inode and the last change differ.
    is_changed = abs(values.get("storage_changed_s", 0.0) - found["changed_s"]) > _SAME_CHANGE_S
    is_copy = is_changed and values.get("storage_inode") != found["inode"]
    is_other = is_copy or (values.get("storage_id") or found["id"]) != found["id"]
    free_bytes, trouble, wrote_s = found["free_bytes"], found["trouble"], found["wrote_s"]
    free = f"{size(free_bytes)} and {found['free_files']} inodes (files) are free in {path}"
    return first(
        f"{path} is control's; sync, link and rename work ({wrote_s * 1000:.0f} ms); {size(free_bytes)} are free",
        (is_other, fault, f"{path} is another folder here than on control's machine, or a copy of it",
         "mount control's own folder there"),
        (free_bytes < _LEAST_BYTES or found["free_files"] < _LEAST_FILES, fault, free, "free some, or raise the quota"),
        ("Read-only" in trouble, fault, f"{path} is mounted read-only", f"mount -o remount,rw {path}"),
        (trouble, fault, f"the service account {trouble} in {path}",
         "the storage needs POSIX rename, hard links and fsync, and room for the account"),
    )  # fmt: skip
