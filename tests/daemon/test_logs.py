"""Control's own log, as a program of its own writes it."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import logging
import structlog
from structlog.contextvars import bind_contextvars
from gleaner.control.daemon import logs
logs.write_to_stderr("json")
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


@pytest.mark.slow
def test_each_line_is_an_object_with_the_id_of_its_request() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == ""
    ours, library, audited, failed = (json.loads(line) for line in done.stderr.splitlines())
    assert (ours["event"], ours["request"], ours["address"]) == ("listening", "r1", ["::1", 8642])
    assert (library["event"], library["level"], library["logger"]) == ("the pool is full", "warning", "library")
    assert audited == {"who": "alice"}
    assert failed["step"] == "drafts"
    assert "ZeroDivisionError" in failed["exception"]
    assert {"timestamp"} <= ours.keys() & library.keys() & failed.keys()
