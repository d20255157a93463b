"""Quotas: the most that a group and each of its users may have at once."""

from collections.abc import Mapping
from dataclasses import dataclass, field

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Most:
    """The limits of a group or a user. None: no limit."""

    jobs: int | None = None
    cores: int | None = None
    stored_bytes: int | None = None

    @property
    def limits_running(self) -> bool:
        """True if a claim has to look at these limits."""
        return self.cores is not None or self.stored_bytes is not None


@dataclass(frozen=True, slots=True)
class GroupMost:
    """The limits of a group and of each of its users."""

    group: Most = Most()
    user: Most = Most()
    sizes: int | None = None


@dataclass(frozen=True, slots=True)
class QuotaRules:
    """All groups' quotas."""

    default: GroupMost = GroupMost()
    groups: Mapping[str, GroupMost] = field(default_factory=dict[str, GroupMost])

    def of(self, group: str) -> GroupMost:
        """Return the limits of this group."""
        return self.groups.get(group, self.default)

    @property
    def any_stored(self) -> bool:
        """True if the stored bytes of any group or user are limited."""
        all_ = (self.default, *self.groups.values())
        return any(most.stored_bytes is not None for each in all_ for most in (each.group, each.user))


Whose = tuple[str, str]
"""A group and one of its users. An empty user stands for the whole group."""


@dataclass(slots=True)
class Allowance:
    """The cores that one claim may still start. A group or user that is not named is not limited."""

    cores: dict[Whose, int] = field(default_factory=dict[Whose, int])
    """The rest of the limits of groups, and of users with a running job."""
    each_user: Mapping[str, int] = field(default_factory=dict[str, int])
    """By group: the cores of a user without a running job."""
    full: frozenset[Whose] = frozenset()
    """The groups and users above their storage limit: their saved jobs continue, and no new job begins."""

    def holds(self, whose: Whose, cpus: int) -> bool:
        """Return True if a job of so many cores may start."""
        return all(left is None or left >= cpus for left in map(self._left, _concerned(whose)))

    def may_begin(self, whose: Whose) -> bool:
        """Return True if a job without a checkpoint may start."""
        return not any(each in self.full for each in _concerned(whose))

    def most(self, whose: Whose, cpus: int) -> int | None:
        """Return the number of jobs of so many cores that may start. None: no limit."""
        left = [max(0, each) // cpus for each in map(self._left, _concerned(whose)) if each is not None]
        return min(left, default=None)

    def take(self, whose: Whose, cpus: int) -> None:
        """Count one started job of so many cores."""
        for each in _concerned(whose):
            left = self._left(each)
            if left is not None:
                self.cores[each] = left - cpus

    def _left(self, whose: Whose) -> int | None:
        group, user = whose
        return self.cores.get(whose, self.each_user.get(group) if user else None)


def _concerned(whose: Whose) -> tuple[Whose, ...]:
    group, user = whose
    return ((group, ""), whose) if user else (whose,)


def over_jobs(who: str, *, has: int, more: int, most: int, key: str) -> str:
    """Return the message that so many jobs are too many.

    >>> over_jobs("group atlas", has=990, more=20, most=1000, key="jobs")
    'group atlas has 990 jobs that have not ended and may have 1,000: 20 more are too many; wait until some end, \
cancel some, or ask an admin for more ([quotas] jobs)'
    """
    return (
        f"{who} has {has:,} jobs that have not ended and may have {most:,}: {more:,} more are too many; wait until"
        f" some end, cancel some, or ask an admin for more ([quotas] {key})"
    )


def over_cores(who: str, *, cpus: int, most: int, key: str) -> str:
    """Return the message that a job can never start.

    >>> over_cores("group atlas", cpus=64, most=32, key="cores")
    'it needs 64 cores, and group atlas may have 32 running at once: it can never start; ask for fewer, or ask an \
admin for more ([quotas] cores)'
    """
    return (
        f"it needs {cpus:,} {'core' if cpus == 1 else 'cores'}, and {who} may have {most:,} running at once: it can"
        f" never start; ask for fewer, or ask an admin for more ([quotas] {key})"
    )


def cores_in_use(who: str, *, has: int, most: int, key: str) -> str:
    """Return the message that a job starts when others have ended.

    >>> cores_in_use("group atlas", has=30, most=32, key="cores")
    'group atlas has 30 cores running and may have 32: it starts when enough of them are free ([quotas] cores)'
    """
    return (
        f"{who} has {has:,} cores running and may have {most:,}: it starts when enough of them are free"
        f" ([quotas] {key})"
    )


def over_stored(who: str, *, has_bytes: int, most_bytes: int, key: str) -> str:
    """Return the message that no new job begins because of the stored bytes.

    >>> over_stored("alice of group atlas", has_bytes=3 * 2**30, most_bytes=2**31, key="user.stored_gib")
    'alice of group atlas has 3.0 GiB stored and may have 2.0: nothing new begins; cancel saved jobs that are not \
needed, or ask an admin for more ([quotas] user.stored_gib)'
    """
    return (
        f"{who} has {has_bytes / GIB:,.1f} GiB stored and may have {most_bytes / GIB:,.1f}: nothing new begins; cancel"
        f" saved jobs that are not needed, or ask an admin for more ([quotas] {key})"
    )
