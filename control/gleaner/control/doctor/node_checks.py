"""Checks of what a compute node needs to run, save and restore jobs."""

import json
import os
import platform
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from gleaner.agent import privileged as privileged_package
from gleaner.agent.common.quantities import size
from gleaner.agent.privileged.common import config, user_jobs
from gleaner.agent.privileged.common.slurm_job import USUAL_KILL_WAIT_S, parse_kill_wait_s
from gleaner.control.doctor.check import NODE, check
from gleaner.control.doctor.finding import CheckState, Finding, Unread, fault, first, not_checked, ok, warning
from gleaner.control.doctor.look import Look, agent_file, complaint
from gleaner.control.doctor.slurm_reading import dotted, version_in
from gleaner.control.slurm.commands import NODE_PATH

RUNC_CONF = "/etc/criu/runc.conf"
_LEAST_KERNEL, _LEAST_CRIU, _LEAST_RUNC, _LEAST_PYTHON = (5, 14), (4, 1), (1, 1), (3, 9)
_SOCKETS_KERNEL, _SOCKETS_CRIU = (6, 16), (4, 2)
"""CRIU before 4.2 cannot save internet sockets on this Linux or a newer one (`node.facts`)."""
_TRIED_DOCKER, _UNTRIED_DOCKER, _NO_DOCKER = (26, 1), (27,), (28,)
_CRIU_OPTIONS = frozenset({"file-locks", "ghost-limit"})
_USERNS = re.compile(r"name=(userns|rootless)\b")
"""Docker's ways to give users other numbers: the job's user is then another one than the folder's."""
_KEY_NOTE_AGE_S = 24 * 3600.0
"""An older note is of a node that has no agents: each agent writes it again after half a day."""
_LEAST_PART_OF_FILES = 0.02
"""With a smaller part of its inodes free, agents take a file system for full (`agent.node.disk_usage.room`)."""
_LEAST_TEMPORARY_MIB = 256
_MIB = 2**20
_INSTALL = "run `glean setup node`"


@check("agents' settings", (NODE,))
def agents_settings(look: Look) -> Finding:
    """The agents' settings: they parse, the account can read them, and they fit control's rounds and the machine."""
    path = agent_file()
    try:
        found = look.agent
    except Unread as error:
        to_do = f"chmod 644 {path}" if error.is_denied else f"{_INSTALL}, or mend it: docs/admin/agent-settings.md"
        return fault(error.why, to_do)
    memory_mib, cpus = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _MIB, os.cpu_count() or 1
    round_s, wait_s = float("inf"), found.kill_wait_s
    with suppress(Unread):
        round_s = look.health.values.get("round_length_s") or round_s
        wait_s = wait_s or parse_kill_wait_s(look.printed("scontrol", "show", "config"))
    needed_s = (wait_s or USUAL_KILL_WAIT_S) + found.margin_s + found.shortest_slice_s
    return first(
        f"{path} is in order",
        (look.place(path).mode & 0o022, fault, f"others may write to {path}", f"chmod 644 {path}"),
        (look.is_refused(path, "r"), fault, f"{look.account_name} cannot read {path}", f"chmod 644 {path}"),
        ((found.memory_mib or 0) > memory_mib, fault, f"jobs may use {found.memory_mib} MiB of {memory_mib}",
         f"lower memory_mib in {path}, or leave it out"),
        (needed_s >= round_s, fault, f"agents begin no job: they need {needed_s:g} s of a round of {round_s:g} s",
         f"lower margin_s or shortest_slice_s in {path}, or make control's rounds longer"),
        ((found.cpus or 0) > cpus, warning, f"jobs may use {found.cpus} cores of {cpus}", f"lower cpus in {path}"),
        (found.images_allowed == ("gleaner/*",), warning, "only the demo's images may run", "images_allowed"),
    )  # fmt: skip


