"""The Slurm simulator's synthetic traces."""

import numpy as np
import pytest

from gleaner.lab.experiments.catalog import settings_of
from gleaner.lab.experiments.slurm_simulator import SlurmSimulatorExperiment, replayed, submitted

SETTINGS = SlurmSimulatorExperiment.model_validate(settings_of("slurm_simulator"))


@pytest.mark.extended
def test_as_long_is_simulated_as_was_published_and_a_thousand_times_as_fast() -> None:
    ours = replayed(SETTINGS, SETTINGS.stand_in, 2)
    assert SETTINGS.simulated_s[0] <= min(ours.simulated_s) <= max(ours.simulated_s) <= SETTINGS.simulated_s[1]
    assert ours.times_real_time > 1000 * SETTINGS.times_real_time


def test_the_traces_are_of_the_published_size() -> None:
    workload = submitted(SETTINGS, SETTINGS.stand_in, 0)
    assert len(workload) == 3000
    assert 30 <= workload.run_s.min() <= workload.run_s.max() <= 3600
    assert np.all(np.diff(workload.submit_s) >= 0)
