"""Certificates for servers of tests on this machine."""

import subprocess
from pathlib import Path


def self_signed(folder: Path) -> tuple[Path, Path]:
    """Make a certificate that nobody but itself vouches for, and its key; return both files."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    names = ["-subj", "/CN=here", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    words: list[str | Path] = ["openssl", "req", "-x509", *kind, *names, "-keyout", key, "-out", certificate]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    return certificate, key
