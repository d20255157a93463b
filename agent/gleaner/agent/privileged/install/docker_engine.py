"""The node's own Docker Engine, as the installation needs it: its state, its containers, and its reload or restart."""

from __future__ import annotations  # the node may have Python 3.9

import os
import shutil
import signal
import subprocess
import tempfile
import time

from ...system import untrusted
from ..common import system_programs
from .daemon_json import RUNTIME, Refused

SOCKET = "/var/run/docker.sock"
PID_FILE = "/var/run/docker.pid"
LABEL = "org.gleaner.agent"
_PATIENCE_S = 60


def is_installed() -> bool:
    """Return True if there is an engine on this node, even one that does not run."""
    return _dockerd() is not None


def has_experimental() -> bool | None:
    """Return True if the running engine has its experimental part on, by any means; None if no engine answers."""
    said = _docker("version", "--format", "{{.Server.Experimental}}")
    return None if said is None else said.strip() == "true"


def knows_us() -> bool:
    """Return True if the running engine has our runtime; False also if no engine answers."""
    said = _docker("info", "--format", "{{json .Runtimes}}")
    try:
        return said is not None and RUNTIME in untrusted.json_of(said)
    except (ValueError, TypeError):
        return False


def foreign_containers() -> list[str]:
    """Return the ids of running containers that are not ours. Raises `Refused` if the engine does not answer."""
    everything, with_label = _docker("ps", "-q"), _docker("ps", "-q", "--filter", f"label={LABEL}")
    if everything is None or with_label is None:
        raise Refused("the engine does not say which containers run")
    labelled = with_label.split()
    return [one for one in everything.split() if one not in labelled]


def users_of_runtime() -> list[str]:
    """Return the short ids of the containers, running or not, that need our runtime."""
    said = _docker("ps", "-aq")
    if not said or not said.split():
        return []
    inspected = _docker("inspect", "--format", "{{.Id}} {{.HostConfig.Runtime}}", *said.split()) or ""
    return [line.split()[0][:12] for line in inspected.splitlines() if line.split()[1:] == [RUNTIME]]


def check(settings: str) -> None:
    """Ask the engine itself if it would start with this `daemon.json` and its present flags. Raises `Refused` if not.

    Engines before 23 cannot be asked.
    """
    dockerd = _dockerd()
    if dockerd is None:
        return
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".json") as trial:
        trial.write(settings)
        trial.flush()
        words = [dockerd, "--validate", *_without_config_file(_flags()), "--config-file", trial.name]
        said = system_programs.run(words, within_s=_PATIENCE_S)
    if said.status != 0 and "unknown flag: --validate" not in said.stderr:
        lines = said.stderr.strip().splitlines() or ["no reason given"]
        raise Refused(f"Docker would not start with the change: {lines[-1].replace(trial.name, 'daemon.json')}")


def config_file() -> str | None:
    """Return the path of the settings that the running engine was told to read; None for the usual place."""
    flags = _flags()
    for number, word in enumerate(flags):
        if word == "--config-file":
            return flags[number + 1]
        if word.startswith("--config-file="):
            return word.partition("=")[2]
    return None


def reload() -> None:
    """Have the engine read its settings again, which touches no container. Raises `Refused`."""
    if _is_service():
        subprocess.run(["systemctl", "reload", "docker"], timeout=_PATIENCE_S, check=False)
    else:
        pid = _pid()
        if pid is None:
            raise Refused(f"the engine answers, but {PID_FILE} does not name it: send SIGHUP to dockerd")
        os.kill(pid, signal.SIGHUP)


def restart() -> None:
    """Have the service manager restart the engine. Raises `Refused` without one, or if a foreign container runs."""
    others = foreign_containers()
    if others:
        raise Refused(
            f"Docker must be restarted, and {len(others)} containers run there that are not ours ({others[0]}): "
            "end them, or restart Docker when you can"
        )
    if not _is_service():
        raise Refused("Docker must be restarted, and no service manager runs it here: restart dockerd")
    subprocess.run(["systemctl", "restart", "docker"], timeout=5 * _PATIENCE_S, check=False)


def wait_until_known(*, known: bool) -> bool:
    """Wait some seconds until the engine has (or no longer has) our runtime. Return True if that came true."""
    end_s = time.monotonic() + 15
    while knows_us() != known:
        if time.monotonic() > end_s:
            return False
        time.sleep(0.2)
    return True


def _dockerd() -> str | None:
    return shutil.which("dockerd", path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")


def _docker(*words: str) -> str | None:
    """Return the output of Docker's client; None if the client fails."""
    try:
        said = system_programs.run(["docker", "-H", f"unix://{SOCKET}", *words], within_s=_PATIENCE_S)
    except OSError:
        return None
    return said.stdout if said.status == 0 else None


def _pid() -> int | None:
    """Return the pid of the engine, if the number in its file is still the engine's; else None."""
    try:
        with open(PID_FILE, encoding="ascii") as file:
            pid = int(file.read())
        with open(f"/proc/{pid}/comm", encoding="ascii") as file:
            return pid if file.read().strip() == "dockerd" else None
    except (OSError, ValueError):
        return None


def _flags() -> list[str]:
    """Return the flags that the running engine was started with; none if no engine runs."""
    pid = _pid()
    if pid is None:
        return []
    with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="surrogateescape") as file:
        return file.read().split("\0")[1:-1]


def _without_config_file(flags: list[str]) -> list[str]:
    """Return an engine's flags without those that name its settings.

    >>> _without_config_file(["--config-file", "/x", "--debug", "--config-file=/y"])
    ['--debug']
    """
    kept: list[str] = []
    skip = False
    for word in flags:
        if not skip and not word.startswith("--config-file"):
            kept.append(word)
        skip = word == "--config-file"
    return kept


def _is_service() -> bool:
    if not os.path.isdir("/run/systemd/system"):
        return False
    return subprocess.run(["systemctl", "is-active", "-q", "docker"], timeout=_PATIENCE_S, check=False).returncode == 0
