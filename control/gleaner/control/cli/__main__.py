"""`python -m gleaner.control.cli` is `glean`."""

import sys

from gleaner.control.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
