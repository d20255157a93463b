"""The leadership among control programs, and the agents' leases. This loop never waits for Slurm.

Only the leader writes to the queue. Its term is short, so that another program can take over soon. If a leader is
killed, a program on the same machine notices and takes over at once. A leader counts its term from the moment before it
requests it, and treats the term as one tick shorter than other programs do. Therefore, however late the answer arrives,
a program never believes that it leads when another one might lead. In addition, each of the leader's transactions
checks the term (`ControlState.writing`).

A program leads only while the version of the tables matches its own. If a newer program has migrated the tables, an
older one does not begin to lead, or stops leading.

Leases do not expire while control is away. Every live agent is given a full lease when a program begins to lead. The
same happens after any gap in which this loop did not run, for example because the machine slept, the program was
stopped, or the database was away.
"""

import hashlib
import os
import socket
from pathlib import Path

import structlog

from gleaner.control.control_state import ControlState
from gleaner.control.daemon.loops import do_each
from gleaner.control.queue import agents, leader
from gleaner.control.queue.database import BUSY_TIMEOUT_S, check_tables, snapshot, transaction
from gleaner.control.queue.errors import NotLeading, QueueError, SchemaMismatch

LONGEST_TICK_S = 5.0
TICKS_A_TERM = 4
GAP_TICKS = 3

_log = structlog.get_logger(__name__)


class Leadership:
    """The loop that keeps the leadership and the leases. Call `tick` every `tick_s` seconds."""

    def __init__(self, state: ControlState, holder: str) -> None:
        self.tick_s = min(state.settings.rounds.poll_s, LONGEST_TICK_S)
        self._state = state
        self._holder = holder
        self._term_s = TICKS_A_TERM * self.tick_s + BUSY_TIMEOUT_S
        self._last_s: float | None = None
        self._said = ""

    def tick(self, now_s: float) -> None:
        """Begin or continue to lead if no other program leads.

        As the leader, give up the agents whose lease has expired.
        """
        try:
            if self._lead():
                self._keep_leases(now_s)
        except SchemaMismatch as error:
            self._state.leads_until_s = 0.0
            self._say(f"this program does not lead: {error}")
            return
        except NotLeading as error:
            self._say(str(error))
            return
        except QueueError as error:
            self._say(f"the queue does not answer: {error}")
            return  # `_last_s` stays unchanged, because no heartbeat could arrive in this time
        except ExceptionGroup:  # errors for single agents: the lease time of the other agents continues to run
            self._last_s = now_s
            raise
        self._last_s = now_s

    def resign(self) -> None:
        """Stop leading, so that another program can lead at once."""
        self._state.leads_until_s = 0.0
        try:
            with transaction(self._state.engine) as db:
                leader.resign(db, self._holder)
        except QueueError as error:
            _log.warning("could not resign; the term will end by itself", reason=str(error))

    def _lead(self) -> bool:
        now = self._state.database_clock()
        asked_s = self._state.steady_clock()
        with snapshot(self._state.engine) as db:
            other = leader.leader(db, now=now)
        with transaction(self._state.engine) as db:
            check_tables(db)
            if other is not None and other != self._holder and is_dead(other):
                leader.resign(db, other)
            term = leader.try_lead(db, self._holder, now=now, term_s=self._term_s)
            other = None if term else leader.leader(db, now=now)
        if term is None:
            self._state.leads_until_s = 0.0
            self._say(f"{other} leads; this program only serves reads")
            return False
        if not self._state.is_leader:
            self._last_s = None
        self._state.term = term  # first, because all later writes belong to this term
        self._state.leads_until_s = asked_s + self._term_s - self.tick_s
        self._say(f"{self._holder} leads")
        return True

    def _keep_leases(self, now_s: float) -> None:
        queue = self._state.settings.queue
        with self._state.writing() as db:
            if self._last_s is None or not 0 <= now_s - self._last_s <= GAP_TICKS * self.tick_s:
                agents.renew_leases(db, now_s=now_s, lease_s=queue.lease_s)
            overdue = agents.overdue(db, now_s=now_s)

        def expire(name: str) -> None:
            with self._state.writing() as db:
                is_silent = agents.expire(db, name, now_s=now_s, losses_until_held=queue.losses_until_held)
            if is_silent:
                _log.warning("an agent fell silent; its jobs wait again", agent=name)

        do_each(overdue, expire)  # a row that cannot be changed affects no other agent

    def _say(self, what: str) -> None:
        if what != self._said:
            _log.info(what)
            self._said = what


def this_program() -> str:
    """Return the unique name of this process: `HOST:PID:START:PLACE`.

    The place is the kernel's boot id and the process namespace. They distinguish the process from one with the same pid
    in another container or before a reboot.
    """
    pid = os.getpid()
    return f"{socket.gethostname()}:{pid}:{_start_ticks(pid)}:{_place()}"


def is_dead(holder: str) -> bool:
    """Return True if the process is known to be gone, and False if it is alive or cannot be seen from here."""
    _host, _, rest = holder.partition(":")
    pid, _, rest = rest.partition(":")
    start, _, place = rest.partition(":")
    return place == _place() and pid.isdigit() and str(_start_ticks(int(pid))) != start


def _start_ticks(pid: int) -> int | None:
    """Return the start of a process, in clock ticks since the boot (proc(5), stat, field 22), or None if it is gone."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if state == "Z" else int(fields[18])


def _place() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    space = Path("/proc/self/ns/pid").readlink()
    return hashlib.sha256(f"{boot} {space}".encode()).hexdigest()[:12]
