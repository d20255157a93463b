"""The facts of the Slurm admin service: the account that it runs as, and the newest epoch that it has heard."""

import os
import pwd
import sqlite3
import time
from pathlib import Path

from gleaner.control.input_errors import one_line
from gleaner.control.settings import EntitlementSettings
from gleaner.control.setup import machine_facts, reading
from gleaner.control.setup.facts import EpochFacts, HeartbeatFacts, Unread
from gleaner.control.slurm_admin import settings as admin_settings

_USUAL_NAME = "gleaner-slurm-admin"
_USUAL_HEARTBEAT = "/run/gleaner/alive"


def account_name(settings: EntitlementSettings) -> str:
    """Return the account that the service runs as, by the owner of its socket; empty if that is not known."""
    try:
        return pwd.getpwuid(os.lstat(settings.slurm_admin_socket).st_uid).pw_name
    except (OSError, KeyError):
        return "" if settings.mode == "off" or not machine_facts.number_of(_USUAL_NAME) else _USUAL_NAME


def epochs(conf: Path, database: Path, patience_s: float) -> EpochFacts | Unread:
    """Return the newest epochs. The service's is read first: control gets a new epoch before the service hears it."""
    text = reading.text_file(conf)
    try:
        heartbeat = _USUAL_HEARTBEAT if isinstance(text, Unread) else admin_settings.parse(text.text, "").heartbeat
    except admin_settings.Misconfigured as error:
        return Unread(one_line(f"{conf}{error}"))
    file = f"{heartbeat}.epoch"
    said = reading.text_file(Path(file))
    if isinstance(said, Unread):
        return Unread("the Slurm admin service has heard no epoch yet") if said.is_missing else said
    if not said.text.strip().isdecimal():
        return Unread(f"{file} holds no number")
    try:
        return EpochFacts(file, int(said.text), machine_facts.stored_epoch(database, patience_s))
    except sqlite3.Error as error:
        return Unread(one_line(f"{database}: {error}"))


def heartbeat(conf: Path) -> HeartbeatFacts | Unread:
    """Return the age of the heartbeat that the service's settings name."""
    text = reading.text_file(conf)
    if isinstance(text, Unread):
        return text
    try:
        settings = admin_settings.parse(text.text, "")
    except admin_settings.Misconfigured as error:
        return Unread(one_line(f"{conf}{error}"))
    said = reading.text_file(settings.heartbeat)
    is_time = not isinstance(said, Unread) and said.text.strip().isdecimal()
    age_s = time.time() - int(said.text) if not isinstance(said, Unread) and is_time else None
    return HeartbeatFacts(str(settings.heartbeat), age_s, settings.fresh_for_s)
