"""The files and commands that each role needs on a machine."""

import json
import shutil
from pathlib import Path

from gleaner.agent.privileged import program_files
from gleaner.agent.privileged.common import config
from gleaner.control.setup import shipped
from gleaner.control.setup.answers import (
    CA_FILE,
    JOIN_FILE,
    ClientAnswers,
    ControlAnswers,
    JoinFile,
    NodeAnswers,
    SetupRefused,
    SiteAnswers,
)
from gleaner.control.setup.certificates import CERTIFICATE, KEY, certificates
from gleaner.control.setup.own_files import PATH, Command, OwnFile, TargetMachine, Wanted, joined, read
from gleaner.control.setup.slurm_lines import QOS

SETTINGS = "/etc/gleaner/gleaner.toml"
STATE = "/var/lib/gleaner"
WEB_UNIT = "/etc/systemd/system/gleaner-web.service"
_ADMIN_TOKEN = f"{STATE}/admin.token"


def client(answers: ClientAnswers) -> Wanted:
    """Return the files and commands that a login node needs."""
    return Wanted((*_authority(answers.ca), OwnFile(SETTINGS, _client_table(answers.url, answers.ca), kind="settings")))


def _authority(ca: str) -> tuple[OwnFile, ...]:
    return (OwnFile(CA_FILE, ca.encode(), kind="brief"),) if ca else ()


def _client_table(url: str, ca: str) -> bytes:
    return f'[client]\nurl = "{url}"\n{_ca_line(ca)}'.encode()


def _ca_line(ca: str) -> str:
    return f'ca_file = "{CA_FILE}"\n' if ca else ""


def _shipped(path: str, mode: int = 0o644, kind: str = "file", **values: object) -> OwnFile:
    return OwnFile(path, shipped.content(path, **values), mode, kind=kind)


def control_settings(answers: ControlAnswers, prefix: str = "/opt/gleaner") -> OwnFile:
    """Return control's settings. `prefix` is the folder of the installed program."""
    own = {"agents_port": answers.port + 1, "prefix": prefix, "certificate": answers.certificate or CERTIFICATE,
           "key": answers.key or KEY}  # fmt: skip
    text = shipped.content(SETTINGS, **(answers.model_dump() | own))
    ca = answers.ca if answers.certificate else CA_FILE
    return OwnFile(SETTINGS, text + b"\n" + _client_table(answers.url, ca), kind="settings")


def control(machine: TargetMachine, answers: ControlAnswers, prefix: str) -> Wanted:
    """Return the files and commands that control's machine needs. `prefix` is the folder of the installed program."""
    name, owner, home = answers.account, (answers.uid, answers.gid), Path("~root").expanduser()
    tls = Wanted(_authority(answers.ca)) if answers.certificate else certificates(machine, answers)
    authority = machine.find(CA_FILE)  # once it has been created
    ca = answers.ca if answers.certificate or not authority else authority.content.decode()
    join = JoinFile(url=answers.url, ca=ca, **answers.model_dump(include=set(SiteAnswers.model_fields)))
    as_account, token = ("runuser", "-u", name, "--"), f"{home}/.config/gleaner/token"
    glean = (*as_account, f"{prefix}/bin/glean")
    make_token = (
        ("rm", "-f", _ADMIN_TOKEN),
        (*glean, "token", "create", "--local", "--role", "admin", "--name", "root", "--to", _ADMIN_TOKEN),
        ("install", "-m", "0600", "-o", "root", "-g", "root", _ADMIN_TOKEN, token),
        ("rm", "-f", _ADMIN_TOKEN),
    )
    files = (
        OwnFile(answers.storage, b"", 0o700, *owner, "data"),
        OwnFile(STATE, b"", 0o750, *owner, "data"),
        OwnFile(f"{home}/.config/gleaner", mode=0o700, kind="folder"),
        control_settings(answers, prefix),
        OwnFile(JOIN_FILE, join.model_dump_json(indent=2).encode()),
        web := _shipped(WEB_UNIT, account=name, storage=answers.storage, prefix=prefix),
    )
    return joined(
        _account(machine, answers),
        Wanted(files),
        tls,
        _slurm_account(machine, name),
        _live(machine, Command("storage", ((*glean, "control", "prepare"), (*glean, "control", "migrate")),
                               after=(SETTINGS,)), *as_account, "test", "-s", f"{answers.storage}/.storage-id"),
        _live(machine, Command("token", make_token, (("rm", "-f", token),)), "test", "-s", token),
        _service(machine, "gleaner-control", SETTINGS, WEB_UNIT, "certificate", account=name, storage=answers.storage,
                 prefix=prefix),
        Wanted(remarks=_started_by_hand(machine, web)),
    )  # fmt: skip


