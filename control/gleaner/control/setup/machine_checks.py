"""Checks of what every machine needs: settings, clocks, control's answer, tokens, munge, units. Pure."""

import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from gleaner.agent.common.quantities import in_words
from gleaner.control.policy.node_clocks import is_wrong, wrong_clock
from gleaner.control.settings import LOOPBACK
from gleaner.control.setup import machine_facts, readers
from gleaner.control.setup.facts import (
    HANGS,
    MISNAMED,
    NOT_ASKED,
    UNTRUSTED,
    Facts,
    MachineRole,
    TextFile,
    Unread,
    needed,
    trouble_in_token,
    unit_blocks,
)
from gleaner.control.setup.finding import Judgement, fault, not_checked, ok, warning
from gleaner.control.setup.redaction import password_of
from gleaner.control.slurm.run import NO_ANSWER

_QUICK_S = 1.0
"""The longest half of an answer that shows a quiet way to control."""
_RENEW = "run `glean setup control` again, then systemctl restart gleaner-control"
_OTHER_NAME = "use a name that the certificate has, or make it anew: glean setup control --host NAME, for each name"
_RESTART = "systemctl restart gleaner-control"
_ABOUT_SLURM = "do sinfo and squeue answer here? `glean nodes` says why"
_URL_VARIABLE = "GLEANER_CLIENT__URL"
_HUNG_UP = ("closed connection", "reset by peer")
_NO_TLS = ("wrong version number", "record layer failure")
_NOBODY = 65534
_DAY_S = 86400.0
_CERTIFICATE_DAYS = 30
_DEMO_ROUND_S = 300
_USUAL_POLLS = 5
_POLL_AT_LEAST_S = 120.0
_POLLS_OF_ONE_LOOK = 3
"""A look may follow a pause and a round of submissions, each as long as `poll_s`; a third is to spare."""
_USUAL_PERIODS = 5
_STEP_AT_LEAST_S = 600.0
"""A round that works through much may last so long."""
_SURPRISING_GROUPS = frozenset({"root", "wheel", "sudo", "adm", "disk", "shadow", "kmem", "lxd", "libvirt"})


def settings(facts: Facts) -> Judgement:
    """Judge the settings of control and of the command line."""
    if isinstance(facts.settings, Unread) and facts.settings.is_denied:
        return fault(facts.settings.why, _let_read(facts.settings_file or "that file"))
    if isinstance(facts.settings, Unread):
        return fault(facts.settings.why, "mend that line; `glean config` then prints what is in force")
    path = facts.settings_file
    if not path:
        if facts.role is MachineRole.CONTROL:
            return fault("there is no /etc/gleaner/gleaner.toml", "run glean setup control")
        return ok("no file: the defaults are in force")
    file = facts.file(path)
    if isinstance(file, Unread):
        return not_checked(file.why)
    if facts.role is MachineRole.CONTROL and file.is_writable_by_others:
        return fault(f"others than its owner may write to {path}", f"chmod 644 {path}")
    if facts.role is MachineRole.CONTROL and (refused := facts.refusal_to_account(path)):
        has_password = password_of(facts.settings.queue.url)
        return fault(refused.why, refused.remedy(_let_read(path) if has_password else f"chmod 644 {path}"))
    if password_of(facts.settings.queue.url) and file.mode & 0o004:
        return warning(f"{path} holds the database's password, and all may read it", f"chmod 640 {path}")
    return ok(f"{path} is in order")


def _let_read(path: str) -> str:
    """Return what makes the account able to read a file of settings."""
    return f"chmod 644 {path}, or, with a password in it: chgrp to the service account's group, chmod 640"


def rounds(facts: Facts) -> Judgement:
    """Judge whether the rounds are still the demo's."""
    found = needed(facts.settings).rounds
    if found.length_s < _DEMO_ROUND_S:
        return warning(
            f"rounds of {found.length_s:g} s, as short as the demo's",
            "leave out [rounds], and the times in [queue]: agents then get an hour",
        )
    return ok(f"rounds of {found.length_s:g} s, {found.agents_at_most} agents at most")


