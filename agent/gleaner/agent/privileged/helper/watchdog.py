"""Watch over containers: remove those that are no longer needed, and those that are too large for the node."""

from __future__ import annotations  # the node may have Python 3.9

import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, NoReturn

from ..common import bundle, config, request
from ..common.bundle import Bundle
from ..common.disk_usage import DiskUse
from ..common.slurm_job import Unknown
from ..common.user_jobs import UserJobs, job_of
from . import containers
from .containers import Failed

_GRACE_S = 60
_PERIOD_S = 5.0
_FORGOTTEN_S = 600.0
_ERRORS = (Failed, Unknown, bundle.NoSuch, OSError)


class Watchdog:
    """The watchdog.

    `alone` and `remove` are the helper's own functions, so that the watchdog and the helper never handle the same
    container at the same time.
    """

    def __init__(
        self,
        settings: config.Config,
        user_jobs: UserJobs | None,
        alone: Callable[[str], AbstractContextManager[None]],
        remove: Callable[[Bundle], None],
    ) -> None:
        self._settings = settings
        self._user_jobs = user_jobs
        self._alone = alone
        self._remove = remove

    def watch(self) -> None:
        """Start the watch with one thread for each task, since Slurm might not answer and a count might take long."""
        works = [(self.remove_overdue, _PERIOD_S), (self.keep_limit, _PERIOD_S)]
        if self._user_jobs is not None:
            works += [(self.remove_users_overdue, _PERIOD_S), (self._user_jobs.remove_forgotten, _FORGOTTEN_S)]
        for work in works:
            threading.Thread(target=self._again_and_again, args=work, daemon=True).start()

    def _again_and_again(self, work: Callable[[], None], period_s: float) -> NoReturn:
        while True:
            try:
                work()
            except Exception as error:  # whatever the error is, try the task again
                sys.stderr.write(f"watchdog: {type(error).__name__}: {error}\n")
            time.sleep(period_s)

    def remove_overdue(self) -> None:
        """Remove agents' containers whose end has passed."""
        self._remove_each(lambda container, _: self._user_jobs is None or job_of(container.name) is None)

    def remove_users_overdue(self) -> None:
        """Remove users' containers whose end has passed, unless Slurm has given the job more time."""
        self._remove_each(self._is_over)

    def _is_over(self, container: Bundle, about: dict[str, Any]) -> bool:
        if self._user_jobs is None or job_of(container.name) is None:
            return False
        end_s = self._user_jobs.still_runs(about)
        if end_s is None or end_s + _GRACE_S <= time.time():
            return True
        container.set_label(request.LABEL_END, str(end_s))
        return False

    def _remove_each(self, is_over: Callable[[Bundle, dict[str, Any]], bool]) -> None:
        for container, about in bundle.with_facts(self._settings):
            try:
                if is_overdue(about["labels"], time.time()) and is_over(container, about):
                    with self._alone(container.name):
                        self._remove(container)
            except _ERRORS as error:
                sys.stderr.write(f"watchdog: {error}\n")

    def keep_limit(self) -> None:
        """Enforce the limits by removing ended containers, oldest first, and then ending the largest of the others."""
        uses: dict[Bundle | str, DiskUse] = {
            container: bundle.disk_use(container.path, *self._folders(container))
            for container in bundle.all_bundles(self._settings)
        }
        uses |= {name: bundle.disk_use(folder) for name, folder in self._loose().items()}
        ended_containers = [one for one in uses if isinstance(one, Bundle) and one.exit() is not None]
        for container in sorted(ended_containers, key=lambda one: one.facts()["made_s"]):
            if self._share(*uses.values()) > 1:
                del uses[container]
                self._remove(container)
        if self._share(*uses.values()) <= 1:
            return
        for one in sorted(uses, key=lambda one: -self._share(uses[one])):
            if self._end_or_remove(one):
                return

    def _share(self, *uses: DiskUse) -> float:
        """Return the used fraction of the limit on bytes or of that on files, whichever is larger."""
        of_bytes = sum(one.size_bytes for one in uses) / self._settings.most_container_bytes
        return max(of_bytes, sum(one.inodes for one in uses) / self._settings.most_container_files)

    def _end_or_remove(self, one: Bundle | str) -> bool:
        """End a running container, remove an ended one, or remove a folder without a container.

        Return True if that worked.
        """
        if isinstance(one, str):
            if self._user_jobs is not None:
                self._user_jobs.remove_folder(one)
        elif one.is_monitored():
            with open(one.inside("too-large"), "w", encoding="ascii"):
                containers.signal(self._settings, one, "KILL")
        else:
            with suppress(Failed), self._alone(one.name):
                self._remove(one)
                return True
            return False
        return True

    def _loose(self) -> dict[str, str]:
        """Return the users' folders that have no container, or do not have one yet."""
        mine = self._user_jobs
        return {} if mine is None else {name: mine.unmounted_folder(name) for name in mine.folders_without_container()}

    def _folders(self, container: Bundle) -> list[str]:
        """Return the other folders whose space is counted as the container's.

        An agent's container has none here, because the agent itself counts them.
        """
        users = None if job_of(container.name) is None else self._user_jobs
        return [] if users is None else [users.unmounted_folder(container.name)]


def is_overdue(labels: dict[str, str], now_s: float) -> bool:
    """Return True if the agent's end has passed, or is unknown.

    >>> is_overdue({"org.gleaner.end-s": "100"}, 159), is_overdue({"org.gleaner.end-s": "100"}, 161), is_overdue({}, 0)
    (False, True, True)
    """
    end_s = request.end_s(labels)
    return end_s is None or now_s > end_s + _GRACE_S
