"""Stands in for Slurm's programs, by the name it is called by. For tests without a Slurm.

What it prints was captured from Slurm 24.11. The folder beside it holds the state: `jobs.json`, and `calls.jsonl`
with the arguments, environment and input of every call. A file `away` makes the programs that it names, or all, fail
as the real ones do without slurmctld or slurmdbd, `refuse` holds an error of sbatch, with `mute` sbatch accepts the job
and never answers, and with `stuck` no job starts. A file `nodes` holds the nodes that slurm.conf names now; sbatch
refuses a job that is to be kept off any other one. The files `config` and `accounts` are what `scontrol show config`
and `sacctmgr` print. `nodes.json` and `on-nodes.json` hold what sinfo and squeue show of nodes that are named.
"""

import fcntl
import json
import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
NODES = ("n1", "n2", "n3")
ALIKE: dict[str, object] = {
    "Account": "gleaner", "Partition": "gleaner", "NumCPUs": 6, "NumTasks": 1, "OverSubscribe": "NO", "ReqNodes": "",
    "ExcNodes": "", "tres-alloc": "cpu=6,mem=4000M,node=1,billing=6", "EligibleTime": "N/A", "PreemptTime": "N/A",
    "PriorityLong": 1, "Reason": "None", "Dependency": "(null)", "Feature": "(null)", "restartcnt": 0,
    "admin_comment": "(null)", "Comment": "(null)", "Nice": 0, "Requeue": 1, "BatchFlag": 1, "UserName": "gleaner",
}  # fmt: skip
"""Fields that are the same of all jobs."""
AWAY = "Unable to contact slurm controller (connect failure)"