def agent_command(facts: Facts) -> Judgement:
    """Judge the program that control starts on nodes. Whether they have it, only they know."""
    command = needed(facts.settings).cluster.agent_command
    if Path(command[0]).name != machine_facts.AGENT_PROGRAM:
        return warning(
            f"control starts {command[0]} on nodes, and not {machine_facts.AGENT_PROGRAM}",
            "if that is not a program of the site's, mend [cluster] agent_command: every agent ends at once",
        )
    return ok(command[0])


def clock_is_synchronised(facts: Facts) -> Judgement:
    """Judge whether a time service keeps the clock."""
    chrony = facts.programs.get("chronyc")
    if chrony is not None and not isinstance(chrony, Unread) and chrony.status == 0:
        if "Not synchronised" not in chrony.stdout:
            return ok("chrony keeps the clock")
        return warning("chrony runs and has no time server", "look at `chronyc sources`")
    systemd = facts.programs.get("timedatectl")
    if systemd is None or isinstance(systemd, Unread) or systemd.status != 0:
        return not_checked("neither chrony nor timedatectl answers here")
    if systemd.stdout.strip() == "yes":
        return ok("the clock is synchronised")
    return warning("the clock is not synchronised", "install chrony: agents plan their ends by the second")


def clock_is_controls(facts: Facts) -> Judgement:
    """Judge the clock of this machine against control's, by the time in control's answer."""
    found = needed(facts.control)
    if found.ahead_s is None:
        return not_checked("control's answer has no time")
    # What the answer took is no error of a clock.
    sure_s = max(0.0, abs(found.ahead_s) - found.unsure_s)
    ahead_s = sure_s if found.ahead_s > 0 else -sure_s
    if is_wrong(ahead_s):
        return fault(wrong_clock(ahead_s).partition(":")[0], "let both follow one time server (chrony or NTP)")
    return ok("within a second of control's")


def control_answers(facts: Facts) -> Judgement:
    """Judge control's answer to `/health`."""
    found = facts.control
    if found is NOT_ASKED:
        return not_checked("the settings cannot be read, which name control")
    if isinstance(found, Unread) and _serves_older(facts, found.why):
        return fault("control still serves an older certificate than its file's", _RESTART)
    if isinstance(found, Unread):
        to_do = _to_do_about_connection(facts, found.why)
        return fault(f"control does not answer: {found.why}", f"{to_do}{_other_url(facts)}")
    if not found.health:
        return fault(
            f"{found.url} answers with status {found.status} and is not Gleaner",
            f"set the address of control{_other_url(facts)}",
        )
    queue = str(found.health.get("queue", "ok"))
    if queue != "ok":
        return fault(f"control answers, and its database does not: {queue}", "look at the database and control's log")
    if not found.health.get("leader"):
        # An older version of control does not say whether another leads.
        judge = fault if found.health.get("has_leader") is False else warning
        nobody = ": no control program does" if judge is fault else ""
        return judge(
            f"{found.url} answers, and does not lead{nobody}",
            "one control program must lead: on its machine `glean doctor control` and its log say why it cannot",
        )
    is_quick = found.unsure_s < _QUICK_S
    if isinstance(facts.large_request, Unread) and HANGS in facts.large_request.why and is_quick:
        return fault(f"{found.url} answers small requests, and no large one",
                     "is the MTU the same on all machines (ip link), and ICMP let through?")  # fmt: skip
    return ok(f"{found.url} answers and leads{_other_url(facts)}")


def _other_url(facts: Facts) -> str:
    """Return a few words about an address in the environment that is not the one in the file; empty if it is."""
    if facts.role is MachineRole.NODE or isinstance(facts.settings, Unread):
        return ""
    if _URL_VARIABLE not in {name.upper() for name in facts.overrides}:
        return ""
    file = facts.file(facts.settings_file)
    try:
        tables: dict[str, object] = {} if isinstance(file, Unread) else tomllib.loads(file.text)
    except tomllib.TOMLDecodeError:
        return ""
    table = tables.get("client")
    url = cast("dict[str, object]", table).get("url") if isinstance(table, dict) else None
    if url is None or url == facts.settings.client.url:
        return ""
    return f" ({_URL_VARIABLE} in the environment counts; {facts.settings_file} names {str(url)[:80]})"


