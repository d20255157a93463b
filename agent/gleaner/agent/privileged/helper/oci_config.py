"""Build the OCI runtime configuration (config.json) of a job's container. Pure.

The configuration is made only from checked fields, and no input from a job, its container image or an agent can loosen
it. It grants no capability, no new privileges and no network, and it sets separate namespaces and the uid of the user
who requests the container. Mounts, masked paths and limits are the same as those of Docker Engine, in the same order.
So each runtime could restore what the other has saved.
"""

from __future__ import annotations  # the node may have Python 3.9

from typing import Any, NamedTuple

from ..common import bundle, request
from ..common.request import Spec, is_text
from ..shim.main import ANNOTATION_END, ANNOTATION_HANDSHAKE, ANNOTATION_IMAGE, ANNOTATION_OWNER, ANNOTATION_RESTORE
from ..shim.own_config import ENOSYS, denials

FOLDER_IN_CONTAINER = "/job"
INPUTS_IN_CONTAINER = "/inputs"
HOSTNAME = "gleaner"
"""The host name is the same on all nodes, because a restored process keeps the one with which it was started."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PERIOD_US = 100_000
_PIDS = 4096
_SHM = "/dev/shm"  # noqa: S108 - the container's own
_MIB = 2**20

_MASKED = (
    *(f"/proc/{name}" for name in ("asound", "acpi", "kcore", "keys", "latency_stats", "timer_list")),
    *(f"/proc/{name}" for name in ("timer_stats", "sched_debug", "scsi")),
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
)
_READ_ONLY = tuple(f"/proc/{name}" for name in ("bus", "fs", "irq", "sys", "sysrq-trigger"))

# System calls that no job needs, and through which most kernel bugs were exploited. This list names the denied calls,
# whereas Docker's names the allowed ones. Most of these calls need a capability anyway, and the container has none.
_DENIED = [
    "acct", "add_key", "bpf", "chroot", "clock_adjtime", "clock_adjtime64", "clock_settime", "clock_settime64",
    "delete_module", "fanotify_init", "finit_module", "fsconfig", "fsmount", "fsopen", "fspick", "get_kernel_syms",
    "init_module", "io_uring_enter", "io_uring_register", "io_uring_setup", "ioperm", "iopl", "kcmp",
    "kexec_file_load", "kexec_load", "keyctl", "lookup_dcookie", "mount", "mount_setattr", "move_mount",
    "move_pages", "name_to_handle_at", "nfsservctl", "open_by_handle_at", "open_tree", "perf_event_open",
    "pidfd_getfd", "pivot_root", "query_module", "quotactl", "quotactl_fd", "reboot", "request_key",
    "setdomainname", "sethostname", "setns", "settimeofday", "stime", "swapoff", "swapon", "_sysctl", "sysfs",
    "syslog", "umount", "umount2", "unshare", "uselib", "userfaultfd", "ustat", "vhangup", "vm86", "vm86old",
]  # fmt: skip
_NEW_NAMESPACES = 0x7E020000
"""All CLONE_NEW... flags except that of time, which `clone` does not accept."""


class Node(NamedTuple):
    """The facts that the configuration takes from the node instead of the agent."""

    uid: int
    gid: int
    cpus: int
    cgroup: str
    has_cgroup2: bool
    """True if the node has only cgroups of version 2."""
    counts_swap: bool
    is_agents: bool = True
    """True if the uid is the service account's. Otherwise it is a Slurm job's owner, whose checkpoints are sealed."""
    image_id: str = ""


class ImageDefaults(NamedTuple):
    """The defaults for running a container image (image-spec, config.md)."""

    entrypoint: list[str]
    command: list[str]
    environment: list[str]


def image(config: dict[str, Any]) -> ImageDefaults:
    """Return the defaults in a container image's configuration. A malformed field counts as missing.

    >>> image({"config": {"Cmd": ["sh"], "Env": None}})
    ImageDefaults(entrypoint=[], command=['sh'], environment=[])
    """
    fields: Any = config.get("config")

    def texts(key: str) -> list[str]:
        try:
            value: list[str] = fields[key]
        except (KeyError, TypeError):
            return []
        return value if type(value) is list and all(map(is_text, value)) else []

    return ImageDefaults(texts("Entrypoint"), texts("Cmd"), texts("Env"))


def configuration(spec: Spec, node: Node, image: ImageDefaults, *, rootfs: str, folder: str) -> dict[str, Any]:
    """Return the configuration of a container with its root at `rootfs` and its own few files in `folder`."""
    annotations = {ANNOTATION_HANDSHAKE: spec.name}
    if not node.is_agents:
        annotations[ANNOTATION_OWNER] = str(node.uid)  # the job's end can move, so each save passes it
        annotations[ANNOTATION_IMAGE] = node.image_id
    elif (end_s := request.end_s(spec.labels)) is not None:
        annotations[ANNOTATION_END] = str(end_s)
    if spec.restore:
        annotations[ANNOTATION_RESTORE] = "yes"
    return {
        "ociVersion": "1.0.2",
        "process": _process(spec, node, image),
        "root": {"path": rootfs},
        "hostname": HOSTNAME,
        "mounts": _mounts(spec, node, folder),
        "annotations": annotations,
        "linux": {
            "resources": _resources(spec, node),
            "cgroupsPath": f"{node.cgroup}/{spec.name}",
            "namespaces": [
                {"type": name} for name in ("mount", "network", "uts", "pid", "ipc", *(["cgroup"] * node.has_cgroup2))
            ],
            "maskedPaths": list(_MASKED),
            "readonlyPaths": list(_READ_ONLY),
            "seccomp": _seccomp(),
        },
    }


def command(spec: Spec, image: ImageDefaults) -> list[str]:
    """Return the program and its arguments.

    The agent's command replaces the image's command, but not the image's entry point.
    """
    return [*image.entrypoint, *(spec.command or image.command)]


def _process(spec: Spec, node: Node, image: ImageDefaults) -> dict[str, Any]:
    variables = {"PATH": _PATH, "HOSTNAME": HOSTNAME}
    variables.update({one.partition("=")[0]: one.partition("=")[2] for one in image.environment})
    variables.update(spec.environment)
    return {
        "user": {"uid": node.uid, "gid": node.gid},
        "args": command(spec, image),
        "env": [f"{name}={value}" for name, value in variables.items()],
        "cwd": FOLDER_IN_CONTAINER,
        "capabilities": {},
        "noNewPrivileges": True,
        "rlimits": [{"type": "RLIMIT_CORE", "soft": 0, "hard": 0}],
        "oomScoreAdj": 0,
    }


def _mounts(spec: Spec, node: Node, folder: str) -> list[dict[str, Any]]:
    plain = ["nosuid", "noexec", "nodev"]

    def mount(target: str, kind: str, *options: str, source: str | None = None) -> dict[str, Any]:
        return {"destination": target, "type": kind, "source": source or kind, "options": list(options)}

    def file(name: str) -> dict[str, Any]:
        return mount(f"/etc/{name}", "bind", "rbind", "rprivate", source=f"{folder}/{name}")

    read_only = ("rbind", "rprivate", "ro", "nosuid", "nodev")
    inputs = mount(INPUTS_IN_CONTAINER, "bind", *read_only, source=f"{folder}/inputs")
    # These come before the job's folder, so that no link that a job has made there leads to where they are mounted.
    from_node = [
        mount(path, "bind", *read_only, source=f"{folder}/{bundle.mount_place(number)}")
        for number, path in enumerate(spec.mounts)
    ]
    return [
        mount("/proc", "proc", *plain),
        mount("/dev", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
        mount("/dev/pts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"),
        mount("/sys", "sysfs", *plain, "ro"),
        mount("/sys/fs/cgroup", "cgroup", "ro", *plain),
        mount("/dev/mqueue", "mqueue", *plain),
        mount(_SHM, "tmpfs", *plain, "mode=1777", f"size={spec.memory_mib * _MIB}", source="shm"),
        *from_node,
        mount(FOLDER_IN_CONTAINER, "bind", "rbind", "rprivate", source=f"{folder}/job"),
        *([inputs] if spec.inputs else []),
        *(file(name) for name in ("resolv.conf", "hostname", "hosts")),
    ]


def _resources(spec: Spec, node: Node) -> dict[str, Any]:
    memory = {"limit": spec.memory_mib * _MIB}
    if node.counts_swap or node.has_cgroup2:
        memory["swap"] = spec.memory_mib * _MIB  # memory and swap together, so there is no swap
    devices = [(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2)]  # null, zero, full, random, urandom, tty, ptmx
    return {
        "devices": [
            {"allow": False, "access": "rwm"},
            *({"allow": True, "type": "c", "major": a, "minor": b, "access": "rwm"} for a, b in devices),
            {"allow": True, "type": "c", "major": 136, "access": "rwm"},
        ],
        "memory": memory,
        # The scheduler can count more CPUs than the machine has.
        "cpu": {"quota": min(spec.cpus, node.cpus) * _PERIOD_US, "period": _PERIOD_US},
        "pids": {"limit": _PIDS},
    }


def _seccomp() -> dict[str, Any]:
    def deny(names: list[str], *arguments: dict[str, Any], error: int = 1) -> dict[str, Any]:
        return {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": error, "args": list(arguments)}

    def with_flag(bit: int) -> dict[str, Any]:
        return {"index": 0, "value": bit, "valueTwo": bit, "op": "SCMP_CMP_MASKED_EQ"}

    bits = [1 << number for number in range(32) if _NEW_NAMESPACES >> number & 1]
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32", "SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"],
        "syscalls": [
            deny(_DENIED),
            *(deny(["clone"], with_flag(bit)) for bit in bits),
            deny(["clone3"], error=ENOSYS),  # a filter cannot see its flags, and glibc then uses clone
            *denials(),
        ],
    }
