"""Install the privileged programs on a node, or remove them (`deploy/install-node.sh` calls this).

Everything is checked and shown before anything is changed; a second run finds nothing to do. `installed.json` lists the
installed files with their digests, and `--remove` removes exactly those.
"""

from __future__ import annotations  # the node may have Python 3.9

import argparse
import compileall
import contextlib
import hashlib
import itertools
import json
import os
import pwd
import shutil
import stat
import sys
from typing import Any, NamedTuple, NoReturn

from ...system import atomic
from ..common import config
from ..common.user_jobs import Owner, make_theirs
from . import docker_engine
from .docker_engine import PATH, InstallRefused

LIBRARY = config.Config(1).library
PYTHON = "/usr/bin/python3"
RUNC_SHIM = "/usr/local/sbin/gleaner-runc"
DAEMON_JSON = "/etc/docker/daemon.json"
TMPFILES = "/etc/tmpfiles.d/gleaner.conf"
RECORD = f"{LIBRARY}/installed.json"
_PACKAGES = ("privileged", "system")
# For each program: the module whose `main` it calls, and the arguments.
_PROGRAMS = {
    RUNC_SHIM: ("shim.main", "{runc!r}"),
    f"{LIBRARY}/bin/criu": ("shim.criu_call", ""),
    "/usr/local/sbin/gleaner-helper": ("helper.main", ""),
}
_PROGRAM = """\
#!{python} -IS
# Put here by Gleaner's install-node.sh, which writes it anew when the settings change.
import sys

sys.path.insert(0, {library!r})
from gleaner.agent.privileged.{module} import main

main({arguments})
"""


class File(NamedTuple):
    """A file to install on the node."""

    content: bytes
    mode: int = 0o644


class Options(argparse.Namespace):
    """The options of the command line."""

    root: str
    """The folder before each path: "", or the root of a system that does not run (an image in the making)."""
    account: str
    runc: str | None
    criu: str | None
    yes: bool
    dry_run: bool
    remove: bool
    restart_docker: bool
    without_docker: bool

    def at(self, path: str) -> str:
        """Return where one of the node's paths lies in this run: below `root`."""
        return self.root + path


def main() -> NoReturn:
    """Install or remove. A refusal is one line on standard error, with exit status 1."""
    options = _parse_options(sys.argv[1:])
    os.umask(0o022)  # agents read the settings
    try:
        if os.geteuid() != 0 and not options.root:
            raise InstallRefused("must be run as root")
        if options.remove:
            _remove(options)
        else:
            _install(options)
    except (InstallRefused, config.Misconfigured) as error:
        sys.exit(f"install-node: {error}")
    sys.exit(0)


def _parse_options(words: list[str]) -> Options:
    parser = argparse.ArgumentParser("install-node.sh", description="What runs as root on a node of Gleaner's.")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    parser.add_argument("--remove", action="store_true", help="take back what was put there, and nothing else")
    parser.add_argument("--restart-docker", action="store_true", help="if needed, and no foreign container runs")
    parser.add_argument("--without-docker", action="store_true", help="leave the node's Docker Engine as it is")
    parser.add_argument("--account", default="gleaner", help="the service account (a name or number) [gleaner]")
    parser.add_argument("--runc", help="where runc is")
    parser.add_argument("--criu", help="where CRIU is, or a wrapper around it")
    root = "install into this folder: a system that does not run"
    parser.add_argument("--root", default="", type=lambda path: path.rstrip("/"), help=root)
    return parser.parse_args(words, namespace=Options())


def _install(options: Options) -> None:
    source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    settings, new_settings = _settings(options)
    files = new_settings | _programs(source, settings)
    if os.path.isdir(options.at("/usr/lib/tmpfiles.d")):
        files[TMPFILES] = File(f"d {settings.handshakes} 0700 {settings.agent_uid} {_group(settings)} -\n".encode())
    record = _record(options)
    old, new, additions = _daemon_json(options)
    to_write = {path: file for path, file in files.items() if not _is_there(options.at(path), file)}
    for path in to_write:
        print(f"{'would write' if options.dry_run else 'writing'} {path}")
    difference = docker_engine.difference(DAEMON_JSON, old, new)
    if difference:
        print(difference)
    if options.dry_run:
        if not to_write and not difference:
            print("all is as it should be")
        return
    if difference:
        _must_agree(options, f"change {DAEMON_JSON}?")
    stale = [path for path in record["files"] if path.startswith(f"{LIBRARY}/") and path not in files]
    digests = {path: digest for path, digest in record["files"].items() if path not in stale}
    record["files"] = digests | {path: _digest(file.content) for path, file in files.items()}
    record["daemon_json"] = sorted({*record["daemon_json"], *additions})
    writes = {RECORD: File(_json(record)), **to_write}
    for path, file in writes.items():
        if not _is_there(options.at(path), file):
            _write(options.at(path), file)
    for path in stale:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(options.at(path))
    if to_write:
        compileall.compile_dir(options.at(f"{LIBRARY}/gleaner"), quiet=1)
    if not options.root:
        # After a reboot the folder is gone, and tmpfiles.d makes it again.
        make_theirs(settings.handshakes, Owner(settings.agent_uid, int(_group(settings))))
    if difference:
        _write_daemon_json(options, new, keep=True)
    if not options.root and not options.without_docker and docker_engine.is_installed():
        _bring_up(options)
    if not to_write and not difference:
        print("all is as it should be")


