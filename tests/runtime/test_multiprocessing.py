"""Pools of processes in Python: their named semaphores are saved and restored, however the processes were started."""

import pytest
from tests.runtime.nodes_harness import Node, Work

pytestmark = [pytest.mark.nodes]

POOL = """
import os, sys
open("/job/pool.py", "w").write('''
import multiprocessing, os, time
def square(number):
    return number * number
if __name__ == "__main__":
    multiprocessing.set_start_method("{method}")
    count = 0
    with multiprocessing.Pool(2) as pool:
        before = sorted(os.listdir("/dev/shm"))
        while not os.path.exists("/job/stop"):
            assert pool.map(square, range(4)) == [0, 1, 4, 9]
            count += 1
            print(count)
            time.sleep(0.02)
        assert sorted(os.listdir("/dev/shm")) == before, os.listdir("/dev/shm")
    print("end")
''')
os.execvp("python3", ["python3", "-u", "/job/pool.py"])
"""


@pytest.fixture(params=["shim", pytest.param("criu", marks=pytest.mark.extended)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("method", ["spawn", pytest.param("forkserver", marks=pytest.mark.extended)])
def test_a_pool_goes_on_after_a_periodic_save_and_on_two_other_nodes_in_a_row(
    pair: tuple[Node, Node], work: Work, method: str
) -> None:
    node, other = pair
    program = POOL.format(method=method)
    container = work.start(node, program)
    work.until("3")
    work.save(node, container)
    node.runtime.unpause(container)
    for here, there in ((node, other), (other, node)):
        work.until(str(len(work.lines) + 3))
        saved = work.save(here, container)
        work.end(here, container)
        container = work.restore(there, saved, program)
    work.until(str(len(work.lines) + 3))
    (work.folder(node) / "stop").touch()
    assert node.runtime.wait(container).exit_code == 0
    work.read_to_end()
    assert work.lines == [*(str(number + 1) for number in range(len(work.lines) - 1)), "end"]
