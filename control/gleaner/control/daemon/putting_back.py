"""The restoration of a backup of the queue, and the recovery of later progress from the storage (`queue.recovery`)."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from gleaner.agent.checkpoints.archive import FolderArchive
from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import ArchiveBroken
from gleaner.agent.job.job_checkpoints import Chain
from gleaner.agent.messages import NodeFacts
from gleaner.control.daemon.storage_gc import JobArchive, job_archive
from gleaner.control.queue import backup, recovery
from gleaner.control.queue.database import connect, migrate, transaction
from gleaner.control.queue.recovery import Found, Recovered


def put_back(url: str, file: Path, storage: Path, *, replace: bool, now_s: float) -> Recovered:
    """Restore a backup. Raises `QueueError`, `StorageError` or `OSError`, and can be called again after any of them."""
    place = FolderStorage(storage)
    engine = connect(url)
    try:
        with backup.put_back(engine, file, replace=replace) as restored:
            migrate(restored)
            # List the archives only now, because agents publish new ones while the backup is loaded, which can take
            # long.
            archives = [one for key in place.keys("jobs") if (one := job_archive(key)) is not None]
            with transaction(restored) as db:
                found = _found(place, archives, recovery.unfinished_attempts(db))
                stored_jobs = {one.job: one.attempt for one in sorted(archives, key=lambda one: one.attempt)}
                done = recovery.recover(db, found, stored_jobs=stored_jobs, now_s=now_s)
                backup.finish(db)
        return done
    finally:
        engine.dispose()


def _found(storage: FolderStorage, archives: list[JobArchive], latest: Mapping[int, int]) -> Iterator[Found]:
    """Yield the intact archives that attempts of unfinished jobs have stored since the backup."""
    for one in archives:
        if one.job not in latest or one.attempt < latest[one.job]:
            continue
        try:
            digest = storage.stored_digest(one.key)
            archive = storage.open(one.key, digest)
        except ArchiveBroken:
            continue
        yield read_archive(one, digest, archive)


def read_archive(one: JobArchive, digest: str, archive: FolderArchive) -> Found:
    """Return the facts that an archive contains about itself, as `JobCheckpoints` wrote them."""
    facts = archive.facts
    chain = Chain.of(facts)
    exit_code = facts.get("exit_code")
    return Found(
        job=one.job,
        attempt=one.attempt,
        number=one.number,
        digest=digest,
        size_bytes=sum(part.size_bytes for part in archive.parts.values()),
        exit_code=exit_code if isinstance(exit_code, int) else None,
        has_memory=facts.get("memory") is not False,
        chain=None if chain is None else chain.name,
        node=_node(facts.get("node")),
    )


def _node(facts: object) -> NodeFacts | None:
    try:
        return NodeFacts.model_validate(facts)
    except ValidationError:
        return None
