"""The choice of the cluster's backend according to the settings."""

from gleaner.control.settings import Settings
from gleaner.control.slurm.interface import Cluster
from gleaner.control.slurm.program_cluster import SlurmCluster
from gleaner.control.slurm.pyslurm import PySlurmCluster


def cluster(settings: Settings) -> Cluster:
    """Return the cluster that `[cluster] backend` names. Nothing is queried yet."""
    owners = settings.entitlements.partitions if settings.entitlements.mode != "off" else ()
    backend = PySlurmCluster if settings.cluster.backend == "pyslurm" else SlurmCluster
    return backend(settings.cluster, settings.storage.folder / "agents", owners)
