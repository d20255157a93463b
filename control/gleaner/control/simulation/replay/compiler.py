"""The compilation of plain functions over NumPy arrays to machine code. Only this module knows the compiler (numba).

Only functions that Python calls are cached. Each contains all functions that it calls.

All options of numba here are public but `_nrt`, which stops the counting of references to arrays; the README says what
it saves.
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
    """Return the function as machine code, which Python may call.

    The function may call only `inner`, `part` and `making` functions, and plain functions of its own module, which are
    compiled with it.
    """
    return _outer(function, _nrt=True)


def loop(function: Callable[P, R]) -> Callable[P, R]:
    """Return what `compiled` returns, for a function that neither makes nor returns an array.

    The function counts no references to arrays. Counting them took a sixth of the time of a replay with agents.
    """
    return _outer(function, _nrt=False)


def inner(function: Callable[P, R]) -> Callable[P, R]:
    """Return what `loop` returns, for a function that only compiled functions call.

    Without what Python would need to call it, the function is compiled much faster, the more so the more arrays it
    takes. The function counts no references to arrays, since its caller holds some. Counting them took half the time of
    a replay with agents.
    """
    return _inner(function, _nrt=False)


def part(function: Callable[P, R]) -> Callable[P, R]:
    """Return what `inner` returns, for a function whose code is put into its caller: it should have only one.

    A call passes each array in seven words, and a queue's book has some fifteen arrays. Under EASY, these calls took a
    quarter of the time of a replay, and two fifths with agents.
    """
    return _inner(function, _nrt=False, forceinline=True)


def making(function: Callable[P, R]) -> Callable[P, R]:
    """Return what `inner` returns, for a function that makes or returns arrays."""
    return _inner(function, _nrt=True)


def _outer(function: Callable[P, R], **options: bool) -> Callable[P, R]:
    plain = _with_callees(cast("FunctionType", function), options)
    return cast("Callable[P, R]", _njit(plain, options | {"cache": _has_cache()}))


def _inner(function: Callable[P, R], **options: bool) -> Callable[P, R]:
    options |= {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast("Callable[P, R]", _njit(_with_callees(cast("FunctionType", function), options), options))


def _njit(plain: FunctionType, options: dict[str, bool]) -> Callable[..., Any]:
    njit: Any = numba.njit  # its declaration does not know all of the options
    return cast("Callable[..., Any]", njit(error_model="numpy", **options)(plain))


@cache
def _has_cache() -> bool:
    """Tell numba the folder of its cache. Return False if the folder cannot be written, so that nothing is cached.

    numba looks only at the file of the called function, so it would keep an old copy of a function of another file. To
    prevent that, the folder has the name of a digest of all sources.
    """
    digest = hashlib.sha256()
    for file in sorted((*_SIMULATION.rglob("*.py"), *_SIMULATION.with_name("policy").rglob("*.py"))):
        digest.update(file.read_bytes())
    try:
        users = os.environ.get("NUMBA_CACHE_DIR")
        root = Path(users) if users else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = (root if users else root / "gleaner" / "compiled") / digest.hexdigest()[:32]
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # there may be no home
        return False
    config: Any = cast("Any", numba).config
    config.CACHE_DIR = str(folder)
    return os.access(folder, os.W_OK)


def _with_callees(plain: FunctionType, options: dict[str, bool]) -> FunctionType:
    """Return the function with the plain functions of its own module that it calls in their compiled form."""
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
    """Return this plain function in compiled form, once for all functions that call it."""
    return _inner(plain, **{**dict(options), "forceinline": False})
