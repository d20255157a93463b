"""A report with every kind of part in it."""

import math

from gleaner.control.simulation.metrics.tables import Table
from gleaner.control.simulation.report.page import (
    Axis,
    Curve,
    Lines,
    Page,
    Part,
    Section,
    Stack,
    Unit,
)

NASTY = "</script><script>document.title = 'taken'</script><img src=x onerror=\"document.title='taken'\"> & \"quoted\""
"""A name as nobody should give a user or a job."""
LENGTHS_S = (900.0, 1800.0, 3600.0, 7200.0)


def everything(name: str = NASTY) -> Page:
    """Two plots, and text in which `name` stands wherever a trace's own words may stand."""
    time = Axis("time", Unit.SECONDS)
    lines = Lines(
        f"Effective load {name}",
        Axis("length of agents", Unit.SECONDS, logarithmic=True),
        Axis("effective load", Unit.SHARE),
        [
            Curve(name, LENGTHS_S, (0.95, 0.97, 0.985, 0.98), (0.94, 0.96, 0.98, 0.97), (0.96, 0.98, 0.99, 0.99)),
            Curve("not", LENGTHS_S, (0.94, math.nan, 0.98, 0.975)),
        ],
        limits=[(0.99, name)],
    )
    stack = Stack("Use", time, Axis("share", Unit.SHARE), [0, 60, 120], {"regular jobs": [0.5, 0.7]})
    words: list[Part] = [name, (name,), {name: name}, Table((name, "b"), ((name, "1"),), name)]
    return Page(name, name, [Section(name, words), Section("Plots", [lines, stack])])
