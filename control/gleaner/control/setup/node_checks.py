"""Checks of what a compute node needs to run, save and restore jobs. Pure."""

import json
import re
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

from gleaner.agent.privileged.common import config as privileged_config
from gleaner.control.setup import readers, shipped
from gleaner.control.setup.facts import Facts, NotRead, Output, TextFile, Unread, dotted, needed, version_in
from gleaner.control.setup.finding import CheckState, Judgement, fault, not_checked, ok, warning

_LEAST_KERNEL = (5, 14)
_LEAST_CRIU = (4, 1)
_SOCKETS_KERNEL, _SOCKETS_CRIU = (6, 16), (4, 2)
"""CRIU before 4.2 cannot save internet sockets on this Linux or a newer one (`node.facts`)."""
_LEAST_RUNC = (1, 1)
_LEAST_PYTHON = (3, 9)
_TRIED_DOCKER, _UNTRIED_DOCKER, _NO_DOCKER = (26, 1), (27,), (28,)
_CONTROLLERS = frozenset({"cpu", "memory", "pids"})
_OPTIONS = ("file-locks", "ghost-limit")
_LONGEST_ERROR = 120
_LEAST_OPEN_FILES, _USUAL_OPEN_FILES = 1024, 131072
_DRIVER = "overlay2"
_NOT_AS_USERS = {"name=userns": "userns-remap", "name=rootless": "rootless mode"}
"""Docker's ways to give users other numbers: the job's user is another one than the folder's."""
_KEY_NOTE_AGE_S = 24 * 3600.0
"""An older note is of a node that is gone, or that has no agents: each agent writes it again after half a day."""
_MOST_NAMES = 3
_KILLED = 128
"""A shell's exit status of a program that a signal has ended is this, plus the signal's number."""
_INSTALL = "run `glean setup node`"
RUNTIME, RUNC_SHIM = "gleaner", privileged_config.Config(1).shim


def kernel(facts: Facts) -> Judgement:
    """Judge the version of Linux."""
    found = version_in(facts.kernel)
    if not found:
        return not_checked(f"{facts.kernel[:40]!r} is no version")
    if found < _LEAST_KERNEL:
        return fault(f"Linux {facts.kernel}", f"install Linux {dotted(_LEAST_KERNEL)} or newer")
    return ok(f"Linux {facts.kernel}")


def criu(facts: Facts) -> Judgement:
    """Judge the version of CRIU against the kernel's."""
    said = facts.programs.get("criu --version", Unread("it was not asked"))
    if isinstance(said, Unread):
        return _unread(said, "install CRIU; privileged.json says where it is")
    found, linux = version_in(said.stdout), version_in(facts.kernel)
    if said.status != 0 or not found:
        return fault(_why_no_version(said), "install CRIU anew; privileged.json says where it is")
    if found < _LEAST_CRIU:
        return fault(f"CRIU {dotted(found)} on Linux {facts.kernel}", f"install CRIU {dotted(_LEAST_CRIU)} or newer")
    if linux >= _SOCKETS_KERNEL and found < _SOCKETS_CRIU:
        return warning(
            f"CRIU {dotted(found)} saves no job with an internet socket on Linux {facts.kernel}",
            f"install CRIU {dotted(_SOCKETS_CRIU)} or newer",
        )
    return ok(f"CRIU {dotted(found)} on Linux {facts.kernel}")


def _why_no_version(said: Output) -> str:
    """Return why `criu --version` has not told a version."""
    number = -said.status if said.status < 0 else said.status - _KILLED
    if 0 < number < signal.NSIG:
        with suppress(ValueError):  # no signal of this system
            return f"criu crashes ({signal.Signals(number).name})"
    if said.status == 0:
        return f"criu --version prints no version ({said.complaint!r}): the file is damaged"
    return f"criu --version says {said.complaint!r}"


