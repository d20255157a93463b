"""How plain functions over NumPy arrays become machine code. The only module that knows the compiler.

A policy's core is plain Python in `policy`: live control calls it as it is, the simulator compiles that same
function. What is compiled is kept on disk, beside the source or in the user's cache folder.
"""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The same function as machine code. It may call no Python function but compiled ones."""
    return cast("Callable[P, R]", numba.njit(cache=True, error_model="numpy")(function))


def inner(function: Callable[P, R]) -> Callable[P, R]:
    """The same, for a function that only compiled ones call: without what Python would need to call it, it is compiled
    much sooner, the more so the more arrays it takes.
    """
    njit = cast("Any", numba.njit)  # its declaration leaves the last two out
    made = njit(cache=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
    return cast("Callable[P, R]", made(function))
