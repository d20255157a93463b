"""Checks of the storage folder and of the disks. Pure."""

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gleaner.agent.common.quantities import size
from gleaner.control.setup import machine_facts, readers
from gleaner.control.setup.facts import Facts, Folder, MachineRole, StorageFacts, Unread, needed, sqlite_file
from gleaner.control.setup.finding import Judgement, fault, not_checked, ok, warning

_GIB = 2**30
_LITTLE_BYTES = 50 * _GIB
_LEAST_BYTES = 1 * _GIB
_LEAST_FILES = 10_000
_LEAST_PART_OF_FILES = 0.02
"""With a smaller part of its inodes free, agents take a file system for full (`agent.node.disk_usage.room`)."""
_LEAST_TEMPORARY_BYTES = 2**26
_LEAST_TEMPORARY_FILES = 100
_LEAST_COPIES_BYTES = 2**28
_READ_ONLY = os.strerror(errno.EROFS)
_SLOW_S = 2.0
_SAME_CHANGE_S = 2.0
"""The times of one change may differ by so much: file systems count in steps, of two seconds at most."""
_MIB = 2**20


def folder_path(facts: Facts) -> Path:
    """Return the storage folder that this machine's settings name. Raises `NotRead`."""
    return needed(facts.agent).storage if facts.role is MachineRole.NODE else needed(facts.settings).storage.folder


def _found(facts: Facts) -> StorageFacts:
    return needed(facts.storage)


def _not_looked_at(facts: Facts, found: Unread, to_do: str) -> Judgement:
    """Judge a folder that could not be looked at. Those of the service account are closed to ordinary users."""
    if os.strerror(errno.EACCES) in found.why and not facts.is_account_or_root:
        return not_checked(f"{found.why}: only the service account may look there", "run this as root")
    return fault(found.why, to_do)


def folder(facts: Facts) -> Judgement:
    """Judge whether the folder is there and was set up."""
    path = folder_path(facts)
    if isinstance(facts.storage, Unread):
        return _not_looked_at(
            facts, facts.storage, f"is the file system mounted? `storage` must name the folder ({path})"
        )
    if not facts.storage.is_set_up:
        if facts.role is MachineRole.NODE:
            return fault(f"no storage is mounted at {path} (it was never set up)", "mount the shared file system there")
        return fault(
            f"{path} is no storage folder", "is the file system mounted? For a new one: `glean control prepare`"
        )
    return ok(f"{path} is set up")


def owner(facts: Facts) -> Judgement:
    """Judge the owner and the mode: whoever can write there can become root on a node."""
    path, found = folder_path(facts), _found(facts)
    if not found.is_set_up:
        return not_checked(f"no storage is mounted at {path}")
    if found.uid == 0:
        return fault(f"{path} is root's", f"chown it to the service account, and chmod 700 {path}")
    if found.foreign:
        whose = "root" if found.foreign_uid == 0 else f"uid {found.foreign_uid}"
        place = path / found.foreign
        return fault(f"{place} is {whose}'s, not uid {found.uid}'s", f"chown -R --reference={path} {place}")
    if found.mode & 0o022:
        return fault(f"others may write into {path} (mode {found.mode:o})", f"chmod 700 {path}")
    if found.mode & 0o077:
        return warning(f"others may look into {path} (mode {found.mode:o})", f"chmod 700 {path}")
    return ok(f"uid {found.uid}, mode {found.mode:o}")


def writes(facts: Facts) -> Judgement:
    """Judge the trial of what a save does: sync, hard link and rename."""
    found = _found(facts)
    if not found.is_set_up:
        return not_checked("the folder is not set up")
    if _READ_ONLY in found.trouble:
        path = folder_path(facts)
        return fault(f"{path} is mounted read-only", f"mount -o remount,rw {path}")
    if found.trouble and not facts.is_account_or_root:
        return not_checked(f"you {found.trouble}", "run this as root")
    if found.trouble:
        return fault(
            f"the service account {found.trouble} in {folder_path(facts)}",
            "the storage needs POSIX rename, hard links and fsync, and room for the account",
        )
    if found.wrote_s > _SLOW_S:
        return warning(f"sync, link and rename took {found.wrote_s:.1f} s", "saves will be slow: look at the storage")
    return ok(f"sync, link and rename work ({found.wrote_s * 1000:.0f} ms)")


