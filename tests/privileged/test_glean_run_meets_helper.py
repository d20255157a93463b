"""`glean run` at the real helper's door: one at a time for a job, and what an earlier one has left goes."""

from pathlib import Path

import pytest
from tests.privileged.root import only_root
from tests.privileged.users_harness import ALICE, MINE, Node
from tests.runtime.account_harness import acting_as

from gleaner.agent.privileged.common import bundle, config
from gleaner.agent.privileged.common.bundle import Bundle
from gleaner.agent.privileged.helper import containers
from gleaner.agent.user_job import main
from gleaner.agent.user_job.main import Unfit

pytestmark = only_root


@pytest.fixture
def node(node: Node, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(config, "load", lambda: node.settings)
    monkeypatch.setattr(containers, "remove", lambda _, made: made.remove())
    return node


def test_beside_a_container_that_runs_nothing_is_begun(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.made(MINE, ALICE)
    monkeypatch.setattr(Bundle, "is_monitored", lambda _: True)
    with acting_as(*ALICE), pytest.raises(Unfit, match="already has a container on this node"):
        main.meet_helper("66")


def test_what_an_earlier_one_has_left_goes(node: Node) -> None:
    node.made(MINE, ALICE)
    left = Path(node.ask(ALICE, do="admit", slurm_job="66")["folder"]) / "left"
    left.touch()
    with acting_as(*ALICE):
        _, admitted, _ = main.meet_helper("66")
    assert bundle.all_bundles(node.settings) == []
    assert list(Path(admitted["folder"]).iterdir()) == []


def test_two_that_begin_at_once_do_not_share_a_folder(node: Node) -> None:
    with acting_as(*ALICE):
        main.meet_helper("66")
        with pytest.raises(Unfit, match="only one can run at a time"):
            main.meet_helper("66")


def test_who_is_not_let_in_reads_why_in_one_line(node: Node) -> None:
    with acting_as(*ALICE), pytest.raises(Unfit, match="job 67 is not yours"):
        main.meet_helper("67")
