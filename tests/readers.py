"""All functions that read bytes from outside, with the errors that each may raise.

`tests/test_readers.py` tries each with any bytes, and with examples in which something is changed. What answers at a
socket is tried in `test_any_answer.py` (Docker Engine, control) and `api/test_any_body.py` (control's API).
"""

import gzip
import io
import json
import os
import socket
import struct
import tarfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.made_images import MadeImage, tar
from tests.slurm_admin import facts

from gleaner.agent.checkpoints import chunking, manifest, workdir_tar
from gleaner.agent.checkpoints.interface import ArchiveBroken, StorageError
from gleaner.agent.common import hostlist
from gleaner.agent.messages import Checkpoint
from gleaner.agent.node import slurm_job
from gleaner.agent.privileged.common import config, handshake, request, slurm_jobs, untrusted
from gleaner.agent.privileged.common.tar_stream import MALFORMED
from gleaner.agent.privileged.common.untrusted import json_of, text_of
from gleaner.agent.privileged.helper import image_store, monitor, oci_config, overlay_tar, untar
from gleaner.agent.privileged.install import daemon_json
from gleaner.agent.privileged.shim import criu_call, img_streamer, protobuf, seal, transfer, vdso
from gleaner.agent.runtime import docker_layer, log_frames
from gleaner.agent.runtime.disk_quota import has_quotas
from gleaner.agent.runtime.docker_http import criu_reason
from gleaner.agent.runtime.pulled_images import PulledImages
from gleaner.agent.user_job.catalog import Catalog
from gleaner.control.api.image_uploads import architecture_of
from gleaner.control.cli import campaign_file, image_archive, unpack
from gleaner.control.cli.config import load_settings
from gleaner.control.cli.failures import Failure
from gleaner.control.models.images import ImagePush
from gleaner.control.queue.errors import Invalid
from gleaner.control.simulation.errors import SimulationError
from gleaner.control.simulation.scenario import read_scenario
from gleaner.control.simulation.tuning.journal import Journal
from gleaner.control.simulation.workloads import sacct, traces
from gleaner.control.slurm import accounting, munge, parse, parse_json, pyslurm_parse
from gleaner.control.slurm.agents_view import cluster_view
from gleaner.control.slurm.child_process import answer_in
from gleaner.control.slurm.interface import ClusterError
from gleaner.control.slurm.owners_view import owners_view
from gleaner.control.slurm_admin import client
from gleaner.control.slurm_admin import request as admin_request
from gleaner.control.slurm_admin import settings as admin_settings
from gleaner.lab.real_slurm import world
from gleaner.lab.real_slurm.record import ReplayFailed

WORD = "x832a19f6"
KEY = b"k" * 32
PAGE = 4096


@dataclass(frozen=True)
class Reader:
    """A function of bytes, and of a folder of its own.

    `good` are examples that it reads without an error, `bad` are some on which it once failed.
    """

    name: str
    read: Callable[[bytes, Path], object]
    own: tuple[type[BaseException], ...]
    good: tuple[bytes, ...] = ()
    bad: tuple[bytes, ...] = ()


def at(folder: Path, content: bytes, name: str = "file") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()


# ── Slurm, as control asks it ──

NODES = ("n1", "idle*", "0/6/0/6", "4000", "0", "amd,fast", "shared")
JOB = (
    "11_3", "RUNNING", "physics", "shared", "6", "2", "NO", "n[1-2]", "n9", "n1", "cpu=6,mem=1.5G,node=1", "1795232710",
    "1795232717", "1795232957", "N/A", "7", "None", "(null)", "amd&fast", "1", "1000", "gleaner: released",
    "mine gleaner:preemptible", "my|own\njob",
)  # fmt: skip
ON_NODE = facts.shown(
    job_id=12, user_name="alice", comment="gleaner:preemptible", nodes="n[1-2]", job_state=["RUNNING"],
    end_time={"set": True, "infinite": False, "number": 9000},
)  # fmt: skip
SHARED = facts.shown(array_job_id={"set": True, "number": 7}, array_task_string="1,3-5%2")
NODE = {"name": "n1", "partitions": ["shared"], "state": ["IDLE", "DRAIN"], "reason": "gleaner: drained by alice"}
PYSLURM = {
    "nodes": [{"name": "n1", "cpus": 6, "memory_mib": 4000, "state": "IDLE+DRAIN"}],
    "jobs": [
        {
            "id": 7,
            "name": "gleaner-a",
            "state": "RUNNING",
            "node": "n1",
            "submitted_s": 1.0,
            "start_s": 2,
            "end_s": None,
        }
    ],
}


