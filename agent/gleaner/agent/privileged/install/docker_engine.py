"""The node's own Docker Engine: our runtime in its `daemon.json`, its state, its containers, its reload or restart.

The functions of texts are pure: they put our runtime into the settings and remove it again; all else stays.
"""

from __future__ import annotations  # the node may have Python 3.9

import difflib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from typing import Any

from ...system import untrusted
from ..common import system_programs

RUNTIME = "gleaner"
SOCKET = "/var/run/docker.sock"
PID_FILE = "/var/run/docker.pid"
LABEL = "org.gleaner.agent"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PATIENCE_S = 60
_INDENT = re.compile(r"^([ \t]+)\"", re.MULTILINE)


class InstallRefused(Exception):
    """Nothing was changed; one line that says why, and what to do."""


def merge(text: str, *, program: str, experimental: bool) -> tuple[str, list[str]]:
    """Return the settings with our runtime, and the additions: "runtimes", "runtimes.gleaner", "experimental".

    If nothing is missing, the text is the same. `experimental` is for an engine whose experimental part is not
    on by other means. Raises `InstallRefused`.

    >>> merge('{"debug": true, "runtimes": {"x": {"path": "/x"}}}', program="/g", experimental=False)[1]
    ['runtimes.gleaner']
    """
    settings = _parse(text)
    additions: list[str] = []
    if "runtimes" not in settings:
        additions.append("runtimes")
    runtimes: dict[str, Any] = settings.setdefault("runtimes", {})
    if type(runtimes) is not dict:
        raise InstallRefused('its "runtimes" is no object')
    if RUNTIME not in runtimes:
        runtimes[RUNTIME] = {"path": program}
        additions.append(f"runtimes.{RUNTIME}")
    elif runtimes[RUNTIME] != {"path": program}:
        raise InstallRefused(
            f"it has a runtime {RUNTIME!r} that is not ours: {json.dumps(runtimes[RUNTIME])}; remove that first"
        )
    if experimental and settings.get("experimental") is not True:
        if "experimental" in settings:
            raise InstallRefused(
                'it says "experimental": false, and Docker cannot save containers without: change that first'
            )
        settings["experimental"] = True
        additions.append("experimental")
    return (_dump(settings, text), additions) if additions else (text, [])


def without(text: str, *, program: str, additions: list[str]) -> str:
    """Return the settings without what we `additions`, if it is still as we wrote it. Raises `InstallRefused`."""
    settings = _parse(text)
    runtimes: dict[str, Any] = settings.get("runtimes", {})
    is_changed = False
    if type(runtimes) is dict:
        if f"runtimes.{RUNTIME}" in additions and runtimes.get(RUNTIME) == {"path": program}:
            del runtimes[RUNTIME]
            is_changed = True
        if "runtimes" in additions and not runtimes:
            del settings["runtimes"]
    if "experimental" in additions and settings.get("experimental") is True:
        del settings["experimental"]
        is_changed = True
    return _dump(settings, text) if is_changed else text


