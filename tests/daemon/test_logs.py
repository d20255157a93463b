"""Control's own log, as a program of its own writes it."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import logging, sys
import structlog
from structlog.contextvars import bind_contextvars
from gleaner.control.daemon import logs
logs.write_to_stderr(sys.argv[1])
bind_contextvars(request="r1")
structlog.get_logger("ours").info("listening", address=("::1", 8642))
logging.getLogger("library").warning("the pool is %s", "full")
logging.getLogger("library").info("not said")
logging.getLogger("gleaner.audit").info("%s", '{"who":"alice"}')
try:
    1 / 0
except ZeroDivisionError:
    structlog.get_logger().exception("a round failed", step="drafts")
"""


def _said(form: str) -> str:
    done = subprocess.run([sys.executable, "-c", PROGRAM, form], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == ""
    return done.stderr


@pytest.mark.slow
def test_each_line_is_an_object_with_the_id_of_its_request() -> None:
    ours, library, audited, failed = (json.loads(line) for line in _said("json").splitlines())
    assert (ours["event"], ours["level"], ours["request"], ours["address"]) == (
        "listening",
        "info",
        "r1",
        ["::1", 8642],
    )
    assert (library["event"], library["level"], library["logger"]) == ("the pool is full", "warning", "library")
    assert audited == {"who": "alice"}
    assert failed["step"] == "drafts"
    assert "ZeroDivisionError" in failed["exception"]
    assert {"timestamp"} <= ours.keys() & library.keys() & failed.keys()


@pytest.mark.slow
def test_people_read_plain_lines() -> None:
    said = _said("text")
    assert "listening" in said
    assert "request=r1" in said
    assert "WARNING library: the pool is full" in said
    assert 'INFO gleaner.audit: {"who":"alice"}' in said
    assert "ZeroDivisionError: division by zero" in said