def main() -> int:
    program, words = Path(sys.argv[0]).name, sys.argv[1:]
    with (HERE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        given = sys.stdin.read() if program == "sbatch" else ""
        with (HERE / "calls.jsonl").open("a") as calls:
            call = {"program": program, "words": words, "environment": dict(os.environ), "input": given}
            calls.write(json.dumps(call) + "\n")
        away = HERE / "away"
        if away.exists() and away.read_text() in {"", program}:
            return failed(complaint(program))
        status = PROGRAMS[program](words)
    if program == "sbatch" and (HERE / "mute").exists():
        time.sleep(60)
    return status


def complaint(program: str) -> str:
    return {
        "sinfo": f"slurm_load_partitions: {AWAY}",
        "squeue": f"slurm_load_jobs error: {AWAY}",
        "sbatch": f"sbatch: error: Batch job submission failed: {AWAY}",
        "scancel": f"scancel: error: Kill job error on job id 5: {AWAY}",
        "scontrol": f"slurm_load_ctl_conf error: {AWAY}",
        "sacctmgr": "sacctmgr: error: Problem talking to the database: Connection refused",
    }[program]


def failed(why: str) -> int:
    print(why, file=sys.stderr)
    return 1


def show_file(name: str) -> int:
    """Print a file as it is, whatever bytes it has."""
    sys.stdout.buffer.write((HERE / name).read_bytes())
    return 0


def option(words: list[str], name: str) -> str:
    found = [word.partition("=")[2] for word in words if word.startswith(f"--{name}=")]
    return found[0] if found else ""


def nodes() -> list[str]:
    path = HERE / "nodes"
    return path.read_text().split() if path.exists() else list(NODES)


def load() -> list[dict[str, object]]:
    path = HERE / "jobs.json"
    return json.loads(path.read_text()) if path.exists() else []


def save(jobs: list[dict[str, object]]) -> None:
    (HERE / "jobs.json").write_text(json.dumps(jobs))


def scontrol(words: list[str]) -> int:
    if words[0] == "update":
        return 0
    return show_file("config")


def sacctmgr(words: list[str]) -> int:
    return show_file("accounts")


def sinfo(words: list[str]) -> int:
    if option(words, "format") == "%R":
        print("\n".join({"shared", "gleaner"} & set(option(words, "partition").split(","))))
        return 0
    if named := option(words, "nodes"):
        for node in json.loads((HERE / "nodes.json").read_text()):
            if node["NodeList"] in named.split(","):
                show(words, node)
    busy = {job["node"] for job in load() if job["state"] == "RUNNING"}
    if "gleaner" in option(words, "partition").split(","):
        extra = HERE / "states.json"
        states = json.loads(extra.read_text()) if extra.exists() else {}
        for node in nodes():
            cpus, allocated = ("6/0/0/6", "4000") if node in busy else ("0/6/0/6", "0")
            state = "allocated" if node in busy else states.get(node, "idle")
            told: dict[str, object] = {
                "NodeList": node,
                "StateComplete": state,
                "CPUsState": cpus,
                "Memory": "4000",
                "AllocMem": allocated,
            }
            closed = HERE / "closed"
            up = closed.read_text() if closed.exists() else "up"
            show(
                words,
                told
                | {"Features": "(null)", "Available": up, "PartitionName": "gleaner", "User": "root", "Reason": "none"},
            )
    return 0


def show(words: list[str], told: dict[str, object]) -> None:
    """Print a row as `--Format` wants it: each field, and what is to stand behind it."""
    print(
        "".join(
            f"{told[field]}{end}" for field, _, end in (f.partition(":") for f in option(words, "Format").split(","))
        )
    )


def squeue(words: list[str]) -> int:
    if option(words, "nodelist") and (HERE / "on-nodes.json").exists():
        if "nodeX" in option(words, "nodelist"):
            return failed("squeue: error: Invalid node name nodeX")
        for job in json.loads((HERE / "on-nodes.json").read_text(encoding="latin-1")):
            show(words, job)
        return 0
    name, states, number = option(words, "name"), option(words, "states"), option(words, "jobs")
    if number and number not in {str(job["id"]) for job in load()}:
        return failed("slurm_load_jobs error: Invalid job id specified")
    for job in reversed(load()):
        if (
            (number and number != str(job["id"]))
            or (name and job["name"] != name)
            or (states != "all" and job["state"] not in {"RUNNING", "PENDING"})
        ):
            continue
        if name:
            print(job["id"])
            continue
        told: dict[str, object] = {
            "JobArrayID": job["id"], "State": job["state"], "NodeList": job["node"], "SubmitTime": job["submitted"],
            "StartTime": job["start"], "EndTime": job["end"], "Name": job["name"], "UserID": os.getuid(),
        }  # fmt: skip
        show(words, ALIKE | told)
    return 0


def sbatch(words: list[str]) -> int:
    refusal = HERE / "refuse"
    if refusal.exists():
        return failed(f"sbatch: error: Batch job submission failed: {refusal.read_text()}")
    jobs = load()
    busy = {job["node"] for job in jobs if job["state"] == "RUNNING"}
    excluded = [name for name in option(words, "exclude").split(",") if name]
    if not set(excluded) <= set(nodes()):
        return failed("sbatch: error: Batch job submission failed: Invalid node name specified")
    free = [node for node in nodes() if node not in busy and node not in excluded]
    ahead = HERE / "ahead"
    now, id_ = int(time.time()) + int(ahead.read_text() if ahead.exists() else 0), 100 + len(jobs)
    job = {"id": id_, "name": option(words, "job-name"), "submitted": now}
    if free and not (HERE / "stuck").exists():
        end = now + 60 * int(option(words, "time"))
        job |= {"state": "RUNNING", "node": free[0], "start": now, "end": end}
    else:
        job |= {"state": "PENDING", "node": "", "start": "N/A", "end": "N/A"}
    save([*jobs, job])
    print(id_)
    return 0


def scancel(words: list[str]) -> int:
    jobs = load()
    for job in jobs:
        if str(job["id"]) in words and job["state"] in {"RUNNING", "PENDING"} and "--signal=USR1" not in words:
            job |= {"state": "CANCELLED", "end": int(time.time())}
    save(jobs)
    return 0


PROGRAMS = {
    "sinfo": sinfo, "squeue": squeue, "sbatch": sbatch, "scancel": scancel, "scontrol": scontrol, "sacctmgr": sacctmgr,
}  # fmt: skip

sys.exit(main())
