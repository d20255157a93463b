"""How plain functions over NumPy arrays become machine code. The only module that knows the compiler.

A policy's core is plain Python in `policy`: live control calls it as it is, the simulator compiles that same
function. What is compiled is kept on disk, beside the source or in the user's cache folder.

numba itself looks only at the file of the function that is called: it would go on using an old copy of a core that
was compiled into a loop of another file. So what is kept is found by the sources of all that went into it.
"""

import gc
import hashlib
from collections.abc import Callable
from enum import Enum
from functools import cache
from pickle import UnpicklingError
from types import CodeType, FunctionType, ModuleType
from typing import Any, ParamSpec, TypeVar, cast

import numba
import numpy as np
from numba.core.caching import FunctionCache
from numba.core.types import unliteral  # pyright: ignore[reportUnknownVariableType]

P = ParamSpec("P")
R = TypeVar("R")

_PLAIN: dict[int, FunctionType] = {}
"""By the `id` of a compiled function, which lives as long as its module: the function that it was made of."""


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The same function as machine code. It may call no Python function but compiled ones."""
    return _kept(function, _nrt=True)


def loop(function: Callable[P, R]) -> Callable[P, R]:
    """As `compiled`, for a function that neither makes an array nor gives one back: it counts no references to them.

    That was a sixth of the time of a replay with agents.
    """
    return _kept(function, _nrt=False)


def inner(function: Callable[P, R]) -> Callable[P, R]:
    """The same, for a function that only compiled ones call, and that neither makes an array nor gives one back.

    Without what Python would need to call it, it is compiled much sooner, the more so the more arrays it takes. And
    it counts no references to them, since the caller has some: that was half the time of a replay with agents.
    """
    return _kept(function, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def making(function: Callable[P, R]) -> Callable[P, R]:
    """As `inner`, for a function that makes arrays or gives some back."""
    return _kept(function, _nrt=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def _kept(function: Callable[P, R], **options: bool) -> Callable[P, R]:
    njit: Any = numba.njit  # its declaration knows not all of the options
    plain = cast("FunctionType", function)
    made = njit(error_model="numpy", **options)(plain)
    if made is plain:  # NUMBA_DISABLE_JIT
        return function
    made._cache = _cache(plain, str(sorted(options.items())))
    made.get_call_template = _once_for_any_value(made.get_call_template)
    made.compile = _uncollected(made.compile)
    _PLAIN[id(made)] = plain
    return cast("Callable[P, R]", made)


def _once_for_any_value(template: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """What a compiled caller asks for, without values that it knows of: else what it calls with a variable that began
    as 0 would be compiled for the number 0, and once more for any number.
    """
    any_value = cast("Callable[[Any], Any]", unliteral)  # type: ignore[redundant-cast]  # pyright sees no type there

    def of_types(args: Any, keywords: Any) -> Any:
        return template(tuple(map(any_value, args)), {name: any_value(kind) for name, kind in keywords.items()})

    return of_types


def _uncollected(compile_for: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same while nobody looks for garbage: what the compiler makes stays to its end, and looking takes a tenth."""

    def compile_all(signature: Any) -> Any:
        was_on = gc.isenabled()
        gc.disable()
        try:
            return compile_for(signature)
        finally:
            if was_on:
                gc.enable()

    return compile_all


@cache
def _sources_of(function: FunctionType) -> str:
    """A hash of its code, and of all of ours that it may use: compiled functions, and the constants beside them.

    Of what was imported, not of the files: these may have been changed since. Whether it names what its module imports
    does not matter: it may name a number that stands beside one of them. To be asked when a function is called, not
    when it is made: what stands below it in its file is not known before.
    """
    parts: set[str] = set()
    looked_at: dict[int, dict[str, Any]] = {}  # names of modules, by their `id`
    left, met = [function], {function}
    while left:
        one = left.pop()
        parts.add(repr(_code_of(one.__code__)))
        if id(one.__globals__) in looked_at:
            continue
        looked_at[id(one.__globals__)] = one.__globals__
        parts |= _constants_of(one.__globals__)
        for used in list(one.__globals__.values()):
            plain = _PLAIN.get(id(used))
            if plain is not None and plain not in met:
                met.add(plain)
                left.append(plain)
            elif isinstance(used, ModuleType) and used.__name__.startswith("gleaner."):
                parts |= _constants_of(vars(used))
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()


def _code_of(code: CodeType) -> tuple[object, ...]:
    """What a function does, without where it stands."""
    constants = [_code_of(value) if isinstance(value, CodeType) else value for value in code.co_consts]
    return (code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants)


def _constants_of(names: dict[str, Any]) -> set[str]:
    """Numbers, texts, types of arrays and enumerations, by name: what the compiler puts in as it is."""
    found: set[str] = set()
    for name, value in list(names.items()):
        if isinstance(value, int | float | str | tuple | np.dtype | np.generic) and not name.startswith("__"):
            found.add(f"{name} {value!r}")
        elif isinstance(value, type) and issubclass(value, Enum):
            found.add(f"{name} {[(entry.name, entry.value) for entry in value]}")
    return found


def _cache(function: FunctionType, options: str) -> Any:
    """The compiler's own, but what it keeps is found by these sources too."""
    make: Any = FunctionCache  # it has no types
    made = make(function)
    by_signature = made._index_key

    def by_sources(*signature: Any) -> Any:
        return (*by_signature(*signature), _sources_of(function), options)

    made._index_key = by_sources
    _make_safe(made._cache_file)
    return made


def _make_safe(files: Any) -> None:
    """Keep apart what several processes compile at once, and forgive what another version of the program has kept.

    numba numbers its files. Two processes that compile a function for different types would give both one number, and
    whoever reads the index afterwards would run the wrong code.
    """
    load = files._load_index

    def loaded() -> Any:
        try:
            return load()
        except (AttributeError, ImportError, EOFError, UnpicklingError):
            return {}  # it names a type that is gone since, or was cut off

    def save(key: Any, code: Any) -> None:
        name = f"{files._index_name.removesuffix('.nbi')}.{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.nbc"
        files._save_data(name, code)
        files._save_index(files._load_index() | {key: name})

    files._load_index = loaded
    files.save = save
