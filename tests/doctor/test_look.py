"""A look ends in time, whatever hangs, and names in one line what it could not read."""

import socket
import threading
import time

import pytest

from gleaner.control.doctor.check import CONTROL, Check
from gleaner.control.doctor.connection import ask
from gleaner.control.doctor.doctor import CHECKS, examine
from gleaner.control.doctor.finding import CheckState, MachineRole, Unread
from gleaner.control.doctor.look import Look
from gleaner.control.input_errors import InputError
from gleaner.control.settings import Settings

PATIENCE_S = 60.0


def no_settings() -> Settings:
    raise InputError("no settings")


@pytest.fixture
def look() -> Look:
    return Look(MachineRole.CLIENT, no_settings, within_s=PATIENCE_S)


def why(error: "pytest.ExceptionInfo[Unread]") -> str:
    assert "\n" not in error.value.why
    return error.value.why


def test_a_program_that_is_missing_hangs_or_fails_is_one_line(look: Look) -> None:
    with pytest.raises(Unread) as error:
        look.run("no-such-program")
    assert (why(error), error.value.is_missing) == ("there is no program no-such-program here", True)
    with pytest.raises(Unread) as error:
        Look(MachineRole.CLIENT, no_settings, within_s=0.0).run("sleep", "1000")
    assert "sleep did not answer within 0.2 s" in why(error)
    late = Look(MachineRole.CLIENT, no_settings, within_s=PATIENCE_S)
    late.ends_s = time.monotonic()
    with pytest.raises(TimeoutError):  # it had too little time to be called a program that hangs
        late.run("sleep", "1000")
    with pytest.raises(Unread) as error:
        look.printed("sh", "-c", "echo good; echo bad >&2; exit 3")
    assert why(error).endswith("failed: bad")


def test_a_token_never_travels_in_the_clear() -> None:
    with pytest.raises(Unread) as error:
        ask("http://head:8642", "/v1/status", None, within_s=PATIENCE_S, token="secret")
    assert "unencrypted" in why(error)
    assert "secret" not in why(error)


def test_a_server_that_is_away_or_hangs_is_one_line() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        with pytest.raises(Unread) as error:
            ask(f"http://127.0.0.1:{port}", "/health", None, within_s=PATIENCE_S)
        assert f"127.0.0.1 port {port}: " in why(error)
        assert "Connection refused" in why(error)
        listening.listen()
        for scheme in ("http", "https"):
            with pytest.raises(Unread) as error:
                ask(f"{scheme}://127.0.0.1:{port}", "/health", None, within_s=0.05)
            assert f"127.0.0.1 port {port}: " in why(error)
            assert "timed out" in why(error)


def test_a_check_that_hangs_or_breaks_keeps_none_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()

    def hangs(_: Look) -> None:
        goes_on.wait()

    def breaks(_: Look) -> None:
        raise ValueError("two\nlines")

    odd = [Check("hangs", (CONTROL,), hangs), Check("breaks", (CONTROL,), breaks)]  # type: ignore[arg-type]
    job_submit = next(one for one in CHECKS if one.name == "settings")
    monkeypatch.setattr("gleaner.control.doctor.check.CHECKS", [*odd, job_submit])
    found = {one.name: one for one in examine(Look(CONTROL, no_settings, within_s=0.5))}
    goes_on.set()
    assert (found["hangs"].state, found["breaks"].state) == (CheckState.NOT_CHECKED, CheckState.NOT_CHECKED)
    assert "ValueError: two lines" in found["breaks"].seen
    assert (found["settings"].state, found["settings"].seen) == (CheckState.FAULT, "no settings")
