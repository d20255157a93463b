"""`python -m gleaner.control.cli` is `glean`."""

import sys

from gleaner.control.cli.main import main

sys.exit(main())
