"""Which gateway the settings ask for."""

from gleaner.control.cluster.gateway import Gateway
from gleaner.control.cluster.local import LocalGateway
from gleaner.control.cluster.slurm import SlurmGateway
from gleaner.control.settings import Settings


def gateway(settings: Settings) -> Gateway:
    """The gateway named by `[cluster] gateway`. Nothing is asked or started yet."""
    logs = settings.storage.folder / "agents"
    match settings.cluster.gateway:
        case "slurm":
            return SlurmGateway(settings.cluster, logs)
        case "local":
            return LocalGateway(settings.cluster, logs=logs, records=settings.storage.folder / "local-agents")
