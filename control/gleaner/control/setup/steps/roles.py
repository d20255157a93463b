"""The steps of each role. Pure: from the answers to the list of steps."""

import json
from collections.abc import Sequence
from pathlib import PurePosixPath

from gleaner.agent.privileged.common import config
from gleaner.agent.privileged.install.main import PYTHON, RECORD
from gleaner.control.setup import shipped
from gleaner.control.setup.steps import slurm_conf, text_edits
from gleaner.control.setup.steps.answers import (
    CA_FILE,
    JOIN_FILE,
    ClientAnswers,
    ControlAnswers,
    JoinFile,
    NodeAnswers,
    ServiceAccount,
)
from gleaner.control.setup.steps.certificates import CERTIFICATE, KEY, certificates
from gleaner.control.setup.steps.changes import Ownership, ProgramCheck, SetupRefused
from gleaner.control.setup.steps.machine import MachineReader
from gleaner.control.setup.steps.step_types import (
    AccountStep,
    EditStep,
    FileStep,
    FolderStep,
    LinkStep,
    MadeStep,
    ProgramStep,
    RemarkStep,
    SetupStep,
)

SETTINGS = "/etc/gleaner/gleaner.toml"
AGENT_SETTINGS = "/etc/gleaner/agent.toml"
LIBEXEC = "/usr/local/libexec/gleaner"
UNITS = "/etc/systemd/system"
RUNC_CONF = "/etc/criu/runc.conf"
STATE = "/var/lib/gleaner"
SECRETS_KEY = f"{STATE}/secrets.key"
BUNDLES = config.Config(1).bundles
"""The folder in which the node helper, and root's programs for Docker, keep what is theirs."""
_INSTALL = (
    "import sys; sys.path.append(sys.argv.pop(1)); from gleaner.agent.privileged.install.main import main; main()"
)
_JOIN = "\n"
_PROGRAM = Ownership(0o755)
_HEAD = "# Written by `glean setup`, and yours to change: setup does not write over a change of yours.\n"


def client_steps(answers: ClientAnswers, prefix: str) -> tuple[SetupStep, ...]:
    """Return the steps of a login node. `prefix` is the folder of the installed program."""
    text = f"{_HEAD}\n{_client_table(answers.url, has_ca=bool(answers.ca))}"
    return (*_authority(answers.ca), FileStep(SETTINGS, text.encode(), is_settings=True), *_links(prefix, "glean"))


def _client_table(url: str, *, has_ca: bool) -> str:
    return _table("client", url=url, ca_file=CA_FILE if has_ca else None)


def _table(name: str, **values: object) -> str:
    """Return a table of TOML. The strings are such that JSON's are TOML's."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items() if value is not None]
    return "\n".join((f"[{name}]", *lines, ""))


def _authority(ca: str) -> tuple[SetupStep, ...]:
    return (FileStep(CA_FILE, ca.encode()),) if ca else ()


def _links(prefix: str, *names: str) -> tuple[SetupStep, ...]:
    """Return the links to the programs. What lies in a system's own folder needs none."""
    if prefix in ("/usr", "/usr/local"):
        return ()
    return tuple(LinkStep(f"/usr/local/bin/{name}", f"{prefix}/bin/{name}") for name in names)


def _unit(machine: MachineReader, name: str, text: str, program: str) -> tuple[tuple[SetupStep, ...], SetupStep]:
    """Return the steps that install a unit, and the last step, which starts it."""
    file = f"{UNITS}/{name}.service"
    link = LinkStep(f"{UNITS}/multi-user.target.wants/{name}.service", file)
    start: SetupStep = ProgramStep(
        name,
        ProgramCheck(("systemctl", "is-active", name), "active"),
        (("systemctl", "daemon-reload"), ("systemctl", "restart", name)),
        (("systemctl", "stop", name),),
        service=name,
    )
    if not machine.has_systemd:
        start = RemarkStep(name, f"{name}: no systemd runs here; start {program} by other means")
    return (FileStep(file, text.encode(), restarts=(name,)), link), start


def control_settings(answers: ControlAnswers) -> str:
    """Return the text of control's settings."""
    tables = (
        _table("cluster", backend="slurm", partition="gleaner", account=answers.account.name, qos="gleaner",
               agent_command=["/usr/local/bin/glean-agent"]),
        _table("api", host=answers.listens_at, port=answers.port, certificate=answers.certificate or CERTIFICATE,
               key=answers.key or KEY),
        _table("storage", folder=answers.storage),
        _client_table(answers.url, has_ca=answers.has_ca),
    )  # fmt: skip
    return f"{_HEAD}\n{_JOIN.join(tables)}"