def _serves_older(facts: Facts, why: str) -> bool:
    """Return True if control shows a certificate that clients refuse, and the one in its file is in order."""
    found = facts.certificate
    if facts.role is not MachineRole.CONTROL or isinstance(found, Unread):
        return False
    return (UNTRUSTED in why or MISNAMED in why) and found.ends_s > facts.now_s


def _to_do_about_connection(facts: Facts, why: str) -> str:
    is_control = facts.role is MachineRole.CONTROL
    if "expired" in why:
        return f"{'' if is_control else 'on its machine: '}{_RENEW}"
    if any(word in why for word in ("self-signed", "self signed", "local issuer", "signature failure")):
        return "ca_file is not the authority of control's certificate: copy it from control's machine again"
    if HANGS in why:
        mtu = "" if is_control else "; if others reach it, compare the MTU (ip link)"
        return f"control hangs: {'' if is_control else 'on its machine '}{_RESTART}{mtu}"
    if MISNAMED in why:
        return _OTHER_NAME
    if "ca_file" in why and "Permission denied" in why:
        return "let all users read that file, and its folders: it is no secret"
    if "certificate" in why or "ca_file" in why:
        return "set ca_file to the authority of control's certificate"
    where = "control_url in agent.toml" if facts.role is MachineRole.NODE else "client.url"
    if _URL_VARIABLE in facts.overrides and facts.role is not MachineRole.NODE:
        where = f"{_URL_VARIABLE} in the environment"
    if any(words in why for words in _HUNG_UP) and _url(facts).startswith("http:"):
        return f"control speaks https, and this was http: begin {where} with https://"
    if any(words in why for words in _NO_TLS):
        return f"no https is spoken there: is {where} right, and has control a certificate?"
    if is_control and needed(facts.settings).api.host in LOOPBACK and _host(facts) not in LOOPBACK:
        return f"control listens at {needed(facts.settings).api.host} alone: mend [api] host, then {_RESTART}"
    if is_control:
        return f"systemctl status gleaner-control; is {where} right?"
    name = ", does the name lead to its address (/etc/hosts, DNS)" if " here) port" in why else ""
    return f"is {where} right{name}, is control running, and is its port not blocked by a firewall?"


def _url(facts: Facts) -> str:
    """Return the address at which this machine looks for control."""
    return needed(facts.agent).control_url if facts.role is MachineRole.NODE else needed(facts.settings).client.url


def _host(facts: Facts) -> str:
    try:
        return urlsplit(_url(facts)).hostname or ""
    except ValueError:
        return ""


def steps(facts: Facts) -> Judgement:
    """Judge control's background steps."""
    health = needed(facts.control).health
    failing = health.get("failing") or ()
    if failing:
        return fault(f"these steps of control fail: {', '.join(map(str, failing))}", "look at control's log")
    if late := _late_steps(health):
        return fault(
            f"these steps of control come to nothing: {', '.join(late)}", "control's log says what they wait for"
        )
    return ok("no step of control fails")


def _late_steps(health: Mapping[str, object]) -> list[str]:
    """Return a few words about each step whose last good round is older than some of its periods."""
    ages, periods = (health.get(name) for name in ("step_ages_s", "step_every_s"))
    if not isinstance(ages, dict) or not isinstance(periods, dict):  # an older version of control
        return []
    found: list[str] = []
    for name, age_s in cast("dict[str, object]", ages).items():
        every_s = cast("dict[str, object]", periods).get(name)
        if not isinstance(age_s, int | float) or not isinstance(every_s, int | float):
            continue
        if age_s > max(_USUAL_PERIODS * every_s, _STEP_AT_LEAST_S):
            found.append(f"{name[:40]} (for {in_words(age_s)})")
    return found


