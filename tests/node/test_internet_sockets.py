"""Internet sockets: the answer of this kernel, and the line for an admin whose CRIU cannot save them."""

import errno
import socket

import pytest

from gleaner.agent.node.facts import cannot_ask_passcred, internet_socket_warning


def test_what_the_kernel_says_of_a_datagram_socket_it_says_of_a_stream_too() -> None:
    """CRIU asks each internet socket of a job. A datagram socket is asked for all of them."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as stream:
        try:
            stream.getsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED)
        except OSError as error:
            assert error.errno == errno.EOPNOTSUPP
            assert cannot_ask_passcred()
        else:
            assert not cannot_ask_passcred()


@pytest.mark.parametrize(
    ("criu", "is_in_vain", "warns"),
    [("4.1.1", True, True), ("3.19", True, True), ("4.1.1", False, False), ("4.2.1", True, False), ("", True, False)],
)
def test_an_admin_is_warned_where_criu_is_too_old_for_the_kernel(criu: str, *, is_in_vain: bool, warns: bool) -> None:
    said = internet_socket_warning(criu, "6.18.44", cannot_ask_passcred=is_in_vain)
    assert bool(said) == warns
    assert not said or said.endswith("on Linux 6.18.44: install CRIU 4.2 or newer")