def criu_check(facts: Facts) -> Judgement:
    """Judge what CRIU itself says of this kernel."""
    if not facts.is_root:
        return not_checked("CRIU can be asked by root alone", "run this as root")
    version = facts.programs.get("criu --version")
    if isinstance(version, Output) and (version.status != 0 or not version_in(version.stdout)):
        return not_checked("criu itself does not work here")
    said = needed(facts.programs.get("criu check", Unread("it was not asked")))
    if said.status == 127:
        return not_checked(said.complaint)
    text = f"{said.stdout}\n{said.stderr}"
    if "Looks good" in text or (said.status == 0 and "Error" not in text):
        return ok("looks good")
    errors = [line.strip() for line in text.splitlines() if "Error" in line] or [said.complaint]
    return fault(f"criu check says {errors[0][:120]!r}", "run `criu check` as root: the kernel lacks what CRIU needs")


def criu_options(facts: Facts) -> Judgement:
    """Judge CRIU's settings for saves."""
    file = facts.file(readers.RUNC_CONF)
    if isinstance(file, Unread):
        return fault(file.why, _INSTALL)
    words = {line.split()[0] for line in file.text.splitlines() if line.strip() and not line.lstrip().startswith("#")}
    if file.is_writable_by_others or file.uid != 0:
        return fault(f"others than root may write to {readers.RUNC_CONF}", "chown root, chmod 644")
    if lacks := [option for option in _OPTIONS if option not in words]:
        return fault(
            f"{readers.RUNC_CONF} lacks {' and '.join(lacks)}",
            f"add them, or {_INSTALL}: jobs with locks fail",
        )
    return ok(", ".join(sorted(words)))


def archive_programs(facts: Facts) -> Judgement:
    """Judge the programs that CRIU runs for a container's `/dev/shm`."""
    lacks = [name for name in ("tar", "gzip") if isinstance(facts.programs.get(name, Unread("")), Unread)]
    if lacks:
        return fault(f"{' and '.join(lacks)} cannot be run here", f"install {' and '.join(lacks)}: saves need them")
    return ok("tar and gzip")


def _unread(said: Unread, to_do: str) -> Judgement:
    """Judge a program that has not answered: only one that is not there is a fault."""
    return fault(said.why, to_do) if said.is_missing else not_checked(said.why)


def runc(facts: Facts) -> Judgement:
    """Judge the version of runc."""
    said = facts.programs.get("runc --version", Unread("it was not asked"))
    if isinstance(said, Unread):
        return _unread(said, "install runc; privileged.json says where it is")
    found = version_in(said.stdout)
    if said.status != 0 or not found or not said.stdout.startswith("runc"):
        return fault(f"runc --version says {said.complaint!r}", "install runc (crun cannot be used)")
    if found < _LEAST_RUNC:
        return fault(f"runc {dotted(found)}", f"install runc {dotted(_LEAST_RUNC)} or newer")
    return ok(f"runc {dotted(found)}")


def cgroups(facts: Facts) -> Judgement:
    """Judge the control groups: both runtimes need cpu, memory and pids, in either version."""
    two, one = facts.file(readers.CGROUPS_V2), facts.file(readers.CGROUPS_V1)
    if not isinstance(two, Unread):
        version, has = 2, set(two.text.split())
    elif not isinstance(one, Unread):
        lines = [line.split() for line in one.text.splitlines() if not line.startswith("#")]
        version, has = 1, {fields[0] for fields in lines if len(fields) == 4 and fields[3] == "1"}
    else:
        return fault("there are no control groups here", "mount them at /sys/fs/cgroup")
    needs = _CONTROLLERS | ({"freezer"} if version == 1 else frozenset[str]())
    if lacks := sorted(needs - has):
        return fault(
            f"control groups of version {version} without {', '.join(lacks)}",
            "enable them at the kernel's command line",
        )
    return ok(f"version {version}, with cpu, memory and pids")


def selinux(facts: Facts) -> Judgement:
    """Judge SELinux: CRIU has to be built for it."""
    file = facts.file(readers.SELINUX)
    if isinstance(file, Unread):
        return ok("there is none") if file.is_missing else not_checked(file.why)
    if file.text.strip() != "1":
        return ok("not enforcing")
    return warning(
        "enforcing, which nobody has tried with Gleaner", "CRIU must be built with libselinux; try a save first"
    )


