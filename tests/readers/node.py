"""The readers of an agent and of root's programs on a node."""

import io
import os
import socket
import struct
import tarfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.made_images import MadeImage, tar
from tests.readers.reader import Reader, as_json, at

from gleaner.agent.checkpoints import chunking, manifest, workdir_tar
from gleaner.agent.checkpoints.interface import ArchiveBroken, StorageError
from gleaner.agent.messages import Checkpoint
from gleaner.agent.privileged.common import (
    config,
    processes,
    request,
    slurm_job,
)
from gleaner.agent.privileged.helper import image_store, monitor, oci_config
from gleaner.agent.privileged.shim import (
    criu_call,
    criu_messages,
    own_config,
    seal,
    transfer,
    vdso,
    written_layer,
)
from gleaner.agent.privileged.shim.criu_messages import field
from gleaner.agent.reporting import output_lines
from gleaner.agent.runtime import log_frames
from gleaner.agent.runtime.criu_reasons import cannot_checkpoint
from gleaner.agent.runtime.images import PulledImages
from gleaner.agent.system import ipc, untrusted
from gleaner.agent.system.tar_policy import MALFORMED, Hostile, SizeLimit
from gleaner.agent.system.untrusted import text_of
from gleaner.agent.user_job.catalog import Catalog

KEY = b"k" * 32
PAGE = 4096

SHOWN = as_json(
    {
        "jobs": [
            {
                "job_id": 7, "user_id": 1000, "job_state": ["RUNNING"], "restart_cnt": 1, "requeue": True,
                "batch_flag": True, "admin_comment": "gleaner: released",
                "end_time": {"set": True, "infinite": False, "number": 9000},
                "preempt_time": {"set": True, "infinite": False, "number": 8000},
                "job_resources": {
                    "nodes": {"allocation": [{"name": "n1", "cpus": {"count": 2}, "memory": {"allocated": 4000}}]}
                },
            }
        ]
    }
)  # fmt: skip


def a_slurm_job(content: bytes, _folder: Path) -> None:
    found = slurm_job.parse(text_of(content), "7")
    assert found.memory_mib is None or found.memory_mib > 0


def config_file(content: bytes, folder: Path) -> config.Config:
    path = at(folder, content)
    path.chmod(0o644)
    return config.load(str(path))


ON_A_NODE = (
    Reader(
        "Slurm's settings",
        lambda content, _: slurm_job.parse_kill_wait_s(text_of(content)),
        (),
        (b"KillWait = 30 sec\n",),
    ),
    Reader("a Slurm job", a_slurm_job, (slurm_job.Unknown,), (SHOWN,)),
    Reader("privileged.json", config_file, (config.Misconfigured,), (as_json({"agent_uid": 4200, "runc": "/runc"}),)),
    Reader(
        "runc's log",
        lambda content, folder: monitor.last_error(str(at(folder, content))),
        (),
        (b'{"level": "error", "msg": "no such thing"}\n{"level": "info", "msg": "x"}\n',),
    ),
    Reader(
        "CRIU's log",
        lambda content, _: str(cannot_checkpoint(text_of(content), "")),
        (),
        (b"(00.1) Error (criu/x.c:1): files: no\n",),
    ),
)


SPEC = {
    "name": "gleaner-7-1", "image": "a/b:1", "command": ["sh"], "environment": {"A": "b"}, "cpus": 1, "memory_mib": 100,
    "labels": {"org.gleaner.agent": "a"}, "restore": False, "inputs": False,
}  # fmt: skip
IMAGE = MadeImage()
CRIU = (
    field(1, 5) + field(9, 4)
    + field(23, field(1, b"/job") + field(2, b"/j"))
    + field(27, field(1, b"pipe:[1]") + field(2, 1)) + field(13, b"/caf\xe9")
)  # fmt: skip


def heard(content: bytes, _folder: Path) -> None:
    ours, other = socket.socketpair()

    def send() -> None:
        with other, suppress(OSError):  # beside the reader, since a socket takes only so much that nobody reads
            other.sendall(struct.pack(">I", len(content)) + content)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        message, descriptor = ipc.Handshake(ours, 60.0).hear()
    finally:
        ours.close()
        sender.join()
    assert descriptor is None
    with_own_error(lambda: request.spec(message), request.Refused)


def with_own_error(act: Callable[[], object], *own: type[BaseException]) -> None:
    try:
        act()
    except own:
        return


def image_in(content: bytes, folder: Path) -> None:
    path = at(folder, content, "image.tar")
    settings = config.Config(os.getuid() or 1, bundles=str(folder / "bundles"))
    with path.open("rb") as file:
        image_store.import_image(settings, file.fileno(), "gleaner/pi")
    found = image_store.find(settings, "gleaner/pi")
    assert found is not None
    oci_config.image(found.config)


def layer_back(content: bytes, folder: Path) -> None:
    target = folder / "upper"
    target.mkdir(exist_ok=True)
    written_layer.put_back([content], str(target), SizeLimit(2**20, 100), [])


def vdso_areas(content: bytes, _folder: Path) -> None:
    pagemap, _, mm = content.partition(b"--")
    guard = vdso.Guard()
    for name, part in (("pagemap-1.img", pagemap), ("mm-1.img", mm)):
        assert guard.reads(name)
        guard.note(name, part)
    guard.parts("pages-1.img")