def is_controls(facts: Facts) -> Judgement:
    """Judge whether this node and control see one and the same folder."""
    found, health = _found(facts), needed(facts.control).health
    if not found.is_set_up:
        return not_checked(f"no storage is mounted at {folder_path(facts)}")
    theirs = str(health.get("storage_id") or "")
    if not theirs:
        return not_checked(
            "control does not say which folder it has", "run `glean control prepare`, once, on its machine"
        )
    if found.id == theirs and _is_copy(found, health):
        return fault(
            f"{folder_path(facts)} has the number of control's storage in another file: it is a copy of that folder",
            "mount control's own folder there, not a copy or a snapshot of it",
        )
    if found.id == theirs:
        return ok("the same folder as control's")
    return fault(
        f"{folder_path(facts)} is another folder here than on control's machine",
        "mount the shared file system at that path",
    )


def _is_copy(found: StorageFacts, health: Mapping[str, Any]) -> bool:
    """Return True if the file with the number is not control's own: both its inode and its last change differ.

    Some file systems make up inodes on each machine, and an older control tells neither.
    """
    inode, changed_s = health.get("storage_inode"), health.get("storage_changed_s")
    if not inode or not isinstance(changed_s, int | float) or not found.inode:
        return False
    return inode != found.inode and abs(changed_s - found.changed_s) > _SAME_CHANGE_S


def space(facts: Facts) -> Judgement:
    """Judge the free space of the storage."""
    found = _found(facts)
    if found.free_bytes < _LEAST_BYTES or found.free_files < _LEAST_FILES:
        what = size(found.free_bytes) if found.free_bytes < _LEAST_BYTES else f"{found.free_files} inodes (files)"
        return fault(f"{what} are free", "free some, or raise the quota: saves fail")
    if found.free_bytes < _LITTLE_BYTES:
        return warning(f"{size(found.free_bytes)} are free", "two copies of each begun job's memory must fit")
    return ok(f"{size(found.free_bytes)} are free")


def work_folder(facts: Facts) -> Judgement:
    """Judge the folder of running jobs on the node's own disk."""
    settings = needed(facts.agent)
    found = facts.folders.get(str(settings.work), Unread("it was not looked at"))
    if isinstance(found, Unread):
        return _not_looked_at(facts, found, f"install -d -o gleaner -g gleaner -m 0750 {settings.work}")
    if not isinstance(facts.privileged, Unread) and found.uid != facts.privileged.agent_uid:
        return fault(
            f"{settings.work} is uid {found.uid}'s", f"chown it to the service account: {facts.privileged.agent_uid}"
        )
    if found.mode & 0o022:
        return fault(f"others may write into {settings.work} (mode {found.mode:o})", f"chmod 750 {settings.work}")
    if short := _shortage(found, settings.disk_reserve_mib):
        is_small = found.all_bytes < settings.disk_reserve_mib * _MIB
        to_do = "its file system is too small; or lower disk_reserve_mib" if is_small else "remove some files there"
        return fault(f"{short} in {settings.work}", f"no job starts: {to_do}")
    if (settings.disk_mib_per_job + settings.disk_reserve_mib) * _MIB > found.all_bytes:
        return warning(
            f"disk_mib_per_job and disk_reserve_mib are more than the disk of {settings.work} has: one job may fill it",
            f"lower disk_mib_per_job in {machine_facts.agent_file()}",
        )
    if found.free_bytes < 2 * facts.memory_mib * _MIB:
        return warning(
            f"{size(found.free_bytes)} are free, less than twice the node's memory",
            "jobs that fill the memory may find no room to be restored",
        )
    return ok(f"{settings.work}, {size(found.free_bytes)} are free")


def containers_folder(facts: Facts) -> Judgement:
    """Judge the room where containers' files and images go: agents look at it as they look at their work folder."""
    settings = needed(facts.agent)
    places: list[Folder] = []
    if settings.runtime != "criu" and isinstance(facts.docker_folder, Folder):
        places.append(facts.docker_folder)
    if (
        settings.runtime != "docker"
        and not isinstance(facts.helper, Unread)
        and not isinstance(facts.privileged, Unread)
    ):
        bundles = facts.folders.get(facts.privileged.bundles)
        places += [bundles] if isinstance(bundles, Folder) else []
    if not places:
        return not_checked("neither Docker's folder nor the node helper's could be looked at")
    lacks = [(place, short) for place in places if (short := _shortage(place, settings.disk_reserve_mib))]
    for place, short in lacks:
        # With two runtimes it is not known here which one agents use.
        judge = fault if len(lacks) == len(places) else warning
        return judge(f"{short} in {place.path}", "no job starts: remove images or some files there")
    return ok(", ".join(f"{place.path}, {size(place.free_bytes)} are free" for place in places))


