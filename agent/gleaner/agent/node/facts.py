"""The facts of this node, and what the allocation gives us of it."""

import os
import platform
import re
from pathlib import Path

from gleaner.agent.messages import NodeFacts
from gleaner.agent.runtime.interface import RuntimeFacts

KIB_A_MIB = 1024


def node_facts(runtime: RuntimeFacts, *, cpus: int | None, memory_mib: int | None) -> NodeFacts:
    """Return the node's facts. What the settings do not say comes from Slurm's environment, else from the kernel."""
    return NodeFacts(
        node=os.environ.get("SLURMD_NODENAME") or platform.node().split(".")[0],
        cpus=cpus or _from_slurm("SLURM_CPUS_ON_NODE") or len(os.sched_getaffinity(0)),
        memory_mib=memory_mib or _from_slurm("SLURM_MEM_PER_NODE") or _total_memory_mib(),
        runtime=runtime.runtime,
        criu=runtime.criu if runtime.checkpoints else "",
        kernel=platform.release(),
        architecture=platform.machine(),
        cpu_features=_cpu_features(),
    )


def _from_slurm(name: str) -> int | None:
    value = os.environ.get(name, "")
    return int(value) if re.fullmatch(r"[1-9][0-9]{0,8}", value) else None


def _total_memory_mib() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) // KIB_A_MIB
    raise OSError("/proc/meminfo names no MemTotal")


def _cpu_features() -> tuple[str, ...]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("flags", "Features")):
            return tuple(sorted(set(line.partition(":")[2].split())))
    return ()
