"""Keys of other systems that campaign files do not have, each with a line about what to use instead."""

_MEMORY = "use memory_mib, as in memory_mib: 4G, or memory_mib: 512..4096 for a job that may need more"
_GPUS = "Gleaner gives no GPUs to jobs yet; leave it out, and ask for cores with cpus"
_MOUNTS = "use mounts, as in mounts: [/cvmfs/atlas.cern.ch], for folders that the site allows; or use inputs"
_KEEP = 'use outputs, as in outputs: {keep: ["*.root", "hist/**"]}; without it all of /job is kept'
_TIME = "a job takes as many slices as it needs; to end one that computes for too long, write compute_limit: 2h"

OPTIONS = {
    "command": "-- COMMAND", "compute_limit": "--compute-limit", "cpus": "--cpus", "disk": "--disk",
    "environment": "--env", "indices": "--array", "memory_mib": "--memory-mib", "mounts": "--mount",
    "outputs": "--keep", "retries": "--retries",
}  # fmt: skip
"""For each key, the option of `glean submit` that has the same effect."""

INSTEAD = {
    "after": "no job waits for another; submit the later ones with hold: true, and release them after `glean wait`",
    "args": "use command, as in command: [--seed, 7]",
    "array": "use indices, as in indices: 0-11",
    "bind": _MOUNTS,
    "binds": _MOUNTS,
    "constraint": "Gleaner chooses the nodes, by cpus, memory_mib and what a saved job needs to go on; leave it out",
    "cores": "use cpus",
    "disk_mib": "use disk, as in disk: 20G",
    "env": "use environment, as in environment: {OMP_NUM_THREADS: 1}",
    "gpu": _GPUS,
    "gpus": _GPUS,
    "indices_from": "use lines: FILE, a job for each line, with {line} in the command",
    "keep": _KEEP,
    "labels": "jobs have no labels; name says what they are, and `glean list --campaign C` lists what belongs together",
    "max_retries": "use retries, as in retries: 3",
    "mem": _MEMORY,
    "memory": _MEMORY,
    "network": "a job has no network; put what it needs into the container image, and what it makes into /job",
    "notify": "Gleaner sends no messages; `glean wait --campaign C` returns when all jobs have ended",
    "output": _KEEP,
    "output_files": _KEEP,
    "request_cpus": "use cpus",
    "request_disk": "use disk, as in disk: 20G",
    "request_gpus": _GPUS,
    "request_memory": _MEMORY,
    "results_to": "fetch the results with `glean results --campaign C --to FOLDER`",
    "time": _TIME,
    "time_limit": _TIME,
    "timeout": _TIME,
    "transfer_output_files": _KEEP,
    "volumes": _MOUNTS,
    "walltime": _TIME,
    "workdir": "a job starts in its own folder, /job; to start elsewhere, command: [sh, -c, cd /there && exec ...]",
}
