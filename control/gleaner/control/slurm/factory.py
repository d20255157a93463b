"""The choice of the cluster's backend, by the settings."""

import structlog

from gleaner.control.settings import Settings
from gleaner.control.slurm.interface import Cluster, ClusterError
from gleaner.control.slurm.local import LocalCluster
from gleaner.control.slurm.program_cluster import SlurmCluster
from gleaner.control.slurm.pyslurm import PySlurmCluster

_log = structlog.get_logger(__name__)


def cluster(settings: Settings) -> Cluster:
    """Return the cluster that `[cluster] backend` names. Only `auto` already queries or starts a program here."""
    logs = settings.storage.folder / "agents"
    owners = settings.entitlements.partitions if settings.entitlements.mode != "off" else ()
    match settings.cluster.backend:
        case "slurm":
            return SlurmCluster(settings.cluster, logs, owners)
        case "pyslurm":
            return PySlurmCluster(settings.cluster, logs, owners)
        case "auto":
            return _automatic(
                PySlurmCluster(settings.cluster, logs, owners), SlurmCluster(settings.cluster, logs, owners)
            )
        case "local":
            return LocalCluster(settings.cluster, logs=logs, records=settings.storage.folder / "local-agents")


def _automatic(pyslurm: PySlurmCluster, programs: SlurmCluster) -> Cluster:
    """Return `pyslurm` if it is usable for this cluster now, otherwise `programs`. Log the choice and its reason."""
    try:
        versions = pyslurm.check()
    except ClusterError as error:
        _log.info("Slurm is asked by its programs", why=str(error))
        return programs
    _log.info("Slurm is asked through PySlurm", versions=versions)
    return pyslurm
