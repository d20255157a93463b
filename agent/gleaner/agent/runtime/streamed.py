"""Saving and restoring Docker's containers through the OCI runtime shim: at the speed of CRIU and the storage.

The shim (`privileged.shim`) is registered with the engine as a runtime of its own; a container of that runtime
carries the name under which its agent waits. What the container has written to its own file system goes the
engine's way, and only if there is anything.
"""

import contextlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import docker.errors

from gleaner.agent.privileged import config
from gleaner.agent.privileged.meeting import NotMet
from gleaner.agent.privileged.shim import ANNOTATION_END, ANNOTATION_MEETING, ANNOTATION_RESTORE
from gleaner.agent.privileged.streaming import StreamBroken
from gleaner.agent.runtime.carrier import LAYER_PART, UPPER_LAYER, carrier, save_layer
from gleaner.agent.runtime.engine import LONG_PATIENCE_S, Engine, criu_reason, new_checkpoint
from gleaner.agent.runtime.meetings import Failed, restore, save, while_meeting
from gleaner.agent.runtime.protocol import (
    FOLDER_IN_CONTAINER,
    CannotCheckpoint,
    CannotRestore,
    RuntimeFault,
)
from gleaner.agent.storage.protocol import Draft, Parcel

RUNTIME = "gleaner"
"""The shim's name among the engine's runtimes."""


class Streamed:
    """The shim on one engine."""

    def __init__(self, engine: Engine, settings: config.Config) -> None:
        self._engine = engine
        self._meetings = Path(settings.meetings)

    def annotations(self, name: str, *, restored: bool, end_s: str | None = None) -> Mapping[str, str]:
        """What a new container of ours must carry. Past `end_s` (see `LABEL_END`) the shim gives up on its agent."""
        marks = {ANNOTATION_MEETING: name} | ({ANNOTATION_RESTORE: "yes"} if restored else {})
        return marks | ({ANNOTATION_END: end_s} if end_s else {})

    def save(self, inspected: Mapping[str, Any], draft: Draft) -> None:
        """Put a paused container's memory and written files into the draft.

        Raises `CannotCheckpoint`, and the engine's and the draft's errors.
        """
        container = inspected["Id"]
        with ThreadPoolExecutor(1) as beside:  # the engine compares all files of the image, which takes it a while
            has_written = beside.submit(self._engine.has_written, container, apart_from=FOLDER_IN_CONTAINER)
            self._save_memory(inspected, draft)
        if has_written.result():
            with carrier(self._engine, inspected) as carried:
                save_layer(self._engine, container, carried, draft)

    def _save_memory(self, inspected: Mapping[str, Any], draft: Draft) -> None:
        container, name = inspected["Id"], inspected["Name"].strip("/")
        checkpoint = new_checkpoint()
        try:
            while_meeting(
                self._meetings,
                name,
                lambda met: save(met, draft),
                lambda: self._engine.create_checkpoint(container, checkpoint),
            )
        except Failed as error:
            raise CannotCheckpoint(criu_reason(error.log) or str(error)) from error
        except (NotMet, StreamBroken) as error:
            raise RuntimeFault(f"cannot save {name}: {error}") from error
        finally:
            with contextlib.suppress(docker.errors.APIError):
                self._engine.delete_checkpoint(container, checkpoint)

    def restore(self, container: str, name: str, parcel: Parcel) -> None:
        """Start a container that was created with `annotations(restored=True)`, from the parcel.

        Raises `CannotRestore`, and the engine's and the parcel's errors.
        """
        engine = self._engine
        if LAYER_PART in parcel.parts:
            with carrier(engine, engine.inspect(container)) as carried:
                engine.receive(carried, UPPER_LAYER, parcel.read(LAYER_PART))
        try:
            while_meeting(
                self._meetings,
                name,
                lambda met: restore(met, parcel),
                lambda: engine.start(container, patience_s=LONG_PATIENCE_S),
            )
        except Failed as error:
            raise CannotRestore(f"CRIU cannot restore its memory: {criu_reason(error.log) or error}") from error
        except StreamBroken as error:
            raise CannotRestore(str(error)) from error
        except NotMet as error:
            raise RuntimeFault(f"cannot restore {name}: {error}") from error


def found(engine: Engine) -> tuple[Streamed | None, str]:
    """The shim of this node, or none and the reason why it cannot be used."""
    if RUNTIME not in engine.info().get("Runtimes", {}):
        return None, f"the engine knows no runtime {RUNTIME!r}"
    try:
        settings = config.load()
    except config.Misconfigured as error:
        return None, str(error)
    if settings.agent_uid != os.getuid():
        return None, f"the shim works for uid {settings.agent_uid}, and this agent is {os.getuid()}"
    if not os.access(settings.meetings, os.W_OK | os.X_OK):
        return None, f"{settings.meetings} is not there or not ours: see the install note"
    return Streamed(engine, settings), ""
