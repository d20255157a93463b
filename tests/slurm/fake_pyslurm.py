"""Stands in for the module PySlurm, in the folder of the faked programs of Slurm: three idle nodes, and an agent that
pends.

With `away` it fails as PySlurm does without slurmctld, with `hangs` no call is answered, `broken` ends the process as
Slurm's library does, and `built` holds the version of Slurm that it was built for.
"""

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).parent
__version__ = "25.11.2"


class RPCError(Exception):
    pass


def slurm_init() -> None:
    if (HERE / "broken").exists():
        os.write(2, b"pyslurm: fatal: Unable to process configuration file\n")
        os._exit(1)


def slurm_api_version() -> tuple[int, ...]:
    told = HERE / "built"
    return tuple(int(part) for part in told.read_text().split(".")) if told.exists() else (25, 11, 0)


def loads(answer: Any) -> Any:
    """Return a class whose `load` answers so, unless Slurm is away or hangs."""

    def load() -> Any:
        if (HERE / "hangs").exists():
            time.sleep(60)
        if (HERE / "away").exists():
            raise RPCError("Unable to contact slurm controller (connect failure)")
        return answer

    return SimpleNamespace(load=load)


FACTS: dict[str, Any] = {"state": "IDLE", "total_cpus": 6, "real_memory": 4000, "partitions": ["gleaner"]}
AGENT = SimpleNamespace(
    id=7, name="gleaner-a", user_id=os.getuid(), partition="gleaner", state="PENDING", state_reason="Resources",
    allocated_nodes=None, submit_time=900, start_time=None, end_time=None,
)  # fmt: skip
Jobs = loads({7: AGENT})
Nodes = loads({name: SimpleNamespace(name=name, **FACTS) for name in ("n1", "n2", "n3")})
Partitions = loads({"gleaner": SimpleNamespace(name="gleaner", state="UP")})
slurmctld = SimpleNamespace(Config=loads(SimpleNamespace(version="25.11.4")))
