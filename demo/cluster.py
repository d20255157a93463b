"""The cluster of `deploy/`, which the demo and the tests control by running programs inside its containers."""

import json
import ssl
import subprocess
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from demo import nsenter
from gleaner.control.setup.answers import ControlAnswers
from gleaner.control.setup.roles import control_settings

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "deploy" / "cluster.sh"
NODES = ("node1", "node2", "node3")
SERVICE_USER = "gleaner"
USERS = ("alice", "bob", "carol")
TOKEN_FILE = "/home/gleaner/.config/gleaner/token"
"""The service account's copy of the admin's token. The file with the user's token has `-physics` appended to its
name."""


PATIENCE_S = 180.0
"""The minimum timeout of every wait, in seconds, because machines can be busy."""
ASKED_FOR_S, ASK_AGAIN_S = 60.0, 0.5
"""The seconds for which an unanswered request to control is repeated, and the pause between two tries."""


class ClusterError(Exception):
    """The error for a failed program inside the cluster. The message contains the end of the program's output."""


@dataclass(frozen=True, slots=True)
class RegularJob:
    """A job of an ordinary user, as Slurm shows it. Times are seconds since the epoch."""

    id: str
    state: str
    nodes: tuple[str, ...]
    start_s: float | None
    end_s: float | None


