"""A folder of Gleaner's own that root's settings name among the mounts by mistake."""

import pytest

from gleaner.agent.node.facts import node_facts
from gleaner.agent.runtime.interface import RuntimeFacts


@pytest.mark.parametrize(("own", "mounts"), [("/opt/gleaner", ()), ("/opt", ()), ("/optional", ("/opt",))])
def test_a_folder_that_would_show_jobs_the_storage_cannot_be_mounted(own: str, mounts: tuple[str, ...]) -> None:
    facts = node_facts(RuntimeFacts("runc", "4.2"), cpus=1, memory_mib=1000, mounts=("/opt",), own=(own,))
    assert facts.mounts == mounts
