"""Quotas: the limits of a group and each of its users."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

GIB = 2**30

Whose = tuple[str, str]
"""A group and one of its users. An empty user represents the whole group."""


class Quantity(StrEnum):
    """The quantities that can be limited. Each value is the name of its setting."""

    JOBS = "jobs"
    """Jobs that have not ended."""
    CORES = "cores"
    """Cores of running jobs."""
    STORED = "stored_gib"
    """Bytes of checkpoints and outputs."""
    SIZES = "sizes"
    """Different sizes (cores and memory) of jobs that have not ended."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit of a quantity for a group, or for each of its users."""

    of: Quantity
    most: int
    is_of_user: bool = False

    @property
    def setting(self) -> str:
        """Return the name of its setting, as messages show it."""
        return f"[quotas] {'user.' if self.is_of_user else ''}{self.of}"


@dataclass(frozen=True, slots=True)
class QuotaRules:
    """The limits of all groups. Limits for a named group replace all default limits."""

    default: tuple[Limit, ...] = ()
    groups: Mapping[str, tuple[Limit, ...]] = field(default_factory=dict[str, tuple[Limit, ...]])

    def limits(self, group: str, *of: Quantity) -> tuple[Limit, ...]:
        """Return the group's limits of these quantities, and those of its users."""
        return tuple(limit for limit in self.groups.get(group, self.default) if limit.of in of)

    def concerning(self, group: str, user: str, *of: Quantity) -> Iterator[tuple[Limit, Whose]]:
        """Yield the limits that apply to a job of this user ("" if unknown), each with the group or user that it
        limits."""
        for limit in self.limits(group, *of):
            if user or not limit.is_of_user:
                yield limit, (group, user if limit.is_of_user else "")

    @property
    def any_stored(self) -> bool:
        """Return True if the stored bytes of any group or user are limited."""
        return any(limit.of is Quantity.STORED for each in (self.default, *self.groups.values()) for limit in each)


@dataclass(slots=True)
class Allowance:
    """The cores that the jobs of one claim can still use. Groups and users that are not named are not limited."""

    cores: dict[Whose, int] = field(default_factory=dict[Whose, int])
    """The cores that are left for groups, and for users with a running job."""
    each_user: Mapping[str, int] = field(default_factory=dict[str, int])
    """The cores that a user without a running job can have, by group."""
    full: frozenset[Whose] = frozenset()
    """The groups and users above their storage limit. Their saved jobs continue, and their new jobs do not start."""

    def holds(self, whose: Whose, cpus: int) -> bool:
        """Return True if a job with this number of cores is allowed to start."""
        return all(left is None or left >= cpus for left in map(self._left, _concerned(whose)))

    def may_begin(self, whose: Whose) -> bool:
        """Return True if a job without a checkpoint is allowed to start."""
        return not any(each in self.full for each in _concerned(whose))

    def most(self, whose: Whose, cpus: int) -> int | None:
        """Return the number of jobs with this number of cores that are allowed to start, or None if there is no
        limit."""
        left = [max(0, each) // cpus for each in map(self._left, _concerned(whose)) if each is not None]
        return min(left, default=None)

    def take(self, whose: Whose, cpus: int) -> None:
        """Subtract the cores of one job that has started."""
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


def _who(whose: Whose) -> str:
    group, user = whose
    return f"{user} of group {group}" if user else f"group {group}"


def over_jobs(limit: Limit, whose: Whose, *, has: int, more: int) -> str:
    """Return the message for a submission with too many jobs.

    >>> over_jobs(Limit(Quantity.JOBS, 1000), ("atlas", ""), has=990, more=20)
    'group atlas has 990 jobs that have not ended and may have 1,000: 20 more are too many; wait until some end, \
cancel some, or ask an admin for more ([quotas] jobs)'
    """
    return (
        f"{_who(whose)} has {has:,} jobs that have not ended and may have {limit.most:,}: {more:,} more are too many;"
        f" wait until some end, cancel some, or ask an admin for more ({limit.setting})"
    )


def over_sizes(limit: Limit, whose: Whose, *, has: int) -> str:
    """Return the message for a job that would add one size too many."""
    return (
        f"{_who(whose)} has jobs of {has} different sizes and may have {limit.most}: give this one the cores and"
        f" memory of others, or ask an admin for more ({limit.setting})"
    )


def over_cores(limit: Limit, whose: Whose, *, cpus: int) -> str:
    """Return the message for a job that can never start.

    >>> over_cores(Limit(Quantity.CORES, 32), ("atlas", ""), cpus=64)
    'it needs 64 cores, and group atlas may have 32 running at once: it can never start; ask for fewer, or ask an \
admin for more ([quotas] cores)'
    """
    return (
        f"it needs {cpus:,} {'core' if cpus == 1 else 'cores'}, and {_who(whose)} may have {limit.most:,} running at"
        f" once: it can never start; ask for fewer, or ask an admin for more ({limit.setting})"
    )


def cores_in_use(limit: Limit, whose: Whose, *, has: int) -> str:
    """Return the message for a job that waits until others have ended.

    >>> cores_in_use(Limit(Quantity.CORES, 32), ("atlas", ""), has=30)
    'group atlas has 30 cores running and may have 32: it starts when enough of them are free ([quotas] cores)'
    """
    return (
        f"{_who(whose)} has {has:,} cores running and may have {limit.most:,}: it starts when enough of them are free"
        f" ({limit.setting})"
    )


def over_stored(limit: Limit, whose: Whose, *, has_bytes: int) -> str:
    """Return the message for a group or user whose new jobs do not start because of the stored bytes.

    >>> over_stored(Limit(Quantity.STORED, 2**31, is_of_user=True), ("atlas", "alice"), has_bytes=3 * 2**30)
    'alice of group atlas has 3.0 GiB stored and may have 2.0: nothing new begins; cancel saved jobs that are not \
needed, or ask an admin for more ([quotas] user.stored_gib)'
    """
    return (
        f"{_who(whose)} has {has_bytes / GIB:,.1f} GiB stored and may have {limit.most / GIB:,.1f}: nothing new begins;"
        f" cancel saved jobs that are not needed, or ask an admin for more ({limit.setting})"
    )
