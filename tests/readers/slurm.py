"""The readers of Slurm's and munge's words in control."""

from tests.readers.reader import Reader
from tests.slurm.records import WORD, short_table

from gleaner.agent.system.untrusted import text_of
from gleaner.control import hostlist
from gleaner.control.slurm import accounted_month, accounting, munge, parse
from gleaner.control.slurm.agents_view import agents_view
from gleaner.control.slurm.interface import ClusterError
from gleaner.control.slurm.owners_view import owners_view

NODES = ("n1", "idle+not_responding", "0/6/0/6", "4000", "0", "amd,fast", "up", "shared")
JOB = (
    "11_3", "RUNNING", "physics", "shared", "6", "2", "NO", "n[1-2]", "n9", "n1", "cpu=6,mem=1.5G,node=1", "1795232710",
    "1795232717", "1795232957", "N/A", "N/A", "7", "None", "(null)", "amd&fast", "1", "1000", "gleaner: released",
    "mine gleaner:preemptible", "my|own\njob",
)  # fmt: skip


def table(*rows: tuple[str, ...]) -> bytes:
    return short_table(*rows).encode()


def snapshot_of(nodes: bytes, jobs: bytes) -> None:
    found = parse.parse_tables(text_of(nodes), text_of(jobs), WORD, own=1000, read_s=1.0)
    for view in (lambda: agents_view(found, "gleaner"), lambda: owners_view(found, ("shared",), agents="gleaner")):
        try:
            view()
        except ClusterError:
            continue


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
        "unmunge",
        lambda content, _: munge.parsed(text_of(content)),
        (munge.MungeAway,),
        (b"STATUS:   0\nENCODE_TIME:  5\nDECODE_TIME:  6\nUID:   1000\n\nUID: 0\n",),
    ),
    Reader(
        "a list of nodes",
        lambda content, _: hostlist.expanded(text_of(content)),
        (ValueError,),
        (b"n[1-3,07],login",),
        (b"n[1-999999999]", b"n[1-999999999][2-1]"),
    ),
)
