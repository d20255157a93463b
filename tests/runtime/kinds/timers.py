"""Kinds of processes: timers and clocks."""

from tests.runtime.kinds.kind import Kind

_TIMER = """
def timer(first, period=0.0, clock=time.CLOCK_MONOTONIC, flags=0):
    made = libc.timerfd_create(clock, 0)
    parts = [part for time in (period, first) for part in (int(time), int(time % 1 * 1e9))]
    assert libc.timerfd_settime(made, flags, struct.pack("4q", *parts), None) == 0
    return made
def fires(timer, within_s=60):
    return bool(select.select([timer], [], [], within_s)[0]) and bool(os.read(timer, 8))
"""

KINDS = (
    Kind(
        "timers that fire once (timerfd), also those that are off or have fired",
        f"""{_TIMER}
soon, fired, off, never = timer(2), timer(0.001), timer(0), timer(0, 0.01)
within(lambda: select.select([fired], [], [], 0)[0])
rest()
assert fires(fired, 0) and fires(soon) and not any(fires(one, 0.1) for one in (off, never, fired))
""",
    ),
    Kind(
        "timers that fire in each period (timerfd)",
        f"""{_TIMER}
often, seldom, dated = timer(0.01, 0.01), timer(0.5, 0.5), timer(time.time() + 0.1, 0.1, time.CLOCK_REALTIME, 1)
assert fires(often)
rest()
assert all(fires(one) for _ in range(3) for one in (often, seldom, dated))
""",
        brief=True,
    ),
    Kind(
        "a wall-clock timer (timerfd with TFD_TIMER_ABSTIME)",
        f"""{_TIMER}
dated = timer(time.time() + 3, 0, time.CLOCK_REALTIME, 1)
begin = time.monotonic()
rest()
assert fires(dated) and 1.9 < time.monotonic() - begin
""",
        but="but counts only the time in which the job runs, and can be up to a second early",
    ),
    Kind(
        "alarms and interval timers (`alarm`, `setitimer`)",
        """
heard = []
for number in (signal.SIGVTALRM, signal.SIGPROF):
    signal.signal(number, lambda number, _: heard.append(number))
signal.setitimer(signal.ITIMER_VIRTUAL, 0.02, 0.02)
signal.setitimer(signal.ITIMER_PROF, 0.02, 0.02)
signal.alarm(600)
rest()
assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] < 600
heard.clear()
within(lambda: sum(range(10_000)) and set(heard) == {signal.SIGVTALRM, signal.SIGPROF})
""",
    ),
    Kind(
        "an interval timer of the real time",
        """
heard = []
signal.signal(signal.SIGALRM, lambda *_: heard.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
rest()
heard.clear()
within(lambda: len(heard) > 5)
""",
    ),
    Kind(
        "timers of POSIX (`timer_create`)",
        """
heard = []
for number in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, _: heard.append(number))
def timer(number, first_s, period_ns):
    made, event = ctypes.c_void_p(), struct.pack("QiiQ40x", 0, number, 0, 0)
    assert libc.timer_create(1, event, ctypes.byref(made)) == 0
    assert libc.timer_settime(made, 0, struct.pack("4q", 0, period_ns, first_s, 1), None) == 0
    return made
timer(signal.SIGUSR1, 0, 20_000_000)
once, left = timer(signal.SIGUSR2, 600, 0), ctypes.create_string_buffer(32)
rest()
heard.clear()
within(lambda: heard.count(signal.SIGUSR1) > 5)
assert libc.timer_gettime(once, left) == 0 and 0 < struct.unpack("4q", left)[2] < 600
""",
    ),
    Kind(
        "a timer of POSIX that signals a thread (SIGEV_THREAD_ID), but for the first one",
        """
heard, numbers = [], []
signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
def run():
    numbers.append(threading.get_native_id())
    time.sleep(1000)
threading.Thread(target=run, daemon=True).start()
within(lambda: numbers)
made, event = ctypes.c_void_p(), struct.pack("Qiii44x", 0, signal.SIGUSR1, 4, numbers[0])
assert libc.timer_create(1, event, ctypes.byref(made)) == 0
assert libc.timer_settime(made, 0, struct.pack("4q", 0, 20_000_000, 0, 1), None) == 0
rest()
heard.clear()
within(lambda: len(heard) > 5)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # at its end Python lets signals end it
""",
    ),
    Kind(
        "a POSIX timer that signals the first thread (SIGEV_THREAD_ID)",
        """
made, event = ctypes.c_void_p(), struct.pack("Qiii44x", 0, signal.SIGUSR1, 4, os.getpid())
assert libc.timer_create(1, event, ctypes.byref(made)) == 0
rest()
""",
        refused="has a timer that signals its first thread (timer_create with SIGEV_THREAD_ID)",
    ),
    Kind(
        "a process that sleeps (`sleep`, `select` with a time limit)",
        """
ended = []
threads = [
    threading.Thread(target=lambda: ended.append(time.sleep(2))),
    threading.Thread(target=lambda: ended.append(select.select([], [], [], 2))),
]
for one in threads:
    one.start()
program = subprocess.Popen(["sleep", "2"])
rest()
for one in threads:
    one.join()
assert program.wait() == 0 and len(ended) == 2
""",
    ),
    Kind(
        "the clocks",
        """
def apart():
    return time.time() - time.monotonic()
while time.process_time() < 0.5:
    pass
began, used, gone = apart(), time.process_time(), time.monotonic()
rest()
assert apart() > began and time.monotonic() > gone and time.process_time() < used
""",
        but="but the wall clock jumps, the monotonic clock does not, and CPU time begins at 0",
    ),
)