def table(*rows: tuple[str, ...]) -> bytes:
    return "".join("".join(field + WORD for field in row) + "\n" for row in rows).encode()


def snapshot_of(nodes: bytes, jobs: bytes) -> None:
    found = parse.parse_tables(text_of(nodes), text_of(jobs), WORD, own=1000, read_s=1.0)
    for view in (lambda: cluster_view(found, "gleaner"), lambda: owners_view(found, ("shared",), agents="gleaner")):
        try:
            view()
        except ClusterError:
            continue


def listed_jobs(content: bytes, _folder: Path) -> None:
    for job in parse.parse_jobs_on(text_of(content), ["n1"])[0]:
        assert all(text == untrusted.storable(text) for text in (job.user, job.comment, job.name, *job.nodes))


def pyslurm_answer(content: bytes, _folder: Path) -> None:
    said = json_of(content, is_shown=True)
    for read in (pyslurm_parse.parse_ids, pyslurm_parse.parse_versions):
        try:
            read(said)
        except ClusterError:
            continue
    pyslurm_parse.parse_snapshot(said, partition="gleaner", read_s=1.0)


SLURM = (
    Reader("sinfo", lambda content, _: snapshot_of(content, b""), (ClusterError,), (table(NODES, NODES),)),
    Reader(
        "squeue",
        lambda content, _: snapshot_of(table(NODES), content),
        (ClusterError,),
        (table(JOB, JOB),),
        (
            table(("²11", *JOB[1:])),
            table((*JOB[:10], "mem=1P,node=0", *JOB[11:])),
            table((*JOB[:10], "mem=xG", *JOB[11:])),
            table((*JOB[:4], "²", *JOB[5:])),
            table((*JOB[:7], "n[1-999999999]", *JOB[8:])),
        ),
    ),
    Reader(
        "squeue --json",
        listed_jobs,
        (ClusterError,),
        (as_json({"jobs": [ON_NODE, ON_NODE | {"comment": "caf\udce9"}]}),),
        (json.dumps({"jobs": [ON_NODE | {"comment": "café"}]}, ensure_ascii=False).encode("latin-1"),),
    ),
    Reader(
        "scontrol show job --json",
        lambda content, _: [parse_json.parse_job(text_of(content), name) for name in ("7", "7_4", "12")],
        (ClusterError,),
        (as_json({"jobs": [SHARED, ON_NODE]}),),
    ),
    Reader(
        "an array",
        lambda content, _: parse_json.is_array(text_of(content)),
        (ClusterError,),
        (as_json({"jobs": [SHARED]}),),
    ),
    Reader(
        "scontrol show nodes --json",
        lambda content, _: parse_json.parse_nodes(text_of(content)),
        (ClusterError,),
        (as_json({"nodes": [NODE, NODE | {"name": "n2"}]}),),
        (as_json({"nodes": [NODE, {"partitions": 7}]}),),
    ),
    Reader("job ids", lambda content, _: parse.parse_ids(text_of(content)), (ClusterError,), (b"11\n12\n",)),
    Reader("sbatch", lambda content, _: parse.parse_submitted(text_of(content)), (ClusterError,), (b"4711;cluster\n",)),
    Reader(
        "scontrol show config",
        lambda content, _: accounting.enforced(text_of(content)),
        (ClusterError,),
        (b"A = 1\nAccountingStorageEnforce = associations,limits\n",),
    ),
    Reader(
        "sacctmgr",
        lambda content, _: accounting.parse_shares(text_of(content)),
        (ClusterError,),
        (b"c|root|||1\nc|sciences|root||3\nc|physics|sciences||1\nc|physics|sciences|alice|1\nc|art|root||parent\n",),
        (b"c|x|a||1\nc|a|b||1\nc|b|a||1\n", b"c|a|root||" + b"9" * 400),
    ),
    Reader("PySlurm's answers", pyslurm_answer, (ClusterError, ValueError), (as_json(PYSLURM),)),
    Reader(
        "PySlurm's process",
        lambda content, _: answer_in(content, "PySlurm"),
        (ClusterError,),
        (as_json({"said": PYSLURM}), as_json({"failed": "no", "is_absent": True})),
    ),
    Reader(
        "unmunge",
        lambda content, _: munge.parsed(text_of(content)),
        (munge.MungeAway,),
        (b"STATUS:   0\nENCODE_TIME:  5\nDECODE_TIME:  6\nUID:   1000\n\nUID: 0\n",),
    ),
    Reader(
        "the Slurm admin service's answer",
        lambda content, _: client.check_answer(content),
        (client.SlurmAdminRefused, client.SlurmAdminSilent),
        (b'{"ok": true}\n',),
    ),
    Reader(
        "a request to the Slurm admin service",
        lambda content, _: admin_request.parse(content),
        (request.Refused,),
        (
            b'{"do": "release", "job": "4711_3", "top": true, "epoch": 3, "submitted_s": 1795232710}',
            b'{"do": "drain", "nodes": ["n1", "n2"], "by": "alice"}',
            b'{"do": "reason", "job": "7", "text": "waits"}',
        ),
    ),
    Reader(
        "slurm-admin.conf",
        lambda content, folder: admin_settings.load(at(folder, content)),
        (admin_settings.Misconfigured,),
        (
            b"control gleaner\nsocket /run/x\nheartbeat /run/y # why\npartition shared preemptible\ndrain cpu\n"
            b"dead-after-s 300\n",
        ),
        (b"dead-after-s " + b"9" * 5000,),
    ),
    Reader(
        "the real Slurm's driver",
        lambda content, _: world.said(text_of(content)),
        (ReplayFailed,),
        (b'{"kind": "ended", "jobs": 3}',),
    ),
    Reader(
        "a list of nodes",
        lambda content, _: hostlist.expanded(text_of(content)),
        (ValueError,),
        (b"n[1-3,07],login",),
        (b"n[1-999999999]", b"n[1-999999999][2-1]"),
    ),
)