def _shortage(found: Folder, reserve_mib: int) -> str:
    """Return what is too little on a disk, so that an agent begins no job (`DiskWatch`); empty if nothing is."""
    if found.free_bytes < reserve_mib * _MIB:
        return f"{size(found.free_bytes)} are free, less than disk_reserve_mib ({reserve_mib}),"
    if found.free_files < max(_LEAST_FILES, _LEAST_PART_OF_FILES * found.all_files):
        return f"{found.free_files} inodes (files) are free"
    return ""


def temporary_folder(facts: Facts) -> Judgement:
    """Judge the room in `/tmp`, which the system's programs need, and in containerd's folder for copies of memory."""
    found, copies = needed(facts.folders.get(readers.TEMPORARY, Unread("it was not looked at"))), facts.copies
    uses_docker = isinstance(facts.agent, Unread) or facts.agent.runtime != "criu"
    if uses_docker and isinstance(copies, Folder) and copies.free_bytes < _LEAST_COPIES_BYTES:
        return fault(f"{size(copies.free_bytes)} are free in {copies.path}, where containerd copies a job's memory",
                     "no restore with Docker succeeds: name a larger folder as TMPDIR of containerd")  # fmt: skip
    for number, least, words in (
        (found.free_bytes, _LEAST_TEMPORARY_BYTES, size(found.free_bytes)),
        (found.free_files, _LEAST_TEMPORARY_FILES, f"{found.free_files} inodes (files)"),
    ):
        if number < least:
            return warning(f"{words} are free in {readers.TEMPORARY}", "remove some files there: programs fail")
    return ok(f"{size(found.free_bytes)} are free in {readers.TEMPORARY}")


def database_disk(facts: Facts) -> Judgement:
    """Judge the disk of an SQLite database."""
    if not needed(facts.settings).queue.url.startswith("sqlite"):
        return not_checked("the database is a server's")
    ((path, found),) = facts.folders.items()
    if isinstance(found, Unread):
        return _not_looked_at(facts, found, "make that folder, owned by the service account")
    if found.free_bytes < _LEAST_BYTES:
        return fault(f"{size(found.free_bytes)} are free in {path}", "free some space: control cannot write its queue")
    return ok(f"{path}, {size(found.free_bytes)} are free")


def queue_writes(facts: Facts) -> Judgement:
    """Judge whether control can write its queue: its files' owners, and a lock of writers that somebody keeps."""
    url = needed(facts.settings).queue.url
    if not url.startswith("sqlite"):
        return not_checked("the database is a server's")
    found, path = needed(facts.queue), sqlite_file(url)
    name = "the service account" if isinstance(facts.account, Unread) else facts.account.name
    if found.refused and found.is_read_only:
        return fault(f"{found.refused} is on a file system that is read-only", "mount it with rw: control writes there")
    if found.refused and not facts.is_account_or_root:
        return not_checked(f"you cannot write {found.refused}", "run this as root")
    if found.refused:
        owner_name = "root" if found.uid == 0 else f"uid {found.uid}"
        return fault(
            f"{name} cannot write {found.refused} ({owner_name}'s, mode {found.mode:o})",
            f"chown {name}: {path.parent} {path}*, then systemctl restart gleaner-control",
        )
    if not found.holder:
        return ok(f"{name} can write {path}")
    if found.is_holder_ours:
        return warning(
            f"glean itself (process {found.holder_pid}) writes the queue without a pause", "look again in a minute"
        )
    return fault(
        f"the queue cannot be written: {found.holder} (process {found.holder_pid}) has locked {path}",
        f"end that program: ps -fp {found.holder_pid} shows it",
    )


def schema(facts: Facts) -> Judgement:
    """Judge the tables of the database."""
    found = facts.schema
    needed(facts.settings)
    if isinstance(found, Unread):
        if any(word in found.why for word in ("not installed", "run this as", "Permission", "unable to open")):
            return not_checked(found.why)
        controls_word = "" if isinstance(facts.control, Unread) else facts.control.health.get("queue")
        if "no answer within" in found.why and controls_word == "ok":
            return not_checked(f"{found.why}; control says that the database works", "look again")
        return fault(found.why, "look at [queue] url, and whether the database runs")
    if found:
        return fault(found, "stop control, then run what this says")
    return ok("the tables are this version's")
