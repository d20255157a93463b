"""Pack the facts that a bug report needs, without anything that could be a secret.

Only facts that are known to be harmless are packed: settings of Gleaner and of Slurm from a list of keys, and the
findings in our own words. Logs are not packed, because they are free text.
"""

import io
import json
import os
import platform
import re
import tarfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from gleaner.agent.common.installed_version import installed_version
from gleaner.agent.privileged.common import config
from gleaner.control.doctor.finding import Finding, Unread
from gleaner.control.doctor.look import Look, agent_file
from gleaner.control.settings import Settings

NUMBERS = re.compile(
    "length_s|origin_s|synchronised|shortest_slice_s|agent_needs_s|poll_s|pending_limit_s|agents_at_most|"
    "failures_until_excluded|lease_s|heartbeat_s|retries|losses_until_held|keep_days|timeout_s|submits_per_s|port|"
    "connections_at_most|quantum_s|grace_s|retry_s|settle_s|every_s|patience_s|"
    "margin_s|kill_wait_s|idle_s|memory_mib|cpus|disk_mib_per_job|disk_reserve_mib|agent_uid|KillWait|MinJobAge|"
    "GraceTime|PriorityTier|PrologEpilogTimeout|EpilogTimeout|DefMemPerCPU|DefMemPerNode|MaxMemPerNode|MaxTime|"
    "PreemptExemptTime|SuspendTime"
)
"""The keys of settings whose value is a number, a time or a truth value."""
WORDS = {
    "backend": "slurm|pyslurm", "mode": "off|dry-run|on", "policy": "none|compaction|priorities",
    "proof": "auto|token|munge", "format": "text|json", "runtime": "auto|docker|criu",
    "SLURM_VERSION": r"[\d.]+", "State": "[A-Z+]+", "PreemptMode": "[A-Z,]+", "SelectTypeParameters": "[A-Z_,]+",
    "AccountingStorageEnforce": "[a-z,]+", "PreemptParameters": "[a-z_,]+", "SelectType": "select/[a-z_]+",
    "SchedulerType": "sched/[a-z]+", "PreemptType": "preempt/[a-z_]+", "ProctrackType": "proctrack/[a-z_]+",
}  # fmt: skip
"""Settings whose value is one of several words, by their keys, as regular expressions."""
_NUMBER = r"(?:\d{1,12}(?:\.\d{1,6})?(?: sec)?|(?:\d{1,3}-)?\d\d:\d\d:\d\d|true|false|UNLIMITED|INFINITE)"
_SETTING = re.compile(r"""(?m)(?:^|[\s,{])"?(\w+)"?[ \t]*[=:][ \t]*(?:"([^"\n]*)"|([^\s,}"]+(?: sec)?))""")


def without_secrets(text: str) -> str:
    """Return the harmless settings in a text of TOML, JSON or Slurm, each on its own line.

    >>> without_secrets('length_s = 90, password = "90", backend = "slurm"').splitlines()
    ['length_s = 90', 'backend = slurm']
    """
    found = ((key, quoted or plain) for key, quoted, plain in _SETTING.findall(text))
    return "".join(f"{key} = {value}\n" for key, value in found if _is_harmless(key, value))


def _is_harmless(key: str, value: str) -> bool:
    wanted = _NUMBER if NUMBERS.fullmatch(key) else WORDS.get(key, "(?!)")
    return re.fullmatch(wanted, value) is not None


def pack(path: Path, look: Look, findings: tuple[Finding, ...]) -> None:
    """Write the bundle so that only its owner can read it. Raises `OSError`. An existing file is not overwritten."""
    texts = contents(look, findings)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in texts.items():
            entry = tarfile.TarInfo(f"glean-doctor/{name}")
            entry.size, entry.mtime, entry.mode = len(text.encode()), int(time.time()), 0o600
            archive.addfile(entry, io.BytesIO(text.encode()))


def contents(look: Look, findings: tuple[Finding, ...]) -> dict[str, str]:
    """Return the texts of a bundle by their names.

    In a finding, words from other programs appear only after a colon, and are left out.
    """
    about = {
        "role": look.role, "version": installed_version(), "kernel": platform.release(),
        "python": platform.python_version(), "is_root": look.is_root,
        "findings": [{"name": one.name, "state": one.state, "seen": one.seen.partition(": ")[0]} for one in findings],
    }  # fmt: skip
    places = [place for place in (Settings.file(), agent_file(), look.at(config.CONFIG_FILE)) if place is not None]
    readers = {f"{place.name}.txt": partial(look.text, place) for place in places}
    for what in ("config", "partition"):
        readers[f"{what}.txt"] = partial(look.printed, "scontrol", "--oneliner", "show", what)
    texts = {"findings.json": json.dumps(about, indent=2) + "\n"}
    for name, read in readers.items():
        with suppress(Unread):
            texts[name] = without_secrets(read())
    return texts