# ── Slurm, as the agent and the node's helper ask it ──

SHOWN = as_json(
    {
        "jobs": [
            {
                "job_id": 7, "user_id": 1000, "job_state": ["RUNNING"], "restart_cnt": 1, "requeue": True,
                "batch_flag": True, "admin_comment": "gleaner: released",
                "end_time": {"set": True, "infinite": False, "number": 9000},
                "job_resources": {
                    "nodes": {"allocation": [{"name": "n1", "cpus": {"count": 2}, "memory": {"allocated": 4000}}]}
                },
            }
        ]
    }
)  # fmt: skip


def own_slurm_job(content: bytes, _folder: Path) -> None:
    shown = text_of(content)
    slurm_job.parse_ending(shown)
    slurm_job.parse_memory_mib(shown)
    slurm_job.parse_kill_wait_s(shown)


def config_file(content: bytes, folder: Path) -> config.Config:
    path = at(folder, content)
    path.chmod(0o644)
    return config.load(str(path))


def daemon_json_file(content: bytes, _folder: Path) -> None:
    text, added = daemon_json.merged(text_of(content), program="/g", experimental=True)
    daemon_json.without(text, program="/g", added=added)


ON_A_NODE = (
    Reader(
        "the agent's own Slurm job",
        own_slurm_job,
        (),
        (b"JobId=7 JobState=RUNNING EndTime=2026-11-21T20:29:10 TRES=cpu=6,mem=1.50G,node=1\nKillWait = 30 sec\n",),
        (b"EndTime=2026-99-99T99:99:99", b"EndTime=0001-01-01T00:00:00", b"TRES=mem=" + b"9" * 400 + b"G"),
    ),
    Reader(
        "a user's Slurm job",
        lambda content, _: slurm_jobs.parse(text_of(content), "7"),
        (slurm_jobs.Unknown,),
        (SHOWN,),
    ),
    Reader(
        "mountinfo",
        lambda content, _: has_quotas("/var/lib", text_of(content)),
        (),
        (b"8 7 8:2 / /var rw - xfs d rw,prjquota",),
    ),
    Reader("privileged.json", config_file, (config.Misconfigured,), (as_json({"agent_uid": 4200, "runc": "/runc"}),)),
    Reader(
        "Docker's daemon.json",
        daemon_json_file,
        (daemon_json.Refused,),
        (b'{"debug": true, "runtimes": {"x": {"path": "/x"}}}',),
    ),
    Reader(
        "runc's log",
        lambda content, folder: monitor.last_error(str(at(folder, content))),
        (),
        (b'{"level": "error", "msg": "no such thing"}\n{"level": "info", "msg": "x"}\n',),
    ),
    Reader(
        "CRIU's log", lambda content, _: criu_reason(text_of(content)), (), (b"(00.1) Error (criu/x.c:1): files: no\n",)
    ),
)

# ── root's programs on the node: what agents, users and CRIU say ──