@check("kernel", (NODE,))
def kernel(look: Look) -> Finding:
    """Linux: its version, its control groups in either version, and SELinux."""
    linux, needed = platform.release(), {"cpu", "memory", "pids"}
    try:
        has = set(look.text(look.at("/sys/fs/cgroup/cgroup.controllers")).split())
    except Unread:  # version 1
        needed |= {"freezer"}
        has = set(re.findall(r"(?m)^(\w+)\s.*\s1$", look.text(look.at("/proc/cgroups"))))
    is_enforcing = False
    with suppress(Unread):
        is_enforcing = look.text(look.at("/sys/fs/selinux/enforce")).strip() == "1"
    lacks = ", ".join(sorted(needed - has))
    return first(
        f"Linux {linux}",
        (version_in(linux) < _LEAST_KERNEL, fault, f"Linux {linux}", f"install {dotted(_LEAST_KERNEL)} or newer"),
        (lacks, fault, f"control groups without {lacks}", "enable them at the kernel's command line"),
        (is_enforcing, warning, "SELinux is enforcing, which was not tried with Gleaner", "try a save first"),
    )


@check("CRIU", (NODE,))
def criu(look: Look) -> Finding:
    """CRIU: its version against the kernel's, its own check, its options, and the programs that it runs."""
    path, linux = look.privileged.criu, platform.release()
    try:
        ended = look.run(path, "--version")
    except Unread as error:
        return fault(error.why, "install CRIU; privileged.json names its path")
    try:
        options, place = look.text(look.at(RUNC_CONF)), look.place(look.at(RUNC_CONF))
    except Unread as error:
        return fault(error.why, _INSTALL)
    found = version_in(ended.stdout)
    lacks = [name for name in ("tar", "gzip") if not shutil.which(name, path=NODE_PATH)]
    # A wrapper of CRIU may take the rights of the job's owner (images/node/sbin/criu): here root's.
    tried = look.run("env", "GLEANER_UID=0", path, "check") if look.is_root else ended
    return first(
        f"CRIU {dotted(found)} on Linux {linux}",
        (ended.status, fault, f"criu does not run: {complaint(ended)}", "install it again"),
        (found < _LEAST_CRIU, fault, f"CRIU {dotted(found)} is too old", f"install {dotted(_LEAST_CRIU)} or newer"),
        (lacks, fault, f"saves need {' and '.join(lacks)}", "install what is missing"),
        (not place.is_roots_alone, fault, f"{RUNC_CONF} is {place}", f"chown root {RUNC_CONF}; chmod 644 {RUNC_CONF}"),
        (not set(options.split()) >= _CRIU_OPTIONS, fault, f"{RUNC_CONF} lacks options of ours", _INSTALL),
        (tried.status and "Looks good" not in tried.stdout + tried.stderr, fault,
         f"criu check fails: {complaint(tried)}", "run `criu check` as root: the kernel lacks something"),
        (version_in(linux) >= _SOCKETS_KERNEL and found < _SOCKETS_CRIU, warning,
         f"CRIU {dotted(found)} saves no internet sockets on this Linux", f"install {dotted(_SOCKETS_CRIU)} or newer"),
    )  # fmt: skip


def _engine(look: Look) -> dict[str, Any]:
    """Return what the running Docker Engine tells of itself."""
    try:
        return dict(json.loads(look.printed("docker", "info", "--format", "{{json .}}")))
    except (ValueError, TypeError) as error:
        raise Unread("Docker answers what cannot be read") from error


