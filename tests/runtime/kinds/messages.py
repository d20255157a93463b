"""Kinds of processes: pipes, sockets, queues and events."""

from tests.runtime.kinds.kind import PASSCRED, Kind

_INET = "has an internet socket open, and this node's CRIU is too old to save one with Linux 6.16 or newer"
_QUEUE = "has {} open, which lies on no disk of its container, as a POSIX message queue (mq_open) does"

KINDS = (
    Kind(
        "pipes and named pipes with content",
        """
reader, writer = os.pipe()
fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1 << 20)
os.write(writer, b"x" * 900_000)
os.mkfifo("/job/pipe")
named = os.open("/job/pipe", os.O_RDWR)
os.write(named, b"abc")
rest()
assert sum(len(os.read(reader, 100_000)) for _ in range(9)) == 900_000
assert fcntl.fcntl(reader, fcntl.F_GETPIPE_SZ) == 1 << 20 and os.read(named, 9) == b"abc"
""",
        brief=True,
    ),
    Kind(
        "a pipe in packet mode (O_DIRECT)",
        """
reader, writer = os.pipe2(os.O_DIRECT)
rest()
""",
        refused="has a pipe in packet mode (O_DIRECT)",
    ),
    Kind(
        "pairs of sockets (stream, datagram, packet), half closed ones too",
        """
kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET)
pairs = [socket.socketpair(socket.AF_UNIX, kind) for kind in kinds]
for one, _ in pairs:
    one.send(b"abc")
pairs[0][0].shutdown(socket.SHUT_WR)
pairs[2][0].close()
rest()
assert [other.recv(9) for _, other in pairs] == [b"abc"] * 3 and pairs[0][1].recv(9) == b""
pairs[0][1].send(b"back")
assert pairs[0][0].recv(9) == b"back"
""",
    ),
    Kind(
        "servers at Unix sockets (in `/job`, in `/tmp`, abstract), with connections, one of them not accepted",
        """
def served(at):
    server, client, late = (socket.socket(socket.AF_UNIX) for _ in range(3))
    server.bind(at)
    server.listen()
    client.connect(at)
    accepted, _ = server.accept()
    client.send(b"abc")
    late.connect(at)
    return at, server, accepted, (client, late)
found = [served(at) for at in ("/job/socket", "/tmp/socket", "\\0abstract")]
rest()
for at, server, accepted, _ in found:
    new = socket.socket(socket.AF_UNIX)
    new.connect(at)
    assert server.accept() and server.accept() and accepted.recv(9) == b"abc"
""",
    ),
    Kind(
        "an open file that was sent through a socket and has not been received yet",
        """
one, other = socket.socketpair()
socket.send_fds(one, [b"x"], [os.open("/etc/passwd", os.O_RDONLY)])
rest()
assert socket.recv_fds(other, 9, 1)[1]
""",
        refused="has sent an open file through a socket, which nobody has received yet",
    ),
    Kind(
        "listening, UDP and unused internet sockets",
        """
server, datagrams = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("127.0.0.1", 0))
unused = socket.socket(socket.AF_INET)
rest()
client = socket.create_connection(server.getsockname())
assert server.accept()
""",
        refused=_INET,
        only_with=PASSCRED,
        brief=True,
    ),
    Kind(
        "connections to 127.0.0.1 that begin after a restore",
        """
rest()
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
assert server.accept()
server.close(), client.close()
""",
    ),
    Kind(
        "a netlink socket (`if_nametoindex`, `getifaddrs`)",
        """
one = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
one.bind((0, 0))
rest()
one.send(struct.pack("IHHIIBxxx", 20, 18, 0x301, 1, 0, 0))
assert one.recv(9999)
""",
    ),
    Kind(
        "a POSIX message queue that is open",
        """
queue = libc.mq_open(b"/queue", os.O_CREAT | os.O_RDWR, 0o600, None)
assert libc.mq_send(queue, b"abc", 3, 0) == 0
rest()
assert libc.mq_receive(queue, ctypes.create_string_buffer(8192), 8192, None) == 3
""",
        refused=_QUEUE.format("/queue"),
    ),
    Kind(
        "a POSIX message queue that no process has open",
        """
queue = libc.mq_open(b"/queue", os.O_CREAT | os.O_RDWR, 0o600, None)
assert libc.mq_send(queue, b"abc", 3, 0) == 0
os.close(queue)
rest()
assert libc.mq_open(b"/queue", os.O_RDWR) >= 0
""",
        refused="has a POSIX message queue (mq_open)",
    ),
    Kind(
        "memory, semaphores and queues of System V",
        """
memory, semaphore, queue = libc.shmget(7, 4096, 0o1600), libc.semget(7, 1, 0o1600), libc.msgget(7, 0o1600)
libc.shmat.restype = ctypes.c_void_p
address = libc.shmat(memory, None, 0)
ctypes.memmove(address, b"abc", 3)
libc.semctl(semaphore, 0, 16, 5)
assert libc.msgsnd(queue, struct.pack("l", 1) + b"abc", 3, 0) == 0
rest()
assert ctypes.string_at(address, 3) == b"abc" and libc.semctl(semaphore, 0, 12) == 5
got = ctypes.create_string_buffer(99)
assert libc.msgrcv(queue, got, 9, 0, 0) == 3 and got.raw[8:11] == b"abc"
""",
    ),
    Kind(
        "a System V semaphore taken with SEM_UNDO",
        """
semaphore = libc.semget(7, 1, 0o1600)
libc.semctl(semaphore, 0, 16, 1)
def take():
    libc.semop(semaphore, struct.pack("Hhh", 0, -1, 0x1000), 1)
    time.sleep(1000)
pid = child(take)
within(lambda: libc.semctl(semaphore, 0, 12) == 0)
rest()
os.kill(pid, 9)
assert code(pid) == -9 and libc.semctl(semaphore, 0, 12) == 0
""",
        but="but the semaphore stays taken if its process ends after the restore, so let the program release it",
    ),
    Kind(
        "named semaphores (`sem_open`)",
        """
libc.sem_open.restype = ctypes.c_void_p
semaphore = ctypes.c_void_p(libc.sem_open(b"/x", os.O_CREAT, 0o600, 2))
rest()
value = ctypes.c_int()
libc.sem_getvalue(semaphore, ctypes.byref(value))
assert value.value == 2 and libc.sem_open(b"/x", 0)
""",
    ),
    Kind(
        "epoll, also in another epoll, and eventfd",
        """
reader, writer = os.pipe()
event, outer, inner = os.eventfd(3), select.epoll(), select.epoll()
inner.register(reader, select.EPOLLIN)
outer.register(inner.fileno(), select.EPOLLIN)
outer.register(event, select.EPOLLIN | select.EPOLLET)
rest()
assert os.eventfd_read(event) == 3
os.write(writer, b"x")
os.eventfd_write(event, 1)
assert {one for one, _ in outer.poll(60)} == {event, inner.fileno()}
""",
    ),
    Kind(
        "an eventfd that counts as a semaphore (EFD_SEMAPHORE)",
        """
event = os.eventfd(3, os.EFD_SEMAPHORE)
rest()
assert os.eventfd_read(event) == 1
""",
        refused="holds an eventfd with EFD_SEMAPHORE, which CRIU does not keep",
    ),
    Kind(
        "signalfd with a signal that waits",
        """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
waiting = libc.signalfd(-1, struct.pack("Q", 1 << signal.SIGUSR1 - 1) + bytes(120), 0)
os.kill(os.getpid(), signal.SIGUSR1)
rest()
assert struct.unpack_from("I", os.read(waiting, 128))[0] == signal.SIGUSR1
""",
    ),
    Kind(
        "a watch of `/job` or `/dev/shm` (inotify)",
        """
def watch(folder):
    made = libc.inotify_init1(0)
    assert libc.inotify_add_watch(made, folder, 0x100) > 0
    return made
watches = [(folder, watch(folder)) for folder in (b"/job", b"/dev/shm")]
rest()
for folder, one in watches:
    open(folder + b"/new", "w")
    assert b"new" in os.read(one, 999)
""",
        but="but events that it has not read yet are lost",
    ),
    Kind(
        "a watch of `/tmp`, or of another folder of the image (inotify)",
        """
watch = libc.inotify_init1(0)
assert libc.inotify_add_watch(watch, b"/tmp", 0x100) > 0
rest()
open("/tmp/new", "w")
assert b"new" in os.read(watch, 999)
""",
        refused="watches a file or a folder outside of /job (inotify)",
        brief=True,
    ),
)
