"""The compilation of plain functions over NumPy arrays to machine code. Only this module knows the compiler (numba).

A policy's core is plain Python in `policy`: live control calls the function as it is, and the simulator compiles the
same function. Only functions that Python calls are cached. Each contains all functions that it calls.

numba finds cached code by the file of the called function. So numba would go on with an old copy of a core that was
compiled into a loop of another file. To prevent that, each cached function has a folder that is named by a digest of
its file and of all files of ours that this file imports: `~/.cache/gleaner/compiled/<digest>`, or the same below the
user's `$NUMBA_CACHE_DIR`. A folder that was not used for a month is removed.

All options of numba here are public but `_nrt`, which stops the counting of references to arrays; the README says what
it saves.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

import dis
import fcntl
import gc
import hashlib
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import IO, Any, ParamSpec, TypeVar, cast

import numba
import numpy as np

P = ParamSpec("P")
R = TypeVar("R")

_UNUSED_S = 30 * 24 * 3600
_STARTING_S = 10
"""The time after a change in which code compiled from a file is not cached: the file may have been imported as it was
before."""
_PATIENCE_S = 300.0
"""The longest wait for another process. The slowest compilation takes half a minute; a stopped process never ends."""
_LOOK_AGAIN_S = 0.05
_ROOM_BYTES = 8 * 2**20
"""More than the code of any function takes in the cache."""
_ONE_AT_A_TIME = threading.Lock()
"""Held while this process compiles or loads: the folder of the cache and garbage collection are one for all threads."""
_IMPORTS = re.compile(r"^(?:from|import) +([\w.]+)(?: +import +(\([^)]*\)|[^\n(]+))?", re.MULTILINE)


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function as machine code, which Python may call.

    The function may call only `inner`, `part` and `making` functions, and plain functions of its own module, which are
    compiled with it.
    """
    return cast("Callable[P, R]", Compiled(cast("FunctionType", function), _nrt=True))


def loop(function: Callable[P, R]) -> Callable[P, R]:
    """Return what `compiled` returns, for a function that neither makes nor returns an array.

    The function counts no references to arrays. Counting them took a sixth of the time of a replay with agents.
    """
    return cast("Callable[P, R]", Compiled(cast("FunctionType", function), _nrt=False))


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


def _inner(function: Callable[P, R], **options: bool) -> Callable[P, R]:
    options |= {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast("Callable[P, R]", _njit(_with_callees(cast("FunctionType", function), options), options))


def _njit(plain: FunctionType, options: dict[str, bool], *types: Any, is_cached: bool = False) -> Callable[..., Any]:
    njit: Any = numba.njit  # its declaration does not know all of the options
    return cast("Callable[..., Any]", njit(*types, error_model="numpy", cache=is_cached, **options)(plain))


class Compiled:
    """A function that Python calls, as machine code for each combination of types that it was called with.

    Each combination has a folder of its own in the cache. One process compiles it; others that need it wait, and load
    it then. In one folder for all, numba numbers the files: two processes would use one number for two types, and a
    reader of the index would then run the wrong code.
    """

    def __init__(self, function: FunctionType, **options: bool) -> None:
        self._plain = _with_callees(function, options)
        self._options = options
        self._folder = _folder(Path(function.__code__.co_filename), str(sorted(options.items())))
        self.code: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._code_of: dict[tuple[Any, ...], Callable[..., Any]] = {}
        """The same code by `_kinds` of the arguments."""

    def __call__(self, *arguments: Any) -> Any:
        """Call the function, which is loaded or compiled first if need be."""
        kinds = _kinds(arguments)
        code = self._code_of.get(kinds)
        if code is None:
            types: tuple[Any, ...] = tuple(map(cast("Any", numba).typeof, arguments))
            with _ONE_AT_A_TIME, _no_collection():
                code = self.code.get(types) or self._code_for(types)
                self.code[types] = self._code_of[kinds] = code
        return code(*arguments)

    def _code_for(self, types: tuple[Any, ...]) -> Callable[..., Any]:
        if self._folder is None:
            return _njit(self._plain, self._options, types)
        digest = hashlib.sha256(str(types).encode()).hexdigest()[:16]
        place = self._folder / f"{self._plain.__name__}-{digest}"
        config: Any = cast("Any", numba).config
        users = config.CACHE_DIR
        with _lock_file(place.with_suffix(".lock")) or nullcontext():
            if not _has_room(place):
                return _njit(self._plain, self._options, types)
            for file in place.glob("*/*.nb[ci]"):
                _remove_if_cut_off(file)
            config.CACHE_DIR = str(place)
            try:
                return _njit(self._plain, self._options, types, is_cached=True)
            except OSError:  # the disk has become full meanwhile
                return _njit(self._plain, self._options, types)
            finally:
                config.CACHE_DIR = users


def _has_room(place: Path) -> bool:
    """Make a function's folder in the cache. Return False if it, or the code, has no room there.

    numba would then cache the code in a folder beside our own files.
    """
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place) as file:
            os.posix_fallocate(file.fileno(), 0, _ROOM_BYTES)
    except OSError:
        return False
    return True