@check("Docker", (NODE,))
def docker(look: Look) -> Finding:
    """Docker Engine, where agents may use it: its version, our runtime in it, and who may open its socket."""
    kind = look.agent.runtime
    if kind == "criu":
        return not_checked("by the agents' settings Docker is not used")
    # Where agents can use the node helper instead, a Docker that does not work is a warning.
    judge = fault if kind == "docker" or _helper_trouble(look) else warning
    try:
        info = _engine(look)
    except Unread as error:
        if error.is_missing and judge is warning:
            return not_checked("there is no Docker here: agents use the node helper")
        return judge(f"Docker does not answer: {error.why}", "install it, or systemctl restart containerd docker")
    version, runtimes = version_in(str(info.get("ServerVersion"))), cast("dict[str, Any]", info.get("Runtimes") or {})
    name, other = f"Docker {dotted(version)}", 'or set runtime = "criu" in agent.toml'
    ids, socket = _USERNS.search(str(info.get("SecurityOptions"))), look.agent.docker_url.removeprefix("unix://")
    shim, account = runtimes.get("gleaner", {}).get("path"), look.account_name
    is_refused = look.is_refused(Path(socket), "r") or look.is_refused(Path(socket), "w")
    return first(
        f"{name} with our runtime",
        (not version or version >= _NO_DOCKER, judge, f"{name} cannot restore", f"install 26.1, {other}"),
        (info.get("Driver") != "overlay2", judge, f"{name} keeps no images with overlay2", f"daemon.json, {other}"),
        (ids, judge, f"{name} gives users other numbers", f"no userns-remap and not rootless, {other}"),
        (shim != config.Config(1).shim, judge, f"{name} has no runtime of ours", f"{_INSTALL}, {other}"),
        (info.get("ExperimentalBuild") is not True, judge, f"{name} is not experimental", f"{_INSTALL}, {other}"),
        (is_refused, judge, f"{account} cannot open Docker's socket", f"usermod -aG docker {account}, {other}"),
        (not _TRIED_DOCKER <= version < _UNTRIED_DOCKER, warning, f"{name} was not tried", "try a save"),
    )


def _helper_trouble(look: Look) -> str:
    """Return why agents cannot use the node helper; empty if they can."""
    try:
        return look.once("helper", lambda: str(look.probe("helper", look.privileged.helper_socket)["trouble"]))
    except Unread as error:
        return "" if error.to_do else error.why


@check("node helper", (NODE,))
def node_helper(look: Look) -> Finding:
    """The node helper, and the runc that it runs."""
    if trouble := _helper_trouble(look):
        is_needed = look.agent.runtime == "criu" or look.privileged.user_jobs_key
        if not is_needed and docker(look).state is not CheckState.FAULT:
            return not_checked(f"a node with Docker can do without it: {trouble}")
        return fault(f"the node helper hangs or does not run: {trouble}", "systemctl restart gleaner-helper")
    try:
        ended = look.run(look.privileged.runc, "--version")
    except Unread as error:
        return fault(error.why, "install runc; privileged.json names its path")
    is_good = ended.stdout.startswith("runc") and version_in(ended.stdout) >= _LEAST_RUNC
    seen, to_do = f"runc is too old, or another program: {complaint(ended)}", f"install {dotted(_LEAST_RUNC)} or newer"
    return first(f"answers, with {ended.stdout.partition(chr(10))[0]}", (not is_good, fault, seen, to_do))


@check("privileged programs", (NODE,))
def privileged_programs(look: Look) -> Finding:
    """Root's programs: their settings, root's alone, of this version, and with a Python that runs them."""
    try:
        found = look.privileged
    except Unread as error:
        return fault(error.why, f"{_INSTALL}, or mend that file")
    source = Path(next(iter(privileged_package.__path__))).parent
    folders = (source / "privileged", source / "system")
    paths = [path for folder in folders for path in folder.rglob("*") if path.suffix in {".py", ".sh"}]
    ours = {look.at(f"{found.library}/gleaner/agent/{path.relative_to(source)}"): path for path in paths}
    try:
        foreign = [path for path in (*ours, look.at(found.shim)) if not look.place(path).is_roots_alone]
        python = look.run("/usr/bin/python3", "-IS", "--version")
    except Unread as error:
        return fault(error.why, _INSTALL)
    other = [path for path, own in ours.items() if path.read_bytes() != own.read_bytes()]
    return first(
        f"{len(ours)} files, of this version",
        (foreign, fault, f"others than root may change {foreign[:1]}", "chown root; chmod go-w"),
        (other, fault, f"{len(other)} files are not this version's, as {other[:1]}", f"{_INSTALL} again"),
        (version_in(python.stdout) < _LEAST_PYTHON, fault, f"/usr/bin/python3 is {python.stdout}", "install 3.9"),
    )


