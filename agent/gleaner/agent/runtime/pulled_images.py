"""A record of the container images that the agents of a node have pulled or loaded, and of each one's last use.

The record is a file that outlives its agents. Only images in it are ever removed; an image that an admin has loaded is
not ours.
"""

import fcntl
import json
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from gleaner.agent.privileged.common.untrusted import json_of

log = structlog.get_logger()

_NOTE_EVERY_S = 3600.0


@dataclass(frozen=True, slots=True)
class PulledImage:
    """One image by its full name, as it was when it was pulled; one that a group has pushed by its id."""

    image_id: str
    used_s: float


class PulledImages:
    """The record. Agents that live on one node at the same time share it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, image: str, image_id: str, *, now_s: float) -> None:
        """Record that the image was pulled."""
        with self._changed() as known:
            known[image] = PulledImage(image_id, now_s)

    def used(self, image: str, *, now_s: float) -> None:
        """Record that a job began with the image, by name or by id, if it was pulled."""
        if all(now_s - one.used_s < _NOTE_EVERY_S for one in self._named(self.known(), image).values()):
            return
        with self._changed() as known:
            for name, one in self._named(known, image).items():
                known[name] = PulledImage(one.image_id, now_s)

    def forget(self, image: str) -> None:
        """Delete the image from the record: it is not there any more, or is not ours."""
        with self._changed() as known:
            known.pop(image, None)

    def unused_longest(self) -> list[tuple[str, PulledImage]]:
        """Return all images of the record, the one that was used last at the end."""
        return sorted(self.known().items(), key=lambda named: named[1].used_s)

    def known(self) -> dict[str, PulledImage]:
        """Return the record. A file that cannot be read counts as empty: then nothing is removed."""
        try:
            found = json_of(self._path.read_bytes())
            return {name: PulledImage(str(one["image_id"]), float(one["used_s"])) for name, one in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning("cannot read which images were pulled", path=str(self._path), reason=str(error))
            return {}

    @staticmethod
    def _named(known: dict[str, PulledImage], image: str) -> dict[str, PulledImage]:
        return {name: one for name, one in known.items() if image in (name, one.image_id)}

    @contextmanager
    def _changed(self) -> Generator[dict[str, PulledImage]]:
        with ExitStack() as closing:
            try:
                turn = closing.enter_context(self._path.with_suffix(".lock").open("w"))
                fcntl.flock(turn, fcntl.LOCK_EX)
            except OSError as error:  # the record only saves room later
                log.warning("cannot note which images were pulled", path=str(self._path), reason=str(error))
                yield self.known()
                return
            known = self.known()
            yield known
            try:
                new = self._path.with_suffix(".new")
                new.write_text(json.dumps({name: asdict(one) for name, one in known.items()}))
                new.replace(self._path)
            except OSError as error:
                log.warning("cannot note which images were pulled", path=str(self._path), reason=str(error))
