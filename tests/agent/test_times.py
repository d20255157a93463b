"""How a slice's time is told."""

from gleaner.agent.times import Doing, Times


def test_all_saves_of_an_attempt_count_together_and_the_computing_between_them_too() -> None:
    times = Times(started_s=100)
    times.turn_to(Doing.COMPUTING, 103)
    times.turn_to(Doing.SAVING, 110)
    times.turn_to(Doing.COMPUTING, 112)
    told = times.slice(120)
    assert (told.started_s, told.restore_s, told.compute_s, told.save_s) == (100, 3, 15, 2)
    times.turn_to(Doing.SAVING, 130)
    times.turn_to(Doing.OVER, 131)
    told = times.slice(500)
    assert (told.restore_s, told.compute_s, told.save_s) == (3, 25, 3)
    assert times.has_run


def test_a_slice_that_never_ran_only_prepared() -> None:
    times = Times(started_s=100)
    told = times.slice(107)
    assert (told.restore_s, told.compute_s, told.save_s) == (7, 0, 0)
    assert not times.has_run
