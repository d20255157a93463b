"""The measured parts of a slice's time."""

from tests.agent.fake_clock import FakeClock

from gleaner.agent.timing.stopwatch import Activity, Stopwatch


def test_all_saves_of_an_attempt_count_together_and_the_computing_between_them_too() -> None:
    clock = FakeClock(100)
    times = Stopwatch(clock)
    begun = (1, Activity.RESTORING), (2, Activity.COMPUTING)
    for after_s, doing in (*begun, (7, Activity.SAVING), (2, Activity.COMPUTING)):
        clock.advance(after_s)
        times.switch_to(doing)
    clock.advance(8)
    told = times.slice()
    assert (told.started_s, told.start_s, told.restore_s, told.compute_s, told.save_s) == (100, 1, 2, 15, 2)
    for after_s, doing in ((10, Activity.SAVING), (1, Activity.OVER)):
        clock.advance(after_s)
        times.switch_to(doing)
    clock.advance(369)
    told = times.slice()
    assert (told.start_s, told.restore_s, told.compute_s, told.save_s) == (1, 2, 25, 3)
    assert times.has_run
