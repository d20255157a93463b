"""Slurm's features of nodes, and what a job's constraint asks of them. Pure."""

from collections.abc import Mapping

from gleaner.control.cluster.slurm_words import UNSET

_MORE = frozenset("[]()*:")


def features_of(text: str) -> frozenset[str]:
    """A node's features, as Slurm lists them.

    >>> sorted(features_of("amd,fast")), features_of("(null)")
    (['amd', 'fast'], frozenset())
    """
    return frozenset() if text in UNSET else frozenset(text.split(","))


def lacking(constraint: str, nodes: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The nodes that do not have what a constraint asks for. One that is more than a plain "and" or "or" is Slurm's.

    >>> some = {"n1": frozenset({"amd"}), "n2": frozenset({"amd", "fast"}), "n3": frozenset()}
    >>> sorted(lacking("amd&fast", some)), sorted(lacking("amd|intel", some)), sorted(lacking("(null)", some))
    (['n1', 'n3'], ['n3'], [])
    >>> sorted(lacking("[rack1*2|rack2*2]", some))
    []
    """
    if constraint in UNSET or _MORE & set(constraint):
        return frozenset()
    words = constraint.replace("|", " | ").replace("&", " & ").replace(",", " & ").split()
    asked, between = frozenset(words[::2]), set(words[1::2])
    if len(between) > 1:
        return frozenset()
    if between == {"|"}:
        return frozenset(node for node, there in nodes.items() if asked.isdisjoint(there))
    return frozenset(node for node, there in nodes.items() if not asked <= there)
