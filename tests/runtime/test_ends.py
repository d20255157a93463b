"""A restored process may end at any instant: its exit code and its result are those of any job."""

import pytest
from tests.runtime.nodes_harness import Node, Work

pytestmark = pytest.mark.nodes


@pytest.fixture(params=["shim", "criu"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# The end of its time comes while it is saved, as for every program with a deadline on the clock.
DEADLINE = """
import os, signal, time
end = time.time() + {after_s}
print("ready")
while time.time() < end:
    pass
open("/job/result", "w").write("all of it")
print("done")
{end}
"""
ENDS = {
    "0": ("raise SystemExit(0)", 0),
    "1": ("raise SystemExit(1)", 1),
    "by a signal": (
        "import ctypes; ctypes.string_at(0)",
        139,
    ),  # the first process dies of no signal that is sent to it
}


@pytest.mark.parametrize(("end", "exit_code"), ENDS.values(), ids=ENDS)
def test_a_program_that_ends_right_after_its_restore_ends_as_any_job(
    pair: tuple[Node, Node], work: Work, end: str, exit_code: int
) -> None:
    here, there = pair
    program = DEADLINE.format(after_s=0.3, end=end)
    container = work.start(here, program)
    work.until("ready")
    saved = work.save(here, container)
    work.end(here, container)
    container = work.restore(there, saved, program)
    assert there.runtime.wait(container) == exit_code
    work.read_to_end()
    assert work.lines == ["ready", "done"]
    assert (work.folder(there) / "result").read_text() == "all of it"
    there.runtime.remove(container)
