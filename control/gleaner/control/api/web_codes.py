"""Codes with which a browser signs in to the web page, as the user or admin who asks for one (`glean web`)."""

from fastapi import APIRouter

from gleaner.control.api.access import User
from gleaner.control.api.problems import documented
from gleaner.control.models.web_codes import WebCode
from gleaner.control.queue import web_sessions

router = APIRouter(prefix="/v1/web-codes", tags=["tokens"])


@router.post("", status_code=201, responses=documented())
def issue_web_code(caller: User) -> WebCode:
    """Make a code that signs one browser in as the caller. It is good once, and for a minute."""
    now_s = caller.now_s
    with caller.writing() as db:
        code = web_sessions.issue_code(db, caller.identity, now_s=now_s)
    return WebCode(code=code, expires_s=now_s + web_sessions.CODE_S)