def control_steps(answers: ControlAnswers, prefix: str, machine: MachineReader, home: str) -> tuple[SetupStep, ...]:
    """Return the steps of control's machine. `home` is root's home, for the first admin's token."""
    account, storage, name = answers.account, answers.storage, answers.account.name
    unit = shipped.content("gleaner-control.service").decode()
    for old, new in (
        ("/srv/gleaner", storage), ("/opt/gleaner/", f"{prefix}/"), ("=gleaner\n", f"={name}\n"),
    ):  # fmt: skip
        unit = unit.replace(old, new)
    unit = unit.replace(f"StateDirectory={name}\n", "StateDirectory=gleaner\n")
    service, start = _unit(machine, "gleaner-control", unit, f"{prefix}/bin/glean control run as {name}")
    glean = ("runuser", "-u", name, "--", f"{prefix}/bin/glean")
    token = f"{home}/.config/gleaner/token"
    return (
        _account(account),
        FolderStep(storage, Ownership(0o700, account.uid, account.gid), is_data=True),
        FolderStep(STATE, Ownership(0o750, account.uid, account.gid), is_data=True),
        *(() if answers.certificate else certificates(answers.hosts, account)),
        *(_authority(answers.ca) if answers.certificate else ()),
        FileStep(SETTINGS, control_settings(answers).encode(), is_settings=True, restarts=("gleaner-control",)),
        _join_step(answers),
        *_links(prefix, "glean"),
        *service,
        *_slurm_steps(answers, machine),
        ProgramStep(
            "storage",
            ProgramCheck(("sh", "-c", _unless_set("secret_key_file", SECRETS_KEY, f"{storage}/.storage-id"))),
            ((*glean, "control", "prepare"),),
        ),
        ProgramStep(
            "database",
            ProgramCheck(("sh", "-c", _unless_set("url *= *.postgresql", f"{STATE}/queue.db"))),
            ((*glean, "control", "migrate"),),
        ),
        start,
        FolderStep(f"{home}/.config/gleaner", Ownership(0o700)),
        ProgramStep(
            "token",
            ProgramCheck(("test", "-s", token)),
            (
                ("rm", "-f", f"{STATE}/admin.token"),
                (*glean, "token", "create", "--local", "--role", "admin", "--name", "root",
                 "--to", f"{STATE}/admin.token"),
                ("install", "-m", "0600", "-o", "root", "-g", "root", f"{STATE}/admin.token", token),
                ("rm", "-f", f"{STATE}/admin.token"),
            ),
            (("rm", "-f", token),),
        ),
    )  # fmt: skip


def _unless_set(setting: str, file: str, *files: str) -> str:
    """Return a test of files. The first need not be there if the settings name another place for it."""
    more = "".join(f" && test -s {each}" for each in files)
    return f"{{ test -s {file} || grep -q '^ *{setting}' {SETTINGS}; }}{more}"


def _account(account: ServiceAccount) -> SetupStep:
    return AccountStep(account.name, account.uid, account.gid)


def _join_step(answers: ControlAnswers) -> SetupStep:
    """Return the step for the file that other machines are set up from. It holds the authority, once that is made."""

    def step(machine: MachineReader) -> FileStep:
        ca = machine.file(CA_FILE) if answers.has_ca else None
        join = JoinFile(answers.url, "" if ca is None else ca.content.decode(), answers.storage, answers.account)
        return FileStep(JOIN_FILE, join.text())

    def is_there(machine: MachineReader) -> bool:
        found = machine.file(JOIN_FILE)
        return found is not None and found.content == step(machine).content

    title = f"write {JOIN_FILE}, from which the other machines are set up"
    return MadeStep(JOIN_FILE, title, is_there, lambda machine: (step(machine),))


def _slurm_steps(answers: ControlAnswers, machine: MachineReader) -> tuple[SetupStep, ...]:
    name = answers.account.name
    wanted = slurm_conf.Wanted(name, answers.memory_per_cpu_mib, answers.grace_s)
    steps: list[SetupStep] = []
    found = machine.file(machine.real_path(answers.slurm_conf))
    if found is None:
        text = f"there is no {answers.slurm_conf} here; where it is, setup needs --slurm-conf FILE"
        steps.append(RemarkStep(answers.slurm_conf, text))
    else:
        # The restart alone leaves slurmd on the nodes with the old file: no Epilog would run.
        in_force = (("systemctl", "restart", "slurmctld"), ("scontrol", "reconfigure"))
        included = _included(answers.slurm_conf, found.content, machine)
        edit, remarks = slurm_conf.edit(wanted, included), slurm_conf.remarks(wanted, included)
        steps.append(EditStep(answers.slurm_conf, edit, remarks, in_force))
    show = ("sacctmgr", "--parsable2", "--noheader", "--readonly", "show")
    change = ("sacctmgr", "--immediate")
    steps += [
        ProgramStep(
            "QOS",
            ProgramCheck((*show, "qos", "gleaner", "format=Name"), "gleaner"),
            ((*change, "add", "qos", "gleaner", "UsageFactor=0", "Flags=NoReserve"),),
            ((*change, "delete", "qos", "gleaner"),),
            is_optional=True,
        ),
        ProgramStep(
            "Slurm account",
            ProgramCheck((*show, "account", name, "format=Account"), name),
            ((*change, "add", "account", name, "Description=agents"),),
            ((*change, "delete", "account", name),),
            is_optional=True,
        ),
        ProgramStep(
            "Slurm user",
            ProgramCheck((*show, "user", name, "format=User"), name),
            ((*change, "add", "user", name, f"Account={name}", "QOS=gleaner", "DefaultQOS=gleaner"),),
            ((*change, "delete", "user", name),),
            is_optional=True,
        ),
    ]
    return tuple(steps)


