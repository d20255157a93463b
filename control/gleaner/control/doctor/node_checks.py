"""Checks that a compute node can run, save and restore jobs."""

import platform
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from gleaner.agent import privileged as privileged_package
from gleaner.agent.node.compatibility import version
from gleaner.agent.privileged.common import config
from gleaner.agent.privileged.common.slurm_job import USUAL_KILL_WAIT_S, parse_kill_wait_s
from gleaner.agent.system import untrusted
from gleaner.control.doctor.check import NODE, check
from gleaner.control.doctor.finding import CheckState, Finding, Unread, fault, first, not_checked, ok, warning
from gleaner.control.doctor.look import Look, agent_file, complaint
from gleaner.control.doctor.slurm_reading import dotted
from gleaner.control.setup.shipped import EPILOG, FOLDER, WATCHDOG
from gleaner.control.slurm.commands import NODE_PATH

RUNC_CONF = "/etc/criu/runc.conf"
_LEAST_KERNEL, _LEAST_CRIU = (5, 14), (4, 1)
_LEAST_DOCKER, _UNTRIED_DOCKER = (26, 1), (29,)
_CRIU_OPTIONS = frozenset({"file-locks", "ghost-limit"})
_LEAST_TEMPORARY_MIB = 256
_MIB = 2**20
_INSTALL = "run `glean setup node`"
_NO_OVERLAY = "mount a file system there that does, such as ext4 or xfs"


@check("agents' settings", (NODE,))
def agents_settings(look: Look) -> Finding:
    """Check the agents' settings: they are valid, the account can read them, and they fit control's rounds."""
    path = agent_file()
    try:
        found = look.agent
    except Unread as error:
        to_do = f"chmod 644 {path}" if error.is_denied else f"{_INSTALL}, or correct it: docs/admin/settings.md"
        return fault(error.why, to_do)
    round_s, wait_s = float("inf"), found.kill_wait_s
    with suppress(Unread):
        round_s = look.health.values.get("round_length_s") or round_s
        wait_s = wait_s or parse_kill_wait_s(look.printed("scontrol", "show", "config"))
    needed_s = (wait_s or USUAL_KILL_WAIT_S) + found.margin_s + found.shortest_slice_s
    return first(
        f"{path} is in order",
        (look.place(path).mode & 0o022, fault, f"other users can write to {path}", f"chmod 644 {path}"),
        (look.is_refused(path, "r"), fault, f"{look.account_name} cannot read {path}", f"chmod 644 {path}"),
        (needed_s >= round_s, fault, f"agents begin no job: they need {needed_s:g} s of a round of {round_s:g} s",
         f"lower margin_s or shortest_slice_s in {path}, or make control's rounds longer"),
        (found.images_allowed == ("gleaner/*",), warning, "only the demo's images and pushed ones may run",
         f"name yours in images_allowed of {path}, or push them"),
    )  # fmt: skip


@check("CRIU", (NODE,))
def criu(look: Look) -> Finding:
    """Check CRIU and Linux: their versions, CRIU's own check, and its options."""
    path, linux = look.privileged.criu, platform.release()
    try:
        ended = look.run(path, "--version")
    except Unread as error:
        return fault(error.why, "install CRIU; privileged.json names its path")
    try:
        options, place = look.text(look.at(RUNC_CONF)), look.place(look.at(RUNC_CONF))
    except Unread as error:
        return fault(error.why, _INSTALL)
    found = version(ended.stdout)
    # A wrapper of CRIU can switch to the job's owner (images/node/sbin/criu), but must run as root here.
    tried = look.run("env", "GLEANER_UID=0", path, "check") if look.is_root else ended
    return first(
        f"CRIU {dotted(found)} on Linux {linux}",
        (version(linux) < _LEAST_KERNEL, fault, f"Linux {linux}", f"install {dotted(_LEAST_KERNEL)} or newer"),
        (ended.status, fault, f"criu does not run: {complaint(ended)}", "install it again"),
        (found < _LEAST_CRIU, fault, f"CRIU {dotted(found)} is too old", f"install {dotted(_LEAST_CRIU)} or newer"),
        (not place.is_roots_alone, fault, f"{RUNC_CONF} is {place}", f"chown root {RUNC_CONF}; chmod 644 {RUNC_CONF}"),
        (not set(options.split()) >= _CRIU_OPTIONS, fault, f"{RUNC_CONF} lacks options of ours", _INSTALL),
        (tried.status and "Looks good" not in tried.stdout + tried.stderr, fault,
         f"criu check fails: {complaint(tried)}", "run `criu check` as root: the kernel lacks something"),
    )  # fmt: skip


@check("Docker", (NODE,))
def docker(look: Look) -> Finding:
    """Check Docker Engine if agents use it: its version, our runtime in it, and the access to its socket."""
    kind = look.agent.runtime
    if kind == "criu":
        return not_checked("according to the agents' settings, Docker is not used")
    # If agents can use the node helper instead, a broken Docker is only a warning.
    judge = fault if kind == "docker" or _helper_trouble(look) else warning
    try:
        info = _docker_info(look)
    except Unread as error:
        if error.is_missing and judge is warning:
            return not_checked("there is no Docker here: agents use the node helper")
        return judge(f"Docker does not answer: {error.why}", "install it, or systemctl restart containerd docker")
    found, runtimes = version(str(info.get("ServerVersion"))), cast("dict[str, Any]", info.get("Runtimes") or {})
    name, other = f"Docker {dotted(found)}", 'or set runtime = "criu" in agent.toml'
    socket = look.agent.docker_url.removeprefix("unix://")
    shim, account = runtimes.get("gleaner", {}).get("path"), look.account_name
    is_refused = look.is_refused(Path(socket), "r") or look.is_refused(Path(socket), "w")
    return first(
        f"{name} with our runtime",
        (found < _LEAST_DOCKER, judge, f"{name} is too old", f"install {dotted(_LEAST_DOCKER)} or newer, {other}"),
        (shim != config.Config(1).shim, judge, f"{name} has no runtime of ours", f"{_INSTALL}, {other}"),
        (info.get("ExperimentalBuild") is not True, judge, f"{name} is not experimental", f"{_INSTALL}, {other}"),
        (is_refused, judge, f"{account} cannot open Docker's socket", f"usermod -aG docker {account}, {other}"),
        (found >= _UNTRIED_DOCKER, warning, f"{name} was not tried: 26.1 and 28.5 were", f"try a save, {other}"),
    )


