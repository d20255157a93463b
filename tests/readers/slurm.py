"""The readers of Slurm, PySlurm and munge in control, and those between control and its Slurm admin service."""

import json
from pathlib import Path

from tests.readers.reader import Reader, as_json, at
from tests.slurm_admin import facts

from gleaner.agent.privileged.common import request
from gleaner.agent.system import untrusted
from gleaner.agent.system.untrusted import text_of
from gleaner.control import hostlist
from gleaner.control.slurm import accounted_month, accounting, munge, parse, parse_json, pyslurm
from gleaner.control.slurm.agents_view import agents_view
from gleaner.control.slurm.interface import ClusterError
from gleaner.control.slurm.owners_view import owners_view
from gleaner.control.slurm_admin import client
from gleaner.control.slurm_admin import request as admin_request
from gleaner.control.slurm_admin import settings as admin_settings

WORD = "x832a19f6"


NODES = ("n1", "idle*", "0/6/0/6", "4000", "0", "amd,fast", "up", "shared")
JOB = (
    "11_3", "RUNNING", "physics", "shared", "6", "2", "NO", "n[1-2]", "n9", "n1", "cpu=6,mem=1.5G,node=1", "1795232710",
    "1795232717", "1795232957", "N/A", "N/A", "7", "None", "(null)", "amd&fast", "1", "1000", "gleaner: released",
    "mine gleaner:preemptible", "my|own\njob",
)  # fmt: skip
ON_NODE = facts.shown(
    job_id=12, user_name="alice", comment="gleaner:preemptible", nodes="n[1-2]", job_state=["RUNNING"],
    end_time={"set": True, "infinite": False, "number": 9000},
)  # fmt: skip
SHARED = facts.shown(array_job_id={"set": True, "number": 7}, array_task_string="1,3-5%2")
NODE = {"name": "n1", "partitions": ["shared"], "state": ["IDLE", "DRAIN"], "reason": "gleaner: drained by alice"}
PYSLURM = {
    "partitions": [{"name": "gleaner", "state": "UP"}],
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
    for view in (lambda: agents_view(found, "gleaner"), lambda: owners_view(found, ("shared",), agents="gleaner")):
        try:
            view()
        except ClusterError:
            continue


def listed_jobs(content: bytes, _folder: Path) -> None:
    for job in parse_json.parse_jobs_on(text_of(content), ["n1"])[0]:
        assert all(text == untrusted.storable(text) for text in (job.user, job.comment, job.name, *job.nodes))


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
        "sacct",
        lambda content, _: accounted_month.parse(text_of(content).splitlines(), begin_s=0, end_s=999, own=4200),
        (),
        (b"1001|100|130|160|0\n4200|100|100|101|7200000\n",),
        ("1001|²|1|1|\n".encode(), b"1001|1|1|1|" + b"9" * 400),
    ),
    Reader(
        "sacctmgr",
        lambda content, _: accounting.parse_shares(text_of(content)),
        (ClusterError,),
        (b"c|root|||1\nc|sciences|root||3\nc|physics|sciences||1\nc|physics|sciences|alice|1\nc|art|root||parent\n",),
        (b"c|x|a||1\nc|a|b||1\nc|b|a||1\n", b"c|a|root||" + b"9" * 400),
    ),
    Reader(
        "PySlurm",
        lambda content, _: pyslurm.parse_look(text_of(content), "gleaner", read_s=1.0),
        (ClusterError,),
        (as_json(PYSLURM),),
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
        "a list of nodes",
        lambda content, _: hostlist.expanded(text_of(content)),
        (ValueError,),
        (b"n[1-3,07],login",),
        (b"n[1-999999999]", b"n[1-999999999][2-1]"),
    ),
)
