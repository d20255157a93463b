"""Sessions of browsers: a code is good once and for a minute, and a session ends with the token behind it."""

from dataclasses import replace

import pytest
from sqlalchemy import Engine, func, select

from gleaner.control.queue import tokens, web_sessions
from gleaner.control.queue.database import transaction
from gleaner.control.queue.tables import WEB_SESSION
from gleaner.control.queue.tokens import Identity

START_S = 1_800_000_000.0


def _alice(engine: Engine, days: float | None = None) -> Identity:
    with transaction(engine) as db:
        made = tokens.make(db, role="user", name="alice", group="atlas", manager=True, days=days, now_s=START_S)
        who = tokens.identify(db, made.token)
    assert who is not None
    return who


def test_a_code_is_good_once_and_its_session_is_of_whoever_asked_for_it(queue_engine: Engine) -> None:
    alice = _alice(queue_engine)
    with transaction(queue_engine) as db:
        code = web_sessions.issue_code(db, alice, now_s=START_S)
        assert web_sessions.identify(db, code, now_s=START_S) is None
        assert not web_sessions.is_code(db, code, now_s=START_S + 60)
        secret = web_sessions.open_by_code(db, code, now_s=START_S + 59)
        assert secret is not None
        for used in (code, secret):  # a session's secret is no code, either
            assert not web_sessions.is_code(db, used, now_s=START_S + 59)
            assert web_sessions.open_by_code(db, used, now_s=START_S + 59) is None
        found = web_sessions.identify(db, secret, now_s=START_S + 60)
        assert found == replace(alice, expires_s=START_S + 59 + web_sessions.SESSION_S)
        stored = str(db.execute(select(WEB_SESSION)).all())
    assert code not in stored
    assert secret not in stored


@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_no_code_and_no_session_outlives_the_token_behind_it(queue_engine: Engine, how: str) -> None:
    alice = _alice(queue_engine, days=1 / 24)
    with transaction(queue_engine) as db:
        secret = web_sessions.open_by_token(db, alice, now_s=START_S)
        assert web_sessions.identify(db, secret, now_s=START_S + 3599) == replace(alice, expires_s=START_S + 3600)
        if how == "revoked":
            tokens.end(db, alice.token, now_s=START_S + 1)
        now_s = START_S + (2 if how == "revoked" else 3600)
        code = web_sessions.issue_code(db, alice, now_s=now_s)
        assert web_sessions.open_by_code(db, code, now_s=now_s) is None
        assert web_sessions.identify(db, secret, now_s=now_s) is None


def test_ended_sessions_and_old_codes_are_removed(queue_engine: Engine) -> None:
    root = Identity("admin", "root", None)
    with transaction(queue_engine) as db:
        web_sessions.issue_code(db, root, now_s=START_S)
        web_sessions.open_by_token(db, root, now_s=START_S)
        assert web_sessions.remove_ended(db, now_s=START_S + 60, at_most=10) == 1
        assert web_sessions.remove_ended(db, now_s=START_S + web_sessions.SESSION_S, at_most=10) == 1
        assert db.execute(select(func.count()).select_from(WEB_SESSION)).scalar_one() == 0
