"""New tokens for users and admins. Agents get theirs from control itself, when it submits them."""

from typing import Annotated

from fastapi import APIRouter, HTTPException

from gleaner.control.api import examples
from gleaner.control.api.access import Admin
from gleaner.control.api.problems import documented
from gleaner.control.api.shapes import TokenIssued, TokenRequest
from gleaner.control.queue import tokens

router = APIRouter(prefix="/v1/tokens", tags=["tokens"])


@router.post("", status_code=201, responses=documented(409, 413, 422))
def issue(caller: Admin, request: Annotated[TokenRequest, examples.A_TOKEN_REQUEST]) -> TokenIssued:
    """Make a token. The secret is shown this once; only its hash is stored."""
    if request.role == "user" and request.group is None:
        raise HTTPException(422, "group: a user's token needs the group whose jobs it may see")
    with caller.writing() as db:
        secret = tokens.issue(db, role=request.role, name=request.name, group=request.group, now_s=caller.now_s)
    return TokenIssued(token=secret)