def _docker_info(look: Look) -> dict[str, Any]:
    """Return Docker's information about itself. Raises `Unread`."""
    command = ("docker", "info", "--format", "{{json .}}")
    return look.once("docker info", lambda: untrusted.json_of(look.printed(*command)))


def _helper_trouble(look: Look) -> str:
    """Return why agents cannot use the node helper, or "" if they can."""
    try:
        return look.once("helper", lambda: str(look.probe("helper", look.privileged.helper_socket)["trouble"]))
    except Unread as error:
        return "" if error.to_do else error.why


@check("node helper", (NODE,))
def node_helper(look: Look) -> Finding:
    """Check the node helper, which also tries runc."""
    if trouble := _helper_trouble(look):
        is_needed = look.agent.runtime == "criu" or look.privileged.user_jobs_key
        if not is_needed and docker(look).state is not CheckState.FAULT:
            return not_checked(f"a node with Docker can do without it: {trouble}")
        return fault(f"the node helper hangs or does not run: {trouble}", "systemctl restart gleaner-helper")
    return ok("answers")


@check("privileged programs", (NODE,))
def privileged_programs(look: Look) -> Finding:
    """Check the programs that run as root, and the key that seals user jobs' checkpoints.

    Only root must be able to change the programs' settings, and the programs must have this version.
    """
    try:
        found = look.privileged
    except Unread as error:
        return fault(error.why, f"{_INSTALL}, or correct that file")
    source = Path(next(iter(privileged_package.__path__))).parent
    every = (path for folder in ("privileged", "system") for path in (source / folder).rglob("*.[ps][yh]"))  # .py, .sh
    ours = {look.at(f"{found.library}/gleaner/agent/{path.relative_to(source)}"): path for path in every}
    ours |= {look.at(path): FOLDER / path.lstrip("/") for path in (EPILOG, WATCHDOG)}
    try:
        foreign = [path for path in (*ours, look.at(found.shim)) if not look.place(path).is_roots_alone]
    except Unread as error:
        return fault(error.why, _INSTALL)
    other = [path for path, own in ours.items() if path.read_bytes() != own.read_bytes()]
    try:
        _ = config.key(found) if found.user_jobs_key and look.is_root else None
    except config.Misconfigured as error:
        return fault(str(error), f"chown root {found.user_jobs_key}; chmod 600; or copy the one of other nodes")
    return first(
        f"{len(ours)} files, of this version",
        (foreign, fault, f"not only root can change {', '.join(map(str, foreign[:1]))}", "chown root; chmod go-w"),
        (other, fault, f"not this version's: {', '.join(map(str, other[:3]))}", f"{_INSTALL} again"),
    )


@check("agent program", (NODE,))
def agent_program(look: Look) -> Finding:
    """Check the program that control starts on nodes: it exists, and the service account can start it."""
    name = "glean-agent"
    with suppress(Unread):
        name = str(look.health.values.get("agent_program") or name)
    if (path := shutil.which(name, path=f"{look.at('/usr/local/bin')}:{NODE_PATH}")) is None:
        return fault(f"agents are started as {name}, which is not here", f"{_INSTALL}, or set [cluster] agent_command")
    if Path(path).name != "glean-agent":
        return not_checked(f"{path} is a program of the site, which is not tried")
    ended = look.run_as_account(path, "--version")
    seen = f"{look.account_name} cannot start the agent program: {complaint(ended)}"
    return first(f"the service account can start {path}", (ended.status, fault, seen, "chmod -R go+rX /opt/gleaner"))


@check("work folder", (NODE,))
def work_folder(look: Look) -> Finding:
    """Check the agents' folders on this node: for jobs, for the agents' output, and for requests to programs that run
    as root."""
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
         f"{owner} {logs}; or correct [cluster] agent_logs on control's machine"),
    )  # fmt: skip


@check("disks", (NODE,))
def disks(look: Look) -> Finding:
    """Check the free space for jobs' folders, images and containers, as agents do before they begin a job."""
    from gleaner.agent.node.disk_usage import room  # a login node lacks the necessary parts

    agent, seen = look.agent, list[str]()
    places = {str(agent.work): agent.disk_reserve_mib, look.privileged.bundles: agent.disk_reserve_mib}
    with suppress(Unread):
        if agent.runtime != "criu":
            places[str(_docker_info(look).get("DockerRootDir"))] = agent.disk_reserve_mib
        elif look.printed("stat", "--file-system", "--format=%T", look.privileged.bundles).strip() == "overlayfs":
            return fault(f"{look.privileged.bundles} is on an overlay, which cannot take layers of images", _NO_OVERLAY)
    places["/tmp"] = _LEAST_TEMPORARY_MIB  # noqa: S108 - root's programs and images on their way in need some
    for path, least_mib in places.items():
        if (free := room([path])) is not None:
            seen.append(str(free))
            if free.is_short(least_mib * _MIB):
                return fault(seen[-1], f"{least_mib} MiB must be: remove files there, or lower disk_reserve_mib")
    return ok("; ".join(seen))