def polls(facts: Facts) -> Judgement:
    """Judge the age of control's last look at Slurm."""
    health = needed(facts.control).health
    if not health.get("leader"):
        return not_checked("this control program does not lead")
    if "last_poll_age_s" not in health:
        return not_checked("this version of control does not say it")
    age_s = health["last_poll_age_s"]
    if age_s is None:
        return fault("control has not read Slurm yet", _ABOUT_SLURM)
    if not isinstance(age_s, int | float):
        return not_checked(f"control said {age_s!r}"[:80])
    seen = f"control read Slurm {age_s:.0f} s ago"
    late_s, failed_s = _late_polls_s(facts)
    if age_s > failed_s:
        return fault(seen, _ABOUT_SLURM)
    return warning(seen, _ABOUT_SLURM) if age_s > late_s else ok(seen)


def _late_polls_s(facts: Facts) -> tuple[float, float]:
    """Return the ages from which a look at Slurm is late, and is a fault.

    A busy Slurm may take the whole time-out for each of the two questions of a look. Where control itself says that
    Slurm does not answer, its next looks are late.
    """
    if isinstance(facts.settings, Unread):
        return _POLL_AT_LEAST_S, _POLL_AT_LEAST_S
    poll_s, timeout_s = facts.settings.rounds.poll_s, facts.settings.cluster.timeout_s
    failed_s = max(_USUAL_POLLS * poll_s, _POLL_AT_LEAST_S)
    is_named = isinstance(facts.problem, str) and facts.problem.startswith(NO_ANSWER)
    return min(failed_s, _POLLS_OF_ONE_LOOK * poll_s + (0 if is_named else 2 * timeout_s)), failed_s


def version(facts: Facts) -> Judgement:
    """Judge control's version against that of this machine."""
    theirs = str(needed(facts.control).health.get("version", "unknown"))[:40]
    if "unknown" in {theirs, facts.version}:
        return not_checked(f"control is {theirs}, this machine {facts.version}")
    if theirs != facts.version:
        return warning(
            f"control is {theirs}, this machine {facts.version}", "install the same version, and restart control"
        )
    return ok(f"Gleaner {facts.version}, as control")


def certificate(facts: Facts) -> Judgement:
    """Judge the certificate: control's own file on its machine, elsewhere the one that control shows."""
    found = facts.certificate
    if facts.role is not MachineRole.CONTROL:
        shown = needed(facts.control)
        if shown.certificate is None:
            return ok("plain http, on this machine only")
        found = shown.certificate
    else:
        needed(facts.settings)
    if isinstance(found, Unread):
        if found.is_missing and "has no certificate" in found.why:
            return ok("none: control listens on this machine only")
        if "Permission denied" in found.why:
            return not_checked(found.why, "run this as root")
        if MISNAMED in found.why:
            is_said = isinstance(facts.control, Unread) and MISNAMED in facts.control.why
            return not_checked(found.why) if is_said else fault(found.why, _OTHER_NAME)
        if "used together" in found.why:
            return fault(found.why, "put the key there that belongs to the certificate, or renew both")
        return fault(found.why, "[client] ca_file must be its authority")
    left_days = (found.ends_s - facts.now_s) / _DAY_S
    names = ", ".join(found.names[:4])
    if left_days < _CERTIFICATE_DAYS:
        if left_days < 0:
            ended = datetime.fromtimestamp(found.ends_s, UTC)
            return fault(f"the certificate expired on {ended:%Y-%m-%d}", _RENEW)
        return warning(f"the certificate ends in {left_days:.0f} days", "renew it, and restart control")
    served = None if isinstance(facts.control, Unread) else facts.control.certificate
    if served is not None and served.ends_s < found.ends_s:
        return warning("control still serves an older certificate than its file's", _RESTART)
    return ok(f"for {names}; ends in {left_days:.0f} days")


def key_of_certificate(facts: Facts) -> Judgement:
    """Judge who can read the certificate's key."""
    path = needed(facts.settings).api.key
    if path is None:
        return ok("there is no certificate")
    for one in (needed(facts.settings).api.certificate, path):
        if refused := facts.refusal_to_account(str(one)):
            whom = "" if isinstance(facts.account, Unread) else facts.account.name
            return fault(f"{refused.why}: control cannot start again", refused.remedy(f"chown {whom} {one}"))
    return _secret_file(facts.file(str(path)), str(path))


