"""The key that encrypts the groups' secrets. It is stored in a file with mode 0600.

The file has one key on each line. The first key encrypts, and all keys can decrypt, so an admin replaces the key by
adding a new first line.
"""

import os
import stat
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from gleaner.control.queue.errors import KeyFault

LARGEST_BYTES = 65_536


def make(path: Path) -> bool:
    """Create the file with a new key. Return False, and change nothing, if it already exists. Raises `OSError`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "wb") as file:
        file.write(Fernet.generate_key() + b"\n")
        file.flush()
        os.fsync(descriptor)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)  # if a power cut removed the key, all secrets that were encrypted with it would be lost
    finally:
        os.close(folder)
    return True


def read(path: Path) -> MultiFernet:
    """Return the keys. Raises `KeyFault`."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(LARGEST_BYTES)
    except FileNotFoundError:
        raise KeyFault(
            f"this site has no key for secrets: an admin makes {path} with `glean control prepare`, or copies it from"
            " the other machine of control"
        ) from None
    except OSError as error:
        raise KeyFault(f"the key for secrets, {path}, cannot be read: {error.strerror}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise KeyFault(f"the key for secrets can be read by others: chmod 600 {path}")
    try:
        return MultiFernet([Fernet(line) for line in content.split()])
    except ValueError:  # the library's message might quote the key
        raise KeyFault(f"{path} has no key for secrets: a key is a line of 44 letters and signs") from None


def decrypt(path: Path, sealed: bytes) -> str:
    """Decrypt a value that was encrypted with a key of the file. Raises `KeyFault`."""
    try:
        return read(path).decrypt(sealed).decode()
    except InvalidToken:
        raise KeyFault(
            f"a secret was encrypted with a key that is not in {path}: put that key back, or set it anew"
        ) from None
