"""The kinds of processes that some nodes save and others do not."""

import pytest
from tests.runtime.kinds.kind import Versions
from tests.runtime.kinds.table import KINDS

GUARDS, INTERNET, STOPPED = "guard pages", "internet sockets", "a stopped process"


@pytest.mark.parametrize(
    ("node", "kinds"),
    [
        (Versions("6.18.44", "4.1.1", cgroups=1), [GUARDS, INTERNET, STOPPED]),
        (Versions("6.18.44", "4.1.1", cgroups=2), [GUARDS, INTERNET]),
        (Versions("6.18.44", "4.2", cgroups=1), [STOPPED]),
        (Versions("6.16.0", "4.2.1", cgroups=2), []),
        (Versions("6.15.9", "4.2.1", cgroups=2), [GUARDS]),
        (Versions("6.15.9", "4.1.1", cgroups=2), [GUARDS]),
        (Versions("6.12.9", "4.1.1", cgroups=2), []),
    ],
)
def test_a_kind_is_refused_where_the_versions_do_not_allow_it(node: Versions, kinds: list[str]) -> None:
    conditional = [kind for kind in KINDS if kind.only_with is not None]
    refused = [kind.what for kind in conditional if kind.is_refused(node)]
    assert [what for what in refused if not what.startswith(tuple(kinds) or "-")] == []
    assert len(refused) == len(kinds)
    assert len(conditional) == 3
