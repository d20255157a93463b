"""Inputs: the files and folders that jobs read. Ask what the group has stored, send pieces, store.

All users of a group may use what one of them has stored, if they know its content's SHA-256.
"""

import hashlib
from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, HTTPException

from gleaner.agent.job.inputs import INPUT_PART, input_key
from gleaner.control.api import examples
from gleaner.control.api.access import Caller, User
from gleaner.control.api.caller_places import IN_TURN
from gleaner.control.api.image_uploads import Uploads, check_pieces, whole_digest
from gleaner.control.api.images import Group, Piece, group_of
from gleaner.control.api.problems import documented
from gleaner.control.models.images import PieceList, PieceMissing, PieceStored
from gleaner.control.models.inputs import InputList, InputMissing, InputPut, InputRow
from gleaner.control.queue import inputs
from gleaner.control.queue.errors import Invalid

router = APIRouter(prefix="/v1/inputs", tags=["inputs"])
uploads = APIRouter(prefix="/v1/input-uploads", tags=["inputs"])


def _uploads(caller: Caller, named: str | None) -> Uploads:
    """Return the pieces of the group's inputs, if inputs may be stored."""
    if not caller.state.settings.inputs.group_gib:
        raise HTTPException(403, "this site stores no inputs ([inputs] group_gib in control's settings)")
    caller.state.check_leads()
    return Uploads(caller.state.settings.storage.folder, group_of(caller, named), "inputs")


@router.post("/missing", responses=documented(413, 422))
def missing(caller: User, wanted: Annotated[InputList, examples.AN_INPUT_LIST]) -> InputMissing:
    """Return the inputs that the group has not stored. Those that it has count as used now."""
    group = group_of(caller, wanted.group)
    with caller.writing() as db:
        stored = inputs.use(db, group, wanted.contents, now_s=caller.now_s)
    return InputMissing(missing=tuple(one for one in dict.fromkeys(wanted.contents) if one not in stored))


@uploads.post("/missing", responses=documented(413, 422))
def missing_pieces(caller: User, wanted: Annotated[PieceList, examples.A_PIECE_LIST]) -> PieceMissing:
    """Return the pieces that control lacks: an upload that was interrupted goes on with them."""
    return PieceMissing(missing=_uploads(caller, wanted.group).missing(wanted.pieces, now_s=caller.now_s))


@uploads.post("/pieces", status_code=201, responses=documented(409, 413, 422, 502))
def add_piece(caller: User, content: Piece, group: Group = None) -> PieceStored:
    """Take one piece of an input, and return the digest of what arrived."""
    at_most_bytes = caller.state.settings.inputs.largest_bytes
    return PieceStored(digest=_uploads(caller, group).add(content, at_most_bytes=at_most_bytes))


@router.post("", status_code=201, dependencies=[IN_TURN], responses=documented(409, 413, 422, 502))
def put(caller: User, given: Annotated[InputPut, examples.AN_INPUT]) -> InputRow:
    """Store an input whose pieces are all here."""
    state, sent, group = caller.state, _uploads(caller, given.group), group_of(caller, given.group)
    limits = state.settings.inputs
    if given.size_bytes > limits.largest_bytes:
        said = f"{given.size_bytes / 2**30:.3g} GiB, and may have {limits.largest_gib:.3g} ([inputs] largest_gib)"
        raise HTTPException(413, f"the input has {said}")
    check_pieces(given.pieces, given.size_bytes, what="the input")
    key = input_key(group, given.content)
    row = InputRow(content=given.content, group=group, size_bytes=given.size_bytes, used_s=caller.now_s)
    with state.images_turn:
        with caller.writing() as db:
            stored = inputs.use(db, group, [given.content], now_s=caller.now_s).get(given.content)
            if stored is None:
                inputs.check_room(db, group, given.size_bytes, limits.group_bytes)
        digest = whole_digest(state.storage, key, INPUT_PART)
        if stored is not None and digest == stored.digest:
            return row.model_copy(update={"size_bytes": stored.size_bytes})  # another user of the group was faster
        contents = _checked(given, sent.read(given.pieces))
        if digest is None:
            state.storage.set_aside(key)
            with state.storage.draft(key) as draft:
                draft.add(INPUT_PART, contents)
                digest = draft.publish({"content": given.content}).digest
        else:  # only who has the whole content may use it
            for _ in contents:
                pass
        with caller.writing() as db:
            inputs.put(db, row, digest=digest, group_bytes=limits.group_bytes)
        sent.remove(given.pieces)
    caller.about.append(f"group {group}, input {given.content}")
    return row


def _checked(given: InputPut, contents: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the contents. Raises `Invalid` if they are not what they were said to be."""
    hashed, size_bytes = hashlib.sha256(), 0
    for content in contents:
        hashed.update(content)
        size_bytes += len(content)
        if size_bytes > given.size_bytes:
            break
        yield content
    if f"sha256:{hashed.hexdigest()}" != given.content or size_bytes != given.size_bytes:
        raise Invalid(f"content: the pieces are not those of the input {given.content}")
