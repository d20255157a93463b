"""How much a waiting job counts: the linear sum of its traits, as Slurm's multi-factor priority. Pure.

`core` is one plain function over NumPy arrays: live control calls it as it is, the simulator compiles it.
"""

import numpy as np
from numpy.typing import NDArray


def core(  # noqa: PLR0917 - numba takes no keywords
    now_s: float,
    since_s: NDArray[np.float64],
    units: NDArray[np.int64],
    limit_s: NDArray[np.float64],
    per_second: float,
    per_unit: float,
    per_limit_s: float,
) -> NDArray[np.float64]:
    """The priority of each job that waits since `since_s`: the higher goes first.

    P = A x_a + B x_b + C x_c with the job's age, size and limit (Steffen, Simultaneous Fair-Share, HPCSYSPROS 2019,
    "Linear Priority Job Scheduling"; Slurm, Multifactor Priority Plugin). Slurm also cuts the age at
    `PriorityMaxAge`; here it grows without end. So every priority grows alike, and the order of two jobs is the same
    at any `now_s`.
    """
    return per_second * (now_s - since_s) + per_unit * units + per_limit_s * limit_s