def _service(machine: TargetMachine, name: str, *after: str, **values: str) -> Wanted:
    """Return a service. It is restarted after its unit, or one of `after`, is written."""
    path = f"/etc/systemd/system/{name}.service"
    file = OwnFile(path, shipped.content(path, **values))
    if remarks := _started_by_hand(machine, file):
        return Wanted((file,), remarks=remarks)
    do = (("systemctl", "daemon-reload"), ("systemctl", "enable", name), ("systemctl", "restart", name))
    is_done = all(read("systemctl", "--quiet", verb, name) is not None for verb in ("is-enabled", "is-active"))
    return Wanted(
        (file,), (Command(name, do, (("systemctl", "disable", "--now", name),), is_done, (file.path, *after)),)
    )


def _started_by_hand(machine: TargetMachine, unit: OwnFile) -> tuple[str, ...]:
    """Return the program that an admin has to start if there is no systemd."""
    if machine.has_systemd:
        return ()
    keys = dict(line.split("=", 1) for line in unit.content.decode().splitlines() if "=" in line)
    return (f"no systemd runs here; start by other means, as {keys.get('User', 'root')}: {keys['ExecStart']}",)


def _live(machine: TargetMachine, command: Command, *check: str) -> Wanted:
    """Return a command that needs the running system, and counts as done if the check succeeds."""
    if machine.is_live:
        return Wanted(commands=(command._replace(is_done=read(*check) is not None),))
    words = "; ".join(" ".join(words) for words in command.do)
    return Wanted(remarks=(f"{command.name}: left for the running system: {words}",))


def _account(machine: TargetMachine, wanted: SiteAnswers) -> Wanted:
    """Return the command that creates the service account, which has no login.

    Raises `SetupRefused` if the ids of the account differ on this machine.
    """
    name, numbers = wanted.account, [f"{wanted.uid}", f"{wanted.gid}"]
    found = machine.is_live and read("getent", "passwd", name)
    if found and found.split(":")[2:4] != numbers:
        raise SetupRefused(f"the account {name} is not {':'.join(numbers)} here: see `glean setup control`")
    add = (
        ("sh", "-c", f"getent group {name} || groupadd -g {wanted.gid} {name}"),
        ("useradd", "-u", numbers[0], "-g", numbers[1], "-M", "-d", "/nonexistent", "-s", "/usr/sbin/nologin",
         name),
    )  # fmt: skip
    remove = ("sh", "-c", f"userdel {name}; groupdel {name} 2>/dev/null || [ $? = 6 ]")  # the group might be gone
    return _live(machine, Command("account", add, (remove,)), "getent", "passwd", name)


def _slurm_account(machine: TargetMachine, name: str) -> Wanted:
    """Return the command that creates the agents' QOS, account and user in Slurm's accounting."""
    change = "sacctmgr --immediate"
    add = (
        f"{change} add qos {QOS} UsageFactor=0 Flags=NoReserve; {change} add account {name} Description=agents; "
        f"{change} add user {name} Account={name} QOS={QOS} DefaultQOS={QOS}"
    )
    delete = f"{change} delete user {name}; {change} delete account {name}; {change} delete qos {QOS}"
    check = f"sacctmgr --parsable2 --noheader show user {name} format=User | grep -qx {name}"
    return _live(machine, Command("Slurm's account", (("sh", "-c", add),), (("sh", "-c", delete),)), "sh", "-c", check)


