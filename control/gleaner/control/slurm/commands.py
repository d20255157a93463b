"""The command line that submits an agent, its batch script, and the agent's own command line. This module is pure.

All options that are used exist in Slurm 22.05 and newer. All times are passed as UTC or as seconds since the epoch
(`run.ENVIRONMENT`), so that daylight saving time cannot shift them.
"""

import math
import shlex
from datetime import UTC, datetime
from pathlib import Path

from gleaner.control.settings import ClusterSettings
from gleaner.control.slurm.interface import AgentRequest

NODE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

WARNING_S = 60
"""The time before an agent's end at which Slurm sends its signal. This signal is only a second warning, because an
agent ends by its own clock. But it must be requested, because a preemption with `send_user_signal` warns only jobs that
have requested a signal."""

NICE = 10_000
"""The nice value of agents, which puts them behind every other job in the same partition."""

LIMIT_STEP_S = 60
"""The unit of Slurm's time limits, one minute."""


def submit(settings: ClusterSettings, request: AgentRequest, now_s: float) -> list[str]:
    """Return the command that submits one agent for a whole node. The script is passed on its standard input.

    If the time limit reaches beyond the deadline, Slurm shortens it and rounds it down to whole minutes. The deadline
    is one minute after the shared end. So the limit ends at most a minute after the shared end, however late the agent
    starts.
    """
    words = [
        "sbatch",
        "--parsable",
        f"--job-name={request.name}",
        f"--partition={settings.partition}",
        *([f"--account={settings.account}"] if settings.account else []),
        *([f"--qos={settings.qos}"] if settings.qos else []),
        "--nodes=1",
        "--exclusive",
        "--mem=0",
        f"--time={max(1, math.ceil((request.end_s - now_s) / LIMIT_STEP_S))}",
        f"--time-min={max(1, math.floor((request.end_s - request.latest_start_s) / LIMIT_STEP_S))}",
        f"--deadline={utc(math.ceil(request.end_s + LIMIT_STEP_S))}",
        "--no-requeue",
        f"--signal=B:USR1@{WARNING_S}",
        f"--nice={NICE}",
        "--export=NIL",
        "--propagate=NONE",
        "--chdir=/",
        "--input=/dev/null",
        f"--output={settings.agent_logs / '%x.log'}",
        "--open-mode=append",
    ]
    if request.exclude:
        words.append(f"--exclude={','.join(request.exclude)}")
    return words


def script(settings: ClusterSettings, logs: Path, request: AgentRequest) -> str:
    """Return the batch script. It runs the agent as a step, because Slurm's SIGTERM at a preemption reaches only steps.

    The script's shell receives a warning as SIGUSR1 and forwards it as SIGUSR1, because a SIGTERM would make srun kill
    the step at once. SIGUSR1 is ignored until the agent can handle it, which loses nothing, because the agent reads its
    end when it starts. When the agent has ended, its output is copied to `logs`, a folder in the storage, if the
    storage answers.
    """
    agent = shlex.join(agent_command(settings, request))
    printed = shlex.join([str(settings.agent_logs / f"{request.name}.log")])
    kept = shlex.join([str(logs / f"{request.name}.log")])
    return f"""\
#!/bin/bash
export PATH={NODE_PATH}
step=
trap '[ -z "$step" ] || kill -USR1 "$step" 2>/dev/null' USR1 TERM
srun --ntasks=1 --mem=0 --whole --cpu-bind=none --export=ALL sh -c 'trap "" USR1; exec "$@"' agent \\
    {agent} &
step=$!
status=1
while kill -0 "$step" 2>/dev/null; do
    wait "$step"
    status=$?
done
timeout -k 1 2 cp {printed} {kept} && rm -f {printed}
exit "$status"
"""


def agent_command(settings: ClusterSettings, request: AgentRequest) -> list[str]:
    """Return the agent program's command line. It contains the path of the token's file, never the token."""
    return [
        *settings.agent_command,
        "run",
        "--name",
        request.name,
        "--end",
        f"{request.end_s:.3f}",
        "--token-file",
        str(request.token_file),
        "--settings",
        str(settings.agent_settings),
    ]


def asked(settings: ClusterSettings) -> str:
    """Return the partition, account and QOS to which agents are submitted, for the message about a refusal."""
    said = f"partition {settings.partition}"
    said += f", account {settings.account}" if settings.account else ""
    return said + (f", qos {settings.qos}" if settings.qos else "")


def utc(at_s: float) -> str:
    """Return an instant in UTC, in the form that Slurm reads."""
    return datetime.fromtimestamp(math.floor(at_s), UTC).strftime("%Y-%m-%dT%H:%M:%S")
