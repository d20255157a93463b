"""The promises of the paper on OMFS: entitlements within a quantum, no ping-pong, no less work than with a split."""

import numpy as np
from hypothesis import given, settings
from tests.simulation.oracle_omfs import Job
from tests.simulation.test_omfs import (
    BY_WORDS,
    ENTITLED,
    QUANTUM_S,
    SAVE_S,
    by_words,
    may_start,
    ran,
)

from gleaner.control.simulation.settings import OmfsSettings


@settings(deadline=None)
@given(jobs=may_start, rules=by_words)
def test_what_is_vacated_was_of_an_owner_above_its_entitlement_and_had_run_for_a_quantum(
    jobs: list[Job], rules: OmfsSettings
) -> None:
    """So there is no ping-pong: who has others vacated is within its entitlement, and stays safe while it is."""
    found = ran(jobs, rules)
    told = found.jobs
    until_s = told.end_s - told.save_s  # from here on it is not its owner's
    owner = np.array([job.owner for job in jobs])[told.job]
    is_vacated = until_s != found.end_s[told.job]
    for at_s, name in {(until_s[at], owner[at]) for at in np.flatnonzero(is_vacated)}:
        held = (owner == name) & (told.start_s < at_s) & ((until_s > at_s) | (is_vacated & (until_s == at_s)))
        leaving = held & (until_s == at_s)
        left = told.units[held].sum() - told.units[leaving].sum()
        assert left + told.units[leaving].max() > ENTITLED.get(name, 0)
    if rules.quantum_protects:
        assert np.all((until_s - told.start_s)[is_vacated] >= rules.quantum_s)


def test_a_claim_on_a_machine_full_of_young_jobs_starts_after_a_quantum_and_a_save() -> None:
    jobs = [Job(0, 1000, 1, "B") for _ in range(10)] + [Job(3, 100, 5, "A")]
    assert ran(jobs, BY_WORDS).start_s[10] == QUANTUM_S + SAVE_S