def _included(conf: str, content: bytes, machine: MachineReader) -> slurm_conf.Included:
    """Return the files that a slurm.conf includes. Slurm looks for them in the folder of slurm.conf."""

    def read(name: str) -> str | None:
        try:
            found = machine.file(machine.real_path(str(PurePosixPath(conf).parent / name)))
        except SetupRefused:  # a folder, or no right to read it: the reader is told so in a remark
            return None
        return None if found is None else found.content.decode(errors="replace")

    return slurm_conf.read_included(content.decode(errors="replace"), read)


def node_steps(answers: NodeAnswers, prefix: str, machine: MachineReader, packages: str) -> tuple[SetupStep, ...]:
    """Return the steps of a compute node. `packages` is the folder that holds the installed `gleaner`."""
    account, is_docker = answers.account, answers.runtime == "docker"
    owner = Ownership(0o750, account.uid, account.gid)
    settings = _table(
        "", control_url=answers.url, ca_file=CA_FILE if answers.ca else None, storage=answers.storage,
        runtime="docker" if is_docker else "criu", images_allowed=list(answers.images_allowed),
    ).removeprefix("[]\n")  # fmt: skip
    watchdog_unit = shipped.content("gleaner-watchdog.service").decode()
    watchdog, start_watchdog = _unit(machine, "gleaner-watchdog", watchdog_unit, f"{LIBEXEC}/watchdog")
    services: list[SetupStep] = []
    starts: list[SetupStep] = [start_watchdog]
    if is_docker:
        services += _docker_steps(account)
    else:
        text = shipped.content("gleaner-helper.service").decode()
        helper, start_helper = _unit(machine, "gleaner-helper", text, "/usr/local/sbin/gleaner-helper as root")
        services += helper
        starts.append(start_helper)
    return (
        _account(account),
        *_authority(answers.ca),
        FileStep(AGENT_SETTINGS, f"{_HEAD}{settings}".encode(), is_settings=True),
        FolderStep(STATE, owner, is_data=True),
        FolderStep(f"{STATE}/work", owner, is_data=True),
        FolderStep(BUNDLES, Ownership(0o700), is_data=True),
        _privileged_step(account, machine, packages, is_docker=is_docker),
        EditStep(RUNC_CONF, text_edits.with_missing(_lines_of("runc.conf"))),
        FileStep(f"{LIBEXEC}/epilog.sh", shipped.content("epilog.sh"), _PROGRAM),
        FileStep(f"{LIBEXEC}/watchdog", shipped.content("watchdog"), _PROGRAM, restarts=("gleaner-watchdog",)),
        *watchdog,
        *services,
        *_links(prefix, "glean", "glean-agent"),
        *starts,
    )


def _lines_of(name: str) -> Sequence[str]:
    return [line for line in shipped.content(name).decode().splitlines() if line]


def _privileged_step(account: ServiceAccount, machine: MachineReader, packages: str, *, is_docker: bool) -> SetupStep:
    """Return the step for root's programs, which the system's own Python installs and checks."""
    call = (PYTHON, "-I", "-S", "-B", "-c", _INSTALL, packages, "--yes")
    root = ("--root", machine.root) if machine.root else ()
    way = () if is_docker else ("--without-docker",)
    install = (*call, "--account", str(account.uid), *way, *root)
    return ProgramStep(
        "privileged programs",
        ProgramCheck((*install, "--dry-run"), "all is as it should be"),
        (install,),
        ((*call, *root, "--remove"),),
        restarts=() if is_docker else ("gleaner-helper",),
        undo_check=ProgramCheck(("test", "-e", str(machine.at(RECORD)))),
        check_shows=True,
        works_in_root=True,
    )


def _docker_steps(account: ServiceAccount) -> tuple[SetupStep, ...]:
    drop_in = f"{UNITS}/containerd.service.d/gleaner.conf"
    hint = ("systemctl", "restart", "containerd", "docker")
    return (
        FileStep(drop_in, shipped.content("containerd-gleaner.conf"), hints=(("systemctl", "daemon-reload"), hint)),
        ProgramStep(
            "Docker's group",
            ProgramCheck(("id", "-nG", account.name), "docker"),
            (("usermod", "-aG", "docker", account.name),),
            (("gpasswd", "-d", account.name, "docker"),),
        ),
    )