SPEC = {
    "name": "gleaner-7-1", "image": "a/b:1", "command": ["sh"], "environment": {"A": "b"}, "cpus": 1, "memory_mib": 100,
    "labels": {"org.gleaner.agent": "a"}, "restore": False,
}  # fmt: skip
IMAGE = MadeImage()
CRIU = (
    protobuf.field(1, 5) + protobuf.field(9, 4)
    + protobuf.field(23, protobuf.field(1, b"/job") + protobuf.field(2, b"/j"))
    + protobuf.field(27, protobuf.field(1, b"pipe:[1]") + protobuf.field(2, 1)) + protobuf.field(13, b"/caf\xe9")
)  # fmt: skip


def heard(content: bytes, _folder: Path) -> None:
    ours, other = socket.socketpair()

    def send() -> None:
        with other, suppress(OSError):  # beside the reader, since a socket takes only so much that nobody reads
            other.sendall(struct.pack(">I", len(content)) + content)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        message, descriptor = handshake.Handshake(ours, 60.0).hear()
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
        image_store.take_in(settings, file.fileno(), "gleaner/pi")
    found = image_store.find(settings, "gleaner/pi")
    assert found is not None
    oci_config.image(found.config)


def layer_back(content: bytes, folder: Path) -> None:
    target = folder / "upper"
    target.mkdir(exist_ok=True)
    with at(folder, content).open("rb") as file:
        overlay_tar.put_back(file.fileno(), str(target), untar.Limit(2**20, 100), [])


def vdso_areas(content: bytes, _folder: Path) -> None:
    pagemap, _, mm = content.partition(b"--")
    guard = vdso.Guard()
    for name, part in (("pagemap-1.img", pagemap), ("mm-1.img", mm)):
        seen = guard.reads(name)
        assert seen is not None
        seen += part
    guard.parts("pages-1.img")


def criu_images() -> bytes:
    """Return images that say that the process has one page, and a vDSO of its own there."""
    pages = [protobuf.field(1, 1), protobuf.field(1, 2**20) + protobuf.field(2, 1) + protobuf.field(4, 4)]
    area = protobuf.field(1, 2**20) + protobuf.field(2, 2**20 + PAGE) + protobuf.field(7, 1 | 8 | 512)
    images = (pages, [protobuf.field(14, area)])
    return b"--".join(bytes(8) + b"".join(struct.pack("<I", len(one)) + one for one in image) for image in images)


ROOTS = (
    Reader("a message to root", heard, (handshake.HandshakeFailed,), (as_json(SPEC),)),
    Reader(
        "runc's request to CRIU",
        lambda content, _: criu_call.options(content, 1),
        (protobuf.NotUnderstood,),
        (CRIU,),
        (protobuf.field(23, b""), protobuf.field(10, b"\xff"), protobuf.field(27, b"")),
    ),
    Reader(
        "a name of an image of CRIU's",
        lambda content, _: img_streamer.parsed_request(content),
        (img_streamer.StreamBroken,),
        (b"\x0a\x0bpages-1.img",),
    ),
    Reader("the images of CRIU's that say what is where", vdso_areas, (vdso.Forged,), (criu_images(),)),
    Reader("a vDSO", lambda content, _: vdso.flaw(content), ()),
    Reader(
        "a seal",
        lambda content, _: seal.opened(KEY, 7, text_of(content)),
        (seal.Broken,),
        (seal.seal(KEY, 7, seal.Sealed("[]", {"core-1.img": ["00"]})).encode(),),
    ),
    Reader(
        "the pipes of a process",
        lambda content, _: transfer.checked_descriptors(text_of(content)),
        (handshake.HandshakeFailed,),
        (b'["/dev/null", "pipe:[7]", "pipe:[8]"]',),
    ),
    Reader("an image for the node", image_in, (untar.Hostile, OSError), (tar(IMAGE.files()), tar(IMAGE.oci_files()))),
    Reader(
        "a container's written files",
        layer_back,
        (untar.Hostile, OSError, *MALFORMED),
        (tar({"a": b"1", "d/b": b"2"}),),
    ),
)

# ── the agent ──

FRAMES = struct.pack(">B3xL", 1, 6) + b"a\xff\0\nbc" + struct.pack(">B3xL", 2, 2) + b"d\n"
MANIFEST = manifest.manifest_of("jobs/7/output", [], {"image_id": "x"})
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


def written_layer(content: bytes, _folder: Path) -> None:
    for _ in docker_layer.layer([content], without={"job"}, deleted={"a"}, below=lambda _: []):
        pass