def secret_key(facts: Facts) -> Judgement:
    """Judge the key for groups' secrets: the service account's alone, and on no node."""
    path, found = needed(facts.settings).queue.secret_key_file, needed(facts.secret_key)
    if found.is_missing and not isinstance(facts.stored, Unread) and facts.stored.secrets:
        return fault(
            f"{path} is missing: the {facts.stored.secrets} secrets of groups cannot be read",
            "put it back from your backup, or from the other machine of control",
        )
    if found.is_missing:
        return warning(
            f"there is no {path}: groups can keep no secrets",
            "`glean control prepare` makes it; or copy it from the other machine of control",
        )
    if found.is_on_storage:
        return fault(
            f"{path} is on the shared storage, which nodes can read",
            "move it to a disk of this machine alone, and name it in [queue] secret_key_file",
        )
    if found.mode & 0o077:
        return fault(f"others may read {path} (mode {found.mode:o})", f"chmod 600 {path}")
    if not isinstance(facts.account, Unread) and found.uid != facts.account.uid:
        return fault(
            f"{path} is not {facts.account.name}'s, as whom control runs", f"chown {facts.account.name} {path}"
        )
    if found.trouble and facts.uid not in {0, found.uid}:
        return not_checked(found.trouble, "run this as root")
    if found.trouble:
        return fault(found.trouble, "put the right key there: secrets that are stored need it")
    if found.unopened:
        some = "the" if found.unopened == found.tried else f"{found.unopened} of the"
        return fault(
            f"the key in {path} is not the one that {some} {found.tried} secrets of groups were stored with",
            f"put that key into {path}, too, in a line of its own; or have these secrets set anew",
        )
    return ok(f"{path} is the service account's alone")


def _secret_file(file: TextFile | Unread, path: str) -> Judgement:
    if isinstance(file, Unread):
        if "Permission denied" in file.why:
            return not_checked(file.why, "run this as root")
        return fault(file.why, f"put the key there, and chmod 600 {path}")
    if file.mode & 0o077:
        return fault(f"others may read {path} (mode {file.mode:o})", f"chmod 600 {path}")
    return ok(f"{path} is its owner's alone")


def token(facts: Facts) -> Judgement:
    """Judge the token of whoever runs the doctor."""
    client = needed(facts.settings).client
    path = client.token_file.expanduser()
    if client.proof == "munge":
        return not_checked("munge says who you are ([client] proof): no token is used")
    file = facts.file(str(path))
    if isinstance(file, Unread):
        uses_munge = client.proof != "token" and not isinstance(facts.munge, Unread)
        if file.is_missing and (uses_munge or facts.role is MachineRole.CONTROL):
            return not_checked(f"there is no token in {path}" + ("; munge says who you are" if uses_munge else ""))
        if file.is_denied:
            return fault(f"no token: {file.why}", f"as root: chown {facts.user} {path}")
        return fault(f"no token: {file.why}", f"ask an admin for one, and put it into {path}, mode 0600")
    if file.mode & 0o077:
        return fault(f"others may read the token in {path} (mode {file.mode:o})", f"chmod 600 {path}")
    if trouble := trouble_in_token(file.text):
        return fault(f"{path} {trouble}", f"put the token alone into {path}, or ask an admin for a new one")
    if isinstance(facts.token, Unread):
        return not_checked(facts.token.why)
    if facts.token.status == 401:
        # Its usual reason is for whoever writes a program.
        if facts.token.stdout.startswith("send a known token"):
            return fault(
                f"control does not know the token in {path}: was it revoked, or is it of another control?",
                "ask an admin for a new one",
            )
        return fault(f"control does not take the token in {path}: {facts.token.stdout}", "ask an admin for a new one")
    if facts.token.status == 403 and facts.token.stdout:  # without a text it is a proxy's
        return fault(f"control refuses the token in {path}: {facts.token.stdout}", "ask an admin for one of role user")
    if facts.token.status == 200:
        return ok(f"control knows the token in {path}")
    return not_checked(f"control answered with status {facts.token.status}")


