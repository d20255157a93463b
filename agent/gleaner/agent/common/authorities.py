"""The authorities by which control's certificate is checked."""

import ssl
from pathlib import Path


def authorities(url: str, ca_file: Path | None) -> ssl.SSLContext | bool:
    """Return those of the system, and the site's own if set; False for plain http. Raises `OSError` for a bad file."""
    if not url.startswith("https:"):
        return False  # there is no certificate, and to load the authorities takes 40 ms of the processor
    return ssl.create_default_context(cafile=ca_file)
