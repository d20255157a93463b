"""Kinds of processes: threads, children, pools, terminals and settings."""

from tests.runtime.kinds.kind import CGROUPS_1, Kind

_POOL = """
open("pool.py", "w").write('''
import multiprocessing, os, time
if __name__ == "__main__":
    with multiprocessing.get_context("{method}").Pool(2) as pool:
        before = sorted(os.listdir("/dev/shm"))
        assert pool.map(abs, [-1, -2]) == [1, 2]
        print("ready", flush=True)
        while not os.path.exists("/job/stop"):
            time.sleep(0.02)
        assert pool.map(abs, [-3, -4]) == [3, 4]
        assert sorted(os.listdir("/dev/shm")) == before, os.listdir("/dev/shm")
''')
os.execvp("python3", ["python3", "pool.py"])
"""

KINDS = (
    Kind(
        "its own limits in `/sys/fs/cgroup`",
        """
names = ("memory/memory.limit_in_bytes", "pids/pids.max", "cpu/cpu.cfs_quota_us", "memory.max", "pids.max", "cpu.max")
def limits():
    return [open(f"/sys/fs/cgroup/{name}").read() for name in names if os.path.exists(f"/sys/fs/cgroup/{name}")]
before = limits()
assert str(200 << 20) + chr(10) in before
rest()
assert limits() == before
""",
        both_ways=True,
    ),
    Kind(
        "threads that compute, wait and hold locks",
        """
counts, condition, stop = [0] * 30, threading.Condition(), threading.Event()
def count(at):
    while not stop.is_set():
        counts[at] += 1
        time.sleep(0.01)
def wait():
    with condition:
        condition.wait()
threads = [threading.Thread(target=count, args=(at,)) for at in range(30)] + [threading.Thread(target=wait)]
for one in threads:
    one.start()
rest()
before = list(counts)
within(lambda: all(now > then for now, then in zip(counts, before)))
stop.set()
with condition:
    condition.notify_all()
for one in threads:
    one.join()
""",
        brief=True,
    ),
    Kind(
        "children, and their children",
        """
def wait():
    within(lambda: os.path.exists("/job/stop"))
def deep(levels):
    wait()
    return code(child(lambda: deep(levels - 1))) if levels else 9
def deeper(levels):
    return code(child(lambda: deeper(levels - 1))) if levels else deep(2)
pids = [child(wait), child(lambda: wait() or 3), child(lambda: deeper(9))]
rest()
assert [code(pid) for pid in pids] == [0, 3, 9]
""",
    ),
    Kind(
        "children that have ended and that nobody has waited for (zombies)",
        """
ended = [subprocess.Popen(words) for words in (["true"], ["false"], ["sh", "-c", "kill -9 $$"])]
for one in ended:
    os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
rest()
assert [one.wait() for one in ended] == [0, 1, -9]
""",
        brief=True,
        both_ways=True,
    ),
    Kind(
        "orphans, sessions, process groups whose leader has ended",
        """
reader, writer = os.pipe()
def leave(become):
    become()
    def wait():
        os.write(writer, b"%d\\n" % os.getsid(0))
        within(lambda: os.path.exists("/job/stop"))
        os.write(writer, b"%d\\n" % os.getsid(0))
    child(wait)
def sessions():
    said = b""
    while said.count(b"\\n") < 2:
        said += os.read(reader, 99)
    return sorted(said.split())
for become in (os.setsid, os.setpgrp):
    assert code(child(lambda: leave(become))) == 0
before = sessions()
rest()
assert sessions() == before
""",
    ),
    Kind(
        "a stopped process (SIGSTOP, SIGTSTP)",
        """
stopped = subprocess.Popen(["sleep", "1000"])
stopped.send_signal(signal.SIGSTOP)
os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
rest()
stopped.kill()
""",
        refused="is stopped (by SIGSTOP or SIGTSTP)",
        only_with=CGROUPS_1,
        both_ways=True,
    ),
    Kind(
        "a process traced by another process (a debugger, strace)",
        """
traced = subprocess.Popen(["sleep", "1000"])
assert libc.ptrace(0x4206, traced.pid, None, None) == 0
rest()
traced.kill()
""",
        refused="is traced by another one, as by a debugger or strace",
    ),
    Kind(
        "a program whose main thread has ended before its other threads (pthread_exit in main)",
        """
def end():
    rest()
    os._exit(0)
threading.Thread(target=end).start()
libc.pthread_exit(None)
""",
        refused="has no main thread any more",
        both_ways=True,
    ),
    *(
        Kind(
            f"a program that {how}, without a handler for it",
            f"""
signal.alarm(600)
rest()
{program}
time.sleep(60)
""",
            but=f"and ends with {code}, as elsewhere",
            exit_code=code,
            brief=code == 142,
            both_ways=True,
        )
        for how, program, code in (
            ("is ended by an alarm (`alarm`)", "signal.alarm(1)", 142),
            ("sends itself a signal (`kill`)", "os.kill(os.getpid(), signal.SIGTERM)", 143),
            ("ends itself with `abort`", "os.abort()", 134),
        )
    ),
    Kind(
        "a pool of processes that are forked, with queues, locks and events",
        """
context = multiprocessing.get_context("fork")
queue, lock, event = context.Queue(), context.Lock(), context.Event()
def answer():
    event.wait()
    with lock:
        queue.put(5)
process = context.Process(target=answer)
process.start()
with context.Pool(2) as pool:
    assert pool.map(abs, [-1]) == [1]
    rest()
    assert pool.map(abs, [-3]) == [3]
event.set()
assert queue.get(timeout=60) == 5
process.join()
""",
    ),
    Kind("a pool of processes that are spawned", _POOL.format(method="spawn"), brief=True, saved_twice=True),
    Kind("a pool of processes of a fork server", _POOL.format(method="forkserver"), saved_twice=True),
    Kind(
        "pools of `concurrent.futures`, of threads and of processes",
        """
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as processes, ThreadPoolExecutor(9) as threads:
    begun = [pool.submit(time.sleep, 2) for pool in (processes, threads)]
    rest()
    assert [one.result() for one in begun] == [None] * 2
    assert [pool.submit(abs, -4).result() for pool in (processes, threads)] == [4] * 2
""",
    ),
    Kind(
        "asyncio, with a subprocess",
        """
import asyncio
async def main():
    echo = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
    sleeping = asyncio.create_task(asyncio.sleep(1, 7))
    await asyncio.to_thread(rest)
    assert await sleeping == 7 and (await echo.communicate(b"abc"))[0] == b"abc"
asyncio.run(main())
""",
    ),
    Kind(
        "shell scripts with subprocesses, traps and files for their output",
        """
words = "trap 'echo heard' USR1; echo begun; while [ ! -e /job/stop ]; do sleep 0.1 & wait; done; sleep 0.3; echo ended"
script = subprocess.Popen(["sh", "-c", words], stdout=open("/job/out", "w"), start_new_session=True)
within(lambda: "begun" in open("/job/out").read())
rest()
assert script.wait() == 0 and open("/job/out").read() == "begun\\nended\\n"
""",
    ),
    Kind(
        "a pseudo-terminal, and a program on it",
        """
import pty
outer, inner = os.openpty()
os.write(outer, b"abc\\n")
pid, terminal = pty.fork()
if pid == 0:
    os.execvp("cat", ["cat"])
rest()
assert os.read(inner, 99) == b"abc\\n"
os.write(terminal, b"again\\n")
out = b""
def twice():
    global out
    out += os.read(terminal, 99)
    return out.count(b"again") == 2
within(twice)
os.kill(pid, 9)
""",
    ),
    Kind(
        "an interactive shell on a pseudo-terminal (`pexpect`, `script`)",
        """
import pty
pid, terminal = pty.fork()
if pid == 0:
    os.execvp("sh", ["sh", "-i"])
assert os.read(terminal, 99)
rest()
os.kill(pid, 9)
""",
        refused="has a process that has opened its terminal by the name /dev/tty, as an interactive shell does",
    ),
    Kind(
        "settings: niceness, umask, limits, name, blocked and pending signals, handlers",
        """
import resource
heard = []
niceness = os.nice(5)
os.umask(0o27)
resource.setrlimit(resource.RLIMIT_NOFILE, (500, 600))
libc.prctl(15, b"a name")
signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
os.kill(os.getpid(), signal.SIGUSR2)
rest()
os.kill(os.getpid(), signal.SIGHUP)
os.kill(os.getpid(), signal.SIGUSR1)
within(lambda: heard)
assert (os.nice(0), os.umask(0), open("/proc/self/comm").read()) == (niceness, 0o27, "a name\\n")
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (500, 600) and signal.sigpending() == {signal.SIGUSR2}
""",
    ),
    Kind(
        "a filter of system calls (seccomp), no core dumps, a signal at the parent's end",
        """
code_of = lambda *rows: b"".join(struct.pack("HBBI", *row) for row in rows)
filter = code_of((0x20, 0, 0, 0), (0x15, 0, 1, 39), (6, 0, 0, 0x50000 | 77), (6, 0, 0, 0x7FFF0000))  # getpid
held = ctypes.create_string_buffer(filter)
def strict():
    libc.prctl(4, 0, 0, 0, 0)
    libc.prctl(1, 9, 0, 0, 0)
    assert libc.prctl(22, 2, struct.pack("HxxxxxxQ", 4, ctypes.addressof(held)), 0, 0) == 0
    within(lambda: os.path.exists("/job/stop"))
    return 7 if libc.syscall(39) == -1 and libc.prctl(3, 0, 0, 0, 0) == 0 else 1
pid = child(strict)
rest()
assert code(pid) == (7 if os.uname().machine == "x86_64" else 1)
""",
    ),
    Kind(
        "pidfd, of a process that lives and of one that has ended",
        """
lives, gone = child(lambda: time.sleep(1000)), child(lambda: 0)
to_living, to_gone = os.pidfd_open(lives), os.pidfd_open(gone)
assert code(gone) == 0
rest()
signal.pidfd_send_signal(to_living, 9)
assert code(lives) == -9 and select.select([to_gone], [], [], 60)[0]
""",
    ),
    Kind(
        "io_uring, userfaultfd, Landlock, user namespaces",
        """
assert libc.syscall(425, 4, bytes(120)) == -1 and libc.syscall(323 if os.uname().machine == "x86_64" else 282, 1) == -1
assert libc.syscall(444, None, 0, 1) == -1 and ctypes.get_errno() == 38
try:
    os.unshare(os.CLONE_NEWUSER)
    raise SystemExit("it has a namespace of its own")
except PermissionError:
    rest()
""",
        but="but without these, because the container does not allow them",
    ),
)
