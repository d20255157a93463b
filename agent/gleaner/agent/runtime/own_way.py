"""Saving and restoring containers in Docker's own way: for nodes without the shim.

The engine makes the checkpoint, and keeps it in its data folder as it does the container's written (upper) layer;
both are carried through a carrier (see `carrier`). The memory is copied several times over on its way, so this is
many times slower than the shim.

Proven with the engine 26.1 of Debian 13, runc 1.1 and CRIU 4.1.
"""

import contextlib
import secrets
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import docker.errors

from gleaner.agent.runtime.carrier import (
    CHECKPOINTS,
    LAYER_PART,
    UPPER_LAYER,
    carrier,
    criu_log_kept,
    save_layer,
    why,
)
from gleaner.agent.runtime.engine import Engine, explanation, new_checkpoint
from gleaner.agent.runtime.images import PREFIX
from gleaner.agent.runtime.layer import tar_of
from gleaner.agent.runtime.meetings import DESCRIPTORS_PART
from gleaner.agent.runtime.protocol import CannotCheckpoint, CannotRestore, ContainerId
from gleaner.agent.storage.protocol import Draft, Parcel

MEMORY_PART = "memory.tar"
"""The engine's whole checkpoint folder, as an archive."""

Create = Callable[[Mapping[str, str]], ContainerId]
"""Makes a container with these annotations."""


class OwnWay:
    """Docker's own checkpoints on one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def save(self, inspected: Mapping[str, Any], draft: Draft) -> None:
        """Put a paused container's memory and written files into the draft.

        Raises `CannotCheckpoint`, and the engine's and the draft's errors.
        """
        engine, container = self._engine, inspected["Id"]
        checkpoint = new_checkpoint()
        try:
            engine.create_checkpoint(container, checkpoint)
        except docker.errors.APIError as error:
            if not engine.inspect(container)["State"]["Paused"]:
                raise
            raise CannotCheckpoint(why(engine, inspected, error)) from error
        try:
            with carrier(engine, inspected) as carried:
                with contextlib.closing(engine.send(carried, f"{CHECKPOINTS}/{checkpoint}/.")) as memory:
                    draft.add(MEMORY_PART, memory)
                save_layer(engine, container, carried, draft)
        finally:
            with contextlib.suppress(docker.errors.APIError):
                engine.delete_checkpoint(container, checkpoint)

    def restore(
        self, create: Create, parcel: Parcel, *, name: str, image: str, labels: Mapping[str, str]
    ) -> ContainerId:
        """A container that goes on from the parcel, whichever way it was saved.

        Raises `CannotRestore`, and the engine's and the parcel's errors.
        """
        try:
            return self._restored(create, parcel, {})
        except docker.errors.APIError as error:
            said = explanation(error)
        # runc removes the log of a restore that failed. So once more, with the log in a place of ours.
        with criu_log_kept(self._engine, name, image=image, labels=labels) as log:
            try:
                return self._restored(create, parcel, log.annotations)
            except docker.errors.APIError as error:
                raise CannotRestore(f"CRIU cannot restore its memory: {log.reason() or said}") from error

    def _restored(self, create: Create, parcel: Parcel, annotations: Mapping[str, str]) -> ContainerId:
        engine = self._engine
        checkpoint = new_checkpoint()
        container = create(annotations)
        with engine.removed_on_failure(container):
            with carrier(engine, engine.inspect(container)) as carried:
                # The nonce makes each restore's content new to containerd, which refuses one that it still holds
                # from a restore or save before ("already exists").
                engine.receive(carried, CHECKPOINTS, tar_of(checkpoint, "nonce", secrets.token_bytes(16)))
                engine.receive(carried, f"{CHECKPOINTS}/{checkpoint}", _memory(parcel))
                if LAYER_PART in parcel.parts:
                    engine.receive(carried, UPPER_LAYER, parcel.read(LAYER_PART))
                engine.start_from(container, checkpoint)
                self._must_have_come_back(container)
            with contextlib.suppress(docker.errors.APIError):
                engine.delete_checkpoint(container, checkpoint)
        return container

    def _must_have_come_back(self, container: ContainerId) -> None:
        """The engine's yes to a restore is only a maybe. An exit of the workload soon after is fine."""
        time.sleep(0.1)
        state = self._engine.inspect(container)["State"]
        if not state["Running"] and (state["Status"] == "created" or state["Error"]):
            raise docker.errors.APIError("not restored", explanation=state["Error"] or "it did not start")


def _memory(parcel: Parcel) -> Iterator[bytes]:
    """The checkpoint folder as an archive; made up from the single images where they came through the shim."""
    if MEMORY_PART in parcel.parts:
        yield from parcel.read(MEMORY_PART)
        return
    for name, part in parcel.parts.items():
        if name != DESCRIPTORS_PART and not name.startswith(PREFIX):
            continue
        member = tarfile.TarInfo(name.removeprefix(PREFIX))
        member.size, member.mode = part.size_bytes, 0o600
        yield member.tobuf(tarfile.PAX_FORMAT)
        yield from parcel.read(name)
        yield bytes(-part.size_bytes % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)