def criu_images() -> bytes:
    """Return images that say that the process has one page, and a vDSO of its own there."""
    pages = [
        field(1, 1),
        field(1, 2**20) + field(2, 1) + field(4, 4),
    ]
    area = field(1, 2**20) + field(2, 2**20 + PAGE) + field(7, 1 | 8 | 512)
    images = (pages, [field(14, area)])
    return b"--".join(bytes(8) + b"".join(struct.pack("<I", len(one)) + one for one in image) for image in images)


RUNC_STATE = as_json({"cgroup_paths": {"": "/c", "freezer": "/f"}, "config": {"labels": ["a=b"]}})
OCI_CONFIG = as_json(
    {
        "annotations": {"a": "b"},
        "process": {"args": ["x"], "user": {"uid": 1, "gid": 1}}, "mounts": [{"destination": "/job"}],
        "linux": {
            "seccomp": {
                "defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["socket"], "action": "SCMP_ACT_ALLOW"}]
            }
        },
    }
)  # fmt: skip


def cgroups_of_runc(content: bytes, folder: Path) -> None:
    at(folder, content, "state.json")
    for controller, path in processes.cgroups_made_by_runc(str(folder)).items():
        assert (type(controller), type(path)) == (str, str)


def changed_config(content: bytes, folder: Path) -> None:
    at(folder, content, "config.json")
    own_config.change(str(folder), "a")


ROOTS = (
    Reader("runc's state of a container", cgroups_of_runc, (), (RUNC_STATE,)),
    Reader("a container's configuration", changed_config, own_config.MALFORMED, (OCI_CONFIG,)),
    Reader("a message to root", heard, (ipc.HandshakeFailed,), (as_json(SPEC),)),
    Reader(
        "runc's request to CRIU",
        lambda content, _: criu_call.options(content, 1),
        (criu_messages.NotUnderstood,),
        (CRIU,),
        (field(23, b""), field(10, b"\xff"), field(27, b"")),
    ),
    Reader(
        "a name of an image of CRIU's",
        lambda content, _: criu_messages.parse_request(content),
        (criu_messages.StreamBroken,),
        (b"\x0a\x0bpages-1.img",),
    ),
    Reader("the images of CRIU's that say what is where", vdso_areas, (vdso.Forged,), (criu_images(),)),
    Reader("a vDSO", lambda content, _: vdso.flaw(content), ()),
    Reader(
        "a seal",
        lambda content, _: seal.open_seal(KEY, 7, text_of(content)),
        (seal.Broken,),
        (seal.seal(KEY, 7, seal.SaveNotes("[]", {"core-1.img": ["00"]})).encode(),),
    ),
    Reader(
        "the pipes of a process",
        lambda content, _: transfer.check_descriptors(text_of(content)),
        (ipc.HandshakeFailed,),
        (b'["/dev/null", "pipe:[7]", "pipe:[8]"]',),
    ),
    Reader("an image for the node", image_in, (Hostile, OSError), (tar(IMAGE.files()), tar(IMAGE.oci_files()))),
    Reader(
        "a container's written files",
        layer_back,
        (Hostile, OSError, *MALFORMED),
        (tar({"a": b"1", "d/b": b"2"}),),
    ),
)


FRAMES = struct.pack(">B3xL", 1, 6) + b"a\xff\0\nbc" + struct.pack(">B3xL", 2, 2) + b"d\n"
MANIFEST = manifest.make_manifest("jobs/7/output", [], {"image_id": "x"})
RECORD = as_json(
    {
        "program": "p",
        "checkpoints": [
            Checkpoint(attempt=1, number=1, digest="sha256:" + "0" * 64, size_bytes=1, log_lines=0).model_dump(
                mode="json"
            )
        ],
    }
)


def folder_back(content: bytes, folder: Path) -> None:
    target = folder / "job"
    target.mkdir(exist_ok=True)
    workdir_tar.unpack([content], target)


def packed_folder(modified: str) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind in ((".", tarfile.DIRTYPE), ("caf\udce9", tarfile.REGTYPE), ("link", tarfile.SYMTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode = kind, "nowhere", 0o700
            member.pax_headers = {"mtime": modified}
            archive.addfile(member)
    return made.getvalue()


def container_output(content: bytes, _folder: Path) -> None:
    lines = output_lines.OutputLines()
    for line in [*lines.of(log_frames.messages([content])), *lines.rest()]:
        assert line == untrusted.storable(line)


def record(content: bytes, folder: Path) -> None:
    catalog = Catalog(folder, 7, "p")
    catalog.record.parent.mkdir(parents=True, exist_ok=True)
    catalog.record.write_bytes(content)
    catalog.latest()


def pack_index(content: bytes, _folder: Path) -> None:
    chunking.parse_index(content[chunking.FOOTER_BYTES :], content[: chunking.FOOTER_BYTES], [1, 2])


AGENTS = (
    Reader("a container's output", container_output, (), (FRAMES,)),
    Reader(
        "the record of pulled images",
        lambda content, folder: PulledImages(at(folder, content).parent).read(),
        (),
        (b"b a",),
    ),
    Reader(
        "an archive's manifest", lambda content, _: manifest.parse_manifest("k", content), (ArchiveBroken,), (MANIFEST,)
    ),
    Reader("an archive's index", pack_index, (chunking.Damaged,)),
    Reader("a user job's record", record, (StorageError,), (RECORD,)),
    Reader(
        "a job's folder",
        folder_back,
        (workdir_tar.WorkdirError,),
        (packed_folder("1.500000000"),),
        (packed_folder("9" * 30), packed_folder("nan")),
    ),
)
