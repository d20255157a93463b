"""The computations of pages themselves: the order and the pages of lists, and the picture of a job's slices."""

from hypothesis import given
from hypothesis import strategies as st

from gleaner.control.models.jobs import AttemptRow, JobDetail, JobRow
from gleaner.control.models.nodes import NodeRow
from gleaner.control.models.searches import ROWS_A_PAGE
from gleaner.control.states import State
from gleaner.control.web.listing import ListSearch, listing
from gleaner.control.web.slice_chart import WIDTH, slice_chart

NODE = NodeRow(
    name="n0", cpus=8, memory_mib=16, state="idle", idle=True, regular=False, agent=None, failures=0,
    excluded_until_s=None,
)  # fmt: skip
JOB = JobRow(
    id=1, name="pi", group="atlas", campaign=None, index=None, state=State.NEW, outcome=None, exit_code=None,
    held=False, priority=0, cpus=1, memory_mib=16, attempt=1, node=None, submitted_s=0.0, ended_s=None,
)  # fmt: skip
SECONDS = st.floats(-1e6, 2e9, allow_nan=False)


def _nodes(**values: list[object]) -> list[NodeRow]:
    return [NODE.model_copy(update=dict(zip(values, row, strict=True))) for row in zip(*values.values(), strict=True)]


def test_a_list_is_sorted_by_any_column_and_what_is_missing_comes_first() -> None:
    rows = _nodes(name=["b", "a", "c"], cpus=[9, 10, 8], agent=["z", None, "y"])

    def names(order: str) -> str:
        return "".join(row.name for row in listing(rows, ListSearch(order=order)).rows)

    assert [names(order) for order in ("name", "-name", "cpus", "agent", "-agent")] == [
        "abc", "cba", "cba", "acb", "bca",
    ]  # fmt: skip
    assert names("") == names("model_fields") == names("secret") == "bac"


def test_a_list_is_searched_in_all_fields_and_turned_page_by_page() -> None:
    rows = _nodes(name=[f"n{number}" for number in range(ROWS_A_PAGE + 5)])
    assert [len(listing(rows, ListSearch(page=page)).rows) for page in (1, 2, 3)] == [ROWS_A_PAGE, 5, 0]
    found = listing(rows, ListSearch(text="N1"))
    assert (found.total, found.rows[0].name) == (11, "n1")
    assert listing(rows, ListSearch(text="IDLE")).total == len(rows)


@st.composite
def _attempts(draw: st.DrawFn) -> AttemptRow:
    claimed_s = draw(SECONDS)
    return AttemptRow(
        attempt=1, agent="a", node="n", claimed_s=claimed_s, ended_s=draw(st.none() | SECONDS), ending=None, detail="",
        started_s=None, restored_from=None, restore_s=draw(SECONDS), compute_s=draw(SECONDS), save_s=draw(SECONDS),
    )  # fmt: skip


def _detail(*attempts: AttemptRow) -> JobDetail:
    return JobDetail(
        job=JOB, image="i", command=(), environment={}, retries=0, saves_itself=None, failures=0, waits_because=None,
        attempts=attempts, events=(), checkpoints=(), output_bytes=None,
    )  # fmt: skip


@given(attempts=st.lists(_attempts(), min_size=1, max_size=5), now_s=SECONDS)
def test_whatever_clocks_say_a_chart_stays_in_its_frame(attempts: list[AttemptRow], now_s: float) -> None:
    chart = slice_chart(_detail(*attempts), now_s=now_s)
    assert chart is not None
    for bar in chart.bars:
        for part in bar.parts:
            assert 0 <= part.x <= part.x + part.width <= WIDTH + 1


def test_a_chart_shows_what_each_slice_was_spent_on() -> None:
    saved = AttemptRow(
        attempt=1, agent="a", node="n1", claimed_s=1000.0, ended_s=1100.0, ending="saved", detail="", started_s=1000.0,
        restored_from=None, restore_s=0.0, compute_s=60.0, save_s=30.0,
    )  # fmt: skip
    runs = saved.model_copy(
        update={"claimed_s": 1150.0, "ended_s": None, "restore_s": 20.0, "compute_s": 0.0, "save_s": 0.0, "node": "n2"}
    )
    chart = slice_chart(_detail(saved, runs), now_s=1200.0)
    assert chart is not None
    assert [[(part.what, part.x, part.seconds) for part in bar.parts] for bar in chart.bars] == [
        [("other", 0.0, 10.0), ("compute", 50.0, 60.0), ("save", 350.0, 30.0)],
        [("restore", 750.0, 20.0), ("compute", 850.0, 30.0)],
    ]
    assert slice_chart(_detail(), now_s=0.0) is None
