"""The inputs of jobs, which are files and folders. Callers ask which inputs are missing, and store those.

All users of a group can use an input that one of them has stored, if they know the SHA-256 of its content.
"""

import hashlib
from collections.abc import Iterator
from typing import Annotated, BinaryIO

from fastapi import APIRouter

from gleaner.agent.checkpoints.interface import ArchiveBroken
from gleaner.agent.job.inputs import INPUT_PART, input_key
from gleaner.control.api import examples
from gleaner.control.api.access import Caller, User
from gleaner.control.api.problems import documented
from gleaner.control.api.storage_threads import READS_STORAGE, STORES
from gleaner.control.api.uploads import Upload, chunks_of, store, whole_digest
from gleaner.control.models.base import replaced
from gleaner.control.models.inputs import InputList, InputMissing, InputPut, InputRow
from gleaner.control.queue import inputs
from gleaner.control.queue.errors import Invalid

router = APIRouter(prefix="/v1/inputs", tags=["inputs"])


@router.post("/missing", responses=documented(413, 422))
@READS_STORAGE
def missing(caller: User, wanted: Annotated[InputList, examples.AN_INPUT_LIST]) -> InputMissing:
    """Return the inputs that the group has not stored. The stored ones count as just used."""
    group = caller.acts_for(wanted.group)
    with caller.writing() as db:
        stored = inputs.use(db, group, wanted.contents, now_s=caller.now_s)
    there = {one for one, row in stored.items() if _is_there(caller, input_key(group, one), row.digest)}
    return InputMissing(missing=tuple(one for one in dict.fromkeys(wanted.contents) if one not in there))


def _is_there(caller: Caller, key: str, digest: str) -> bool:
    try:
        return caller.state.storage.stored_digest(key) == digest
    except ArchiveBroken:  # a damaged or lost input has to be sent again
        return False


@router.post("", status_code=201, responses=documented(409, 413, 422, 502))
@STORES
def put(caller: User, given: Annotated[InputPut, examples.AN_INPUT]) -> InputRow:
    """Store an input that has been uploaded completely."""
    state, sent = caller.state, Upload(caller, "inputs", given.content, given.group, given.size_bytes)
    key = input_key(sent.group, given.content)
    row = InputRow(content=given.content, group=sent.group, size_bytes=given.size_bytes, used_s=caller.now_s)
    with caller.writing() as db:
        stored = inputs.use(db, sent.group, [given.content], now_s=caller.now_s).get(given.content)
    whole = whole_digest(state.storage, key, INPUT_PART)
    if stored is not None and whole == stored.digest:
        sent.remove()
        return replaced(row, size_bytes=stored.size_bytes)  # another user of the group was faster
    with sent.opened() as file:
        digest = store(state.storage, key, INPUT_PART, _checked(file, given), whole=whole)
        with caller.writing() as db:
            inputs.put(db, row, digest=digest)
    sent.remove()
    caller.about.append(f"group {sent.group}, input {given.content}")
    return row


def _checked(file: BinaryIO, given: InputPut) -> Iterator[bytes]:
    """Yield the content. Raises `Invalid` if its digest is wrong."""
    hashed = hashlib.sha256()
    for chunk in chunks_of(file):
        hashed.update(chunk)
        yield chunk
    if f"sha256:{hashed.hexdigest()}" != given.content:
        raise Invalid("it was changed or damaged on its way")
