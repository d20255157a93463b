"""The key of user jobs must be the same on all nodes: agents note the fingerprint of their node's key in the storage.

`glean doctor` on a node compares it with the others' (`doctor.probe`). Nobody gets the key from a fingerprint.
"""

from contextlib import suppress
from pathlib import Path

import structlog

from gleaner.agent.checkpoints.storage_root import KEY_NOTE
from gleaner.agent.privileged.common.config import Config
from gleaner.agent.runtime.helper_client import HelperClient
from gleaner.agent.runtime.interface import RuntimeFault
from gleaner.agent.system import atomic

_AGAIN_S = 12 * 3600.0
"""A note of this age is written again, so that notes of nodes that are gone grow old, and are removed."""

log = structlog.get_logger()


def note_key(settings: Config, storage: Path, node: str, *, now_s: float) -> None:
    """Note the fingerprint of this node's key, if user jobs are served here. A failure is only logged."""
    if not settings.user_jobs_key:
        return
    try:
        fingerprint = HelperClient(settings.helper_socket).ask("facts").fields.get("user_jobs_key")
        if isinstance(fingerprint, str) and fingerprint:  # an older helper tells none
            _write(storage / "agents" / f"{node}{KEY_NOTE}", fingerprint, now_s)
    except (RuntimeFault, OSError) as error:
        log.info("the key of user jobs is not noted", reason=str(error))


def _write(path: Path, fingerprint: str, now_s: float) -> None:
    """Write the note if it is not there as it should be. Raises `OSError`."""
    with suppress(OSError):
        if path.read_bytes() == fingerprint.encode() and now_s - path.stat().st_mtime < _AGAIN_S:
            return
    atomic.replace(path, fingerprint.encode())