def munge(facts: Facts) -> Judgement:
    """Judge munge, which Slurm and users without a token need."""
    if not isinstance(facts.munge, Unread):
        return ok("munge makes and reads a credential")
    if facts.role is MachineRole.CLIENT:
        found = facts.settings
        if isinstance(found, Unread) or found.client.proof != "munge":
            return not_checked(f"{facts.munge.why}; a token does instead")
    slurm = facts.role is MachineRole.NODE or (
        not isinstance(facts.settings, Unread) and facts.settings.cluster.backend != "local"
    )
    if not slurm and facts.role is MachineRole.CONTROL:
        return not_checked(f"{facts.munge.why}; without Slurm nobody needs it")
    if facts.munge.is_denied:
        return fault(facts.munge.why, "all accounts must reach munge's socket: chmod 755 /run/munge")
    return fault(facts.munge.why, "start munged; all machines need the same /etc/munge/munge.key")


def account(facts: Facts) -> Judgement:
    """Judge the service account: one number everywhere, and no rights beyond its own."""
    found = facts.account
    if isinstance(found, Unread):
        if found.is_missing:
            return fault(found.why, "make the service account, with the same number on all machines")
        return not_checked(found.why)
    if found.uid == 0:
        return fault("the storage folder is root's", "make a service account, and chown the folder to it")
    if not isinstance(facts.privileged, Unread) and facts.privileged.agent_uid != found.uid:
        must = facts.privileged.agent_uid
        return fault(
            f"{found.name} is {found.uid} here, and must be {must}, as privileged.json says",
            f"usermod -u {must} {found.name}",
        )
    if not isinstance(facts.storage, Unread) and facts.storage.is_set_up and facts.storage.uid == _NOBODY:
        return fault(
            f"the storage is nobody's here ({_NOBODY}): the file system does not map its owners",
            f"on NFS: is {found.name} known to the server, and Domain in /etc/idmapd.conf the same on all machines?",
        )
    # A folder on which nothing is mounted says nothing about the account.
    if not isinstance(facts.storage, Unread) and facts.storage.is_set_up and facts.storage.uid != found.uid:
        return fault(
            f"{found.name} is {found.uid} here, and the storage is {facts.storage.uid}'s",
            "give the account one number on all machines",
        )
    if wrong := sorted(_SURPRISING_GROUPS.intersection(found.groups)):
        return warning(f"{found.name} is in the group {', '.join(wrong)}", f"gpasswd -d {found.name} {wrong[0]}")
    return ok(f"{found.name} ({found.uid})")


def groups_of_agents(facts: Facts) -> Judgement:
    """Judge the group docker on slurmctld's machine: it gives agents the groups that the account has there."""
    if readers.SLURMCTLD not in needed(facts.commands):
        return not_checked("slurmctld does not run here")
    found = needed(facts.account)
    if "docker" in found.groups:
        return ok(f"{found.name} is in the group docker")
    if "disable_send_gids" in facts.output("scontrol config").stdout:
        return ok("nodes have their own groups (disable_send_gids)")
    runtimes = needed(facts.stored).runtimes
    if runtimes and "docker" not in runtimes:
        return ok("no agent uses Docker")
    judge, when = (fault, "") if runtimes else (warning, ", if agents are to use Docker")
    return judge(
        f"{found.name} is not in the group docker here, and slurmctld hands out this machine's groups",
        f"usermod -aG docker {found.name}{when}; slurmctld sees it within ten minutes",
    )


def units(facts: Facts) -> Judgement:
    """Judge the services that systemd has to keep running."""
    if not facts.has_systemd:
        return not_checked("there is no systemd here")
    wrong: list[str] = []
    names: list[str] = []
    for values in unit_blocks(facts.output("systemctl").stdout):
        name = values.get("Id", "?").removesuffix(".service")
        is_there = values.get("LoadState") == "loaded"
        if name == "gleaner-helper" and not is_there:
            continue  # a node with Docker can do without
        names.append(name)
        if not is_there:
            wrong.append(f"{name} is not installed")
        elif values.get("ActiveState") != "active":
            wrong.append(f"{name} is {values.get('ActiveState', 'unknown')}")
        elif values.get("UnitFileState") not in {"enabled", "static"}:
            wrong.append(f"{name} is not enabled")
    if wrong:
        return fault("; ".join(wrong), f"run glean setup {facts.role}, then systemctl enable --now {' '.join(names)}")
    return ok(", ".join(names))
