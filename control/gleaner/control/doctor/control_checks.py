"""Checks of control and the connections to it: settings, answer and steps, certificate, database, key, token, munge."""

import os
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from gleaner.agent.common.installed_version import installed_version
from gleaner.agent.common.quantities import in_words
from gleaner.control.doctor.check import ALL, CLIENT, CONTROL, check
from gleaner.control.doctor.connection import certificate_end_s
from gleaner.control.doctor.finding import Finding, MachineRole, Unread, fault, first, not_checked, ok, warning
from gleaner.control.doctor.look import Look, complaint
from gleaner.control.input_errors import one_line
from gleaner.control.settings import Settings

_RESTART = "systemctl restart gleaner-control"
_RENEW = "run `glean setup control` on control's machine again, then systemctl restart gleaner-control"
_DAY_S = 86400.0
_CERTIFICATE_DAYS = 30
_USUAL_PERIODS, _STEP_AT_LEAST_S = 5, 600.0
"""The number of periods after which a step is late, because a round with much work can last that long."""
_POLL_AT_LEAST_S = 120.0
_CURES = (
    ("expired", _RENEW),
    ("mismatch", "use a name that the certificate has, or make it again: glean setup control --host NAME"),
    ("certificate", "ca_file must be the authority of control's certificate: copy it from control's machine again"),
    ("ca_file", "set ca_file to the authority of control's certificate, and let all users read it"),
    ("SSL", "there is no https at this address: is the address right, and does control have a certificate?"),
    ("", "is its address right, does control run and not hang, and does no firewall block its port?"),
)
"""Words in a connection's error, each with the remedy."""


@check("settings", (CONTROL, CLIENT))
def settings(look: Look) -> Finding:
    """Check that the settings are valid and consistent, and that control can read them."""
    path, is_control, started_s = Settings.file(), look.role is MachineRole.CONTROL, float("inf")
    readable = f"chmod 644 {path}; with a password in it: chgrp to the service account's group, chmod 640"
    try:
        found = look.settings
    except Unread as error:
        return fault(error.why, readable if error.is_denied else "correct that line; then run `glean config`")
    if path is None:
        missing = fault("there is no /etc/gleaner/gleaner.toml", "glean setup control")
        return missing if is_control else ok("the defaults")
    with suppress(Unread):  # the settings in the environment belong to another control
        if is_control and "GLEANER_SETTINGS" not in os.environ:
            started_s = look.health.values.get("started_s") or started_s
    place, rounds = look.place(path), found.rounds
    has_password = bool(urlsplit(found.queue.url).password)
    return first(
        f"{path} is in order",
        (has_password and place.mode & 0o004, warning, f"all can read the database's password in {path}", readable),
        (place.mode & 0o022, fault, f"users other than its owner can write to {path}", f"chmod 644 {path}"),
        (look.is_refused(path, "r"), fault, f"{look.account_name} cannot read {path}", readable),
        (rounds.longest_s <= 0, warning, "agents need the whole round for themselves", "a shorter agent_needs_s"),
        (place.changed_s > started_s + 1, warning, f"{path} was changed after control's start", _RESTART),
    )  # fmt: skip


@check("control", ALL)
def control(look: Look) -> Finding:
    """Check from control's answer that it leads, reaches its database, and has this version."""
    url = look.url  # raises an error if the settings are wrong
    try:
        answer = look.health
    except Unread as error:
        cure = next(cure for sign, cure in _CURES if sign in error.why)
        return fault(f"control does not answer at {urlsplit(url).hostname}: {error.why}", cure)
    values, ours = answer.values, installed_version()
    theirs, queue = str(values.get("version", "unknown"))[:40], str(values.get("queue", "ok"))
    storage = str(values.get("storage", "ok"))
    return first(
        "control answers and leads",
        ("leader" not in values, fault, f"another program answers: status {answer.status}", "set control's address"),
        (queue != "ok", fault, f"control answers, and its database does not: {queue}", "look at control's log"),
        (storage != "ok", fault, f"control answers, and its storage does not: {storage}", "look at the file server"),
        (not values.get("leader") and not values.get("has_leader"), fault,
         "control's door for people answers, and no control leads",
         "systemctl restart gleaner-control, on its machine; then look at its log"),
        (not values.get("leader"), warning, "another control than this one leads", "name that one's address"),
        ("unknown" not in {theirs, ours} and theirs != ours, warning, f"control is {theirs}, this machine {ours}",
         "install the same version, and restart control"),
    )  # fmt: skip


@check("steps of control", (CONTROL,))
def steps(look: Look) -> Finding:
    """Check control's background steps, and the age of its last snapshot of Slurm."""
    values, poll_s = look.health.values, look.settings.rounds.poll_s
    every_s: dict[str, float] = values.get("step_every_s") or {}
    ages: dict[str, float] = values.get("step_ages_s") or {}
    late = [f"{name[:40]} (for {in_words(age_s)})" for name, age_s in ages.items()
            if age_s > max(_USUAL_PERIODS * every_s.get(name, 0.0), _STEP_AT_LEAST_S)]  # fmt: skip
    age_s = float("inf") if values.get("last_poll_age_s") is None else values["last_poll_age_s"]
    seen = f"control read Slurm {f'{age_s:.0f} s ago' if age_s < float('inf') else 'never'}"
    about_slurm = "do sinfo and squeue answer here? `glean nodes` shows the reason"
    if not values.get("leader"):
        return not_checked("this control program does not lead")
    return first(
        seen,
        (values.get("failing"), fault, f"steps of control fail: {values.get('failing')}", "look at control's log"),
        (late, fault, f"steps of control never finish: {', '.join(late)}", "control's log names what they wait for"),
        (age_s > max(_USUAL_PERIODS * poll_s, _POLL_AT_LEAST_S), fault, seen, about_slurm),
    )


