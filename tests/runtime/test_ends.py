"""A restored process may end at any instant: its exit code and its result are those of any job."""

import pytest
from tests.effort import a_few
from tests.runtime.nodes_harness import Node, Work

pytestmark = pytest.mark.nodes


@pytest.fixture(params=["shim", "criu"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# Like a program whose deadline on the wall clock comes while it is saved: its first step after the restore ends it.
# The monotonic clock stands still while it is saved.
DEADLINE = """
import ctypes, os, time
def apart():
    return time.time() - time.monotonic()
end = apart() + 0.05
print("ready")
while apart() < end:
    pass
open("/job/result", "w").write("all of it")
print("done")
{end}
"""
# The first process of a container dies of no signal that is sent to it: this one is a fault of its own.
ENDS = [("raise SystemExit(1)", 1), ("raise SystemExit(0)", 0), ("ctypes.string_at(0)", 139)]


@pytest.mark.parametrize(("end", "exit_code"), a_few(ENDS, 1))
def test_a_program_that_ends_right_after_its_restore_ends_as_any_job(
    pair: tuple[Node, Node], work: Work, end: str, exit_code: int
) -> None:
    here, there = pair
    program = DEADLINE.format(end=end)
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