def _kinds(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return what the compiler's types of these values depend on. To ask the compiler takes it a millisecond."""
    return tuple(
        (each.dtype, each.ndim, each.flags.num)
        if isinstance(each, np.ndarray)
        else (type(each), *_kinds(each))
        if isinstance(each, tuple)
        else type(each)
        for each in values
    )


@contextmanager
def _no_collection() -> Generator[None]:
    """Stop garbage collection during compilation.

    The compiler's objects live until the compiler is done, so that garbage collection would take a tenth of the time
    for nothing.
    """
    had_collector = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if had_collector:
            gc.enable()


def _with_callees(plain: FunctionType, options: dict[str, bool]) -> FunctionType:
    """Return the function with the plain functions of its own module that it calls in their compiled form."""
    named = {each.argval for each in dis.get_instructions(plain) if each.opname == "LOAD_GLOBAL"}
    callees = {
        name: _callee(of, tuple(sorted(options.items())))
        for name in named
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


@cache
def _root() -> Path | None:
    """Make and return the folder of all versions' folders. None if it cannot be written: then nothing is cached."""
    with suppress(OSError, RuntimeError):  # there may be no home
        users = os.environ.get("NUMBA_CACHE_DIR")
        root = Path(users) if users else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        root = root if users else root / "gleaner" / "compiled"
        root.mkdir(parents=True, exist_ok=True)
        return root if os.access(root, os.W_OK) else None
    return None


@cache
def _folder(source: Path, options: str) -> Path | None:
    """Return the folder for code compiled from this file. None if nothing is to be cached."""
    files = _files_of(source)
    now_s = time.time()
    root = _root()
    if root is None or any(abs(now_s - file.stat().st_mtime) < _STARTING_S for file in files):
        return None
    digest = hashlib.sha256(options.encode())
    for file in sorted(files):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    folder = root / digest.hexdigest()[:32]
    if not folder.exists():
        _remove_unused(root, now_s)
    try:
        folder.mkdir(exist_ok=True)
        os.utime(folder)
    except OSError:  # the disk is full
        return None
    return folder


def _files_of(source: Path) -> frozenset[Path]:
    """Return this file and all files that go into its compiled code: files of ours that it imports, and so on."""
    found: set[Path] = set()
    left = [source]
    while left:
        file = left.pop()
        if file not in found:
            found.add(file)
            left.extend(_imported_by(file))
    return frozenset(found)


@cache
def _imported_by(source: Path) -> tuple[Path, ...]:
    """Return the files that this file imports, of Gleaner's modules and of modules beside it."""
    files: list[Path] = []
    for module, names in _IMPORTS.findall(source.read_text()):
        for name in (module, *(f"{module}.{each}" for each in re.findall(r"\w+", names))):
            file = getattr(sys.modules.get(name), "__file__", None)
            if file is not None and (name.startswith("gleaner.") or Path(file).parent == source.parent):
                files.append(Path(file))
    return tuple(files)


def _remove_unused(root: Path, now_s: float) -> None:
    for folder in root.iterdir():
        is_ours = re.fullmatch("[0-9a-f]{32}", folder.name) is not None
        with suppress(OSError):  # another process may remove the folder, too
            if is_ours and now_s - folder.stat().st_mtime > _UNUSED_S:
                shutil.rmtree(folder, ignore_errors=True)


def _remove_if_cut_off(file: Path) -> None:
    """Remove a file that a full disk or a loss of power has cut off. A whole pickle ends with a full stop."""
    with suppress(OSError), file.open("rb") as pickle:
        pickle.seek(-1, os.SEEK_END)
        if pickle.read() == b".":
            return
    file.unlink(missing_ok=True)


def _lock_file(path: Path) -> IO[bytes] | None:
    """Wait for a lock and return its file, whose end unlocks it. Return None if another process has it for long."""
    try:
        file = path.open("ab")
    except OSError:  # somebody has removed the folder
        return None
    for _ in range(int(_PATIENCE_S / _LOOK_AGAIN_S)):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOOK_AGAIN_S)
        except OSError:  # a file system without locks
            return file
        else:
            return file
    file.close()
    return None
