"""The commands of `gleaner-helper` for an admin, Slurm's Epilog or `deploy/watchdog`, each in a process of its own."""

from __future__ import annotations  # the node may have Python 3.9

import os
import resource
import sys
import time
from contextlib import suppress
from typing import NoReturn

from ...system.tar_policy import Hostile
from ..common import agent_leftovers, bundle, config
from ..common.request import LABEL_END
from ..common.slurm_jobs import Slurm
from ..common.user_jobs import LABEL_SLURM_JOB, UserJobs
from . import containers, image_store
from .containers import Failed

_IMPORT_MEMORY_BYTES = 2**30


def take_in(settings: config.Config, name: str, source: str) -> NoReturn:
    """Run `gleaner-helper import NAME FILE`, for an admin; the helper itself passes a descriptor's number."""
    resource.setrlimit(resource.RLIMIT_AS, (_IMPORT_MEMORY_BYTES, _IMPORT_MEMORY_BYTES))
    try:
        descriptor = int(source) if source.isdigit() else os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        image_id = image_store.take_in(settings, descriptor, name)
    except (Hostile, OSError) as error:
        sys.exit(" ".join(str(error).split()) or type(error).__name__)
    sys.stdout.write(image_id + "\n")
    sys.exit(0)


def forget(settings: config.Config, name: str) -> NoReturn:
    """Run `gleaner-helper forget NAME`, for an admin."""
    found = image_store.find(settings, name)
    if found is None:
        sys.exit(f"there is no image {name}")
    if any(about["image_id"] == found.id for _, about in bundle.known(settings)):
        sys.exit(f"a container still uses {name}")
    image_store.forget(settings, name)
    sys.exit(0)


def clear(settings: config.Config, slurm_job: str) -> NoReturn:
    """Run `gleaner-helper clear SLURM_JOB`, for Slurm's Epilog: remove what the agent of an ended job left behind."""
    for made, about in bundle.known(settings):
        try:
            if about["labels"].get(LABEL_SLURM_JOB) == slurm_job:
                containers.remove(settings, made)
        except (Failed, OSError):
            with suppress(OSError, bundle.NoSuch):
                made.put_off(LABEL_END, "0")  # the watchdog tries again
    if settings.user_jobs_key:
        UserJobs(settings, Slurm(settings.scontrol)).clear(slurm_job)
    sys.exit(0)


def sweep(settings: config.Config) -> NoReturn:
    """Run `gleaner-helper sweep`, for `deploy/watchdog`: remove the sockets and old logs of agents that are gone."""
    try:
        agent_leftovers.remove_all(settings, time.time())
    except OSError as error:
        sys.exit(str(error))
    sys.exit(0)
