"""The demo's loads, and what it reads from a job's slices."""

import pytest
from demo.timeline import Span, loads, spans_of_attempts


def test_only_computing_is_load_and_a_node_counts_once_however_many_jobs_it_has() -> None:
    spans = [
        Span("a", "restoring", 0, 2),
        Span("a", "computing", 2, 8),
        Span("a", "computing", 4, 8),
        Span("a", "saving", 8, 9),
        Span("b", "regular", 0, 5),
        Span("b", "computing", 4, 7),  # what Slurm has given to a regular job is the regular job's
    ]
    found = loads(spans, ["a", "b"], start_s=0, end_s=10)
    assert (found.without, found.effective, found.operations) == pytest.approx((5 / 20, 13 / 20, 3 / 20))


def test_what_lies_outside_the_window_does_not_count() -> None:
    found = loads([Span("a", "regular", -5, 5), Span("a", "computing", 5, 50)], ["a"], start_s=0, end_s=10)
    assert (found.without, found.effective) == (0.5, 1.0)


def test_a_slice_is_restoring_computing_and_saving_in_this_order() -> None:
    row = {"name": "pythia", "index": 3}
    ran = {"node": "a", "started_s": 100.0, "restore_s": 2.0, "compute_s": 50.0, "save_s": 3.0}
    unstarted = ran | {"started_s": None}
    assert spans_of_attempts([{"job": row, "attempts": [ran, unstarted]}]) == [
        Span("a", "restoring", 100, 102, "pythia 3"),
        Span("a", "computing", 102, 152, "pythia 3"),
        Span("a", "saving", 152, 155, "pythia 3"),
    ]
