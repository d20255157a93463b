"""A small cache: values in memory, each valid for a limited time."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class SmallCache(Generic[K, V]):
    """A cache for a fixed number of values, in which a new value replaces the oldest.

    A clock that is set back makes the values invalid. It never extends their validity.
    """

    def __init__(self, clock: Callable[[], float], *, at_most: int = 1) -> None:
        self._clock = clock
        self._at_most = at_most
        self._entries: dict[K, tuple[float, float, V]] = {}
        """The time of each value, and the time for which it is valid."""
        self._reading = threading.Lock()

    def find(self, key: K) -> V:
        """Return the value. Raises `KeyError` if there is none, or if it is too old."""
        at_s, fresh_s, value = self._entries[key]
        if not 0 <= self._clock() - at_s < fresh_s:
            raise KeyError(key)
        return value

    def put(self, key: K, value: V, *, fresh_s: float) -> None:
        """Store a value that is valid for `fresh_s` seconds."""
        self._entries.pop(key, None)
        while len(self._entries) >= self._at_most:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = (self._clock(), fresh_s, value)

    def change(self, key: K, change: Callable[[V], V]) -> None:
        """Replace a value, if there is one, with a changed value that becomes invalid at the same time."""
        if key in self._entries:
            at_s, fresh_s, value = self._entries[key]
            self._entries[key] = (at_s, fresh_s, change(value))

    def get(
        self, key: K, read: Callable[[], V], *, fresh_s: float, rest: float = 0.0, wait_s: float = threading.TIMEOUT_MAX
    ) -> V:
        """Return the value. If it is too old, the first caller reads it again.

        Until then, other callers receive the old value, and wait only if there is none. So this method must never be
        used for tokens, which need `find` and `put`. A value that takes long to read stays valid longer, by `rest`
        times the time that reading it took. Raises `TimeoutError` after waiting `wait_s` seconds for another caller.
        """
        old = self._entries.get(key)
        with suppress(KeyError):
            return self.find(key)
        if not self._reading.acquire(timeout=wait_s if old is None else 0):
            if old is None:
                raise TimeoutError
            return old[2]
        try:
            with suppress(KeyError):  # another thread has just read it
                return self.find(key)
            began_s = self._clock()
            value = read()
            self.put(key, value, fresh_s=fresh_s + rest * (self._clock() - began_s))
            return value
        finally:
            self._reading.release()