def _settings(options: Options) -> tuple[config.Config, dict[str, File]]:
    """Return the present settings, checked, or new ones with the file to write. Raises `InstallRefused`."""
    new: dict[str, File] = {}
    path = options.at(config.CONFIG_FILE)
    if os.path.lexists(path):
        settings = config.load(path)
    else:
        uid = _uid(options.account)
        runc = options.runc or _find_program(options, "runc")
        settings = config.Config(uid, runc=runc, criu=options.criu or _find_program(options, "criu"))
        new[config.CONFIG_FILE] = File(_json({"agent_uid": uid, "runc": settings.runc, "criu": settings.criu}))
    for program in (settings.runc, settings.criu):
        _must_be_roots(options.at(program))
        if not os.access(options.at(program), os.X_OK):
            raise InstallRefused(f"{program} cannot be executed")
    return settings, new


def _uid(account: str) -> int:
    try:
        uid = int(account) if account.isdigit() else pwd.getpwnam(account).pw_uid
    except KeyError:
        raise InstallRefused(f"there is no account {account!r}: make it, or name another with --account") from None
    if uid == 0:
        raise InstallRefused("agents cannot be root: name an ordinary account with --account")
    return uid


def _group(settings: config.Config) -> str:
    try:
        return str(pwd.getpwuid(settings.agent_uid).pw_gid)
    except KeyError:
        return str(settings.agent_uid)


def _find_program(options: Options, name: str) -> str:
    for folder in PATH.split(":"):
        if os.access(options.at(f"{folder}/{name}"), os.X_OK):
            return f"{folder}/{name}"
    raise InstallRefused(f"there is no {name} on this node: install it, or say where it is with --{name}")


def _programs(source: str, settings: config.Config) -> dict[str, File]:
    """Return the programs and their modules, from the installed package of the agent, by path."""
    files: dict[str, File] = {}
    folders = [os.walk(os.path.join(source, package)) for package in _PACKAGES]
    for folder, _, names in sorted(itertools.chain(*folders)):
        for name in sorted(names):
            if name.endswith((".py", ".sh")):
                path = os.path.join(folder, name)
                _must_be_roots(path)
                place = f"{LIBRARY}/gleaner/agent/{os.path.relpath(folder, source)}/{name}"
                with open(path, "rb") as file:
                    files[place] = File(file.read(), 0o755 if name.endswith(".sh") else 0o644)
    for path, (module, arguments) in _PROGRAMS.items():
        call = arguments.format(runc=settings.runc)
        text = _PROGRAM.format(python=PYTHON, library=LIBRARY, module=module, arguments=call)
        files[path] = File(text.encode(), 0o755)
    return files


def _must_be_roots(path: str) -> None:
    """Raise `InstallRefused` if others than root can change this file, which root runs, or a folder above it."""
    at = os.path.realpath(path)
    while True:
        try:
            facts = os.stat(at)
        except OSError as error:
            raise InstallRefused(f"{path} cannot be used: {error.strerror}") from error
        sticky = stat.S_ISDIR(facts.st_mode) and facts.st_mode & stat.S_ISVTX
        if facts.st_uid not in (0, os.geteuid()) or (facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky):
            raise InstallRefused(f"{path} would be run by root, and {at} is not root's alone: chown root, chmod go-w")
        if at == "/":
            return
        at = os.path.dirname(at)


def _daemon_json(options: Options) -> tuple[str, str, list[str]]:
    """Return Docker's settings before and after, checked by the engine, and the additions. Raises `InstallRefused`."""
    if options.without_docker:
        return "", "", []
    if not (os.path.exists(options.at("/usr/sbin/dockerd")) if options.root else docker_engine.is_installed()):
        print("there is no Docker Engine here: installing the rest")
        return "", "", []
    elsewhere = None if options.root else docker_engine.config_file()
    if elsewhere not in (None, DAEMON_JSON):
        raise InstallRefused(
            f"Docker reads its settings from {elsewhere}, not from {DAEMON_JSON}: register the runtime there"
        )
    old = _text(options.at(DAEMON_JSON))
    is_there = os.path.lexists(options.at(DAEMON_JSON))
    is_on = None if options.root else docker_engine.has_experimental()
    try:
        new, additions = docker_engine.merge(old, program=RUNC_SHIM, experimental=is_on is not True)
        if additions and not options.root:
            docker_engine.check(new)
    except InstallRefused as error:
        raise InstallRefused(f"{DAEMON_JSON} stays as it is: {error}") from error
    return old, new, additions if is_there else [*additions, "file"]


