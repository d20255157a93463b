"""Kinds of processes: memory."""

from tests.runtime.kinds.kind import GUARDS, Kind

KINDS = (
    Kind(
        "memory",
        """
memory = os.urandom(16 << 20)
digest = hashlib.sha256(memory).digest()
rest()
assert hashlib.sha256(memory).digest() == digest
""",
    ),
    Kind(
        "memory that is reserved and never used",
        """
memory = mmap.mmap(-1, 64 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_NORESERVE)
memory[10 << 30] = 3
rest()
assert (memory[10 << 30], memory[20 << 30]) == (3, 0)
""",
    ),
    Kind(
        "memory shared with a child (anonymous, `multiprocessing.shared_memory`)",
        """
from multiprocessing import shared_memory
anonymous, named = mmap.mmap(-1, 4096), shared_memory.SharedMemory("x", create=True, size=4096)
def answer():
    within(lambda: anonymous[0] == 1)
    named.buf[1] = 2
pid = child(answer)
rest()
anonymous[0] = 1
assert code(pid) == 0 and named.buf[1] == 2
named.close()
named.unlink()
""",
        brief=True,
    ),
    Kind(
        "a file in memory (memfd), sealed or not",
        """
made = os.memfd_create("x", os.MFD_ALLOW_SEALING)
os.write(made, b"abc")
fcntl.fcntl(made, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
rest()
assert os.pread(made, 9, 0) == b"abc" and fcntl.fcntl(made, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE
""",
    ),
    Kind(
        "a program run from a file in memory (memfd)",
        """
made = os.memfd_create("x")
os.write(made, open("/bin/sleep", "rb").read())
pid = os.posix_spawn(f"/proc/self/fd/{made}", ["sleep", "1000"], {})
rest()
os.kill(pid, 9)
""",
        refused="runs a program that is in no file (memfd)",
    ),
    Kind(
        "mapped files, shared and private",
        """
shared = mapped("/job/shared", bytes(8192))
private = mapped("/job/private", bytes(8192), flags=mmap.MAP_PRIVATE)
shared[0] = private[0] = 5
rest()
assert (shared[0], private[0]) == (5, 5)
assert open("/job/shared", "rb").read()[0] == 5 and open("/job/private", "rb").read()[0] == 0
""",
    ),
    Kind(
        "a mapped file that is deleted",
        """
memory = mapped("/tmp/x", b"x" * 8192)
os.unlink("/tmp/x")
rest()
assert memory[:] == b"x" * 8192
""",
    ),
    Kind(
        "memory that a child gets as zeros or not at all (`MADV_WIPEONFORK`, `MADV_DONTFORK`)",
        """
zeros, kept, ordinary = (mmap.mmap(-1, 8192, flags=mmap.MAP_PRIVATE) for _ in range(3))
zeros.madvise(18)
kept.madvise(mmap.MADV_DONTFORK)
zeros[5000] = ordinary[5000] = kept[5000] = 5
rest()
assert zeros[5000] == ordinary[5000] == kept[5000] == 5
assert code(child(lambda: (zeros[5000], ordinary[5000]) != (0, 5))) == 0
assert code(child(lambda: kept[5000])) == -signal.SIGSEGV
""",
        both_ways=True,
    ),
    Kind(
        "random numbers (`os.urandom`, `getrandom`) in children that are forked after the restore",
        """
os.urandom(16)
reader, writer = os.pipe()
rest()
for _ in range(2):
    assert code(child(lambda: os.write(writer, os.urandom(16)) - 16)) == 0
drawn = {os.urandom(16), os.read(reader, 16), os.read(reader, 16)}
assert len(drawn) == 3
""",
        brief=True,
    ),
    Kind(
        "shared memory in huge pages (MAP_HUGETLB)",
        """
memory = mmap.mmap(-1, 4 << 20, flags=mmap.MAP_SHARED | 0x40000)
memory[5000] = 5
rest()
assert memory[5000] == 5
""",
    ),
    Kind(
        "private memory in huge pages (MAP_HUGETLB)",
        """
memory = mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)
memory[5000] = 5
rest()
""",
        refused="has private memory in huge pages (MAP_HUGETLB)",
    ),
    Kind(
        "guard pages (threads with glibc 2.42 or newer)",
        """
memory = mmap.mmap(-1, 16384, flags=mmap.MAP_PRIVATE)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
libc.madvise(ctypes.c_void_p(address), 4096, 102)
memory[5000] = 1
rest()
""",
        refused="has memory that CRIU cannot read, such as the guard pages of threads with glibc 2.42",
        only_with=GUARDS,
    ),
)
