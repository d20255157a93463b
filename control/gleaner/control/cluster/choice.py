"""Which gateway the settings ask for."""

import structlog

from gleaner.control.cluster.gateway import Gateway, GatewayError
from gleaner.control.cluster.local import LocalGateway
from gleaner.control.cluster.pyslurm import PySlurmGateway
from gleaner.control.cluster.slurm import SlurmGateway
from gleaner.control.settings import Settings

_log = structlog.get_logger(__name__)


def gateway(settings: Settings) -> Gateway:
    """The gateway named by `[cluster] gateway`. Only for `auto` anything is asked or started yet."""
    logs = settings.storage.folder / "agents"
    match settings.cluster.gateway:
        case "slurm":
            return SlurmGateway(settings.cluster, logs)
        case "pyslurm":
            return PySlurmGateway(settings.cluster, logs)
        case "auto":
            return _automatic(PySlurmGateway(settings.cluster, logs), SlurmGateway(settings.cluster, logs))
        case "local":
            return LocalGateway(settings.cluster, logs=logs, records=settings.storage.folder / "local-agents")


def _automatic(pyslurm: PySlurmGateway, programs: SlurmGateway) -> Gateway:
    """PySlurm, if it can be used for this cluster now, else Slurm's programs. The log says which, and why."""
    try:
        versions = pyslurm.check()
    except GatewayError as error:
        _log.info("Slurm is asked by its programs", why=str(error))
        return programs
    _log.info("Slurm is asked through PySlurm", **versions.model_dump())
    return pyslurm
