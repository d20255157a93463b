"""The project's own trace: 2,000 jobs on 128 processors, made once and then kept as it is.

Its waits (column 3) are those of EASY backfilling, found by the slow scheduler of `oracle`.
`python -m tests.simulation.shipped` makes it anew. The file counts, not this recipe: other versions of NumPy may draw
other numbers.
"""

from pathlib import Path

import numpy as np
from tests.simulation.oracle import jobs_of, starts
from tests.simulation.swf_files import write_swf

from gleaner.control.simulation.model import of_processors
from gleaner.control.simulation.workloads.synthetic import (
    Exponential,
    LimitSettings,
    OwnerSettings,
    Source,
    SyntheticSettings,
    make,
)

PROCESSORS = 128
PATH = Path(__file__).with_name("data") / "lublin-128.swf.gz"
SETTINGS = SyntheticSettings(
    source=Source.LUBLIN,
    jobs=2000,
    load=0.9,
    seed=2003,
    limits=LimitSettings(factor=Exponential(mean=3)),
    owners=tuple(OwnerSettings(user=str(user), group=str(1 + user % 3), share=1 / user) for user in range(1, 13)),
)
HEADER = {
    "Computer": "none: a synthetic workload of the Gleaner project",
    "Note": "the batch jobs of the Lublin-Feitelson model (JPDC 2003) on 128 processors at a load of 0.9",
    "Scheduler": "EASY backfilling; the waits are a slow scheduler's of this project's tests",
    "MaxJobs": SETTINGS.jobs,
    "MaxProcs": PROCESSORS,
}

if __name__ == "__main__":
    PATH.parent.mkdir(exist_ok=True)
    made = make(SETTINGS, of_processors(PROCESSORS))
    answer_s = np.array(starts("easy", jobs_of(made), PROCESSORS)) - made.submit_s
    write_swf(PATH, made, header=HEADER, wait_s=answer_s)
