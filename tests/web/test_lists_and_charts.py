"""The computations of pages themselves: the order and the pages of lists, and the picture of a job's slices."""

from gleaner.agent.job_spec import JobSpec
from gleaner.control.models.jobs import AttemptRow, Ending, JobDetail, JobRow
from gleaner.control.models.nodes import NodeRow
from gleaner.control.models.searches import ROWS_A_PAGE
from gleaner.control.policy.node_time import PARTS, BandStep
from gleaner.control.queue.node_history import NodeSlice, NodeUses
from gleaner.control.states import State
from gleaner.control.web.band_chart import band_chart
from gleaner.control.web.listing import ListSearch, listing
from gleaner.control.web.node_shares import node_shares
from gleaner.control.web.slice_chart import slice_chart
from gleaner.control.web.timeline_chart import timeline_chart

NODE = NodeRow(
    name="n0", cpus=8, memory_mib=16, state="idle", idle=True, regular=False, agent=None, failures=0,
    excluded_until_s=None,
)  # fmt: skip
JOB = JobRow(
    id=1, name="pi", group="atlas", campaign=None, index=None, state=State.NEW, outcome=None, exit_code=None,
    held=False, priority=0, cpus=1, memory_mib=16, attempt=1, node=None, submitted_s=0.0, ended_s=None,
)  # fmt: skip


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


def _detail(*attempts: AttemptRow) -> JobDetail:
    return JobDetail(
        job=JOB, spec=JobSpec(name="j", image="i"), failures=0, waits_because=None,
        attempts=attempts, events=(), checkpoints=(), output_bytes=None,
    )  # fmt: skip


def test_a_chart_shows_what_each_slice_was_spent_on() -> None:
    saved = AttemptRow(
        attempt=1, agent="a", node="n1", claimed_s=1000.0, ended_s=1100.0, ending=Ending.SAVED, detail="",
        started_s=1000.0, from_attempt=None, from_number=None, restore_s=0.0, compute_s=60.0, save_s=30.0,
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


def _step(begin_s: float, **core_s: float) -> BandStep:
    parts = dict.fromkeys(PARTS, 0.0) | core_s
    return BandStep(begin_s, begin_s + 60, **parts)


def test_a_band_is_as_high_as_the_most_cores_and_its_parts_lie_on_each_other() -> None:
    chart = band_chart([_step(0, regular=480.0, idle=120.0), _step(60, harvested=300.0), _step(120)], now_s=1000)
    assert chart is not None
    assert (chart.most_cores, len(chart.columns)) == (10, 3)
    shapes = {layer.part: layer.path for layer in chart.layers if layer.path}
    assert shapes == {
        "regular": "M0.0 40.00H333.3v160.00H0.0z",
        "harvested": "M333.3 100.00H666.7v100.00H333.3z",
        "idle": "M0.0 0.00H333.3v40.00H0.0z",
    }
    assert [layer.share for layer in chart.layers if layer.path] == [480 / 900, 300 / 900, 120 / 900]
    assert band_chart([_step(0)], now_s=60) is None
    late = band_chart([*map(_step, range(0, 3000, 60)), *(_step(s, idle=1) for s in range(3000, 6000, 60))], now_s=9999)
    assert late is not None
    assert late.begin_s == 3000  # it begins with the first data


def _slice(node: str, claimed_s: float, ended_s: float | None, **spent: float) -> NodeSlice:
    times = {"restore_s": 0.0, "save_s": 0.0, "lost_s": 0.0} | spent
    return NodeSlice(node=node, job=1, group="g", claimed_s=claimed_s, ended_s=ended_s, **times)


def test_a_timeline_shows_looks_and_on_them_slices_with_their_restores_and_saves() -> None:
    looks = [NodeUses(0, ("n1", "n2"), "ri"), NodeUses(500, ("n1", "n2"), "ah")]
    slices = [
        _slice("n1", 600, 800, restore_s=50, save_s=100), _slice("n2", 900, None), _slice("gone", 0, 5),
        _slice("n2", 100, 200, lost_s=90),
    ]  # fmt: skip
    chart = timeline_chart(
        ("n1", "n2"), looks, slices, begin_s=0, end_s=1000, look_s=500, now_s=950, ends_s=(-5, 250, 1200)
    )
    assert (chart.stripe_height, chart.height, chart.ends) == (18, 36, (250,))
    assert chart.paths == {
        "regular": "M0 9h500", "unused": "M500 9h100M800 9h150", "restoring": "M600 9h50",
        "harvested": "M650 9h50M500 27h450",
        "saving": "M700 9h100", "idle": "M0 27h100M200 27h300", "lost": "M100 27h100",
    }  # fmt: skip


def test_a_nodes_parts_are_counted_in_seconds_however_much_time_is_shown() -> None:
    looks = [NodeUses(begin_s, ("n1", "n2"), "ri") for begin_s in range(0, 100_000, 500)]
    slices = [
        _slice("n1", 600, 1100, restore_s=5, save_s=10), _slice("n1", 700, 800, save_s=5),  # beside each other
        _slice("n2", 90_000, None), _slice("gone", 0, 5), _slice("n2", 100, 200, lost_s=90),
    ]  # fmt: skip
    found = node_shares(("n1", "n2"), looks, slices, begin_s=0, end_s=200_000, look_s=500, now_s=100_000)
    assert {part: round(100_000 * share, 3) for part, share in found["n1"].items()} == {
        "regular": 99_500, "restoring": 4.167, "saving": 12.5, "harvested": 483.333,
    }  # fmt: skip
    assert {part: round(100_000 * share, 3) for part, share in found["n2"].items()} == {
        "idle": 89_900, "lost": 90, "harvested": 10_010,
    }  # fmt: skip


def test_a_picture_with_too_many_pieces_has_fewer_points() -> None:
    names = tuple(f"n{number}" for number in range(400))
    looks = [NodeUses(second, names, ("ri"[second % 2]) * len(names)) for second in range(1000)]
    chart = timeline_chart(names, looks, (), begin_s=0, end_s=1000, look_s=1, now_s=2000)
    assert sum(map(len, chart.paths.values())) < 1_000_000
