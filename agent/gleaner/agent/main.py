"""The agent program: `glean-agent run`, started by Slurm as a job step, or by the local backend."""

import asyncio
import logging
import os
import stat
import sys
import threading
from pathlib import Path
from typing import Annotated, NoReturn

import structlog
import typer
from pydantic import ValidationError

from gleaner.agent.agent import Agent
from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import StorageError
from gleaner.agent.node.facts import cannot_ask_passcred, internet_socket_warning, node_facts, node_images
from gleaner.agent.privileged.common import config, slurm_job
from gleaner.agent.reporting.client import ControlClient
from gleaner.agent.runtime.factory import choose_runtime
from gleaner.agent.runtime.interface import RuntimeFault
from gleaner.agent.settings import SiteAgentSettings
from gleaner.agent.transfer.remotes import schemes

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help="Run jobs on a node.")
log = structlog.get_logger()

UNFIT = 3
"""The exit status if this node cannot run jobs, or its settings are wrong."""


@app.callback()
def _group() -> None:
    """Keep `run` as a separate command."""


@app.command()
def run(
    name: Annotated[str, typer.Option(help="The agent's name, which control has chosen.")],
    end: Annotated[float, typer.Option(help="The shared end, in seconds since the epoch.")],
    token_file: Annotated[Path, typer.Option(help="The file with the agent's token, mode 0600.")],
    settings: Annotated[Path | None, typer.Option(help="The settings file.")] = None,
) -> None:
    """Claim, run and save jobs until the end."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.dev.ConsoleRenderer(colors=False),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    if settings:
        os.environ["GLEANER_AGENT_SETTINGS"] = str(settings)
    try:
        agent = _make_agent(name=name, end_s=end, token_file=token_file)
    except (ValidationError, OSError, RuntimeFault, StorageError, ValueError, RecursionError) as error:
        log.error("this node cannot run jobs", reason=str(error))
        sys.exit(UNFIT)
    run_to_end(agent)


def run_to_end(agent: Agent) -> NoReturn:
    """Run the agent, and end this process no later than the agent's exit."""
    threading.Thread(target=_exit_in_time, args=(agent,), daemon=True).start()
    asyncio.run(_live_and_exit(agent))
    raise AssertionError("an agent that has lived does not come back")


async def _live_and_exit(agent: Agent) -> None:
    try:
        status = await agent.live()
    except RuntimeFault as error:
        log.error("the container runtime does not work", reason=str(error))
        status = UNFIT
    sys.stderr.flush()
    # End at once, whatever still runs. If a thread that hangs in a storage call kept the Slurm job alive, Slurm would
    # drain the node.
    os._exit(status)


def _exit_in_time(agent: Agent) -> None:
    """End this process at the agent's exit, even if everything else hangs, for example while writing to a log."""
    while (left_s := agent.latest_exit_s - agent.clock.now_s()) > 0:
        agent.clock.pause(min(left_s, 1.0))
    os._exit(1)


def _make_agent(*, name: str, end_s: float, token_file: Path) -> Agent:
    settings = SiteAgentSettings()
    os.umask(0o077)
    settings.work.mkdir(parents=True, exist_ok=True)
    pulled_images = settings.work / "pulled-images"
    runtime = choose_runtime(
        settings.runtime,
        docker_url=settings.docker_url,
        images=settings.images,
        pulled_images=pulled_images,
        images_pull=settings.images_pull,
    )
    runtime.restores_lazily = settings.lazy_restore == "auto"
    runtime_facts = runtime.facts()
    job = os.environ.get("SLURM_JOB_ID")
    kill_wait_s = settings.kill_wait_s
    if kill_wait_s is None:
        kill_wait_s = slurm_job.kill_wait_s() if job else 0.0
    memory_mib = settings.memory_mib
    if job:
        try:
            slurm_facts = slurm_job.JobHandle(job).lower_end(end_s)
            memory_mib = memory_mib or slurm_facts.memory_mib
            end_s = end_s if slurm_facts.end_s is None else min(end_s, slurm_facts.end_s)
        except slurm_job.Unknown as error:
            log.warning("Slurm does not tell about this agent's job", reason=str(error))
    own = (str(settings.storage), str(settings.work))
    facts = node_facts(
        runtime_facts, cpus=settings.cpus, memory_mib=memory_mib, mounts=_mounts(), own=own, fetches=schemes(),
        disk_mib=settings.disk_mib_per_job,
    )  # fmt: skip
    if warning := internet_socket_warning(facts.criu, facts.kernel, cannot_ask_passcred=cannot_ask_passcred()):
        log.warning(warning)
    return Agent(
        name=name,
        end_s=end_s,
        slurm_job=job,
        settings=settings,
        client=ControlClient(
            urls=settings.control_url,
            name=name,
            token=_token(token_file),
            ca_file=settings.ca_file,
            timeout_s=settings.request_timeout_s,
        ),
        runtime=runtime,
        storage=FolderStorage(settings.storage, writer=name),
        facts=facts,
        images=node_images(runtime_facts, allowed=settings.images_allowed),
        way=runtime_facts.way,
        can_save=runtime_facts.checkpoints,
        kill_wait_s=kill_wait_s,
    )


def _mounts() -> tuple[str, ...]:
    """Return the folders of this node that jobs can mount, from the settings of the programs that run as root."""
    try:
        return config.load().mounts
    except config.Misconfigured:
        return ()


def _token(path: Path) -> str:
    mode = path.stat().st_mode
    if stat.S_IMODE(mode) & 0o077:
        raise PermissionError(f"{path} may be read by others; make it mode 0600")
    return path.read_text().strip()


def main() -> None:
    """Entry point of `glean-agent`."""
    app()


if __name__ == "__main__":
    main()