def container_output(content: bytes, _folder: Path) -> None:
    lines = log_frames.Lines()
    for line in [*lines.of(log_frames.messages([content])), *lines.rest()]:
        assert line == untrusted.storable(line)


def record(content: bytes, folder: Path) -> None:
    catalog = Catalog(folder, 7, "p")
    catalog.record.parent.mkdir(parents=True, exist_ok=True)
    catalog.record.write_bytes(content)
    catalog.latest()


def pack_index(content: bytes, _folder: Path) -> None:
    chunking.parsed_index(content[chunking.FOOTER_BYTES :], content[: chunking.FOOTER_BYTES], [1, 2])


AGENTS = (
    Reader("a container's output", container_output, (), (FRAMES,)),
    Reader(
        "the list of pulled images",
        lambda content, folder: PulledImages(at(folder, content)).known(),
        (),
        (as_json({"a": {"image_id": "b", "used_s": 1.5}}),),
    ),
    Reader("an archive's manifest", lambda content, _: manifest.parsed("k", content), (ArchiveBroken,), (MANIFEST,)),
    Reader("an archive's index", pack_index, (chunking.Damaged,)),
    Reader("a user job's record", record, (StorageError,), (RECORD,)),
    Reader(
        "a job's folder",
        folder_back,
        (workdir_tar.WorkdirError,),
        (packed_folder("1.500000000"),),
        (packed_folder("9" * 30), packed_folder("nan")),
    ),
    Reader("Docker's archive of a layer", written_layer, MALFORMED, (tar({"a": b"1", "job/b": b"2"}),)),
)

# ── what people hand in ──

SWF = b"; MaxProcs: 400 (4 each)\n1 10 5 60 4 -1 512 8 120 1024 1 7 3 -1 -1 -1 -1 -1\n"
SACCT = (
    sacct.COLUMNS.replace(",", "|")
    + "\n101|2026-01-31T10:00:00|2026-01-31T10:00:00|2026-01-31T10:00:30|600|30|64|2|8000M|alice|physics|COMPLETED\n"
).encode()
CAMPAIGN = b"name: pi\nimage: gleaner/pi\ncommand: [a, '{index}']\nindices: 1-3\nmemory_mib: 1G\nenvironment: {A: b}\n"
SETTINGS = b"[api]\nport = 8642\n[groups.multiplier]\nphysics = 2\n"
SCENARIO = b"[machine]\nprocessors = 64\n[agents]\nlength_s = 900\n"
OUTCOMES = b'{"key":"a","outcome":{"wait_s":[1.0,2.5]}}\n'


def campaign(content: bytes, folder: Path) -> None:
    campaign_file.submission(campaign_file.read(at(folder, content)))


def settings_file(content: bytes, folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLEANER_SETTINGS", str(at(folder, content)))
        load_settings()


def archived_image(content: bytes, _folder: Path) -> None:
    found = image_archive.read(io.BytesIO(content), architecture="amd64")
    for _ in found.pieces():
        pass


def pushed(content: bytes, _folder: Path) -> None:
    config_text = text_of(content)
    if len(config_text) >= 2:
        architecture_of(ImagePush.model_validate(IMAGE.push() | {"config": config_text}))


def journal(content: bytes, folder: Path) -> None:
    with Journal(at(folder, content)):
        pass


PEOPLES = (
    Reader(
        "a log of jobs",
        lambda content, folder: traces.read(at(folder, content)),
        (SimulationError,),
        (
            SWF,
            SACCT,
            gzip.compress(SWF),
            gzip.compress(SACCT),
        ),
    ),
    Reader(
        "a scenario", lambda content, folder: read_scenario(at(folder, content), ()), (SimulationError,), (SCENARIO,)
    ),
    Reader("a journal of outcomes", journal, (SimulationError,), (OUTCOMES,)),
    Reader("a campaign file", campaign, (Failure,), (CAMPAIGN,)),
    Reader("the settings", settings_file, (Failure,), (SETTINGS,)),
    Reader(
        "an image to push",
        archived_image,
        (image_archive.NotAnImage,),
        (tar(IMAGE.files(packed=True)), tar(IMAGE.oci_files())),
    ),
    Reader("the configuration of an image that is pushed", pushed, (Invalid,), (IMAGE.config,)),
    Reader(
        "a job's output",
        lambda content, folder: unpack.unpack([content], folder / "out", job=7, overwrite=True),
        (Failure,),
        (tar({"a": b"1", "d/b": b"2"}),),
    ),
)

READERS: tuple[Reader, ...] = (*SLURM, *ON_A_NODE, *ROOTS, *AGENTS, *PEOPLES)
