"""Kinds of processes: files."""

from tests.runtime.kinds.kind import Kind

KINDS = (
    Kind(
        "open files at their places, to read, to write, to append",
        """
read, append = file("/job/read", b"0123456789"), file("/job/append", b"1", "ab")
elsewhere = file("/var/tmp/x", b"0123456789")
read.seek(4)
elsewhere.seek(4)
rest()
assert read.read(2) == elsewhere.read(2) == b"45"
append.write(b"2")
assert open("/job/append", "rb").read() == b"12"
""",
        brief=True,
    ),
    Kind(
        "deleted files that are open, also without a name from the start (O_TMPFILE)",
        """
held = [file(path, b"x" * 100_000) for path in ("/job/x", "/tmp/x", "/dev/shm/x")]
for one in held:
    os.unlink(one.name)
nameless = os.open("/job", os.O_TMPFILE | os.O_RDWR)
os.write(nameless, b"abc")
rest()
assert [one.read() for one in held] == [b"x" * 100_000] * 3 and os.pread(nameless, 9, 0) == b"abc"
""",
        brief=True,
    ),
    Kind(
        "a deleted open file that has another name (a hard link)",
        """
held = file("/job/x", b"abc")
os.link("/job/x", "/job/y")
os.unlink("/job/x")
rest()
assert held.read() == b"abc"
""",
        refused="holds '/job/x' open, which is deleted, and the file has another name by now (a hard link)",
    ),
    Kind(
        "hard links and symbolic links",
        """
held = file("/job/x", b"abc")
os.link("/job/x", "/job/y")
os.symlink("/etc/passwd", "/job/outside")
os.mkdir("/job/d")
os.symlink("d", "/job/e")
behind = file("/job/e/x", b"abc")
rest()
assert os.path.samefile("/job/x", "/job/y") and os.readlink("/job/outside") == "/etc/passwd"
assert held.read() == behind.read() == b"abc"
""",
    ),
    Kind(
        "a file whose path is longer than 4096 bytes",
        """
for _ in range(30):
    os.mkdir("n" * 200)
    os.chdir("n" * 200)
held = open("x", "w")
rest()
""",
        refused="has a file or folder open whose path is too long (4096 bytes)",
    ),
    Kind(
        "file names that are not UTF-8, or have line ends",
        """
names = [b"/job/caf\\xe9\\n\\x01", b"/var/tmp/\\xff"]
held = [file(name, b"abc") for name in names]
rest()
assert [one.read() for one in held] == [b"abc"] * 2 and all(map(os.path.exists, names))
""",
        brief=True,
    ),
    Kind(
        "file locks (flock, fcntl, open file description), and a process that waits for one",
        """
flock, posix, described = (open(f"/job/{name}", "w") for name in "abc")
whole = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
F_OFD_SETLK = 37
fcntl.flock(flock, fcntl.LOCK_EX)
fcntl.lockf(posix, fcntl.LOCK_EX, 10, 5)
fcntl.fcntl(described, F_OFD_SETLK, whole)
waiting = child(lambda: fcntl.flock(open("/job/a"), fcntl.LOCK_EX))
def is_locked(lock):
    try:
        lock()
    except BlockingIOError:
        return 7
at_once = fcntl.LOCK_EX | fcntl.LOCK_NB
rest()
assert is_locked(lambda: fcntl.flock(open("/job/a"), at_once)) == 7
assert is_locked(lambda: fcntl.fcntl(open("/job/c", "w"), F_OFD_SETLK, whole)) == 7
assert code(child(lambda: is_locked(lambda: fcntl.lockf(open("/job/b", "r+"), at_once, 1, 6)))) == 7
fcntl.flock(flock, fcntl.LOCK_UN)
assert code(waiting) == 0
""",
    ),
    Kind(
        "folders of its own that are read to their end, and one that is read again",
        """
places = ("/job/d", "/var/tmp/d", "/dev/shm/d")
for place in places:
    os.mkdir(place)
    for number in range(500):
        open(f"{place}/{number}", "w").close()
read = [os.scandir(place) for place in places]
got = [{next(one).name} for one in read]
again = os.open("/job/d", os.O_RDONLY)
os.listdir(again)
rest()
for names, one in zip(got, read):
    names |= {entry.name for entry in one}
assert got == [set(map(str, range(500)))] * 3 and len(os.listdir(again)) == 500
""",
    ),
    Kind(
        "a folder of thousands of files that is read half way (`os.scandir`)",
        """
os.mkdir("/job/d")
for number in range(5000):
    open(f"/job/d/{number}", "w").close()
read = os.scandir("/job/d")
names = [next(read).name for _ in range(100)]
rest()
names += [entry.name for entry in read]
assert sorted(map(int, names)) == list(range(5000))
""",
        refused="is reading the folder '/job/d' and has not come to its end",
    ),
    Kind(
        "a file of `/proc` about a thread (`/proc/self/task/TID/stat`), but for the first one",
        """
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
threads = set(os.listdir("/proc/self/task")) - {str(os.getpid())}
held = [open(f"/proc/self/task/{thread}/stat") for thread in threads]
rest()
""",
        refused="holds a file about a thread open (/proc/PID/task/TID/...)",
    ),
    Kind(
        "a data base (SQLite) in the middle of a transaction",
        """
import sqlite3
base = sqlite3.connect("/job/x", isolation_level=None)
base.execute("pragma journal_mode=wal")
base.execute("create table t (a)")
base.execute("begin")
base.execute("insert into t values (1)")
rest()
base.execute("commit")
assert base.execute("select a from t").fetchall() == [(1,)]
""",
    ),
)
