"""Save and restore Docker's containers through the OCI runtime shim, as fast as CRIU and the storage allow.

The shim (`privileged.shim.main`) is registered with the engine as a runtime of its own; a container of that runtime
carries the name under which its agent waits. Nothing that is saved passes through the engine.
"""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import docker.errors

from gleaner.agent.checkpoints.archive import FolderArchive
from gleaner.agent.checkpoints.draft import FolderDraft
from gleaner.agent.privileged.common import config
from gleaner.agent.privileged.shim.criu_messages import StreamBroken
from gleaner.agent.privileged.shim.main import ANNOTATION_END, ANNOTATION_HANDSHAKE, ANNOTATION_RESTORE
from gleaner.agent.runtime.criu_reasons import cannot_checkpoint, cannot_restore
from gleaner.agent.runtime.criu_streams import TransferFailed, during_handshake, restore, save
from gleaner.agent.runtime.docker_http import LONG_PATIENCE_S, Engine, new_checkpoint, reading_answer
from gleaner.agent.runtime.interface import CannotRestore, RuntimeFault
from gleaner.agent.system.ipc import HandshakeFailed

RUNTIME = "gleaner"
"""The shim's name among the engine's runtimes."""


class DockerShim:
    """The shim of one engine."""

    def __init__(self, engine: Engine, settings: config.Config) -> None:
        self._engine = engine
        self._handshakes = Path(settings.handshakes)

    def annotations(self, name: str, *, restored: bool, end_s: str | None = None) -> Mapping[str, str]:
        """Return the annotations of a new container. Past `end_s` (see `LABEL_END`) the shim gives up on its agent."""
        marks = {ANNOTATION_HANDSHAKE: name} | ({ANNOTATION_RESTORE: "yes"} if restored else {})
        return marks | ({ANNOTATION_END: end_s} if end_s else {})

    def save(self, inspected: Mapping[str, Any], draft: FolderDraft) -> None:
        """Put a paused container's memory and written files into the draft.

        Raises `CannotCheckpoint`, and the engine's and the draft's errors.
        """
        with reading_answer():
            container, name = inspected["Id"], inspected["Name"].strip("/")
        checkpoint = new_checkpoint()
        try:
            during_handshake(
                self._handshakes,
                name,
                lambda handshake: save(handshake, draft),
                lambda: self._engine.create_checkpoint(container, checkpoint),
            )
        except TransferFailed as error:
            raise cannot_checkpoint(error.log, str(error)) from error
        except (HandshakeFailed, StreamBroken) as error:
            raise RuntimeFault(f"cannot save {name}: {error}") from error
        finally:
            with contextlib.suppress(docker.errors.APIError):
                self._engine.delete_checkpoint(container, checkpoint)

    def restore(self, container: str, name: str, archive: FolderArchive) -> None:
        """Start a container that was created with `annotations(restored=True)`, from the archive.

        Raises `CannotRestore`, and the engine's and the archive's errors.
        """
        try:
            during_handshake(
                self._handshakes,
                name,
                lambda handshake: restore(handshake, archive),
                lambda: self._engine.start(container, patience_s=LONG_PATIENCE_S),
            )
        except TransferFailed as error:
            raise cannot_restore(error.log, str(error)) from error
        except StreamBroken as error:
            raise CannotRestore(str(error)) from error
        except HandshakeFailed as error:
            raise RuntimeFault(f"cannot restore {name}: {error}") from error


@reading_answer()
def data_folder(engine: Engine) -> str:
    """Return the engine's data folder. Raises `RuntimeFault` if it keeps layers in a way that is not known here."""
    info = engine.info()
    if info["Driver"] != "overlay2":
        raise RuntimeFault(f"Docker's storage driver is {info['Driver']}: only overlay2 is supported")
    return str(info["DockerRootDir"])


def find_shim(engine: Engine) -> tuple[DockerShim | None, str]:
    """Return the shim of this node, or None and the reason why it cannot be used."""
    info = engine.info()
    with reading_answer():
        has_shim = RUNTIME in info.get("Runtimes", {})
    if not has_shim:
        return None, f"the engine knows no runtime {RUNTIME!r}"
    try:
        settings = config.load()
    except config.Misconfigured as error:
        return None, str(error)
    if settings.agent_uid != os.getuid():
        return None, f"the shim works for uid {settings.agent_uid}, and this agent is {os.getuid()}"
    if not os.access(settings.handshakes, os.W_OK | os.X_OK):
        return None, f"{settings.handshakes} is not there or not ours: see the install note"
    return DockerShim(engine, settings), ""