def system_python(facts: Facts) -> Judgement:
    """Judge the Python that runs root's programs."""
    said = facts.programs.get("system python", Unread("it was not asked"))
    if isinstance(said, Unread):
        return _unread(said, "root's programs need the system's own Python")
    found = version_in(said.stdout)
    if said.status != 0 or found < _LEAST_PYTHON:
        return fault(
            f"{readers.SYSTEM_PYTHON} says {said.complaint!r}", f"root's programs need {dotted(_LEAST_PYTHON)} or newer"
        )
    return ok(f"Python {dotted(found)} for root's programs")


def docker(facts: Facts) -> Judgement:
    """Judge Docker Engine, where agents may use it: its version, and what it was told of Gleaner."""
    kind = needed(facts.agent).runtime
    if kind == "criu":
        return not_checked("the agents' settings say that Docker is not used")
    said = facts.programs.get("docker version", Unread("it was not asked"))
    if isinstance(said, Unread):
        if said.is_missing and kind == "auto":
            return not_checked("there is no Docker here: agents use the node helper")
        start = (
            "start Docker" if said.is_missing else "Docker or its containerd hangs: systemctl restart containerd docker"
        )
        return (fault if kind == "docker" else warning)(said.why, f'{start}, or set runtime = "criu" in agent.toml')
    if said.status != 0:
        judge = fault if kind == "docker" else warning
        return judge(f"Docker does not answer: {said.complaint}", 'start Docker, or set runtime = "criu" in agent.toml')
    try:
        server: dict[str, Any] = json.loads(said.stdout)
        found, is_experimental = version_in(str(server["Version"])), server.get("Experimental") is True
    except (ValueError, LookupError, TypeError):
        return fault(f"Docker says {said.complaint[:80]!r}", "is it Docker Engine?")
    if found >= _NO_DOCKER:
        return fault(f"Docker {dotted(found)} cannot restore", 'use the node helper (runtime = "criu"), or Docker 26.1')
    info = _docker_info(facts)
    if why := _unfit(info):
        judge = fault if kind == "docker" else warning
        return judge(f"Docker {dotted(found)} {why[0]}: agents cannot use it", f'{why[1]}; or set runtime = "criu"')
    if _runtimes(info).get(RUNTIME) != RUNC_SHIM:
        return fault(
            f"Docker {dotted(found)} has no runtime {RUNTIME!r} of ours", f"{_INSTALL}: it changes daemon.json"
        )
    if not is_experimental:
        return fault(f"Docker {dotted(found)} is not experimental", f"{_INSTALL}, then systemctl restart docker")
    if _lost_runtime(facts.file(readers.DAEMON_JSON)):
        return warning(
            f"the running Docker has our runtime, and {readers.DAEMON_JSON} has not: it is gone at the next restart",
            f"{_INSTALL}, unless flags of dockerd name the runtime",
        )
    if not _TRIED_DOCKER <= found < _UNTRIED_DOCKER:
        return warning(
            f"Docker {dotted(found)} was not tried", f"install Docker {dotted(_TRIED_DOCKER)}, or try a save"
        )
    return ok(f"Docker {dotted(found)} with our runtime")


def _docker_info(facts: Facts) -> dict[str, Any]:
    """Return what the running engine says of itself; empty if that cannot be read."""
    try:
        return dict(json.loads(facts.output("docker info").stdout))
    except (NotRead, ValueError, TypeError):
        return {}


def _unfit(info: dict[str, Any]) -> tuple[str, str] | None:
    """Return what makes an engine useless for agents, and what to do; None if nothing does (`data_folder`)."""
    driver = info.get("Driver", _DRIVER)
    if driver != _DRIVER:
        return (
            f"keeps images with {str(driver)[:40]!r}, and not with {_DRIVER}",
            'daemon.json: "storage-driver": "overlay2", "features": {"containerd-snapshotter": false}; restart docker',
        )
    options = info.get("SecurityOptions")
    for option in cast("list[object]", options) if isinstance(options, list) else ():
        if way := _NOT_AS_USERS.get(str(option).partition(",")[0]):
            return f"runs with {way}", 'take that out of daemon.json, or set runtime = "criu" in agent.toml'
    return None


