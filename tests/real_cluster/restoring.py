"""The leavings of tests on the real cluster, found and put right: a failure of one must not become one of the next.

Each step is tried, whatever became of the one before; what could not be put right is said together at the end.
"""

from collections.abc import Callable

from demo import cluster
from tests.real_cluster import cluster_harness
from tests.real_cluster import slurm_admin_harness as s

SERVICES_GO_ON = f"""
pkill -CONT -x slurmctld
pkill -CONT -u {cluster.SERVICE_USER} -f 'glean control run'
pkill -CONT -u {cluster.SERVICE_USER} -f 'control web'
pkill -CONT -u gleaner-slurm-admin -f bin/gleaner-slurm-admin
true
"""
"""Whoever was stopped is let go on; to the others it is nothing."""
KEPT_SETTINGS = "/etc/gleaner/gleaner.toml.kept"


def after_a_test() -> None:
    """Everything runs, no node is drained, the shipped settings of the Slurm admin service, and no job of anybody's."""
    _each(
        switch_on_nodes,
        services_go_on,
        control_leads,
        undrain,  # before the jobs: a node that is drained never becomes idle
        forget_jobs,
        shipped_rules,
    )


def after_a_file() -> None:
    """Put right what a test leaves behind, and the demo's settings."""
    # First the settings: with those of a test that was killed control may not even start.
    _each(services_go_on, shipped_settings, lambda: cluster_harness.set_runtime("auto"))
    after_a_test()
    _each(lambda: cluster.set_preemption(on=True))


def _each(*steps: Callable[[], object]) -> None:
    wrong: list[str] = []
    for step in steps:
        try:
            step()
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error}")
    assert not wrong, f"the cluster could not be put back as it was: {'; '.join(wrong)}"


def services_go_on() -> None:
    """Let go on what a test has stopped."""
    cluster.run("head", "sh", "-c", SERVICES_GO_ON)


def switch_on_nodes() -> None:
    """Those that a test has switched off."""
    for node in cluster.dead_nodes():
        cluster.start_node(node)


def control_leads() -> None:
    """With its settings if they can be read, else with the demo's."""
    broken = cluster.run("head", "sh", "-c", f"test ! -e {KEPT_SETTINGS} || {{ rm {KEPT_SETTINGS}; echo broken; }}")
    if broken.strip():
        cluster.run("head", "sh", "-c", "cat > /etc/gleaner/gleaner.toml", stdin=cluster.settings_with(None))
    cluster.until("control to lead", cluster.is_leading, timeout_s=60)


def forget_jobs() -> None:
    """Cancel what is left; where nothing is, only two questions are asked."""
    left = cluster.run("head", "squeue", "--noheader", "--format=%i").split()
    ours = sum(cluster.api("GET", f"/jobs?state={state}&limit=1")["total"] for state in ("New", "Running", "Saved"))
    if left or ours:
        cluster.clear()
    else:
        cluster.until("the nodes to be idle", lambda: cluster.nodes_idle() or drained(), timeout_s=90)


def drained() -> list[str]:
    """The nodes that Slurm drains, or believes to be down."""
    words = ("sinfo", "--noheader", "--Node", "--partition=regular", "--format=%N %T")
    rows = (line.split() for line in cluster.run("head", *words).splitlines())
    return sorted({node for node, state in rows if state.startswith(("drain", "down", "fail"))})


def undrain() -> None:
    """By who drained them: control, which else goes on with it; the Slurm admin service; whoever else."""
    ours = [row["name"] for row in cluster.api("GET", "/nodes")["nodes"] if row["drained"]]
    for node in ours:
        _set_back(node)
    for node in drained():
        if s.ask("resume", [node]) != "done":
            cluster.run("head", "scontrol", "update", f"NodeName={node}", "State=RESUME")
    cluster.until("no node to be drained", lambda: not drained(), timeout_s=60)


def _set_back(node: str) -> None:
    number = cluster.api("POST", "/nodes/resume", {"nodes": [node]})["id"]
    cluster.until(f"{node} to be set back", lambda: cluster.api("GET", f"/drains/{number}")["ended_s"], timeout_s=60)


def shipped_rules() -> None:
    """Put back the shipped settings of the Slurm admin service. Nobody enforces entitlements meanwhile."""
    shipped = (cluster.ROOT / "deploy" / "settings" / "slurm-admin.conf").read_text()
    if cluster.run("head", "cat", "/etc/gleaner/slurm-admin.conf") != shipped:
        cluster.run("head", "sh", "-c", "cat > /etc/gleaner/slurm-admin.conf", stdin=shipped)
    cluster.run("head", "rm", "-f", "/run/gleaner/alive", "/run/gleaner/alive.nodes")


def shipped_settings() -> None:
    """Of control."""
    if not cluster.is_configured():
        cluster.configure()
