"""The files that go onto a site's machines: units, scripts, CRIU's options. The wheel has them, too."""

from pathlib import Path

_INSTALLED = Path(__file__).with_name("shipped_files")
_SOURCE = Path(__file__).parents[4]
FILES = {
    "runc.conf": "images/node/criu/runc.conf",
    "epilog.sh": "deploy/epilog.sh",
    "watchdog": "deploy/watchdog",
    "containerd-gleaner.conf": "deploy/systemd/containerd-gleaner.conf",
    "gleaner-control.service": "deploy/systemd/gleaner-control.service",
    "gleaner-helper.service": "deploy/systemd/gleaner-helper.service",
    "gleaner-watchdog.service": "deploy/systemd/gleaner-watchdog.service",
}
"""Each file by its name, with its place in the source; pyproject.toml puts them into the wheel."""


def content(name: str) -> bytes:
    """Return the content of one of the files."""
    installed = _INSTALLED / name
    return (installed if installed.exists() else _SOURCE / FILES[name]).read_bytes()