def _runtimes(info: dict[str, Any]) -> dict[str, str]:
    """Return the path of each runtime of the engine."""
    try:
        return {name: str(about["path"]) for name, about in info["Runtimes"].items() if "path" in about}
    except (LookupError, TypeError, AttributeError):
        return {}


def _lost_runtime(file: TextFile | Unread) -> bool:
    """Return True if Docker's settings are there and have no runtime of ours any more."""
    if isinstance(file, Unread):
        return file.is_missing
    try:
        return bool(json.loads(file.text)["runtimes"][RUNTIME]["path"] != RUNC_SHIM)
    except (ValueError, LookupError, TypeError):
        return True


def helper(facts: Facts) -> Judgement:
    """Judge the node helper."""
    if not isinstance(facts.helper, Unread):
        return ok("answers")
    if isinstance(facts.privileged, Unread):
        return not_checked("privileged.json cannot be read")
    is_user_jobs = bool(facts.privileged.user_jobs_key)
    if not is_user_jobs and not isinstance(facts.agent, Unread) and facts.agent.runtime != "criu":
        return not_checked(f"{facts.helper.why}; a node with Docker can do without")
    if "did not answer within" in facts.helper.why:
        return fault("the node helper hangs", "systemctl restart gleaner-helper")
    return fault(facts.helper.why, "systemctl status gleaner-helper")


def runtime(facts: Facts) -> Judgement:
    """Judge whether agents have a runtime that can save: Docker first, then the node helper, as agents choose."""
    kind = needed(facts.agent).runtime
    engine = docker(facts)
    said = facts.programs.get("docker version")
    may_open = isinstance(facts.account, Unread) or docker_group(facts).state is not CheckState.FAULT
    if (
        may_open
        and engine.state in {CheckState.OK, CheckState.WARNING}
        and isinstance(said, Output)
        and said.status == 0
    ):
        return ok("agents use Docker")
    if kind != "docker" and not isinstance(facts.helper, Unread):
        return ok("agents use the node helper")
    return fault(
        f"agents cannot save here (runtime = {kind!r})", "set up Docker or the node helper: see the lines above"
    )


def privileged_settings(facts: Facts) -> Judgement:
    """Judge the settings of root's programs."""
    if isinstance(facts.privileged, Unread):
        return fault(facts.privileged.why, f"{_INSTALL}, or mend that file")
    return ok(f"agents are uid {facts.privileged.agent_uid}")


def handshakes(facts: Facts) -> Judgement:
    """Judge the folder in which agents wait for root's programs."""
    settings = needed(facts.privileged)
    found = facts.folders.get(settings.handshakes, Unread("it was not looked at"))
    if isinstance(found, Unread):
        return fault(found.why, f"{_INSTALL}: it makes the folder, and tmpfiles.d does after a reboot")
    if found.uid != settings.agent_uid or found.mode & 0o777 != 0o700:
        return fault(f"{settings.handshakes} is uid {found.uid}'s, mode {found.mode:o}", f"{_INSTALL} again")
    return ok(settings.handshakes)


def programs(facts: Facts) -> Judgement:
    """Judge root's programs: as they were installed, of this version, and root's alone."""
    found = facts.installed
    if isinstance(found, Unread):
        return fault(found.why, _INSTALL) if found.is_missing else not_checked(found.why)
    if found.foreign:
        return fault(f"others than root may change {found.foreign[0]}", "chown root, chmod go-w")
    if found.changed:
        return fault(f"{len(found.changed)} files were changed or are gone: {found.changed[0]}", f"{_INSTALL} again")
    if found.other_version:
        return fault(
            f"{len(found.other_version)} files are not this version's: {found.other_version[0]}", f"{_INSTALL} again"
        )
    return ok(f"{found.many} files, of this version")


