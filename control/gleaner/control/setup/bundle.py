"""Pack what a report of a bug needs: findings, settings, Slurm's lines that matter, and the ends of logs.

Every text passes `redaction` before it is packed.
"""

import io
import json
import os
import platform
import re
import stat
import tarfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from gleaner.agent.system.untrusted import text_of
from gleaner.control.setup import reading
from gleaner.control.setup.facts import Facts, MachineRole, Output, TextFile, Unread
from gleaner.control.setup.finding import Finding
from gleaner.control.setup.readers import UNITS
from gleaner.control.setup.redaction import password_of, without_secrets

_LINES = 300
_TAIL_BYTES = 2**18
_LOGS = Path("/var/log/gleaner")
_MOST_LOGS = 20
_SLURM_LINES = re.compile(
    r"(?m)^(?:SLURM_VERSION|SelectType|SchedulerType|Preempt|Epilog|Prolog|AccountingStorageEnforce|KillWait|DefMem|"
    r"PriorityType|ProctrackType|TaskPlugin|JobAcctGatherType|LaunchParameters|JobRequeue|JobSubmitPlugins|"
    r"SlurmdParameters|SchedulerParameters|ReturnToService|MinJobAge)[^\n]*$"
)
_SETTINGS = (".toml", ".json", ".conf")


def pack(path: Path, facts: Facts, findings: tuple[Finding, ...], logs: Mapping[str, str]) -> None:
    """Write the bundle, for its owner alone. Raises `OSError`; a file that is there already is not written over."""
    texts = contents(facts, findings, logs)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in texts.items():
            content = text.encode()
            entry = tarfile.TarInfo(f"glean-doctor/{name}")
            entry.size, entry.mtime, entry.mode = len(content), int(facts.now_s), 0o600
            archive.addfile(entry, io.BytesIO(content))


def contents(facts: Facts, findings: tuple[Finding, ...], logs: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of a bundle by their names, without secrets."""
    clean = partial(without_secrets, known=secrets_of(facts))
    about = {
        "role": facts.role,
        "version": facts.version,
        "kernel": facts.kernel,
        "python": platform.python_version(),
        "at_s": facts.now_s,
        "is_root": facts.is_root,
        "findings": [
            {"name": finding.name, "state": finding.state, "seen": clean(finding.seen), "to_do": clean(finding.to_do)}
            for finding in findings
        ],
    }
    texts = {"findings.json": json.dumps(about, indent=2) + "\n"}
    for name, file in facts.files.items():
        if isinstance(file, TextFile) and name.endswith(_SETTINGS):
            texts[f"settings/{Path(name).name}"] = clean(file.text)
    if slurm := slurm_lines(facts):
        texts["slurm.txt"] = clean(slurm)
    return texts | {f"logs/{name}": clean(text) for name, text in logs.items()}


def slurm_lines(facts: Facts) -> str:
    """Return the lines of Slurm's settings that matter to Gleaner, and those of the partitions."""
    parts: list[str] = []
    config, partitions = facts.programs.get("scontrol config"), facts.programs.get("scontrol partitions")
    if isinstance(config, Output):
        parts += _SLURM_LINES.findall(config.stdout)
    if isinstance(partitions, Output):
        parts += partitions.stdout.splitlines()
    return "\n".join(parts) + "\n" if parts else ""


def secrets_of(facts: Facts) -> frozenset[str]:
    """Return the secrets that were read on this machine: the caller's token, the database's password."""
    found: set[str] = set()
    if not isinstance(facts.settings, Unread):
        token = facts.files.get(str(facts.settings.client.token_file.expanduser()))
        if isinstance(token, TextFile):
            found.add(token.text.strip())
        found.add(password_of(facts.settings.queue.url))
    return frozenset(found - {""})


def read_logs(facts: Facts, *, within_s: float) -> dict[str, str]:
    """Return the last lines of our services' logs, by name: of systemd's journal, and of files."""
    readers: dict[str, Callable[[], str]] = {}
    if facts.has_systemd:
        for unit in UNITS[facts.role]:
            readers[f"{unit}.log"] = partial(_journal, unit, within_s)
    folders = [_LOGS]
    if facts.role is MachineRole.NODE and not isinstance(facts.agent, Unread):
        folders.append(facts.agent.work)
    for place in folders:
        for log in sorted(place.glob("*.log"))[-_MOST_LOGS:]:
            readers[log.name] = partial(tail, log)
    found = reading.side_by_side(readers, within_s=within_s)
    return {name: text.why if isinstance(text, Unread) else text for name, text in found.items()}


def _journal(unit: str, within_s: float) -> str:
    words = ("journalctl", "--no-pager", f"--lines={_LINES}", "--output=short-iso", f"--unit={unit}")
    said = reading.run(words, within_s=within_s)
    return said.why if isinstance(said, Unread) else said.stdout


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def tail(path: Path) -> str:
    """Return the last lines of a plain file. No link is followed: others than the caller may write to its folder."""
    with open(path, "rb", opener=_no_link) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return "not a plain file\n"
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        lines = text_of(file.read(_TAIL_BYTES)).splitlines()
    return "\n".join(lines[-_LINES:]) + "\n"