def _write_daemon_json(options: Options, text: str, *, keep: bool) -> None:
    """Write Docker's settings. With `keep`, copy the old ones beside them first."""
    path = os.path.realpath(options.at(DAEMON_JSON))
    mode = 0o644
    if os.path.exists(path):
        mode = stat.S_IMODE(os.stat(path).st_mode)
        if keep:
            shutil.copy2(path, f"{path}.before-gleaner")
    _write(path, File(text.encode(), mode))


def _bring_up(options: Options) -> None:
    """Make the runtime known to a running engine. Another engine will read its settings when it starts."""
    is_on = docker_engine.has_experimental()
    if is_on is None:
        print("Docker does not run now; it will have the runtime when it starts")
        return
    if not docker_engine.knows_us():
        docker_engine.reload()
        if not docker_engine.wait_for_runtime(present=True):
            raise InstallRefused("Docker was reloaded, and does not know the runtime: look at its log")
        print("Docker has been reloaded, and knows the runtime")
    if not is_on:
        if not options.restart_docker:
            print(
                'NOTE: Docker saves containers only after a restart ("experimental" cannot be reloaded): '
                "restart it when you can, or run this again with --restart-docker"
            )
            return
        docker_engine.restart()
        if not docker_engine.has_experimental():
            raise InstallRefused("Docker was restarted, and its experimental part is still off: look at its log")
        print("Docker has been restarted")


def _remove(options: Options) -> None:
    record = _record(options)
    if not os.path.exists(options.at(RECORD)):
        print("nothing of ours is here")
        return
    runs = not options.root and docker_engine.has_experimental() is not None
    if runs and (users := docker_engine.users_of_runtime()):
        raise InstallRefused(f"{len(users)} containers need the runtime ({users[0]}): remove them first")
    old = _text(options.at(DAEMON_JSON))
    new = docker_engine.without(old, program=RUNC_SHIM, additions=record["daemon_json"])
    difference = docker_engine.difference(DAEMON_JSON, old, new)
    ours = [path for path, digest in record["files"].items() if _digest_of(options.at(path)) == digest]
    for path in record["files"]:
        verb = "would remove" if options.dry_run else "removing"
        print(f"{verb} {path}" if path in ours else f"keeping {path}: it was changed, or is gone")
    if difference:
        print(difference)
    if options.dry_run:
        return
    if difference:
        _must_agree(options, f"change {DAEMON_JSON}?")
        if "file" in record["daemon_json"] and json.loads(new) == {}:
            os.unlink(options.at(DAEMON_JSON))
        else:
            _write_daemon_json(options, new, keep=False)
        if runs:
            docker_engine.reload()
            docker_engine.wait_for_runtime(present=False)
    for path in (*ours, RECORD):
        os.unlink(options.at(path))
    folders = [folder for folder, _, _ in os.walk(options.at(f"{LIBRARY}/gleaner"), topdown=False)]
    for folder in folders:
        if os.path.basename(folder) == "__pycache__":
            shutil.rmtree(folder, ignore_errors=True)
    for folder in (*folders, *map(options.at, (f"{LIBRARY}/bin", LIBRARY, os.path.dirname(config.CONFIG_FILE)))):
        with contextlib.suppress(OSError):  # others have files in it, or it is a mount
            os.rmdir(folder)


def _must_agree(options: Options, question: str) -> None:
    if options.yes:
        return
    if not sys.stdin.isatty():
        raise InstallRefused("nobody is here to agree: look at what --dry-run says, and say --yes")
    if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise InstallRefused("as you wish: nothing was changed")


def _record(options: Options) -> dict[str, Any]:
    """Return the record of what earlier runs have installed. Raises `InstallRefused` if it is broken."""
    try:
        record: dict[str, Any] = json.loads(_text(options.at(RECORD)) or '{"files": {}, "daemon_json": []}')
    except ValueError as error:
        raise InstallRefused(f"{RECORD} is broken: {error}; remove it and run this again") from error
    return record


def _is_there(path: str, file: File) -> bool:
    try:
        return _digest_of(path) == _digest(file.content) and stat.S_IMODE(os.stat(path).st_mode) == file.mode
    except OSError:
        return False


def _write(path: str, file: File) -> None:
    """Write a whole file and sync it."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    atomic.write(path, file.content, mode=file.mode)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise InstallRefused(f"{path} cannot be read: {error}") from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _digest_of(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return _digest(file.read())
    except OSError:
        return None


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=4) + "\n").encode()