def slurmd(facts: Facts) -> Judgement:
    """Judge whether Slurm's own program for nodes runs."""
    if readers.SLURMD in needed(facts.commands):
        return ok("runs")
    return fault("slurmd does not run here: Slurm starts no agent", "systemctl start slurmd; its log says why it ended")


def slurmd_limits(facts: Facts) -> Judgement:
    """Judge slurmd's limits, above which no agent of its can go."""
    said = needed(facts.slurmd_limits)
    files, size = (re.search(rf"^Max {name}\s+(\w+)", said, re.MULTILINE) for name in ("open files", "file size"))
    if files is None or size is None:
        return not_checked("the kernel's list of slurmd's limits cannot be read")
    if files[1].isdecimal() and int(files[1]) < _LEAST_OPEN_FILES:
        return warning(f"slurmd may open {files[1]} files", f"LimitNOFILE={_USUAL_OPEN_FILES} in slurmd's unit")
    if size[1] != "unlimited":
        return warning(
            f"slurmd may write files of {size[1]} bytes at most: larger saves fail",
            "LimitFSIZE=infinity in slurmd's unit; restart slurmd without a ulimit",
        )
    return ok(f"{files[1]} open files, files of any size")


def watchdog(facts: Facts) -> Judgement:
    """Judge whether the watchdog runs."""
    if readers.WATCHDOG in needed(facts.commands):
        return ok("runs")
    return fault(
        "the watchdog does not run, or was stopped by a signal",
        "systemctl restart gleaner-watchdog; systemctl enable it",
    )


def epilog(facts: Facts) -> Judgement:
    """Judge the Epilog's file on this node: Slurm drains a node that lacks it."""
    file = facts.file(readers.EPILOG)
    if isinstance(file, Unread):
        return fault(file.why, _INSTALL)
    if not file.mode & 0o111 or file.uid != 0 or file.is_writable_by_others:
        return fault(f"{readers.EPILOG} has uid {file.uid}, mode {file.mode:o}", "chown root, chmod 755")
    if file.text != shipped.content(shipped.EPILOG).decode("utf-8", "replace"):
        return warning(f"{readers.EPILOG} differs from this version's", f"{_INSTALL}, if nobody wanted that change")
    config = facts.file(readers.SLURM_CONF)  # a node without one gets slurmctld's
    if not isinstance(config, Unread) and _lacks_epilog(config.text):
        return warning(f"{readers.SLURM_CONF} on this node has no Epilog", "let it be the same file as slurmctld's")
    return ok(readers.EPILOG)


def _lacks_epilog(text: str) -> bool:
    """Return True if these lines of `slurm.conf` name no Epilog. Those that include another file may."""
    lines = "\n".join(line.partition("#")[0] for line in text.splitlines())
    return re.search(r"(?im)^\s*include\s|(?:^|\s)epilog\s*=", lines) is None


def docker_group(facts: Facts) -> Judgement:
    """Judge whether agents may speak to Docker."""
    engine = docker(facts)
    if engine.state is CheckState.NOT_CHECKED:
        return not_checked("Docker is not used")
    found = needed(facts.account)
    if "docker" not in found.groups:
        return fault(f"{found.name} is not in the group docker", f"usermod -aG docker {found.name}")
    if isinstance(facts.docker_socket, Unread):
        return not_checked(facts.docker_socket.why, "" if facts.is_root else "run this as root")
    if facts.docker_socket:
        return fault(
            f"{found.name} cannot open Docker's socket ({facts.docker_socket})",
            "systemctl restart docker.socket; the socket must be of the group docker, mode 660",
        )
    return ok(f"{found.name} may open Docker's socket")


def user_jobs_key(facts: Facts) -> Judgement:
    """Judge the key that seals user jobs' checkpoints."""
    path = needed(facts.privileged).user_jobs_key
    if not path:
        return not_checked("user jobs (`glean run`) are off")
    file = facts.file(path)
    if isinstance(file, Unread):
        if "Permission denied" in file.why:
            return not_checked(file.why, "run this as root")
        return fault(file.why, "copy the key of the other nodes there, root's, mode 0600")
    if file.uid != 0 or file.mode & 0o077:
        return fault(f"{path} has uid {file.uid}, mode {file.mode:o}", f"chown root {path}; chmod 600 {path}")
    return _key_against_others(facts, path)


