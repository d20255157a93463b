"""A restored process may end at any instant: its exit code and its result are those of any job."""

import pytest
from tests.effort import a_few
from tests.runtime.nodes_harness import Node, Work

from gleaner.agent.runtime.interface import End

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
RETURNED = "the program itself returned it, as a shell does when SIGKILL has ended its command"
ENDS = [
    ("os.kill(os.getpid(), 9)", End(137)),
    ("raise SystemExit(137)", End(137, RETURNED)),
    ("raise SystemExit(1)", End(1)),
    ("raise SystemExit(0)", End(0)),
    ("ctypes.string_at(0)", End(139)),
    ("os.kill(os.getpid(), 15)", End(143)),
    ("os.abort()", End(134)),
]


@pytest.mark.parametrize(("how", "end"), ENDS)
def test_a_program_killed_by_a_signal_is_told_from_one_that_returns_its_code(
    node: Node, work: Work, how: str, end: End
) -> None:
    container = work.start(node, f"import ctypes, os; print('ready'); {how}")
    assert node.runtime.wait(container) == end
    assert not list(work.folder(node).iterdir())
    node.runtime.remove(container)


@pytest.mark.parametrize(("how", "end"), a_few(ENDS, 2))
def test_a_program_that_ends_right_after_its_restore_ends_as_any_job(
    pair: tuple[Node, Node], work: Work, how: str, end: End
) -> None:
    here, there = pair
    program = DEADLINE.format(end=how)
    container = work.start(here, program)
    work.until("ready")
    saved = work.save(here, container)
    work.end(here, container)
    container = work.restore(there, saved, program)
    assert there.runtime.wait(container) == end
    work.read_to_end()
    assert work.lines == ["ready", "done"]
    assert (work.folder(there) / "result").read_text() == "all of it"
    there.runtime.remove(container)
