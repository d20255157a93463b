"""The files that Gleaner installs on machines: settings, units, scripts, CRIU's options.

Each file is stored in `files/`, under the path that it has on a machine. The packages contain that folder, and
`glean setup` copies from it.
"""

from pathlib import Path
from string import Template

FOLDER = Path(__file__).with_name("files")
EPILOG = "/usr/local/libexec/gleaner/epilog.sh"
WATCHDOG = "/usr/local/libexec/gleaner/watchdog"


def content(path: str, **values: object) -> bytes:
    """Return the content of a file, with `$name` replaced by these values."""
    found = FOLDER.joinpath(path.lstrip("/")).read_bytes()
    return Template(found.decode()).substitute(values).encode() if values else found