def run(node: str, *words: str, user: str = "root", timeout_s: float = 120, stdin: str | None = None) -> str:
    """Run a program in one of the cluster's containers and return its output."""
    try:
        inner = nsenter.words(node, *words, user=user)
    except nsenter.NotThere:
        raise ClusterError(f"{node} does not run: make demo starts it") from None
    done = subprocess.run(
        inner,
        capture_output=True, encoding="utf-8", errors="replace",  # jobs' comments and names can contain any bytes
        timeout=max(timeout_s, PATIENCE_S), input=stdin or "", check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise ClusterError(f"{node}: {' '.join(words)}: status {done.returncode}: {done.stderr.strip()[-800:]}")
    return done.stdout


def glean(*words: str, after: Sequence[str] = (), as_user: bool = False, timeout_s: float = 120) -> Any:
    """Return the answer of `glean WORDS --json [-- AFTER]`, run by the service account on the head.

    The service account is an admin. With `as_user`, the token of a user of group physics is used instead.
    """
    tail = ("--", *after) if after else ()
    whose = ("env", f"GLEANER_CLIENT__TOKEN_FILE={TOKEN_FILE}-physics") if as_user else ()
    # The timeout also applies in the container. Otherwise a verb that never ends would keep running there.
    bounded = ("timeout", "--kill-after=5", f"{max(timeout_s, PATIENCE_S):.0f}")
    words = (*whose, *bounded, "glean", *words, "--json", *tail)
    printed = run("head", *words, user=SERVICE_USER, timeout_s=max(timeout_s, PATIENCE_S) + 10)
    return json.loads(printed) if printed.strip() else None


def sbatch(*options: str, script: str, user: str = "alice", output: str = "/dev/null") -> str:
    """Submit a regular job and return its id."""
    return run(
        "head", "sbatch", "--parsable", "--chdir=/tmp", f"--output={output}", *options,
        user=user, stdin=f"#!/bin/sh\n{script}\n",
    ).strip().split(";")[0]  # fmt: skip


def regular_job(job: str) -> RegularJob:
    """Return the record of a job in Slurm's accounting."""
    words = (
        "sacct",
        "--allocations",
        "--parsable2",
        "--noheader",
        "--format=State,Start,End,NodeList",
        f"--jobs={job}",
    )
    state, start, end, nodes = run("head", "env", "SLURM_TIME_FORMAT=%s", *words).strip().split("|")
    return RegularJob(
        id=job,
        state=state.split()[0],
        nodes=tuple(run("head", "scontrol", "show", "hostnames", nodes).split()) if start.isdigit() else (),
        start_s=float(start) if start.isdigit() else None,
        end_s=float(end) if end.isdigit() else None,
    )


def slurm_job(job: str) -> dict[str, Any]:
    """Return Slurm's own record of a job, as long as Slurm knows the job."""
    return dict(json.loads(run("head", "scontrol", "show", "job", job, "--json"))["jobs"][0])


def has_lost_its_node(job: str, node: str) -> bool:
    """Return True if Slurm reports that one of our jobs ended because its node died, or that the node is down now.

    Slurm notices a dead node only after a while (`SlurmdTimeout`). If the job's time is over before that, the job has
    "timed out", and only the state of the node shows the cause. The function waits until Slurm reports that the job has
    ended.
    """
    going_on = {"PENDING", "RUNNING", "SUSPENDED", "COMPLETING"}
    state = until(
        f"Slurm job {job} to end",
        lambda: (found := regular_job(job).state) not in going_on and found,
        timeout_s=PATIENCE_S,
        every_s=0.2,
    )
    shown = run("head", "sinfo", "--noheader", f"--nodes={node}", "--format=%T", "--partition=regular")
    return state == "NODE_FAIL" or shown.strip().startswith("down")


def clear() -> None:
    """Cancel every job, both ours and the users', and wait until all nodes are idle."""
    for user in USERS:
        run("head", "scancel", f"--user={user}")
    for state in ("New", "Running", "Saved"):
        jobs = api("GET", f"/jobs?state={state}&limit=1000")["jobs"]
        for campaign in {job["campaign"] for job in jobs if job["campaign"]}:
            _cancel(f"/campaigns/{campaign}")
        for job in jobs:
            if not job["campaign"]:
                _cancel(f"/jobs/{job['id']}")
    run("head", "scancel", f"--user={SERVICE_USER}")
    until("the nodes to be idle", nodes_idle, timeout_s=90)


def _cancel(what: str) -> None:
    """Cancel a job. It is not an error if the job has just ended."""
    try:
        api("POST", f"{what}/cancel")
    except ClusterError as error:
        if ": 409: " not in str(error):
            raise


def nodes_idle() -> bool:
    """Return True if all nodes are idle according to Slurm."""
    return run("head", "sinfo", "--noheader", "--format=%T", "--partition=regular").split() == ["idle"]


def set_preemption(*, on: bool) -> None:
    """Switch the preemption of agents for regular jobs on or off. Without it, the QOS must keep agents off planned
    nodes."""
    sign = "+" if on else "-"
    run("head", "sacctmgr", "--immediate", "modify", "qos", "gleaner", "set", f"Flags{sign}=NoReserve")
    run("head", "scontrol", "update", "PartitionName=gleaner", f"PreemptMode={'REQUEUE' if on else 'OFF'}")


def containers(node: str) -> list[str]:
    """Return the ids of all our containers on a node."""
    return run(node, "docker", "ps", "--all", "--quiet", "--filter", "label=org.gleaner.agent").split()


def kill_node(node: str) -> None:
    """Kill a node, as if its power had failed."""
    _docker("kill", node)


def start_node(node: str) -> None:
    """Start a killed node again, and wait until Slurm can use it."""
    _docker("start", node)
    until(
        f"{node} to come back",
        lambda: (
            run("head", "sinfo", "--noheader", f"--nodes={node}", "--format=%t", "--partition=regular")
            .strip()
            .rstrip("*")
            in {"idle", "alloc", "mix"}
        ),
        timeout_s=90,
    )


def dead_nodes() -> list[str]:
    """Return the nodes that are switched off."""
    running = _docker("ps", "--format", "{{.Names}}").split()
    return [node for node in NODES if node not in running]


def _docker(*words: str) -> str:
    done = subprocess.run(
        ["docker", "--host", "unix:///run/gleaner/docker.sock", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode != 0:
        raise ClusterError(f"docker {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


# ── control ───────────────────────────────────────────────────────────────────────────────────────────────


def api(method: str, path: str, body: object = None) -> Any:
    """Return the answer of control's API to an admin's request from this machine.

    A request that changes nothing is repeated for a while, because one slow answer of a busy machine must not end a
    demo.
    """
    give_up_s = time.monotonic() + (ASKED_FOR_S if method == "GET" else 0.0)
    while True:
        is_last = time.monotonic() >= give_up_s
        try:
            answer = _client().request(method, f"/v1{path}", json=body, extensions={"sni_hostname": "head"})
        except httpx.TransportError:
            if is_last:
                raise
        else:
            if is_last or answer.status_code not in {503, 504}:
                break
        time.sleep(ASK_AGAIN_S)
    if answer.is_error:
        raise ClusterError(f"{method} {path}: {answer.status_code}: {answer.text[:500]}")
    return answer.json() if answer.content else None


def web_address() -> str:
    """Return the address at which this machine reaches control's page, with a code that is valid for a minute."""
    code = api("POST", "/web-codes")["code"]
    return f"{_client().base_url.copy_with(path='/web/sign-in')}#{quote(code, safe='')}"


def write_user_environment(folder: Path) -> Path:
    """Write and return the file that a shell on this machine reads to act as a user of group physics."""
    address = str(_client().base_url).rstrip("/")
    token, authority, made = folder / "token", folder / "ca.pem", folder / "user.sh"
    token.touch(mode=0o600)
    token.write_text(run("head", "cat", f"{TOKEN_FILE}-physics"))
    authority.write_text(run("head", "cat", "/etc/gleaner/tls/ca.pem"))
    made.write_text(
        f"export GLEANER_CLIENT__URL={address}\n"
        f"export GLEANER_CLIENT__TOKEN_FILE={token} GLEANER_CLIENT__CA_FILE={authority}\n"
        f"export DOCKER_HOST={nsenter.SOCKET} PATH={ROOT}/.venv/bin:$PATH\n"
    )
    return made


def log_of(job: int) -> list[str]:
    """Return a job's whole log, including the lines of lost attempts."""
    lines: list[str] = []
    while True:
        page = api("GET", f"/jobs/{job}/log?first={len(lines)}&limit=10000&all=true")
        lines += page["lines"]
        if not page["lines"]:
            return lines


def fetch_results(campaign: int, to: Path) -> Path:
    """Fetch a campaign's results with `glean results`. Return the local folder, which has one NAME-INDEX for each
    job."""
    run("head", "sh", "-c", "rm -rf /tmp/results && mkdir /tmp/results", user=SERVICE_USER)
    glean("results", "--campaign", str(campaign), "--to", "/tmp/results")
    subprocess.run(["rm", "-rf", str(to)], check=True)
    to.mkdir(parents=True)
    sent = subprocess.run(
        [str(SCRIPT), "exec", "head", "tar", "-C", "/tmp/results", "-cf", "-", "."],
        capture_output=True, check=True, timeout=120,
    )  # fmt: skip
    subprocess.run(["tar", "-C", str(to), "-xf", "-"], input=sent.stdout, check=True, timeout=60)
    return to / f"campaign-{campaign}"


def configure(changes: Mapping[str, Mapping[str, object]] | None = None) -> None:
    """Write the demo's settings with `changes` for control, and restart it."""
    run("head", "sh", "-c", "cat > /etc/gleaner/gleaner.toml", stdin=settings_with(changes))
    restart_control()


def is_configured() -> bool:
    """Return True if control has the demo's settings without changes."""
    return run("head", "cat", "/etc/gleaner/gleaner.toml") in {settings_with(None), _settings()}


def _settings() -> str:
    """Return the settings that `glean setup control` has written on the head, with the additions of
    `images/head/entry.sh`."""
    written = control_settings(ControlAnswers(hosts=("head",))).content.decode()
    return written + (ROOT / "deploy" / "settings" / "demo.toml").read_text()


def settings_with(changes: Mapping[str, Mapping[str, object]] | None) -> str:
    """Return the demo's settings with `changes`, as the text of a file."""
    settings = tomllib.loads(_settings())
    for table, values in (changes or {}).items():
        settings.setdefault(table, {}).update(values)
    return "".join(
        f"[{table}]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in values.items())
        for table, values in settings.items()
    )


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    return json.dumps(value)


def kill_control() -> None:
    """Kill the control program with SIGKILL, if it runs. The head's supervisor starts it again."""
    run("head", "sh", "-c", f"pkill -KILL -u {SERVICE_USER} -f '[g]lean control run' || true")


def hold_control() -> None:
    """Freeze control, as if its machine hung, so that it does not answer and none of its processes ends."""
    run("head", "pkill", "-STOP", "-u", SERVICE_USER, "-f", "glean control run")


def let_control_go_on() -> None:
    """Undo `hold_control`."""
    run("head", "pkill", "-CONT", "-u", SERVICE_USER, "-f", "glean control run")


def signal_web(name: str) -> None:
    """Send a signal to the process of the people's port. KILL ends it, and STOP freezes it until CONT."""
    run("head", "pkill", f"-{name}", "-u", SERVICE_USER, "-f", "control web")


def restart_control() -> None:
    """Restart control and wait until it leads."""
    before = control_pid()
    kill_control()
    until("control to start anew", lambda: control_pid() not in {"", before}, timeout_s=30, every_s=0.5)
    until("control to lead", is_leading, timeout_s=60, every_s=0.5)


def is_leading() -> bool:
    """Return True if control answers and leads."""
    try:
        return bool(health()["leader"])
    except httpx.HTTPError:
        return False


def health() -> dict[str, Any]:
    """Return control's report on its own health."""
    return dict(_client().get("/health", extensions={"sni_hostname": "head"}).json())


def page_status() -> int:
    """Return the status of the answer of the people's port to a browser that is not signed in."""
    return _client().get("/web/sign-in", extensions={"sni_hostname": "head"}).status_code


def control_pid() -> str:
    """Return the pid of the control program, or "" while there is none."""
    return _pid("glean control run")


def web_pid() -> str:
    """Return the pid of the process of the people's port, or "" while there is none."""
    return _pid("control web")


def _pid(program: str) -> str:
    return run("head", "sh", "-c", f"pgrep -u {SERVICE_USER} -o -f '[{program[0]}]{program[1:]}' || true").strip()


@cache
def _client() -> httpx.Client:
    address = run("head", "hostname", "--ip-address").split()[0]
    trust = ssl.create_default_context(cadata=run("head", "cat", "/etc/gleaner/tls/ca.pem"))
    return httpx.Client(
        base_url=f"https://{address}:8642",
        verify=trust,
        headers={"Authorization": f"Bearer {_admin_token()}", "Host": "head"},
        timeout=20,
    )


def _admin_token() -> str:
    token = run("head", "sh", "-c", "cat ~/.config/gleaner/token")  # the token of root, made by `glean setup control`
    run(
        "head", "sh", "-c",
        f"umask 077; mkdir -p $(dirname {TOKEN_FILE}) && {{ test -s {TOKEN_FILE} || cat >{TOKEN_FILE}; }} && "
        # The group for which the demos and the tests submit. A group for which no token exists would be refused.
        f"test -s {TOKEN_FILE}-physics || "
        f"glean token create --local --role user --name demo --group physics --to {TOKEN_FILE}-physics",
        user=SERVICE_USER, stdin=token,
    )  # fmt: skip
    return token.strip()


def until(what: str, found: Callable[[], Any], *, timeout_s: float, every_s: float = 1.0) -> Any:
    """Wait until `found()` is true, and return its value. A failed program counts as false.

    Raise an error after `timeout_s` seconds, or after `PATIENCE_S` seconds if that is longer. A caller that guarantees
    a time must measure the time itself.
    """
    timeout_s = max(timeout_s, PATIENCE_S)
    give_up_s = time.monotonic() + timeout_s
    last: Exception | None = None
    while time.monotonic() < give_up_s:
        try:
            if answer := found():
                return answer
        except (ClusterError, httpx.HTTPError, subprocess.TimeoutExpired, KeyError, ValueError) as error:
            last = error
        time.sleep(every_s)
    raise TimeoutError(f"{what}: not within {timeout_s:.0f} s" + (f" ({last})" if last else ""))
