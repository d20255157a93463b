"""One caller reads what is too old, the others have the old value, and only who has none waits."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from gleaner.control.queue.small_cache import SmallCache


def test_others_get_the_old_value_while_one_reads_and_wait_only_if_there_is_none() -> None:
    now_s = [0.0]
    cache = SmallCache[str, int](lambda: now_s[0])
    begun, may_end = Event(), Event()

    def slow() -> int:
        begun.set()
        assert may_end.wait(30)
        now_s[0] += 1
        return 1

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(cache.get, "a", slow, fresh_s=5, rest=2)
        assert begun.wait(30)
        second = threads.submit(cache.get, "a", lambda: 2, fresh_s=5)
        may_end.set()
        assert (first.result(30), second.result(30)) == (1, 1)
        now_s[0] += 5 + 2 * 1 - 0.1  # what took a second is good for two more
        assert cache.find("a") == 1
        now_s[0] += 0.2
        begun.clear()
        may_end.clear()
        third = threads.submit(cache.get, "a", slow, fresh_s=5)
        assert begun.wait(30)
        assert cache.get("a", lambda: 4, fresh_s=5) == 1
        may_end.set()
        assert third.result(30) == 1
    now_s[0] -= 2  # the clock was set back
    assert cache.get("a", lambda: 5, fresh_s=5) == 5


def test_the_oldest_value_makes_room_and_after_a_failed_reading_the_next_caller_reads() -> None:
    cache = SmallCache[str, int](lambda: 0.0, at_most=2)
    for number, key in enumerate("abac"):
        cache.put(key, number, fresh_s=1)
    assert (cache.find("a"), cache.find("c")) == (2, 3)
    with pytest.raises(KeyError):
        cache.find("b")
    with pytest.raises(ZeroDivisionError):
        cache.get("d", lambda: 1 // 0, fresh_s=1)
    assert cache.get("d", lambda: 4, fresh_s=1) == 4
