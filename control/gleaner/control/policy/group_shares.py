"""The target of each group in our queue, in cores. Pure.

A target is the group's part of the cores of live agents, times the group's multiplier. Groups that the rules do not
name share the rest equally, or have no target. A group without a target gets what no group below its target asks for.
This is a module apart from `policy.fair_share`, which needs NumPy: settings are also read where there is none.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ShareRules:
    """The shares that the admin has set or that Slurm's accounts have; see `settings.GroupSettings`."""

    entitled: Mapping[str, float] = field(default_factory=dict[str, float])
    """Per cent of the cores of all live agents, by group."""
    multiplier: Mapping[str, float] = field(default_factory=dict[str, float])
    """1 for a group that is not named."""
    are_others_equal: bool = True
    """The other groups that have jobs share the rest of 100 per cent equally."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The state of all groups at one instant."""

    rules: ShareRules = field(default_factory=ShareRules)
    capacity_cpus: int = 0
    """The cores of all live agents."""
    holds_cpus: Mapping[str, int] = field(default_factory=dict[str, int])
    """The cores of the running jobs of each group."""
    waiting: frozenset[str] = frozenset()
    """Groups with a waiting job."""

    def target_cpus(self, asking: Collection[str]) -> dict[str, float]:
        """Return the targets of these groups, in cores. Each of the groups has a waiting job.

        >>> rules = ShareRules(entitled={"physics": 50}, multiplier={"physics": 2})
        >>> Shares(rules, 8, {"biology": 1}).target_cpus(["chemistry", "physics"])
        {'chemistry': 2.0, 'physics': 8.0}
        """
        rules = self.rules
        with_jobs = {*asking, *self.waiting, *(group for group, cpus in self.holds_cpus.items() if cpus > 0)}
        others = with_jobs - rules.entitled.keys()
        left = max(0.0, 100 - sum(rules.entitled.values()))
        other = left / len(others) if others and rules.are_others_equal else 0.0
        return {
            group: self.capacity_cpus * rules.entitled.get(group, other) / 100 * rules.multiplier.get(group, 1.0)
            for group in asking
        }
