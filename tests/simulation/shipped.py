"""The project's own trace: 2,000 jobs on 128 processors, made once and then kept as it is.

They are the batch jobs of the Lublin-Feitelson model at a load of 0.9, made by `synthetic` with the seed 2003. Their
waits (column 3) are those of EASY backfilling, found by the slow scheduler of `oracle`.
"""

from pathlib import Path

PROCESSORS = 128
PATH = Path(__file__).with_name("data") / "lublin-128.swf.gz"