def problem(look: Look) -> str:
    """Return control's own report of a fault between control and its agents or Slurm, or "" if there is none."""
    with suppress(Unread):
        answer = look.answer_with_token("/v1/nodes")
        return one_line(str(answer.values.get("problem") or "")) if answer.status == 200 else ""
    return ""


@check("certificate", ALL)
def certificate(look: Look) -> Finding:
    """Check the certificate and its key on control's machine, and elsewhere the certificate that control presents."""
    mode, refused = 0, ""
    if look.role is not MachineRole.CONTROL:
        ends_s = look.health.certificate_ends_s
    else:
        api = look.settings.api
        if api.certificate is None or api.key is None:
            return ok("none: control listens on this machine only")
        try:
            ends_s = certificate_end_s(api.certificate, api.key)
        except Unread as error:
            return not_checked(error.why, "run this as root") if error.is_denied else fault(error.why, _RENEW)
        mode = look.place(api.key).mode
        refused = " and ".join(str(path) for path in (api.certificate, api.key) if look.is_refused(path, "r"))
    days = (ends_s - time.time()) / _DAY_S
    return first(
        f"ends in {days:.0f} days" if ends_s else "plain http, on this machine only",
        (mode & 0o077, fault, "other users can read the certificate's key", "chmod 600 the file that [api] key names"),
        (refused, fault, f"{look.account_name} cannot read {refused}, so control cannot start again", "chown them"),
        (ends_s and days < 0, fault, f"the certificate expired {-days:.0f} days ago", _RENEW),
        (ends_s and days < _CERTIFICATE_DAYS, warning, f"the certificate ends in {days:.0f} days", _RENEW),
    )


@check("database", (CONTROL,))
def database(look: Look) -> Finding:
    """Check the queue's database: its tables, and a trial transaction as the service account."""
    url = look.settings.queue.url
    path = sqlite_file(url)
    trouble = str(look.probe("database", url, path)["trouble"])
    cure = f"`glean control migrate`; chown {look.account_name}: {path}* and its folder" if path else "does it run?"
    return first(
        "the tables are this version's, and the service account can write them",
        ("locked" in trouble, fault, "another program holds the database", f"end it: fuser -v {path}"),
        (trouble, fault, f"control cannot use its database: {trouble}", cure),
    )


def sqlite_file(url: str) -> str:
    """Return the file of a SQLite database, or "" for another database.

    >>> sqlite_file("sqlite:////var/lib/gleaner/queue.db"), sqlite_file("postgresql://db/queue")
    ('/var/lib/gleaner/queue.db', '')
    """
    return urlsplit(url).path.removeprefix("/") if url.startswith("sqlite") else ""


@check("key for secrets", (CONTROL,))
def secret_key(look: Look) -> Finding:
    """Check the key for groups' secrets: it exists, only the service account can read it, and no node has it."""
    path = look.settings.queue.secret_key_file
    try:
        place = look.place(path)
    except Unread as error:
        return warning(f"groups cannot keep secrets: {error.why}", "put a backup there; or glean control prepare")
    is_shared = path.resolve().is_relative_to(look.settings.storage.folder.resolve())
    is_others = place.mode & 0o077 or place.uid != look.account.pw_uid
    return first(
        f"{path} can be read only by the service account",
        (is_shared, fault, f"{path} is on the shared storage", "move it, and correct [queue] secret_key_file"),
        (is_others, fault, f"{path} is {place}", f"chown {look.account_name} {path}; chmod 600 {path}"),
    )


@check("token", (CONTROL, CLIENT))
def token(look: Look) -> Finding:
    """Check the token of the user who runs the doctor."""
    client = look.settings.client
    path = client.token_file.expanduser()
    try:
        mode, _ = look.place(path).mode, look.token
    except Unread as error:
        if error.is_missing and (look.role is MachineRole.CONTROL or client.proof != "token"):
            return not_checked(f"there is no token in {path}, and munge proves who you are")
        return fault(error.why, f"put only a token into {path}, mode 600; an admin makes one: glean token")
    answer = look.answer_with_token("/v1/status")
    return first(
        f"control knows the token in {path}",
        (mode & 0o077, fault, f"other users can read the token in {path} (mode {mode:o})", f"chmod 600 {path}"),
        (answer.status in {401, 403}, fault, f"control refuses the token in {path}: {answer.values.get('detail')}",
         "ask an admin for a new one"),
    )  # fmt: skip


@check("munge", ALL)
def munge(look: Look) -> Finding:
    """Check munge, which Slurm and users without a token need, as the service account."""
    where, is_client = "", look.role is MachineRole.CLIENT
    with suppress(Unread):
        socket = look.settings.client.munge_socket if is_client else look.settings.munge.socket
        where = f" --socket={socket}" if socket and Path(socket).exists() else ""
    words = ("sh", "-c", f'made=$(munge --no-input{where}) && echo "$made" | unmunge{where}')
    ended = look.run_as_account(*words) if look.is_root and not is_client else look.run(*words)
    if ended.status == 0:
        return ok("makes and reads a credential")
    if is_client and look.settings.client.proof != "munge":
        return not_checked("munge does not work here, and a token does instead")
    cure = "munged must run, with one /etc/munge/munge.key everywhere, and /run/munge open to all (chmod 755)"
    return fault(f"munge does not work: {complaint(ended)}", cure)
