"""The compilation of plain functions over NumPy arrays to machine code. Only this module uses the compiler (numba).

Only the functions that Python calls are cached. Each of them includes all functions that it calls.

All numba options here are public, except `_nrt`, which stops the counting of references to arrays. The README shows how
much time that saves.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
R = TypeVar("R")

_SIMULATION = Path(__file__).parents[1]


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function as machine code that Python can call.

    The function can call only `inner`, `part` and `making` functions, and plain functions of the same module, which are
    compiled with it.
    """
    return _outer(function, _nrt=True)


def loop(function: Callable[P, R]) -> Callable[P, R]:
    """Return the same as `compiled`, for a function that neither creates nor returns an array.

    The function counts no references to arrays. Counting them took a sixth of the time of a replay with agents.
    """
    return _outer(function, _nrt=False)


def inner(function: Callable[P, R]) -> Callable[P, R]:
    """Return the same as `loop`, for a function that only compiled functions call.

    Python cannot call the function, which makes its compilation much faster, especially if it takes many arrays. The
    function counts no references to arrays, because its caller holds some. Counting them took half the time of a replay
    with agents.
    """
    return _inner(function, _nrt=False)


def part(function: Callable[P, R]) -> Callable[P, R]:
    """Return the same as `inner`, for a function whose code is copied into its caller. It should have only one caller.

    A call passes seven words for each array, and a queue's book has about fifteen arrays. Under EASY, these calls took
    a quarter of the time of a replay, and two fifths with agents.
    """
    return _inner(function, _nrt=False, forceinline=True)


def making(function: Callable[P, R]) -> Callable[P, R]:
    """Return the same as `inner`, for a function that creates or returns arrays."""
    return _inner(function, _nrt=True)


def _outer(function: Callable[P, R], **options: bool) -> Callable[P, R]:
    plain = _with_callees(cast("FunctionType", function), options)
    return cast("Callable[P, R]", _njit(plain, options | {"cache": _has_cache()}))


def _inner(function: Callable[P, R], **options: bool) -> Callable[P, R]:
    options |= {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast("Callable[P, R]", _njit(_with_callees(cast("FunctionType", function), options), options))


def _njit(plain: FunctionType, options: dict[str, bool]) -> Callable[..., Any]:
    njit: Any = numba.njit  # its declaration lacks some of the options
    return cast("Callable[..., Any]", njit(error_model="numpy", **options)(plain))


@cache
def _has_cache() -> bool:
    """Set the folder of numba's cache. Return False if the folder cannot be written, so that nothing is cached.

    numba checks only the file of the called function, so it would keep an old copy of a function from another file. To
    prevent that, the folder is named after a digest of all sources.
    """
    digest = hashlib.sha256()
    for file in sorted((*_SIMULATION.rglob("*.py"), *_SIMULATION.with_name("policy").rglob("*.py"))):
        digest.update(file.read_bytes())
    try:
        users = os.environ.get("NUMBA_CACHE_DIR")
        root = Path(users) if users else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = (root if users else root / "gleaner" / "compiled") / digest.hexdigest()[:32]
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # there might be no home folder
        return False
    config: Any = cast("Any", numba).config
    config.CACHE_DIR = str(folder)
    return os.access(folder, os.W_OK)


def _with_callees(plain: FunctionType, options: dict[str, bool]) -> FunctionType:
    """Return the function, with the plain functions of its module that it calls replaced by their compiled form."""
    callees = {
        name: _callee(of, tuple(sorted(options.items())))
        for name in plain.__code__.co_names
        if isinstance(of := plain.__globals__.get(name), FunctionType)
        and of.__module__ == plain.__module__
        and of is not plain
    }
    if not callees:
        return plain
    names = {**plain.__globals__, **callees}
    copy = FunctionType(plain.__code__, names, plain.__name__, plain.__defaults__, plain.__closure__)
    copy.__module__, copy.__qualname__ = plain.__module__, plain.__qualname__
    return copy


@cache
def _callee(plain: FunctionType, options: tuple[tuple[str, bool], ...]) -> Callable[..., Any]:
    """Return the compiled form of this plain function, which all its callers share."""
    return _inner(plain, **{**dict(options), "forceinline": False})
