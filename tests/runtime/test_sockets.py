"""The kinds of sockets that a job may make, whatever it runs in."""

import json

import pytest
from tests.runtime.nodes_harness import Node, Work

pytestmark = [pytest.mark.nodes]


@pytest.fixture(params=["shim", "criu"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


SOCKETS = """
import json, os, socket, struct
def denied(make, *given):
    try:
        made = make(*given)
        for one in made if isinstance(made, tuple) else [made]:
            one.close()
    except PermissionError:
        return True
    except OSError:
        pass
    return False
makers = (socket.socket, socket.socketpair)
let = [[f for f in range(1, 70) if not denied(make, f, socket.SOCK_STREAM)] for make in makers]
routes = [p for p in range(32) if not denied(socket.socket, 16, socket.SOCK_RAW, p)]

def i386(number, first, second, third):
    # A program of 32 bits: it makes one call, and its exit code is the error.
    at = 0x08048000
    code = b"".join([
        bytes([0xB8]) + struct.pack("<I", number), bytes([0xBB]) + struct.pack("<I", first),
        bytes([0xB9]) + struct.pack("<I", second), bytes([0xBA]) + struct.pack("<I", third),
        bytes([0xCD, 0x80, 0xF7, 0xD8, 0x89, 0xC3, 0xB8, 1, 0, 0, 0, 0xCD, 0x80]),
    ])
    code = code.ljust(64, bytes(1)) + struct.pack("<3I", 38, 5, 0)
    size = 84 + len(code)
    head = bytes([0x7F]) + b"ELF" + bytes([1, 1, 1]) + bytes(9)
    head += struct.pack("<HHIIIIIHHHHHH", 2, 3, 1, at + 84, 52, 0, 0, 52, 32, 1, 0, 0, 0)
    head += struct.pack("<8I", 1, 0, at, at, size, size, 7, 4096)
    with open("/job/old", "wb") as file:
        file.write(head + code)
    os.chmod("/job/old", 0o755)
    child = os.fork()
    if child == 0:
        try:
            os.execv("/job/old", ["old"])
        except OSError:
            os._exit(255)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

ARGUMENTS = 0x08048000 + 84 + 64
old = [i386(102, 1, ARGUMENTS, 0), i386(359, 38, 5, 0)] if os.uname().machine == "x86_64" else [255]
print(json.dumps([let, routes, old]))
"""


def test_a_job_makes_sockets_of_the_usual_kinds_only(node: Node, work: Work) -> None:
    """Others would have the kernel load modules that nobody looks after: AF_ALG, TIPC, RDS, SMC and their like."""
    container = work.start(node, SOCKETS)
    code = node.runtime.wait(container).exit_code
    work.read_to_end()
    assert code == 0, work.lines
    let, routes, old = json.loads(work.lines[-1])
    assert let == [[1, 2, 10, 16], [1, 2, 10, 16]]
    assert routes == [0], "of NETLINK what tells of routes and interfaces"
    assert set(old[1:]) in ({1}, {255}, set()), "i386's socket: denied, or the kernel runs no such programs"
    if node.kind == "criu":
        assert old[0] in (1, 255), "and its socketcall, which Docker's filter cannot tell by family"
