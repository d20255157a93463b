"""The readers of an agent and of root's programs on a node."""

import io
import struct
import tarfile
from pathlib import Path

from tests.made_images import tar
from tests.readers.reader import Reader, as_json, at

from gleaner.agent.checkpoints import workdir_tar
from gleaner.agent.checkpoints.interface import StorageError
from gleaner.agent.messages import Checkpoint
from gleaner.agent.privileged.common import (
    processes,
    slurm_job,
)
from gleaner.agent.privileged.helper import monitor
from gleaner.agent.privileged.shim import (
    own_config,
    vdso,
    written_layer,
)
from gleaner.agent.privileged.shim.criu_messages import field
from gleaner.agent.system.tar_policy import MALFORMED, Hostile, SizeLimit
from gleaner.agent.system.untrusted import text_of
from gleaner.agent.user_job.catalog import Catalog

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


ON_A_NODE = (
    Reader("a Slurm job", a_slurm_job, (slurm_job.Unknown,), (SHOWN,)),
    Reader(
        "runc's log",
        lambda content, folder: monitor.last_error(str(at(folder, content))),
        (),
        (b'{"level": "error", "msg": "no such thing"}\n{"level": "info", "msg": "x"}\n',),
    ),
)


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
    Reader("the images of CRIU's that say what is where", vdso_areas, (vdso.Forged,), (criu_images(),)),
    Reader(
        "a container's written files",
        layer_back,
        (Hostile, OSError, *MALFORMED),
        (tar({"a": b"1", "d/b": b"2"}),),
    ),
)


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


def record(content: bytes, folder: Path) -> None:
    catalog = Catalog(folder, 7, "p")
    catalog.record.parent.mkdir(parents=True, exist_ok=True)
    catalog.record.write_bytes(content)
    catalog.latest()


AGENTS = (
    Reader("a user job's record", record, (StorageError,), (RECORD,)),
    Reader(
        "a job's folder",
        folder_back,
        (workdir_tar.WorkdirError,),
        (packed_folder("1.500000000"),),
        (packed_folder("9" * 30), packed_folder("nan")),
    ),
)
