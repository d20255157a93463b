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
        "a timer of the wall clock (timerfd with TFD_TIMER_ABSTIME)",
        f"""{_TIMER}
dated = timer(time.time() + 3, 0, time.CLOCK_REALTIME, 1)
begin = time.monotonic()
rest()
assert fires(dated) and 1.9 < time.monotonic() - begin
""",
        but="but counts only the time in which the job runs, and can be up to a second early",
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
        "a timer of POSIX that signals the first thread (SIGEV_THREAD_ID)",
        """
made, event = ctypes.c_void_p(), struct.pack("Qiii44x", 0, signal.SIGUSR1, 4, os.getpid())
assert libc.timer_create(1, event, ctypes.byref(made)) == 0
rest()
""",
        refused="has a timer that signals its first thread (timer_create with SIGEV_THREAD_ID)",
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