@check("user jobs' key", (NODE,))
def user_jobs_key(look: Look) -> Finding:
    """The key that seals user jobs' checkpoints: root's alone, and the same on all nodes."""
    path = look.privileged.user_jobs_key
    if not path:
        return not_checked("user jobs (`glean run`) are off")
    place, node = look.place(path), user_jobs.node_name(look.privileged)
    mine = config.key_fingerprint(look.privileged)
    if not look.is_root:
        return not_checked("only root can read the key", "run this as root")
    # A note that is older than the key proves nothing.
    since_s = max(place.changed_s, time.time() - _KEY_NOTE_AGE_S)
    others = [key for name, (key, noted_s) in look.storage["key_notes"].items() if noted_s > since_s and name != node]
    strange = sum(key != mine for key in others)
    return first(
        f"{path} is root's alone, and of {len(others)} other nodes none is known to have another key",
        (place.uid or place.mode & 0o077, fault, f"{path} is {place}", f"chown root {path}; chmod 600 {path}"),
        (not mine, fault, f"{path} is no key", "copy the one of other nodes"),
        (strange, fault if 2 * strange > len(others) else warning,
         f"{strange} of {len(others)} nodes have another key", "copy the one of most nodes: jobs cannot be restored"),
    )  # fmt: skip


@check("agent program", (NODE,))
def agent_program(look: Look) -> Finding:
    """The program that control starts on nodes: it is here, and the service account can start it."""
    name = "glean-agent"
    with suppress(Unread):
        name = str(look.health.values.get("agent_program") or name)
    path = shutil.which(name, path=f"{look.at('/usr/local/bin')}:{NODE_PATH}")
    if path is None:
        return fault(f"agents are started as {name}, which is not here", f"{_INSTALL}, or mend [cluster] agent_command")
    if Path(path).name != "glean-agent":
        return not_checked(f"{path} is a program of the site, which is not tried")
    ended = look.run_as_account(path, "--version")
    seen = f"{look.account_name} cannot start the agent program: {complaint(ended)}"
    return first(f"the service account can start {path}", (ended.status, fault, seen, "chmod -R go+rX /opt/gleaner"))


@check("work folder", (NODE,))
def work_folder(look: Look) -> Finding:
    """The folders of agents on this node: for jobs, for what agents print, and where they wait for root's programs."""
    work, logs, owner = look.agent.work, "", f"chown {look.account_name}"
    try:
        place, waiting = look.place(work), look.place(look.privileged.handshakes)
    except Unread as error:
        return fault(error.why, f"{_INSTALL}; install -d -o {look.account_name} -m 750 {work}")
    with suppress(Unread):
        logs = str(look.health.values.get("agent_logs") or "")
    return first(
        f"{work} is {place}",
        (place.uid != look.account.pw_uid or place.mode & 0o022, fault, f"{work} is {place}", f"{owner} {work}"),
        ((waiting.uid, waiting.mode) != (look.account.pw_uid, 0o700), fault, f"handshakes' is {waiting}", _INSTALL),
        (logs and look.is_refused(Path(logs), "w"), fault, f"Slurm starts no agent, since {logs} takes no output",
         f"{owner} {logs}; or mend [cluster] agent_logs on control's machine"),
    )  # fmt: skip


@check("disks", (NODE,))
def disks(look: Look) -> Finding:
    """The room where jobs' folders, images and containers go; agents look at the same before they begin a job."""
    agent, seen = look.agent, list[str]()
    places = {str(agent.work): agent.disk_reserve_mib, look.privileged.bundles: agent.disk_reserve_mib}
    with suppress(Unread):
        if agent.runtime != "criu":
            places[str(_engine(look)["DockerRootDir"])] = agent.disk_reserve_mib
    places["/tmp"] = _LEAST_TEMPORARY_MIB  # noqa: S108 - root's programs and images on their way in need some
    for path, least_mib in places.items():
        with suppress(FileNotFoundError):
            room = os.statvfs(path)
            seen.append(f"{size(room.f_bavail * room.f_frsize)} are free in {path}")
            if room.f_bavail * room.f_frsize < least_mib * _MIB:
                return fault(seen[-1], f"{least_mib} MiB must be: remove files there, or lower disk_reserve_mib")
            if room.f_favail < _LEAST_PART_OF_FILES * room.f_files:  # some file systems count 0 of 0 files
                return fault(f"{room.f_favail} inodes (files) are free in {path}", "no job starts: remove some files")
    return ok("; ".join(seen))
