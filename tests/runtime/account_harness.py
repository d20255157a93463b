"""Being the service account to the kernel, and yet reaching into the nodes, which needs root.

What a node's helper and its shim ask the kernel about the other side of a socket is its uid. So a runtime is called
with the account's uid and with root's capabilities; only the calling thread, and those that it starts, change.
"""

import ctypes
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_PR_GET_SECUREBITS, _PR_SET_SECUREBITS = 27, 28
_NO_SETUID_FIXUP = 1 << 2
_SETRESUID, _SETRESGID = {"x86_64": (117, 119), "aarch64": (147, 149)}[os.uname().machine]
_libc = ctypes.CDLL(None, use_errno=True)
_here = threading.local()


@contextmanager
def acting_as(uid: int, gid: int) -> Iterator[None]:
    """In this thread, until the end of the context."""
    depth = getattr(_here, "depth", 0)
    before = _libc.prctl(_PR_GET_SECUREBITS, 0, 0, 0, 0)
    if depth == 0:
        _checked(_libc.prctl(_PR_SET_SECUREBITS, before | _NO_SETUID_FIXUP, 0, 0, 0))
        _checked(_libc.syscall(_SETRESGID, gid, gid, 0))
        _checked(_libc.syscall(_SETRESUID, uid, uid, 0))
    _here.depth = depth + 1
    try:
        yield
    finally:
        _here.depth = depth
        if depth == 0:
            _checked(_libc.syscall(_SETRESUID, 0, 0, 0))
            _checked(_libc.syscall(_SETRESGID, 0, 0, 0))
            # Else a program that this thread starts later would keep root's capabilities as any other user.
            _checked(_libc.prctl(_PR_SET_SECUREBITS, before, 0, 0, 0))


class AsAccount:
    """An object, made and called as the account."""

    def __init__(self, make: Callable[[], Any], account: tuple[int, int]) -> None:
        self._account = account
        with acting_as(*account):
            self._inner = make()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if inspect.isgeneratorfunction(method):

            def called(*given: Any, **named: Any) -> Any:
                with acting_as(*self._account):
                    yield from method(*given, **named)
        else:

            def called(*given: Any, **named: Any) -> Any:
                with acting_as(*self._account):
                    return method(*given, **named)

        return called


def _checked(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
