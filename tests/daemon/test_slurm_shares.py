"""The groups' parts by the shares of Slurm's accounts: a tree of shares, and whatever sacctmgr may say instead."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.control.control_state import ControlState
from gleaner.control.daemon.slurm_shares import take_shares
from gleaner.control.policy.fair_share import ShareRules
from gleaner.control.queue.database import connect
from gleaner.control.settings import ClusterSettings, GroupSettings, Settings
from gleaner.control.slurm import accounting
from gleaner.control.slurm.interface import ClusterError

TREE = """\
gleaner|root|||1
gleaner|root||root|1
gleaner|physics|root||50
gleaner|physics||alice|1
gleaner|sciences|root||50
gleaner|chemistry|sciences||3
gleaner|biology|sciences||1
gleaner|guests|root||parent
"""

Sacctmgr = Callable[[str], None]


@pytest.fixture
def sacctmgr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sacctmgr:
    """Puts a program of that name on PATH, which does as this line of Python says."""

    def put(does: str) -> None:
        program = tmp_path / "sacctmgr"
        program.write_text(f"#!{sys.executable}\nimport sys, time\n{does}\n")
        program.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path))
    return put


@pytest.fixture
def state(sqlite_url: str, tmp_path: Path) -> ControlState:
    groups = GroupSettings(from_slurm=True, multiplier={"physics": 2, "phyiscs": 3})
    settings = Settings(groups=groups, cluster=ClusterSettings(timeout_s=2))
    return ControlState(settings, connect(sqlite_url), FolderStorage(tmp_path))


def test_an_accounts_part_is_its_share_of_what_its_parent_has() -> None:
    assert accounting.parse_shares(TREE) == {"physics": 50, "chemistry": 37.5, "biology": 12.5}


@given(shares=st.lists(st.integers(1, 1000), min_size=1, max_size=8))
def test_the_parts_of_all_accounts_are_the_whole(shares: list[int]) -> None:
    rows = "".join(f"c|a{n}|root||{share}\n" for n, share in enumerate(shares))
    assert sum(accounting.parse_shares(rows + "c|sub|a0||5\n").values()) == pytest.approx(100)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("physics|root|1\n", "5 fields were expected"),
        ("c|physics|root||many\n", "a whole number was expected as the share"),
        ("c|physics|root||1\nd|physics|root||2\n", "shares of several clusters (c, d): set [groups] entitled instead"),
    ],
)
def test_what_cannot_be_understood_is_one_clear_line(answer: str, said: str) -> None:
    with pytest.raises(ClusterError) as error:
        accounting.parse_shares(answer)
    assert said in str(error.value)


def test_the_shares_that_slurm_tells_are_what_groups_are_entitled_to(state: ControlState, sacctmgr: Sacctmgr) -> None:
    sacctmgr(f"assert 'assoc' in sys.argv\nprint({TREE!r}, end='')")
    assert state.share_rules == ShareRules({}, {"physics": 2, "phyiscs": 3})
    with capture_logs() as said:
        take_shares(state)
        take_shares(state)
    assert state.share_rules.entitled == {"physics": 50, "chemistry": 37.5, "biology": 12.5}
    assert state.share_rules.multiplier["physics"] == 2
    assert [line["event"] for line in said if line["log_level"] == "warning"] == [
        "[groups] multiplier names account 'phyiscs', which Slurm does not know; it knows: biology, chemistry, physics"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("does", "reason"),
    [
        ("sys.exit('slurm_persist_conn_open: Connection refused')", "Connection refused"),
        ("time.sleep(30)", "sacctmgr took more than 2 s"),
        ("print('c|physics')", "5 fields were expected"),
    ],
)
def test_while_slurm_does_not_answer_the_last_shares_count(
    state: ControlState, sacctmgr: Sacctmgr, does: str, reason: str
) -> None:
    state.slurm_shares = {"physics": 10}
    sacctmgr(does)
    with pytest.raises(ClusterError, match=reason):
        take_shares(state)
    assert state.slurm_shares == {"physics": 10}