def difference(path: str, old: str, new: str) -> str:
    """Return a unified diff; "" if the texts are the same."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), path, path, lineterm="")
    return "\n".join(lines)


def _parse(text: str) -> dict[str, Any]:
    try:
        settings: dict[str, Any] = json.loads(text, object_pairs_hook=_object) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise InstallRefused(f"it is no JSON: {error}") from error
    if type(settings) is not dict:
        raise InstallRefused("it is no JSON object")
    return settings


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for key, value in pairs:
        if key in settings:
            raise ValueError(f"the key {key!r} is there twice")
        settings[key] = value
    return settings


def _dump(settings: dict[str, Any], like: str) -> str:
    """Return the settings as JSON, indented like the old text, so that the difference is only ours."""
    indent = _INDENT.search(like)
    return json.dumps(settings, indent=indent.group(1) if indent else 4, ensure_ascii=False) + "\n"


def is_installed() -> bool:
    """Return True if this node has an engine, even if it does not run."""
    return _dockerd() is not None


def has_experimental() -> bool | None:
    """Return True if the running engine has its experimental part on, by any means; None if no engine answers."""
    output = _docker("version", "--format", "{{.Server.Experimental}}")
    return None if output is None else output.strip() == "true"


def knows_us() -> bool:
    """Return True if the running engine has our runtime; False also if no engine answers."""
    output = _docker("info", "--format", "{{json .Runtimes}}")
    try:
        return output is not None and RUNTIME in untrusted.json_of(output)
    except (ValueError, TypeError):
        return False


def foreign_containers() -> list[str]:
    """Return the ids of running containers that are not ours. Raises `InstallRefused` if the engine does not answer."""
    everything, with_label = _docker("ps", "-q"), _docker("ps", "-q", "--filter", f"label={LABEL}")
    if everything is None or with_label is None:
        raise InstallRefused("the engine does not say which containers run")
    ours = with_label.split()
    return [one for one in everything.split() if one not in ours]


def users_of_runtime() -> list[str]:
    """Return the short ids of the containers, running or not, that need our runtime."""
    ids = _docker("ps", "-aq")
    if not ids or not ids.split():
        return []
    lines = _docker("inspect", "--format", "{{.Id}} {{.HostConfig.Runtime}}", *ids.split()) or ""
    return [line.split()[0][:12] for line in lines.splitlines() if line.split()[1:] == [RUNTIME]]


def check(settings: str) -> None:
    """Have the engine itself check this `daemon.json` with its present flags. Raises `InstallRefused`.

    Engines before 23 cannot check it.
    """
    dockerd = _dockerd()
    if dockerd is None:
        return
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".json") as trial:
        trial.write(settings)
        trial.flush()
        words = [dockerd, "--validate", *_config_file_apart(_flags())[1], "--config-file", trial.name]
        result = system_programs.run(words, within_s=_PATIENCE_S)
    if result.status != 0 and "unknown flag: --validate" not in result.stderr:
        lines = result.stderr.strip().splitlines() or ["no reason given"]
        raise InstallRefused(f"Docker would not start with the change: {lines[-1].replace(trial.name, 'daemon.json')}")


def config_file() -> str | None:
    """Return the path of the settings of the running engine; None for the usual place."""
    return _config_file_apart(_flags())[0]


def reload() -> None:
    """Have the engine read its settings again; no container notices. Raises `InstallRefused`."""
    if _is_service():
        subprocess.run(["systemctl", "reload", "docker"], timeout=_PATIENCE_S, check=False)
    else:
        pid = _pid()
        if pid is None:
            raise InstallRefused(f"the engine answers, but {PID_FILE} does not name it: send SIGHUP to dockerd")
        os.kill(pid, signal.SIGHUP)


def restart() -> None:
    """Have the service manager restart the engine. Raises `InstallRefused` also if others' containers run."""
    others = foreign_containers()
    if others:
        raise InstallRefused(
            f"Docker must be restarted, and {len(others)} containers run there that are not ours ({others[0]}): "
            "end them, or restart Docker when you can"
        )
    if not _is_service():
        raise InstallRefused("Docker must be restarted, and no service manager runs it here: restart dockerd")
    subprocess.run(["systemctl", "restart", "docker"], timeout=5 * _PATIENCE_S, check=False)


def wait_for_runtime(*, present: bool) -> bool:
    """Wait some seconds until our runtime is, or is not, `present` in the engine. Return False if that fails."""
    end_s = time.monotonic() + 15
    while knows_us() != present:
        if time.monotonic() > end_s:
            return False
        time.sleep(0.2)
    return True


def _dockerd() -> str | None:
    return shutil.which("dockerd", path=PATH)


def _docker(*words: str) -> str | None:
    """Return the output of Docker's client; None if the client fails."""
    try:
        result = system_programs.run(["docker", "-H", f"unix://{SOCKET}", *words], within_s=_PATIENCE_S)
    except OSError:
        return None
    return result.stdout if result.status == 0 else None


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


def _config_file_apart(flags: list[str]) -> tuple[str | None, list[str]]:
    """Return the settings file that an engine's flags name (the last one counts), and the other flags.

    >>> _config_file_apart(["--config-file", "/x", "--debug", "--config-file=/y"])
    ('/y', ['--debug'])
    """
    path: str | None = None
    others: list[str] = []
    words = iter(flags)
    for word in words:
        name, equals, value = word.partition("=")
        if name == "--config-file":
            path = value if equals else next(words, None)
        else:
            others.append(word)
    return path, others


def _is_service() -> bool:
    if not os.path.isdir("/run/systemd/system"):
        return False
    return subprocess.run(["systemctl", "is-active", "-q", "docker"], timeout=_PATIENCE_S, check=False).returncode == 0
