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
        "open files that were renamed or replaced",
        """
renamed, replaced = file("/job/old", b"renamed"), file("/job/x", b"old")
os.rename("/job/old", "/job/new")
file("/job/y", b"new")
os.rename("/job/y", "/job/x")
rest()
assert (renamed.read(), replaced.read(), open("/job/x").read()) == (b"renamed", b"old", "new")
""",
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
        "files with holes, and of 5 GiB",
        """
held = open("/job/x", "w+b")
held.truncate(5 << 30)
held.seek(4 << 30)
held.write(b"x")
held.flush()
rest()
held.seek(4 << 30)
facts = os.stat("/job/x")
assert held.read(1) == b"x" and facts.st_size == 5 << 30 and facts.st_blocks < 4096
""",
    ),
    Kind(
        "long file names, and long paths",
        """
folder = "/job/" + "/".join(["n" * 250] * 10)
os.makedirs(folder)
held = file(f"{folder}/{'f' * 255}", b"abc")
rest()
assert held.read() == b"abc" and os.path.exists(held.name)
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
        "open folders, and a folder of its own that is deleted",
        """
os.mkdir("/job/d")
folder = os.open("/job/d", os.O_RDONLY)
os.mkdir("/job/gone")
os.chdir("/job/gone")
os.rmdir("/job/gone")
rest()
os.close(os.open("x", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
assert os.path.exists("/job/d/x")
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
        "a folder of thousands of files of which only some have been read (`os.scandir`)",
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
        "files without rights to read them",
        """
held, inside = file("/job/x", b"abc"), (os.mkdir("/job/d"), file("/job/d/x", b"abc"))[1]
os.chmod("/job/x", 0)
os.chmod("/job/d", 0)
rest()
assert held.read() == inside.read() == b"abc" and os.stat("/job/x").st_mode & 0o777 == 0
os.chmod("/job/d", 0o700)
""",
    ),
    Kind(
        "a thousand open files",
        """
held = [open(f"/job/{number}", "w", buffering=1) for number in range(1000)]
rest()
for number, one in enumerate(held):
    one.write(f"{number}")
    one.flush()
assert open("/job/999").read() == "999"
""",
    ),
    Kind(
        "files of `/proc` and `/sys`, `/dev/null`, `/dev/zero`, `/dev/urandom`",
        """
status, thread, zero, random, sink = (
    open(f"/{name}", "rb")
    for name in ("proc/self/status", "proc/thread-self/stat", "dev/zero", "dev/urandom", "dev/null")
)
huge = open("/sys/kernel/mm/transparent_hugepage/enabled")
rest()
assert status.read().startswith(b"Name:") and thread.read() and huge.read() and zero.read(3) == bytes(3)
assert len(random.read(3)) == 3
""",
    ),
    Kind(
        "a file of `/proc` about any thread except the first (`/proc/self/task/TID/stat`)",
        """
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
threads = set(os.listdir("/proc/self/task")) - {str(os.getpid())}
held = [open(f"/proc/self/task/{thread}/stat") for thread in threads]
rest()
""",
        refused="holds a file about a thread open (/proc/PID/task/TID/...)",
    ),
    Kind(
        "a program that runs and is deleted",
        """
import shutil
shutil.copy("/bin/sleep", "/job/sleep")
running = subprocess.Popen(["/job/sleep", "1000"])
os.unlink("/job/sleep")
rest()
running.terminate()
assert running.wait() == -15
""",
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