def _key_against_others(facts: Facts, path: str) -> Judgement:
    """Judge this node's key against the other nodes' fingerprints. A note that is older than the key says nothing."""
    mine = facts.user_jobs_key
    notes: Mapping[str, tuple[str, float]] = {} if isinstance(facts.storage, Unread) else facts.storage.key_notes
    if isinstance(mine, Unread) or not notes:
        return ok(f"{path} is root's alone; not checked: all nodes must have the same key")
    since_s = max(mine.changed_s, facts.now_s - _KEY_NOTE_AGE_S)
    others = {node: key for node, (key, noted_s) in notes.items() if node != mine.node and noted_s > since_s and key}
    strange = sorted(node for node, key in others.items() if key != mine.fingerprint)
    if not strange:
        return ok(f"{path} is root's alone, and of {len(others)} other nodes none is known to have another key")
    names = ", ".join(strange[:_MOST_NAMES]) + (" and others" if len(strange) > _MOST_NAMES else "")
    like_mine = len(others) - len(strange)
    if len(strange) > like_mine:
        return fault(
            f"{mine.node} has another key of user jobs than {names}",
            f"copy the other nodes' key to {path}: jobs of `glean run` cannot be restored here; "
            "a key that was just changed there is known when an agent has started there",
        )
    if len(strange) == like_mine:
        return warning(
            f"{mine.node} and {like_mine} more nodes have another key of user jobs than {names}",
            f"find out which {path} is right, and copy it to the others",
        )
    return warning(
        f"{names}: another key of user jobs than on {mine.node} and {like_mine} more nodes",
        f"copy the key of this node there, to {path}; doctor knows of it when an agent has started there",
    )


def slurm_json(facts: Facts) -> Judgement:
    """Judge whether slurmctld answers here, in JSON: an agent reads its end and its memory from it."""
    said = facts.programs.get("scontrol json", Unread("it was not asked"))
    if isinstance(said, Unread):
        return fault(said.why, "install Slurm's programs" if said.is_missing else "does slurmctld answer?")
    # With --json scontrol says nothing of a refused credential, and has an empty list of jobs.
    asked = facts.programs.get("scontrol partitions", Unread("it was not asked"))
    errors = _slurm_errors(said) + ([] if isinstance(asked, Unread) else _slurm_errors(asked))
    if refusals := [error for error in errors if _is_about_credential(error)]:
        return fault(
            f"slurmctld does not take this node's munge credential ({refusals[0]})",
            "copy munge.key from slurmctld's machine, restart munged; are the clocks the same?",
        )
    if said.stdout.lstrip().startswith("{"):
        # Slurm writes JSON with an empty list, too, if slurmctld has not answered.
        if errors:
            return fault(f"slurmctld does not answer here: {errors[0]}", "is it up, and does this node reach it?")
        return ok("slurmctld answers, and scontrol writes JSON")
    return fault(f"scontrol writes no JSON: {said.complaint}", "install Slurm's JSON plugin; does slurmctld answer?")


def _slurm_errors(said: Output) -> list[str]:
    """Return the errors in what scontrol has printed, without that there is no such job: it was asked for any."""
    found = [line.strip() for line in said.stderr.splitlines() if "error" in line.lower()]
    with suppress(ValueError, LookupError, TypeError, AttributeError):  # no JSON, or an older one without errors
        found += [
            str(error.get("error") or error.get("description") or error) for error in json.loads(said.stdout)["errors"]
        ]
    return [error[:_LONGEST_ERROR] for error in found if "invalid job id" not in error.lower()]


def _is_about_credential(error: str) -> bool:
    """Return True if slurmctld has refused the munge credential."""
    return any(word in error.lower() for word in ("authentication", "credential", "munge"))
