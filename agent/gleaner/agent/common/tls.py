"""Load the certificate authorities with which the agent and the command line verify control."""

import ssl
from pathlib import Path


def trusted_authorities(url: str, ca_file: Path | None) -> ssl.SSLContext | bool:
    """Return the system's authorities and the site's own, if set, or False for plain http.

    Raises `OSError` for a bad file.
    """
    if not url.startswith("https:"):
        return False  # there is no certificate, and loading the authorities takes 40 ms of processor time
    return ssl.create_default_context(cafile=ca_file)