def node(machine: TargetMachine, answers: NodeAnswers) -> Wanted:
    """Return the files and commands that a compute node needs. Raises `SetupRefused`."""
    owner, is_docker = (answers.uid, answers.gid), answers.runtime == "docker"
    settings = shipped.content(
        "/etc/gleaner/agent.toml", url=answers.agents_url, storage=answers.storage,
        runtime="docker" if is_docker else "criu", images=json.dumps(answers.images),
    )  # fmt: skip
    files = (
        OwnFile(STATE, b"", 0o750, *owner, "data"),
        OwnFile(f"{STATE}/work", b"", 0o750, *owner, "data"),
        OwnFile(config.Config(1).bundles, mode=0o700, kind="data"),
        *_authority(answers.ca),
        OwnFile("/etc/gleaner/agent.toml", settings + _ca_line(answers.ca).encode(), kind="settings"),
        _shipped("/etc/criu/runc.conf", kind="settings"),
        _shipped(shipped.EPILOG, 0o755),
        _shipped(shipped.WATCHDOG, 0o755),
    )
    runtime = _docker(machine, answers.account) if is_docker else _service(
        machine, "gleaner-helper", config.Config(1).library, program_files.HELPER
    )  # fmt: skip
    watchdog = _service(machine, "gleaner-watchdog", shipped.WATCHDOG)
    return joined(_account(machine, answers), Wanted(files), _root_programs(machine, answers), watchdog, runtime)


def _root_programs(machine: TargetMachine, answers: NodeAnswers) -> Wanted:
    """Return the programs that run as root, their settings, and the folder for agents' requests to them."""
    places = ":".join(f"{machine.root}{folder}" for folder in PATH.split(":"))
    runc, criu = ((shutil.which(name, path=places) or "").removeprefix(machine.root) for name in ("runc", "criu"))
    if not (runc and criu):
        raise SetupRefused(f"there is no {'criu' if runc else 'runc'} on this node: install it, and run this again")
    file = _shipped(config.CONFIG_FILE, kind="settings", uid=answers.uid, runc=runc, criu=criu)
    old = machine.find(config.CONFIG_FILE)
    try:
        settings = config.Config(answers.uid, runc=runc, criu=criu)
        if old and not machine.is_ours(old):  # an admin has written them
            settings = config.load(str(machine.at(config.CONFIG_FILE)))
        for program in (settings.runc, settings.criu):
            program_files.must_be_roots(str(machine.at(program)))
        files = [OwnFile(*one, kind="brief") for one in program_files.files_of_programs(settings)]
    except config.Misconfigured as error:
        raise SetupRefused(str(error)) from error
    owner = (settings.agent_uid, answers.gid)
    # After a reboot the folder is missing.
    line = _shipped("/etc/tmpfiles.d/gleaner.conf", handshakes=settings.handshakes, uid=owner[0], gid=owner[1])
    own = (file, line, *([OwnFile(settings.handshakes, b"", 0o700, *owner, "folder")] if machine.is_live else []))
    compiled = (program_files.PYTHON, "-I", "-m", "compileall", "-q", str(machine.at(settings.library)))
    return Wanted((*files, *own), (Command("compiled", (compiled,), is_done=True, after=(settings.library,)),))


def _docker(machine: TargetMachine, account: str) -> Wanted:
    files = (_shipped("/etc/docker/daemon.json", kind="settings"),)
    member = Command("docker", (("usermod", "-aG", "docker", account),), (("gpasswd", "-d", account, "docker"),))
    return joined(
        Wanted(files, remarks=("when it suits you: systemctl restart docker",)),
        _live(machine, member, "sh", "-c", f"id -nG {account} | grep -qw docker"),
    )
