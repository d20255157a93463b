"""Slurm's features of nodes, and what a job's constraint asks of them. Pure."""

_NONE = frozenset({"", "(null)", "N/A"})
_MIXED = frozenset("[]()*:")


def features_of(text: str) -> frozenset[str]:
    """A node's features, as Slurm lists them.

    >>> sorted(features_of("amd,fast")), features_of("(null)")
    (['amd', 'fast'], frozenset())
    """
    return frozenset() if text in _NONE else frozenset(text.split(","))


def is_met(constraint: str, features: frozenset[str]) -> bool:
    """Whether a node with these features may be used. What is more than a plain "and" or "or" is left to Slurm: true.

    >>> is_met("amd&fast", frozenset({"amd"})), is_met("amd|intel", frozenset({"amd"})), is_met("", frozenset())
    (False, True, True)
    >>> is_met("[rack1*2|rack2*2]", frozenset({"amd"}))
    True
    """
    if constraint in _NONE or _MIXED & set(constraint):
        return True
    words = constraint.replace("|", " | ").replace("&", " & ").replace(",", " & ").split()
    asked, between = words[::2], set(words[1::2])
    if len(between) > 1:
        return True
    found = [feature in features for feature in asked]
    return any(found) if between == {"|"} else all(found)
